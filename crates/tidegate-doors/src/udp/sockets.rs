//! Sockets of the UDP door: one for each thread, all on one address (SO_REUSEPORT), so that the
//! kernel spreads clients over them and no thread waits for another.

use super::batch::Asked;
use super::source::Source;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Bound sockets, not served yet.
#[derive(Debug)]
pub struct Sockets {
    pub(super) all: Vec<UdpSocket>,
    address: SocketAddr,
    /// How the address that a datagram was sent to is known.
    pub(super) asked: Asked,
}

/// The receive buffer that the door asks for; the kernel gives at most net.core.rmem_max, and the metrics
/// tell how much it gave.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// How long a thread waits for a datagram before it looks whether it should stop.
const WAIT: Duration = Duration::from_millis(100);
/// How long a reply may wait for room in the send buffer. The network card makes room, not the client.
const SEND_WAIT: Duration = Duration::from_millis(50);

impl Sockets {
    /// Takes the address with this many sockets; port 0 takes any free one.
    ///
    /// # Errors
    /// When the address cannot be had. Another process on it is an error, too, although the kernel
    /// would let two share it.
    pub fn bind(address: SocketAddr, sockets: usize) -> io::Result<Sockets> {
        // A socket without SO_REUSEPORT fails if another process has the address, and finds a free port.
        let address = UdpSocket::bind(address)?.local_addr()?;
        let all = (0..sockets.max(1)).map(|_| bind_one(address)).collect::<io::Result<_>>()?;
        let asked = if address.ip().is_unspecified() { Asked::Told } else { Asked::TheSockets };
        Ok(Sockets { all, address, asked })
    }

    /// The address that the sockets listen on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The kernel's receive buffer of one socket.
    pub(super) fn receive_buffer_bytes(&self) -> usize {
        self.all.first().and_then(|socket| socket2::SockRef::from(socket).recv_buffer_size().ok()).unwrap_or(0)
    }
}

fn bind_one(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    // Less than we ask for is no reason not to start.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    // Before the socket is bound: a datagram that came earlier would be received without its address.
    if address.ip().is_unspecified() {
        Source::ask_for(&socket, address)?;
    }
    socket.bind(&address.into())?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.set_write_timeout(Some(SEND_WAIT))?;
    Ok(socket.into())
}
