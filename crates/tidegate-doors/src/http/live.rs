//! `/v1/live`: how everything stands, once a second, as server-sent events. The dashboard reads it.
//!
//! A caller that may see some limiters and streams only is told of those, and nothing of the process as a whole.

use super::client::Client;
use super::door::Door;
use super::problem::Problem;
use super::reply_body::next_piece;
use super::{health, limiters, streams};
use crate::access::{Caller, Lasting, Scope};
use crate::listener::{Account, Busy, Held, Place, TooMuchUnread};
use crate::metrics::seconds;
use bytes::Bytes;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const EVERY: Duration = Duration::from_secs(1);

type Next = Pin<Box<dyn Future<Output = Instant> + Send + Sync>>;

/// The body of it.
pub(crate) struct Live {
    client: Arc<Client>,
    /// As the rules in force know it: a token that is narrowed meanwhile sees less from the next event on.
    caller: Lasting,
    account: Account,
    /// What HTTP has not taken yet of the last event.
    unread: Bytes,
    held: Vec<Held>,
    /// `None` after the end.
    next: Option<Next>,
    _busy: Busy,
    _place: Place,
}

impl Live {
    /// # Errors
    /// When too many connections stay already.
    pub(crate) fn new(client: &Arc<Client>, caller: Caller) -> Result<Live, Problem> {
        let place = streams::lasting_place(client, &caller)?;
        Ok(Live {
            client: Arc::clone(client),
            account: client.account(&caller),
            caller: Lasting::new(&client.door.settings.access, caller),
            unread: Bytes::new(),
            held: Vec::new(),
            next: Some(wait(client, Instant::now())),
            _busy: client.busy(),
            _place: place,
        })
    }

    /// The next event, or the last words.
    fn tell(&mut self, told: Instant) {
        let door = &self.client.door;
        let last_words = |why: &str| Bytes::from(format!("event: error\ndata: {why}\n\n"));
        if let Err(refusal) = self.caller.check_scope(Scope::Read, door.gate.now()) {
            self.unread = last_words(&refusal.detail);
            return;
        }
        let event = Bytes::from(format!("data: {}\n\n", standing(door, self.caller.caller())));
        match door.budget.backlog.hold_all(std::iter::once(&event), &self.account) {
            Ok(held) => {
                (self.unread, self.held) = (event, held);
                self.next = Some(wait(&self.client, told + EVERY));
            }
            Err(TooMuchUnread) => self.unread = last_words(&TooMuchUnread.to_string()),
        }
    }
}

/// Waits until then, or until the door closes. Returns when the event was due; after a client that did not read, about now.
fn wait(client: &Client, until: Instant) -> Next {
    let mut closing = client.door.closing.subscribe();
    Box::pin(async move {
        tokio::select! {
            () = sleep_until(until) => until.max(Instant::now().checked_sub(EVERY).unwrap_or(until)),
            _ = closing.wait_for(|closing| *closing) => until,
        }
    })
}

impl Body for Live {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if !self.unread.is_empty() {
                let piece = next_piece(&mut self.unread);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            self.held.clear();
            let Some(next) = &mut self.next else { return Poll::Ready(None) };
            let told = ready!(next.as_mut().poll(cx));
            self.next = None;
            if *self.client.door.closing.borrow() {
                return Poll::Ready(None);
            }
            self.tell(told);
        }
    }
}

/// How everything stands, as JSON.
fn standing(door: &Door, caller: &Caller) -> String {
    let mut body = format!("{{\"at\":{},\"limiters\":", seconds(door.gate.now().get()));
    body.push_str(&limiters::array(door, caller));
    body.push_str(",\"streams\":");
    body.push_str(&streams::array(door, caller));
    if !caller.is_narrowed() {
        let usage = door.gate.usage();
        body.push_str(&format!(
            ",\"table\":{{\"entries\":{},\"bytes\":{},\"max_bytes\":{}}},\"health\":",
            usage.entries, usage.bytes, usage.max_bytes
        ));
        body.push_str(&health::text(door));
        body.push_str(",\"latency\":");
        body.push_str(&door.metrics.latency_of_hits());
    }
    body.push('}');
    body
}
