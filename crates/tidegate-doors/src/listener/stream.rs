//! The stream under a connection, and what is spoken on it.
//!
//! In clear text the protocol is known by the first bytes. With TLS the handshake comes before them, and the client says in it what it
//! speaks (ALPN); of one that does not say the first bytes tell as well.

use super::socket::Socket;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1, or nothing that is known.
    Http1,
    /// HTTP/2: settled in the TLS handshake, or with prior knowledge.
    Http2,
}

/// How every HTTP/2 connection begins (RFC 9113, 3.4), and no HTTP/1 request does.
const PREFACE: &[u8; 16] = b"PRI * HTTP/2.0\r\n";

/// A socket, and bytes that were read from it to see what is spoken.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: Socket,
    ahead: [u8; PREFACE.len()],
    /// How many of these were read, and how many of them were given out.
    read: usize,
    given: usize,
}

impl Stream {
    pub(super) fn new(tcp: TcpStream) -> Stream {
        Stream { socket: Socket::Plain(tcp), ahead: [0; PREFACE.len()], read: 0, given: 0 }
    }

    /// The first byte that the client sends, which stays unread.
    pub(super) fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u8>> {
        let Some(tcp) = self.socket.tcp() else { return Poll::Ready(Err(ErrorKind::NotConnected.into())) };
        let mut first = [0];
        let count = ready!(tcp.poll_peek(cx, &mut ReadBuf::new(&mut first)))?;
        Poll::Ready(if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(first[0]) })
    }

    /// Reads until the protocol is known. The bytes are taken from the socket, as one that still has bytes would be reported
    /// ready again and again, and are given out first by the next read.
    pub(super) fn poll_protocol(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Protocol>> {
        while self.read < PREFACE.len() && self.ahead[..self.read] == PREFACE[..self.read] {
            let mut rest = ReadBuf::new(&mut self.ahead[self.read..]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut rest))?;
            match rest.filled().len() {
                0 => return Poll::Ready(Ok(Protocol::Http1)),
                count => self.read += count,
            }
        }
        let is_preface = self.ahead[..self.read] == PREFACE[..];
        Poll::Ready(Ok(if is_preface { Protocol::Http2 } else { Protocol::Http1 }))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.given == self.read {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        let ahead = &self.ahead[self.given..self.read];
        let count = ahead.len().min(buf.remaining());
        buf.put_slice(&ahead[..count]);
        self.given += count;
        // What has come since belongs to it: a refusal of these bytes alone would close on unread ones, which resets the
        // connection before the client has its answer. What goes wrong here goes wrong for the next read as well.
        if buf.remaining() > 0 {
            let _ = Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }
}
