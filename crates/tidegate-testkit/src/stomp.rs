//! A STOMP client over WebSocket that shares no code with the door: it masks, and can send what no client should.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection.
pub struct Client {
    /// Its socket, for tests that stop reading or go away.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// What a server sends.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// A STOMP frame's command, header lines and body.
    Frame(String, Vec<String>, String),
    /// A heart-beat.
    Beat,
    /// The answer to a ping, with what was in it.
    Pong(Vec<u8>),
    /// A close frame's code.
    Close(u16),
    /// The connection has ended.
    End,
}

impl Heard {
    /// What an ERROR says; anything else fails the test.
    #[track_caller]
    pub fn error(self) -> String {
        match self {
            Heard::Frame(command, headers, body) if command == "ERROR" => format!("{} {body}", headers.join(" ")),
            other => panic!("no ERROR but {other:?}"),
        }
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let Heard::Frame(_, headers, _) = self else { return None };
        headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }
}

impl Client {
    /// An open WebSocket.
    pub fn open(address: SocketAddr) -> Client {
        Client::open_with(address, "").unwrap_or_else(|head| panic!("{head}"))
    }

    /// The same, with header fields (`name: value\r\n` each).
    ///
    /// # Errors
    /// The head of an answer that is not 101.
    pub fn open_with(address: SocketAddr, fields: &str) -> Result<Client, String> {
        Client::open_over(TcpStream::connect(address).unwrap(), fields)
    }

    /// The same on a connection that is there, such as one from another address.
    ///
    /// # Errors
    /// The head of an answer that is not 101.
    pub fn open_over(stream: TcpStream, fields: &str) -> Result<Client, String> {
        let address = stream.peer_addr().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut client = Client { stream, buffer: Vec::new() };
        let hello = format!(
            "GET /ws HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
        );
        client.stream.write_all(hello.as_bytes()).unwrap();
        let end = loop {
            if let Some(at) = client.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(client.fill(), "no answer");
        };
        let head = String::from_utf8(client.buffer.drain(..end).collect()).unwrap();
        let is_open = head.starts_with("HTTP/1.1 101") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        if is_open { Ok(client) } else { Err(head) }
    }

    /// Connected, and it has heard so.
    pub fn connected(address: SocketAddr) -> Client {
        let mut client = Client::open(address);
        client.send("CONNECT\naccept-version:1.2\n\n\0");
        let heard = client.hear();
        assert!(matches!(&heard, Heard::Frame(command, ..) if command == "CONNECTED"), "{heard:?}");
        client
    }

    /// Sends text in one frame.
    pub fn send(&mut self, text: &str) {
        self.send_raw(0x81, text.as_bytes());
    }

    /// Sends a frame with this first byte, masked.
    pub fn send_raw(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match payload.len() {
            len @ 0..=125 => frame.push(0x80 | u8::try_from(len).unwrap()),
            len @ 126..=65_535 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            }
            len => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        let mask = [1, 2, 3, 4];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        // A server that has said ERROR may be gone already.
        let _ = self.stream.write_all(&frame);
    }

    /// The next frame but for heart-beats.
    pub fn hear(&mut self) -> Heard {
        loop {
            match self.hear_any() {
                Heard::Beat => {}
                other => return other,
            }
        }
    }

    /// The next frame, heart-beats included.
    pub fn hear_any(&mut self) -> Heard {
        loop {
            if let Some((opcode, payload)) = self.take() {
                return match opcode {
                    8 => Heard::Close(u16::from_be_bytes([payload[0], payload[1]])),
                    10 => Heard::Pong(payload),
                    _ if payload == b"\n" => Heard::Beat,
                    _ => stomp(&payload),
                };
            }
            if !self.fill() {
                return Heard::End;
            }
        }
    }

    fn take(&mut self) -> Option<(u8, Vec<u8>)> {
        let (first, short) = (*self.buffer.first()?, *self.buffer.get(1)?);
        let (len, head) = match short {
            126 => (u64::from(u16::from_be_bytes([*self.buffer.get(2)?, *self.buffer.get(3)?])), 4),
            127 => (self.buffer.get(2..10)?.iter().fold(0, |len, byte| len << 8 | u64::from(*byte)), 10),
            short => (u64::from(short), 2),
        };
        let end = head + usize::try_from(len).unwrap();
        let payload = self.buffer.get(head..end)?.to_vec();
        self.buffer.drain(..end);
        Some((first & 15, payload))
    }

    fn fill(&mut self) -> bool {
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(read) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing heard: {error}"),
        }
    }

    /// ERROR, then a close frame or the end.
    #[track_caller]
    pub fn is_refused(&mut self, part: &str) {
        let started = Instant::now();
        let error = self.hear().error();
        assert!(error.contains(part), "{error} without {part}");
        assert!(matches!(self.hear(), Heard::Close(_) | Heard::End));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

fn stomp(payload: &[u8]) -> Heard {
    let text = String::from_utf8(payload.to_vec()).unwrap();
    let (head, body) = text.split_once("\n\n").unwrap();
    let mut lines = head.lines().map(str::to_owned);
    Heard::Frame(lines.next().unwrap(), lines.collect(), body.strip_suffix('\0').unwrap().to_owned())
}
