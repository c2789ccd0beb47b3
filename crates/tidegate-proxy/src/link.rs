//! One connection to the upstream: a request out, its answer in.
//!
//! HTTP/1.1 as a client speaks it, driven by the task of the request that has the connection. hyper's client
//! would want a task of its own for each connection and hand every message through two channels, which is
//! more than a third of what forwarding costs. What is sent is written in `outgoing`, what comes is read in
//! `incoming`; here they meet on the wire.
//!
//! Invariant: a link is used again only when the whole request was written, the whole answer was read, not
//! a byte came behind it, and neither side wanted to close.

use crate::body::BodyError;
use crate::incoming::{Framing, Head, read_head};
use crate::outgoing::{Outgoing, OutgoingError, Turn};
use crate::upstream::Wire;
use bytes::{Bytes, BytesMut};
use http::Method;
use hyper::body::Frame;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use tidegate_doors::listener::IdleTimeout;
use tokio::io::AsyncReadExt as _;

/// A connection to the upstream.
pub(crate) struct Link {
    wire: Wire,
    /// Read and not yet used.
    input: BytesMut,
    /// The method of the last request: what its answer looks like depends on it.
    method: Method,
    /// The request, until its answer has come; it may be sent again on another connection while not a byte of that has.
    outgoing: Option<Outgoing>,
    /// All of the request was written, or as much as the upstream wants.
    is_written: bool,
    /// The link has served a request before: the upstream may have closed it just now.
    is_kept: bool,
    framing: Framing,
    /// Neither side wants to close it.
    keeps_alive: bool,
    /// The request was not written to its end.
    is_cut_short: bool,
    /// Which upstream it leads to, counted up when the policy names another.
    pub(crate) generation: u64,
    open: Open,
}

/// What became of a request.
pub(crate) enum Sent {
    Answered(Head),
    /// The client's body broke.
    ClientBroke(BodyError),
    /// The upstream broke off, or does not speak HTTP/1.
    UpstreamBroke(io::Error),
    /// No answer in time.
    Silence,
}

/// A place among the connections to the upstream that may be open; dropping it frees it.
pub(crate) struct Open(Arc<AtomicUsize>);

impl Open {
    /// A place, if there are fewer than `max`.
    pub(crate) fn enter(open: &Arc<AtomicUsize>, max: usize) -> Option<Open> {
        let entered = open.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1));
        entered.is_ok().then(|| Open(Arc::clone(open)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Bytes that are read at once.
const READ_SIZE: usize = 16 << 10;
/// Room that is worth a read; less, and more is made.
const READ_MIN: usize = 2 << 10;

impl Link {
    /// A link that has its place among those that may be open.
    pub(crate) fn new(wire: Wire, generation: u64, open: Open) -> Link {
        Link {
            wire,
            input: BytesMut::new(),
            method: Method::GET,
            outgoing: None,
            is_written: true,
            is_kept: false,
            framing: Framing::Done,
            keeps_alive: true,
            is_cut_short: false,
            generation,
            open,
        }
    }

    /// The next request. It is sent by [`Link::poll_answer`].
    pub(crate) fn begin(&mut self, request: Outgoing) {
        self.keeps_alive = false;
        self.method = request.method.clone();
        self.outgoing = Some(request);
        self.is_written = false;
    }

    /// Sends the request and waits for the head of its answer, until the upstream was silent for too long.
    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>, silence: &mut IdleTimeout) -> Poll<Sent> {
        let turn = match self.poll_outgoing(cx) {
            Ok(turn) => turn,
            Err(error) => return Poll::Ready(Sent::ClientBroke(error)),
        };
        if turn != Turn::Upstream {
            silence.reset();
        }
        match self.poll_head(cx) {
            Poll::Ready(Ok(head)) => Poll::Ready(Sent::Answered(head)),
            Poll::Ready(Err(error)) => Poll::Ready(Sent::UpstreamBroke(error)),
            // While the client's body is slow, its own limit counts.
            Poll::Pending if turn == Turn::Client => Poll::Pending,
            Poll::Pending => silence.poll_silence(cx).map(|()| Sent::Silence),
        }
    }

    /// The request back, if the upstream closed this connection as it does with idle ones: it had served a request before, broke off
    /// before a byte of an answer came, and the request can be sent again without harm.
    pub(crate) fn take_unanswered(&mut self, error: &io::Error) -> Option<Outgoing> {
        if !self.is_kept || !self.input.is_empty() || error.kind() == io::ErrorKind::InvalidData {
            return None;
        }
        self.outgoing.take().filter(Outgoing::is_repeatable).map(Outgoing::rewound)
    }

    /// The next piece of the answer's body; `None`: its end.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        // An early answer: the request may still be on its way. If it breaks, the answer stands.
        if !self.is_written && self.poll_outgoing(cx).is_err() {
            self.is_cut_short = true;
        }
        loop {
            match self.framing.next(&mut self.input) {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) if self.framing.is_done() => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) if self.framing.ends_with_connection() => self.framing = Framing::Done,
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Is the answer's body over?
    pub(crate) fn is_done(&self) -> bool {
        self.framing.is_done()
    }

    /// How long the answer's body is, if it says so.
    pub(crate) fn length(&self) -> Option<u64> {
        self.framing.length()
    }

    /// Can it take another request?
    pub(crate) fn is_reusable(&self) -> bool {
        let is_over = self.is_written && !self.is_cut_short && self.framing.is_done() && self.input.is_empty();
        is_over && self.keeps_alive
    }

    /// Has the upstream closed it, or sent bytes without a request? Only between two requests.
    pub(crate) fn has_closed(&mut self) -> bool {
        self.is_kept = true;
        let mut cx = Context::from_waker(Waker::noop());
        self.wire.may_have_bytes(&mut cx) && self.poll_read(&mut cx).is_ready()
    }

    /// After a 101: what is left is the wire, bytes that were read too far, and its place among the open connections.
    pub(crate) fn into_wire(self) -> (Wire, Bytes, Open) {
        (self.wire, self.input.freeze(), self.open)
    }

    /// Writes what there is of the request, and returns whether to write or to read next. When all is written, or the upstream wants
    /// no more, the answer is awaited from now on.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) -> Result<Turn, BodyError> {
        let Some(outgoing) = self.outgoing.as_mut().filter(|_| !self.is_written) else { return Ok(Turn::Upstream) };
        let Poll::Ready(outcome) = outgoing.poll_write(&mut self.wire, cx) else { return Ok(outgoing.turn()) };
        self.is_written = true;
        match outcome {
            Ok(()) => Ok(Turn::UpstreamAfterSome),
            // The upstream does not want the rest; it may have answered why.
            Err(OutgoingError::Upstream) => {
                self.is_cut_short = true;
                Ok(Turn::UpstreamAfterSome)
            }
            Err(OutgoingError::Client(error)) => Err(error),
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Head>> {
        loop {
            if let Some(head) = read_head(&mut self.input, &self.method)? {
                if self.is_written {
                    self.outgoing = None;
                }
                self.framing = head.framing;
                self.keeps_alive = head.keeps_alive;
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_read(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let free = self.input.capacity() - self.input.len();
        if free < READ_MIN {
            self.input.reserve(READ_SIZE);
        }
        pin!(self.wire.read_buf(&mut self.input)).poll(cx)
    }
}
