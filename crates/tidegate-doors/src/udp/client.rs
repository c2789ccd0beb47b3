//! A client of the UDP protocol: one socket, one question at a time.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use tidegate_wire::udp::{Answer, REPLY_LEN_MAX, Request, split_id};

/// Asks a server.
///
/// ```no_run
/// use tidegate_doors::udp::Client;
/// let mut client = Client::connect("127.0.0.1:7401".parse()?)?;
/// if client.over_limit("ws ip=192.0.2.1")?.is_some_and(|answer| answer.over) {
///     println!("too many requests");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
    next_id: u16,
    timeout: Duration,
}

/// How long a reply is waited for by default.
pub const TIMEOUT: Duration = Duration::from_millis(100);

impl Client {
    /// A client of the server at this address.
    ///
    /// # Errors
    /// When no socket can be opened. Whether a server listens there shows only with the first request.
    pub fn connect(server: SocketAddr) -> io::Result<Client> {
        let any: SocketAddr =
            if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(any)?;
        // The kernel drops datagrams from any other address.
        socket.connect(server)?;
        let next_id = socket.local_addr()?.port();
        Ok(Client { socket, next_id, timeout: TIMEOUT })
    }

    /// The same client, waiting this long for a reply.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Client {
        Client { timeout, ..self }
    }

    /// Uses the key once. `None`: silence, which means not over.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub fn over_limit(&mut self, key: &str) -> io::Result<Option<Answer>> {
        let reply = self.ask(format!("over_limit {key}").as_bytes())?;
        Ok(reply.as_deref().and_then(Answer::parse))
    }

    /// Sends a command and waits for its reply, without its id; `None`: silence. A command that brings
    /// an id of its own keeps it. Replies with another id are passed over.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub fn ask(&mut self, command: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let own_id = Request::parse(command).and_then(|request| request.id);
        let id = own_id.map_or_else(|| self.new_id().into_bytes(), <[u8]>::to_vec);
        let datagram = if own_id.is_some() { command.to_vec() } else { [&id, &b" "[..], command].concat() };
        let deadline = Instant::now() + self.timeout;
        match self.socket.send(&datagram) {
            Ok(_) => {}
            // This error answers an earlier datagram, when no server listened; one may listen by now.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => drop(self.socket.send(&datagram)),
            Err(error) => return Err(error),
        }
        let mut buffer = [0; REPLY_LEN_MAX];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut buffer) {
                Ok(len) => match split_id(&buffer[..len]) {
                    (Some(told), reply) if told == id => return Ok(Some(reply.to_vec())),
                    _ => {}
                },
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The timeout has passed, or no server listens there.
                Err(_) => return Ok(None),
            }
        }
    }

    fn new_id(&mut self) -> String {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id.to_string()
    }
}
