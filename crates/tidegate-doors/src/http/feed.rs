//! A stream's messages as server-sent events: `id` is the clock value, `data` the message.
//!
//! The client reads at its own pace; one that is too slow is told so in an event `error`, and cut.

use super::client::Client;
use super::door::Door;
use crate::listener::Busy;
use crate::pace::Paced;
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_events::{Cut, Message};
use tokio::time::timeout;

/// A comment goes out after so long without a message, so that both sides see a dead connection.
const QUIET_MAX: Duration = Duration::from_secs(15);

type Next = Pin<Box<dyn Future<Output = (Paced, Heard)> + Send + Sync>>;

/// The body of a feed.
pub(crate) struct Feed {
    door: Arc<Door>,
    /// `None` after the end.
    next: Option<Next>,
    _busy: Busy,
}

enum Heard {
    Messages(Vec<Message>),
    Quiet,
    Cut(Cut),
    Closing,
}

impl Feed {
    pub(crate) fn new(client: &Client, subscription: Paced) -> Feed {
        let door = Arc::clone(&client.door);
        Feed { next: Some(hear(&door, subscription)), door, _busy: client.busy() }
    }
}

fn hear(door: &Door, mut subscription: Paced) -> Next {
    let mut closing = door.closing.subscribe();
    Box::pin(async move {
        let heard = tokio::select! {
            heard = timeout(QUIET_MAX, subscription.next()) => match heard {
                Ok(Ok(messages)) => Heard::Messages(messages),
                Ok(Err(cut)) => Heard::Cut(cut),
                Err(_) => Heard::Quiet,
            },
            _ = closing.wait_for(|closing| *closing) => Heard::Closing,
        };
        (subscription, heard)
    })
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (subscription, heard) = ready!(next.as_mut().poll(cx));
        self.next = None;
        let text = match &heard {
            Heard::Messages(messages) => events(messages),
            Heard::Quiet => Bytes::from_static(b": quiet\n\n"),
            Heard::Cut(cut) => return Poll::Ready(Some(Ok(Frame::data(last_words(*cut))))),
            Heard::Closing => return Poll::Ready(None),
        };
        self.next = Some(hear(&self.door, subscription));
        Poll::Ready(Some(Ok(Frame::data(text))))
    }
}

fn events(messages: &[Message]) -> Bytes {
    let len = messages.iter().map(|message| message.body.len() + 32).sum();
    let mut text = BytesMut::with_capacity(len);
    for Message { clock, body, .. } in messages {
        text.put_slice(format!("id: {clock}\ndata: ").as_bytes());
        text.put_slice(body);
        text.put_slice(b"\n\n");
    }
    text.freeze()
}

fn last_words(cut: Cut) -> Bytes {
    format!("event: error\ndata: {cut}\n\n").into()
}
