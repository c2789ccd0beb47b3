//! HTTP by hand: as fast as the server, and able to stop in the middle.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// Sends a request on a kept-open connection: the status and the body. 0: the connection broke.
pub fn exchange(wire: &mut TcpStream, what: &str, body: &str) -> (u16, String) {
    let request = format!("{what} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    if wire.write_all(request.as_bytes()).is_err() {
        return (0, String::new());
    }
    response(wire)
}

/// Reads one response.
pub fn response(wire: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return (head[9..12].parse().unwrap(), body.to_owned());
            }
        }
        match wire.read(&mut chunk) {
            Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
            _ => return (0, String::new()),
        }
    }
}

/// GET on a connection of its own, with these header fields (`name: value\r\n` each): the whole answer as text.
///
/// # Errors
/// When nobody listens, or nothing comes within [`WAIT_TIME_MAX`](crate::WAIT_TIME_MAX).
pub fn get(address: SocketAddr, path: &str, fields: &str) -> std::io::Result<String> {
    let mut wire = TcpStream::connect(address)?;
    wire.set_read_timeout(Some(crate::WAIT_TIME_MAX))?;
    write!(wire, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n")?;
    let mut answer = String::new();
    wire.read_to_string(&mut answer)?;
    Ok(answer)
}
