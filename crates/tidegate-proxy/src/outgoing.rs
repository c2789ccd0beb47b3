//! A request on its way to the upstream: its head, then its body as it comes.
//!
//! Framing is ours: a body with a length keeps its length and is held to it; any other goes in chunks.

use crate::body::{BodyError, ClientBody};
use crate::fields::{may_trail, push_field};
use crate::target::Target;
use crate::upstream::Wire;
use bytes::{Buf as _, Bytes};
use http::{HeaderMap, Method};
use hyper::body::{Body as _, Frame};
use std::io::{IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;

/// Why a request was not written to its end.
pub(crate) enum OutgoingError {
    Client(BodyError),
    /// The connection broke. Reading from it gives the reason.
    Upstream,
}

pub(crate) struct Outgoing {
    pub(crate) method: Method,
    /// Written first: the request's head, a chunk's, or the end.
    head: Vec<u8>,
    written: usize,
    data: Bytes,
    /// Written last: the end of a chunk.
    tail: &'static [u8],
    body: Option<ClientBody>,
    framing: Framing,
    /// What came of the last try to write.
    turn: Turn,
    is_repeatable: bool,
}

/// Which side has to act while a request is not written to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All that came from the client was taken.
    Client,
    /// The upstream does not take more; it took some since the last try.
    UpstreamAfterSome,
    /// It took nothing.
    Upstream,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// So many bytes are left.
    Length(u64),
    Chunks,
}

/// Most heads fit.
const HEAD_SIZE: usize = 512;

impl Outgoing {
    /// `push_fields` writes the fields of the head, but for those that frame the body; `length` is the body's, if the
    /// client named one. There is a body unless that is zero, or none was named and none came.
    pub(crate) fn new(
        method: Method,
        target: &Target<'_>,
        push_fields: impl FnOnce(&mut Vec<u8>),
        length: Option<u64>,
        body: Option<ClientBody>,
    ) -> Outgoing {
        let mut head = Vec::with_capacity(HEAD_SIZE);
        head.extend_from_slice(method.as_str().as_bytes());
        head.push(b' ');
        target.push_line(&mut head);
        head.extend_from_slice(b" HTTP/1.1\r\n");
        push_fields(&mut head);
        let framing = match length {
            Some(length) => {
                // Writing to a vector cannot fail.
                let _ = write!(head, "content-length: {length}\r\n");
                Framing::Length(length)
            }
            None if body.is_none() => Framing::Length(0),
            None => {
                head.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Framing::Chunks
            }
        };
        head.extend_from_slice(b"\r\n");
        let is_repeatable = body.is_none() && method.is_safe();
        let (data, turn) = (Bytes::new(), Turn::Upstream);
        Outgoing { method, head, written: 0, data, tail: b"", body, framing, turn, is_repeatable }
    }

    /// May it be sent a second time? Only what changes nothing (RFC 9110, 9.2.1), and has no body that is gone once it is sent.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    /// The same from its beginning, for another connection.
    pub(crate) fn rewound(mut self) -> Outgoing {
        self.written = 0;
        self
    }

    /// Which side the last try to write waited for.
    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    /// Ready: all of it was written, or could not be.
    pub(crate) fn poll_write(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<(), OutgoingError>> {
        self.turn = Turn::Upstream;
        loop {
            match self.poll_pieces(wire, cx) {
                Poll::Ready(written) => written?,
                Poll::Pending => {
                    self.body.iter_mut().for_each(ClientBody::pause);
                    return Poll::Pending;
                }
            }
            let Some(body) = &mut self.body else {
                return Pin::new(wire).poll_flush(cx).map_err(|_| OutgoingError::Upstream);
            };
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take(frame)?,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(OutgoingError::Client(error))),
                Poll::Ready(None) => self.end(None)?,
                // What was written must not wait in a TLS buffer for what is not there.
                Poll::Pending => {
                    if Pin::new(wire).poll_flush(cx).is_ready() {
                        self.turn = Turn::Client;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn poll_pieces(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<Result<(), OutgoingError>> {
        loop {
            let head = &self.head[self.written..];
            let left = head.len() + self.data.len() + self.tail.len();
            if left == 0 {
                return Poll::Ready(Ok(()));
            }
            let wire = Pin::new(&mut *wire);
            let polled = if left == head.len() {
                wire.poll_write(cx, head)
            } else {
                wire.poll_write_vectored(cx, &[IoSlice::new(head), IoSlice::new(&self.data), IoSlice::new(self.tail)])
            };
            match ready!(polled) {
                Ok(count) if count > 0 => self.advance(count),
                _ => return Poll::Ready(Err(OutgoingError::Upstream)),
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        self.turn = Turn::UpstreamAfterSome;
        let of_head = count.min(self.head.len() - self.written);
        self.written += of_head;
        count -= of_head;
        let of_data = count.min(self.data.len());
        self.data.advance(of_data);
        self.tail = &self.tail[count - of_data..];
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<(), OutgoingError> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return self.end(frame.into_trailers().ok()),
        };
        (self.written, self.data) = (0, data);
        self.head.clear();
        match &mut self.framing {
            Framing::Length(left) => {
                // More than was said cannot come; if it did, the next request's head would begin too early.
                let rest = left.checked_sub(self.data.len() as u64);
                *left = rest.ok_or(OutgoingError::Client(BodyError::Client(None)))?;
            }
            Framing::Chunks if self.data.is_empty() => {}
            Framing::Chunks => {
                self.tail = b"\r\n";
                // Writing to a vector cannot fail.
                let _ = write!(self.head, "{:x}\r\n", self.data.len());
            }
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), OutgoingError> {
        self.body = None;
        self.written = 0;
        self.head.clear();
        match self.framing {
            Framing::Length(0) => Ok(()),
            Framing::Length(_) => Err(OutgoingError::Client(BodyError::Client(None))),
            Framing::Chunks => {
                self.head.extend_from_slice(b"0\r\n");
                let trailers = trailers.iter().flatten().filter(|(name, _)| may_trail(name));
                trailers.for_each(|(name, value)| push_field(&mut self.head, name, value));
                self.head.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}
