//! The bodies of the door's responses.

use super::feed::Feed;
use super::live::Live;
use crate::listener::{Busy, Held};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Most bytes that are handed to HTTP at once, which copies them: the rest stays where all clients share it.
pub(crate) const PIECE_BYTES: usize = 16 << 10;

/// What follows the head. All but the text is boxed, as a response is handed on and on, and nearly all are texts.
pub(crate) enum ReplyBody {
    /// A text, or nothing any more.
    Text(Option<Bytes>),
    /// A large text, of which HTTP takes as much as the client reads.
    Pieces(Box<Pieces>),
    /// Messages, until one side ends it.
    Feed(Box<Feed>),
    /// How everything stands, likewise.
    Live(Box<Live>),
}

/// What is left of a large text.
pub(crate) struct Pieces {
    pub(crate) rest: Bytes,
    pub(crate) _held: Held,
    pub(crate) _busy: Busy,
}

impl ReplyBody {
    /// How long it is, if it is a text.
    pub(crate) fn text(&self) -> Option<&Bytes> {
        if let ReplyBody::Text(text) = self { text.as_ref() } else { None }
    }
}

/// The next piece of a text.
pub(crate) fn next_piece(text: &mut Bytes) -> Bytes {
    text.split_to(text.len().min(PIECE_BYTES))
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            ReplyBody::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            ReplyBody::Pieces(pieces) if pieces.rest.is_empty() => Poll::Ready(None),
            ReplyBody::Pieces(pieces) => Poll::Ready(Some(Ok(Frame::data(next_piece(&mut pieces.rest))))),
            ReplyBody::Feed(feed) => Pin::new(&mut **feed).poll_frame(cx),
            ReplyBody::Live(live) => Pin::new(&mut **live).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Text(text) => text.is_none(),
            ReplyBody::Pieces(pieces) => pieces.rest.is_empty(),
            ReplyBody::Feed(_) | ReplyBody::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            ReplyBody::Pieces(pieces) => SizeHint::with_exact(pieces.rest.len() as u64),
            ReplyBody::Feed(_) | ReplyBody::Live(_) => SizeHint::default(),
        }
    }
}
