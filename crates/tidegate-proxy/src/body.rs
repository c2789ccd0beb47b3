//! Bodies on their way: from the client to the upstream, and back.
//!
//! Nothing is collected: each frame goes on when it comes, and is asked for when the other side can
//! take it. The upstream's connection is driven by the task that reads its body.

use crate::client::Busy;
use crate::client_slots::UnderWay;
use crate::link::Link;
use crate::queue::Slot;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use tidegate_doors::listener::IdleTimeout;
use tracing::debug;

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
    /// Bytes that came since the silence was last reset.
    came: usize,
}

/// A client that sends fewer bytes than this within its time limit counts as silent, unless its body ends.
const PROGRESS_BYTES_MIN: usize = 1 << 10;

impl ClientBody {
    pub(crate) fn new(incoming: Incoming, silence: IdleTimeout) -> ClientBody {
        ClientBody { incoming, silence, came: 0 }
    }

    /// The client's time stops while the upstream takes its own.
    pub(crate) fn pause(&mut self) {
        self.came = 0;
        self.silence.reset();
    }

    fn note(&mut self, bytes: usize) {
        self.came += bytes;
        if self.came >= PROGRESS_BYTES_MIN {
            self.pause();
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
                self.note(data.map_or(PROGRESS_BYTES_MIN, Bytes::len));
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
    Forwarded(Answer),
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
            Reply::Forwarded(answer) => answer.look(|state| matches!(state, State::Over)),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Reply::Forwarded(answer) => {
                let length = answer.look(|state| match state {
                    State::Held(held) => held.link.length(),
                    State::Over => Some(0),
                    State::Cut => None,
                });
                length.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

/// The upstream's body, with all that must be given back at its end.
pub(crate) enum Answer {
    /// HTTP/1, where the listener notices a client that does not read.
    Alone(Streaming),
    /// HTTP/2, which asks for the next piece when the client has granted a window for it, and not at all while it has not: then
    /// nothing but an alarm beside the body gives the slot back.
    Watched(Arc<Watched>),
}

pub(crate) struct Streaming {
    /// How long the upstream may be silent.
    silence: IdleTimeout,
    state: State,
}

/// An answer that an alarm can end.
pub(crate) struct Watched(Mutex<Watching>);

struct Watching {
    streaming: Streaming,
    /// How long the client may leave the next piece; `None`: it is over.
    unread: Option<IdleTimeout>,
}

enum State {
    Held(Held),
    /// The body is over.
    Over,
    /// The client did not take it in time.
    Cut,
}

/// What a request under way holds. Dropped before the end, the connection to the upstream is closed.
pub(crate) struct Held {
    pub(crate) link: Box<Link>,
    pub(crate) slot: Slot,
    pub(crate) under_way: UnderWay,
    pub(crate) client: Busy,
}

impl Answer {
    pub(crate) fn new(held: Held, silence: IdleTimeout) -> Answer {
        let is_http2 = held.client.connection.is_switched();
        let unread = is_http2.then(|| held.client.idle_timeout(held.client.state.client_ticks));
        let mut streaming = Streaming { silence, state: State::Held(held) };
        give_back(streaming.take_if_over());
        match unread {
            None => Answer::Alone(streaming),
            Some(unread) => {
                let watched = Arc::new(Watched(Mutex::new(Watching { streaming, unread: Some(unread) })));
                watched.watching().watch(&watched);
                Answer::Watched(watched)
            }
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (frame, over) = match self {
            Answer::Alone(streaming) => (ready!(streaming.poll_frame(cx)), streaming.take_if_over()),
            Answer::Watched(watched) => ready!(watched.poll_frame(cx)),
        };
        give_back(over);
        Poll::Ready(frame)
    }

    fn look<R>(&self, at: impl FnOnce(&State) -> R) -> R {
        match self {
            Answer::Alone(streaming) => at(&streaming.state),
            Answer::Watched(watched) => at(&watched.watching().streaming.state),
        }
    }
}

impl Streaming {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let held = match &mut self.state {
            State::Held(held) => held,
            State::Over => return Poll::Ready(None),
            State::Cut => return Poll::Ready(Some(Err(BodyError::Client(None)))),
        };
        let cut_short = |error: Option<io::Error>| {
            let error = BodyError::Upstream(error);
            held.client.state.metrics.note_truncated(&error);
            error
        };
        match held.link.poll_frame(cx) {
            Poll::Ready(frame) => {
                self.silence.reset();
                Poll::Ready(frame.map(|frame| frame.map_err(|error| cut_short(Some(error)))))
            }
            Poll::Pending => self.silence.poll_silence(cx).map(|()| Some(Err(cut_short(None)))),
        }
    }

    fn take_if_over(&mut self) -> Option<Held> {
        if !matches!(&self.state, State::Held(held) if held.link.is_done()) {
            return None;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Held(held) => Some(held),
            State::Over | State::Cut => None,
        }
    }
}

impl Watching {
    /// The client's time for the next piece begins.
    fn watch(&mut self, watched: &Arc<Watched>) {
        if let (State::Held(_), Some(unread)) = (&self.streaming.state, &mut self.unread) {
            let alarm = Waker::from(Arc::clone(watched));
            let _ = unread.poll_silence(&mut Context::from_waker(&alarm));
        }
    }
}

/// The body is over: everything is given back.
fn give_back(over: Option<Held>) {
    if let Some(Held { link, slot, under_way, client }) = over {
        client.pool().put(link);
        // In this order: the request that is woken by the slot finds the connection.
        drop(slot);
        drop(under_way);
        drop(client);
    }
}

/// A piece of a body, and what is given back if it was the last.
type Piece = (Option<Result<Frame<Bytes>, BodyError>>, Option<Held>);

impl Watched {
    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_frame(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Piece> {
        let mut watching = self.watching();
        // The client takes more.
        watching.unread.iter_mut().for_each(IdleTimeout::reset);
        let frame = ready!(watching.streaming.poll_frame(cx));
        let over = watching.streaming.take_if_over();
        watching.watch(self);
        Poll::Ready((frame, over))
    }

    /// Ends the answer, and drops what it held outside of the lock.
    fn end(&self) {
        let mut watching = self.watching();
        let ended = std::mem::replace(&mut watching.streaming.state, State::Cut);
        let unread = watching.unread.take();
        drop(watching);
        drop((ended, unread));
    }
}

/// The alarm: the client did not take the next piece in time.
impl Wake for Watched {
    fn wake(self: Arc<Self>) {
        debug!("a client of HTTP/2 did not read its answer in time");
        self.end();
    }
}

/// Also when the alarm still knows it.
impl Drop for Answer {
    fn drop(&mut self) {
        if let Answer::Watched(watched) = self {
            watched.end();
        }
    }
}
