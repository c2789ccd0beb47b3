//! What a call is answered: a message and its trailers, or trailers alone.
//!
//! HTTP/2 does not ask for a body while the client grants no window for it, so that an alarm beside the body is what notices a client that does
//! not read; it cuts the connection.

use crate::listener::{Busy, IdleTimeout, Place};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tidegate_wire::grpc::{Code, Status};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The answer to a call.
pub(super) type Reply = Response<ReplyBody>;

/// What follows the head.
pub(super) struct ReplyBody {
    content: Content,
    unread: Option<Unread>,
}

enum Content {
    Nothing,
    /// The only message.
    Message(Bytes),
    /// The end, as trailers.
    End(Status),
    /// Messages, as they come.
    Stream(Box<dyn Messages>),
}

/// Messages that come one by one, and an end.
pub(super) trait Messages: Send {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>>;
}

/// The alarm for a client that does not read.
pub(super) struct Unread {
    pub(super) timeout: IdleTimeout,
    pub(super) cut: Waker,
}

/// A message, framed, and that all is well.
pub(super) fn message(framed: Vec<u8>) -> Reply {
    with_body(Content::Message(framed.into()))
}

/// Messages as they come. The call is under way, and has its place, until they end.
pub(super) fn stream(messages: impl Messages + 'static, place: Place, busy: Busy) -> Reply {
    with_body(Content::Stream(Box::new(Held { messages, _place: place, _busy: busy })))
}

struct Held<M> {
    messages: M,
    _place: Place,
    _busy: Busy,
}

impl<M: Messages> Messages for Held<M> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        self.messages.poll_next(cx)
    }
}

fn with_body(content: Content) -> Reply {
    let mut reply = Response::new(ReplyBody { content, unread: None });
    reply.headers_mut().insert(CONTENT_TYPE, GRPC);
    reply
}

/// That it did not end well. There is no body then: the trailers are the head.
pub(super) fn refusal(status: &Status) -> Reply {
    let mut reply = with_body(Content::Nothing);
    end(reply.headers_mut(), status);
    if status.code == Code::Unimplemented {
        reply.headers_mut().insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    reply
}

/// No gRPC at all.
pub(super) fn not_grpc(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody { content: Content::Nothing, unread: None });
    *reply.status_mut() = status;
    reply
}

fn end(fields: &mut HeaderMap, status: &Status) {
    fields.insert(GRPC_STATUS, HeaderValue::from(u16::from(status.code.number())));
    if !status.message.is_empty()
        && let Ok(message) = HeaderValue::from_str(&status.message_field())
    {
        fields.insert(GRPC_MESSAGE, message);
    }
}

impl ReplyBody {
    /// Sets the alarm, unless the head is all there is.
    pub(super) fn watch(&mut self, unread: Unread) {
        if !self.is_end_stream() {
            let unread = self.unread.insert(unread);
            let _ = unread.timeout.poll_silence(&mut Context::from_waker(&unread.cut));
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let ReplyBody { content, unread } = &mut *self;
        if let Some(unread) = unread {
            unread.timeout.reset();
        }
        let (frame, next) = match std::mem::replace(content, Content::Nothing) {
            Content::Nothing => return Poll::Ready(None),
            Content::Message(message) => (Frame::data(message), Content::End(Status::new(Code::Ok, ""))),
            Content::End(status) => {
                let mut fields = HeaderMap::with_capacity(2);
                end(&mut fields, &status);
                (Frame::trailers(fields), Content::Nothing)
            }
            Content::Stream(mut messages) => match messages.poll_next(cx) {
                Poll::Pending => {
                    *content = Content::Stream(messages);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(message)) => (Frame::data(message), Content::Stream(messages)),
                Poll::Ready(Err(status)) => {
                    let mut fields = HeaderMap::with_capacity(2);
                    end(&mut fields, &status);
                    (Frame::trailers(fields), Content::Nothing)
                }
            },
        };
        *content = next;
        if let Some(unread) = unread {
            let _ = unread.timeout.poll_silence(&mut Context::from_waker(&unread.cut));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}
