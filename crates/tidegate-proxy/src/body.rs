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

    /// The client is not to blame for what takes time now.
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
            Reply::Forwarded(answer) => matches!(answer.0.streaming().state, State::Over),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Reply::Forwarded(answer) => {
                let length = match &answer.0.streaming().state {
                    State::Held(held) => held.link.length(),
                    State::Over => Some(0),
                    State::Cut => None,
                };
                length.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

/// The upstream's body, with all that must be given back at its end.
pub(crate) struct Answer(Arc<Shared>);

/// An answer that an alarm can end. HTTP/2 asks for the next piece when the client has granted a window for it, and not at all while it
/// has not: then nothing but an alarm beside the body gives the slot back.
struct Shared(Mutex<Streaming>);

struct Streaming {
    /// How long the upstream may be silent.
    silence: IdleTimeout,
    /// How long the client may leave the next piece; `None`: HTTP/1, where the listener notices a client that does not read.
    unread: Option<IdleTimeout>,
    state: State,
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
        let shared = Arc::new(Shared(Mutex::new(Streaming { silence, unread, state: State::Held(held) })));
        let over = {
            let mut streaming = shared.streaming();
            let over = streaming.take_if_over();
            streaming.watch(&shared);
            over
        };
        give_back(over);
        Answer(shared)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut streaming = self.0.streaming();
        let frame = ready!(streaming.poll_frame(cx));
        let over = streaming.take_if_over();
        streaming.watch(&self.0);
        drop(streaming);
        give_back(over);
        Poll::Ready(frame)
    }
}

impl Streaming {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // The client takes more.
        self.unread.iter_mut().for_each(IdleTimeout::reset);
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

    /// The client's time for the next piece begins.
    fn watch(&mut self, shared: &Arc<Shared>) {
        if let (State::Held(_), Some(unread)) = (&self.state, &mut self.unread) {
            let alarm = Waker::from(Arc::clone(shared));
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

impl Shared {
    fn streaming(&self) -> MutexGuard<'_, Streaming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it, and drops what it held outside of the lock.
    fn end(&self) {
        let mut streaming = self.streaming();
        let ended = std::mem::replace(&mut streaming.state, State::Cut);
        let unread = streaming.unread.take();
        drop(streaming);
        drop((ended, unread));
    }
}

/// The alarm: the client did not take the next piece in time.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        debug!("a client of HTTP/2 did not read its answer in time");
        self.end();
    }
}

/// Also when the alarm still knows it.
impl Drop for Answer {
    fn drop(&mut self) {
        self.0.end();
    }
}
