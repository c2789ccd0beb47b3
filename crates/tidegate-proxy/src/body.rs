//! Bodies on their way: from the client to the upstream, and back.
//!
//! Nothing is collected: each frame goes on when it comes, and is asked for when the other side can
//! take it. The upstream's connection is driven by whoever reads its body, in one task.

use crate::client::Busy;
use crate::link::Link;
use crate::queue::Slot;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidegate_doors::listener::IdleTimeout;

/// Why a body ended before its end.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client sent nonsense, went away or fell silent.
    Client(Option<hyper::Error>),
    /// The upstream did.
    Upstream(Option<io::Error>),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Client(Some(error)) => write!(f, "the client's body: {error}"),
            BodyError::Client(None) => f.write_str("the client's body: silence"),
            BodyError::Upstream(Some(error)) => write!(f, "the upstream's body: {error}"),
            BodyError::Upstream(None) => f.write_str("the upstream's body: silence"),
        }
    }
}

impl Error for BodyError {}

/// What a client sends: read when the upstream asks for it, never before.
pub(crate) struct ClientBody {
    incoming: Incoming,
    silence: IdleTimeout,
}

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, silence: IdleTimeout) -> ClientBody {
        ClientBody { incoming, silence }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.silence.reset();
                Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Client(Some(error)))))
            }
            Poll::Pending => self.silence.poll_silence(cx).map(|()| Some(Err(BodyError::Client(None)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// What a client is answered.
pub(crate) enum Reply {
    /// A text of our own.
    Own(Option<Bytes>),
    /// The upstream's answer.
    Forwarded(Box<Answer>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Reply::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Reply::Forwarded(answer) => answer.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Own(text) => text.is_none(),
            Reply::Forwarded(answer) => answer.held.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Reply::Forwarded(answer) => {
                let length = answer.held.as_ref().map_or(Some(0), |held| held.link.length());
                length.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

/// The upstream's body, with all that must be given back at its end.
pub(crate) struct Answer {
    silence: IdleTimeout,
    /// `None`: the body is over.
    held: Option<Held>,
}

/// What a request under way holds. Dropped before the end, the connection to the upstream is closed.
pub(crate) struct Held {
    pub(crate) link: Box<Link>,
    pub(crate) slot: Slot,
    pub(crate) client: Busy,
}

impl Answer {
    pub(crate) fn new(held: Held, silence: IdleTimeout) -> Answer {
        let mut answer = Answer { silence, held: Some(held) };
        answer.settle();
        answer
    }

    /// Gives everything back if the body is over.
    fn settle(&mut self) {
        if let Some(Held { link, slot, client }) = self.held.take_if(|held| held.link.is_done()) {
            client.pool().put(link);
            // In this order: who is woken by the slot finds the connection.
            drop(slot);
            drop(client);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(held) = &mut self.held else { return Poll::Ready(None) };
        let frame = match held.link.poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.silence.poll_silence(cx).map(|()| Some(Err(BodyError::Upstream(None)))),
        };
        self.silence.reset();
        self.settle();
        Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Upstream(Some(error)))))
    }
}
