//! A connection as HTTP sees it: bytes in and out, noted as they pass.

use super::connection::Connection;
use super::frames::Frames;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Writes up to this size are copied together: for the kernel one piece is cheaper than several.
const SMALL: usize = 1024;

/// The bytes of a connection. `look` sees those that come, and may change them, before anybody else does; it tells whether they
/// end inside the head of a request.
pub struct Watched<Look> {
    connection: Arc<Connection>,
    look: Look,
    /// Of HTTP/2, whose bytes are followed and not looked at.
    frames: Option<Frames>,
}

impl Watched<fn(&mut [u8]) -> bool> {
    /// The bytes of a connection of HTTP/2, of which a frame and a head must end in time.
    #[must_use]
    pub fn http2(connection: Arc<Connection>) -> Self {
        Watched { connection, look: |_| false, frames: Some(Frames::default()) }
    }
}

impl<Look: FnMut(&mut [u8]) -> bool + Unpin> Watched<Look> {
    /// The bytes of `connection`.
    #[must_use]
    pub fn new(connection: Arc<Connection>, look: Look) -> Watched<Look> {
        Watched { connection, look, frames: None }
    }
}

impl<Look: FnMut(&mut [u8]) -> bool + Unpin> AsyncRead for Watched<Look> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut *self.connection.socket()).poll_read(cx, buf);
        let is_end = matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0;
        if is_end && self.connection.withholds_end(cx) {
            return Poll::Pending;
        }
        let came = &mut buf.filled_mut()[before..];
        if came.is_empty() {
            return polled;
        }
        let Watched { connection, look, frames } = &mut *self;
        match frames {
            Some(frames) => connection.note_frames(frames.follow(came)),
            None if connection.is_switched() => {}
            None => connection.note_read(look(came)),
        }
        polled
    }
}

impl<Look: FnMut(&mut [u8]) -> bool + Unpin> AsyncWrite for Watched<Look> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.connection.socket()).poll_write(cx, buf);
        self.connection.note_written(&written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match self.connection.is_encrypted() {
            true => Pin::new(&mut *self.connection.socket()).poll_flush(cx),
            // A socket holds nothing back.
            false => Poll::Ready(Ok(())),
        };
        match flushed {
            Poll::Ready(_) => self.connection.note_flushed(),
            // What was written is inside of TLS still.
            Poll::Pending => self.connection.note_written(&Poll::Pending),
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection.socket()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        if length > SMALL {
            let written = Pin::new(&mut *self.connection.socket()).poll_write_vectored(cx, bufs);
            self.connection.note_written(&written);
            return written;
        }
        let (mut small, mut at) = ([0; SMALL], 0);
        for buf in bufs {
            small[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        self.poll_write(cx, &small[..at])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
