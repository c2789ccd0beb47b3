//! A stream's messages as server-sent events: `id` is the clock value and the epoch, `data` the message.
//!
//! The client reads at its own pace; one that is too slow gets an event `error`, and is cut.

use super::client::Client;
use super::reply_body::next_piece;
use crate::access::{Caller, Lasting, Scope, What};
use crate::listener::{Account, Busy, Held, LARGE, Place, TooMuchUnread};
use crate::pace::Paced;
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_events::{Cut, Message, Stream};
use tokio::time::timeout;

/// A comment goes out after so long without a message, so that both sides see a dead connection.
const QUIET_MAX: Duration = Duration::from_secs(15);

type Next = Pin<Box<dyn Future<Output = (Paced, Heard)> + Send + Sync>>;

/// The body of a feed.
pub(crate) struct Feed {
    client: Arc<Client>,
    stream: Arc<Stream>,
    caller: Lasting,
    account: Account,
    /// Text that HTTP has not taken yet, and what of it is large.
    unread: VecDeque<Bytes>,
    held: Vec<Held>,
    /// `None` after the end.
    next: Option<Next>,
    _places: [Place; 2],
    _busy: Busy,
}

enum Heard {
    Messages(Vec<Message>),
    Quiet,
    Cut(Cut),
    Closing,
}

impl Feed {
    /// Follows `stream`, with its places among feeds and among subscriptions.
    pub(crate) fn new(
        client: &Arc<Client>,
        caller: Caller,
        stream: &Arc<Stream>,
        subscription: Paced,
        places: [Place; 2],
    ) -> Feed {
        let next = Some(hear(client, subscription));
        client.feeds.fetch_add(1, Relaxed);
        Feed {
            client: Arc::clone(client),
            stream: Arc::clone(stream),
            account: client.account(&caller),
            caller: Lasting::new(&client.door.settings.access, caller),
            unread: VecDeque::new(),
            held: Vec::new(),
            next,
            _places: places,
            _busy: client.busy(),
        }
    }

    /// Takes what was heard; `None`: the feed ends without words.
    fn take(&mut self, subscription: Paced, heard: &Heard) -> Option<()> {
        let (stream, now) = (What::Stream(&self.stream.spec().name), self.client.door.gate.now());
        if let Err(refusal) = self.caller.check(Scope::Subscribe, stream, now) {
            self.unread.push_back(last_words(&refusal.detail));
            return Some(());
        }
        match heard {
            Heard::Messages(messages) => {
                let texts = events(messages);
                match self.client.door.budget.backlog.hold_all(texts.iter(), &self.account) {
                    Ok(held) => {
                        (self.unread, self.held) = (texts, held);
                        self.next = Some(hear(&self.client, subscription));
                    }
                    Err(TooMuchUnread) => {
                        self.stream.note_cut();
                        self.unread.push_back(last_words(&TooMuchUnread));
                    }
                }
            }
            Heard::Quiet => {
                self.unread.push_back(Bytes::from_static(b": quiet\n\n"));
                self.next = Some(hear(&self.client, subscription));
            }
            Heard::Cut(cut) => self.unread.push_back(last_words(cut)),
            Heard::Closing => return None,
        }
        Some(())
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.client.feeds.fetch_sub(1, Relaxed);
        // The listener noticed that the client does not read; nobody polls the feed then.
        if self.client.connection.is_cut() {
            self.stream.note_cut();
        }
    }
}

fn hear(client: &Client, mut subscription: Paced) -> Next {
    let mut closing = client.door.closing.subscribe();
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
        loop {
            if let Some(text) = self.unread.front_mut() {
                let piece = next_piece(text);
                if text.is_empty() {
                    self.unread.pop_front();
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            self.held.clear();
            let Some(next) = &mut self.next else { return Poll::Ready(None) };
            let (subscription, heard) = ready!(next.as_mut().poll(cx));
            self.next = None;
            if self.take(subscription, &heard).is_none() {
                return Poll::Ready(None);
            }
        }
    }
}

/// The messages as events. Large ones are shared with the other subscribers, small ones copied into one buffer.
fn events(messages: &[Message]) -> VecDeque<Bytes> {
    let small = messages.iter().filter(|message| message.body.len() <= LARGE);
    let mut text = BytesMut::with_capacity(small.map(|message| message.body.len() + 48).sum());
    let mut texts = VecDeque::new();
    for Message { clock, epoch, body, .. } in messages {
        text.put_slice(format!("id: {clock}-{epoch}\ndata: ").as_bytes());
        if body.len() > LARGE {
            texts.extend([text.split().freeze(), body.clone()]);
        } else {
            text.put_slice(body);
        }
        text.put_slice(b"\n\n");
    }
    texts.push_back(text.freeze());
    texts
}

fn last_words(why: &dyn std::fmt::Display) -> Bytes {
    format!("event: error\ndata: {why}\n\n").into()
}
