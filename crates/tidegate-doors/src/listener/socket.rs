//! The socket under a connection: in clear text, or with TLS over it.

use super::tls::Tls;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::FallibleAccept;
use tokio_rustls::server::TlsStream;

/// A client's socket. With TLS it is behind a box: its state is a kilobyte, which a socket in clear text should not carry.
pub(super) enum Socket {
    Plain(TcpStream),
    /// The handshake is under way.
    Handshake(Box<FallibleAccept<UnderTls>>),
    Tls(Box<TlsStream<UnderTls>>),
    /// On its way from one to another.
    Closed,
}

/// What a client that does not read may have left inside of TLS; the rest waits where it is bounded already.
const UNSENT_BYTES_MAX: usize = 16 << 10;

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.tcp()).finish()
    }
}

impl Socket {
    /// The handshake begins, with what the client has sent so far.
    pub(super) fn begin_handshake(&mut self, tls: &Tls) {
        if let Socket::Plain(tcp) = mem::replace(self, Socket::Closed) {
            let bounded = |session: &mut rustls::ServerConnection| session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
            *self = Socket::Handshake(Box::new(tls.acceptor().accept_with(UnderTls(tcp), bounded).into_fallible()));
        }
    }

    /// Goes on with the handshake. What it takes of the processor, it takes here. If it fails, the socket is one in clear text
    /// again, over which the client was told why.
    pub(super) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Socket::Handshake(accept) = self else { return Poll::Ready(Ok(())) };
        let outcome = ready!(Pin::new(&mut **accept).poll(cx));
        let (socket, outcome) = match outcome {
            Ok(stream) => (Socket::Tls(Box::new(stream)), Ok(())),
            Err((error, UnderTls(tcp))) => (Socket::Plain(tcp), Err(error)),
        };
        *self = socket;
        Poll::Ready(outcome)
    }

    pub(super) fn session(&self) -> Option<&rustls::ServerConnection> {
        if let Socket::Tls(tls) = self { Some(tls.get_ref().1) } else { None }
    }

    /// The socket itself; `None`: its handshake is under way.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Socket::Plain(tcp) => Some(tcp),
            Socket::Tls(tls) => Some(&tls.get_ref().0.0),
            Socket::Handshake(_) | Socket::Closed => None,
        }
    }
}

/// Nothing is read or written until the handshake is over.
fn not_open<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(ErrorKind::NotConnected.into()))
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Socket::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, buf),
            Socket::Handshake(_) | Socket::Closed => not_open(),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Socket::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Socket::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, buf),
            Socket::Handshake(_) | Socket::Closed => not_open(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Socket::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
            Socket::Handshake(_) | Socket::Closed => not_open(),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Socket::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
            Socket::Handshake(_) | Socket::Closed => not_open(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Socket::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Socket::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(cx, bufs),
            Socket::Handshake(_) | Socket::Closed => not_open(),
        }
    }
}

/// The socket as TLS uses it. TLS writes lists of records, and nearly always of one: the system has a shorter way for one.
#[derive(Debug)]
pub(super) struct UnderTls(TcpStream);

impl AsyncRead for UnderTls {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for UnderTls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [one] => Pin::new(&mut self.0).poll_write(cx, one),
            several => Pin::new(&mut self.0).poll_write_vectored(cx, several),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
