//! One connection that many callers share.
//!
//! A caller appends its command to the outbox and waits for its reply; whatever has gathered there
//! goes out in one write. Replies come in the order of commands. Invariant: a caller learns whether
//! its command may have reached the server ([`Lost::Sent`]) or cannot have ([`Lost::Unsent`]).

use super::resp::{Reply, parse};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};

/// A handle to the connection; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    outbox: Mutex<Outbox>,
    /// Something is in the outbox, or the connection is to be closed.
    wake: Notify,
    /// Replies so far that somebody still waited for: while it stands still, the server is silent or
    /// too slow.
    replies: AtomicU64,
}

#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    unsent: VecDeque<Waiter>,
    sent: VecDeque<Waiter>,
    /// Why it is closed.
    closed: Option<String>,
}

type Waiter = oneshot::Sender<Result<Reply, Lost>>;

/// Why a reply did not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// The command was not sent.
    Unsent(String),
    /// It was sent, wholly or in part.
    Sent(String),
}

/// A reply that is under way.
pub(crate) type Pending = oneshot::Receiver<Result<Reply, Lost>>;

/// Most commands that wait for a reply, and most bytes of them that are not sent. Past these the store is
/// too slow to be asked more.
const WAITING_MAX: usize = 100_000;
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// Room for replies that is kept while there are none.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A server that has commands and says nothing for two of these in a row is taken for gone.
const SILENCE: Duration = Duration::from_secs(1);

impl Connection {
    /// A handle, and the work that must be run for it; it ends when the connection does.
    pub(crate) fn over<S>(stream: S, read_ahead: Vec<u8>) -> (Connection, impl Future<Output = String>)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let connection =
            Connection(Arc::new(Shared { outbox: Mutex::default(), wake: Notify::new(), replies: AtomicU64::new(0) }));
        let served = connection.clone();
        (connection, async move { served.serve(stream, read_ahead).await })
    }

    /// Sends a command; `write` appends it. The reply comes through what is returned.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Pending, Lost> {
        self.put(None, write)
    }

    /// The same with another command right before it, whose reply nobody waits for.
    pub(crate) fn send_after(&self, first: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> Result<Pending, Lost> {
        self.put(Some(first), write)
    }

    fn put(&self, ahead: Option<&[u8]>, write: impl FnOnce(&mut Vec<u8>)) -> Result<Pending, Lost> {
        let mut outbox = self.outbox();
        if let Some(why) = &outbox.closed {
            return Err(Lost::Unsent(why.clone()));
        }
        if outbox.sent.len() + outbox.unsent.len() >= WAITING_MAX {
            return Err(Lost::Unsent(format!("{WAITING_MAX} requests are waiting for its replies already")));
        }
        if outbox.bytes.len() >= UNSENT_BYTES_MAX {
            return Err(Lost::Unsent(format!("{UNSENT_BYTES_MAX} bytes of requests are waiting to be sent already")));
        }
        // The first to come wakes the writer; the others go along.
        let first = outbox.unsent.is_empty();
        if let Some(ahead) = ahead {
            outbox.bytes.extend_from_slice(ahead);
            outbox.unsent.push_back(oneshot::channel().0);
        }
        let (waiter, pending) = oneshot::channel();
        write(&mut outbox.bytes);
        outbox.unsent.push_back(waiter);
        drop(outbox);
        if first {
            self.0.wake.notify_one();
        }
        Ok(pending)
    }

    /// Closes it; callers that wait are told why.
    pub(crate) fn close(&self, why: &str) {
        self.outbox().closed.get_or_insert_with(|| why.to_owned());
        self.0.wake.notify_one();
    }

    /// Ends it when its work is not run any more; callers that wait are told why.
    pub(crate) fn end(&self, why: &str) {
        self.fail_all(why);
    }

    /// How many replies have come in time for whoever waited.
    pub(crate) fn replies(&self) -> u64 {
        self.0.replies.load(Relaxed)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve<S: AsyncRead + AsyncWrite>(self, stream: S, read_ahead: Vec<u8>) -> String {
        let (mut from, mut to) = tokio::io::split(stream);
        // Both at once: a server that waits for us to read must not keep us waiting to write.
        let why = tokio::select! {
            why = self.read(&mut from, read_ahead) => why,
            why = self.write(&mut to) => why,
        };
        self.fail_all(&why);
        why
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> String {
        let mut bytes = Vec::new();
        loop {
            self.0.wake.notified().await;
            {
                let mut outbox = self.outbox();
                let outbox = &mut *outbox;
                if let Some(why) = &outbox.closed {
                    return why.clone();
                }
                std::mem::swap(&mut bytes, &mut outbox.bytes);
                outbox.sent.append(&mut outbox.unsent);
            }
            if let Err(error) = to.write_all(&bytes).await {
                return format!("writing failed: {error}");
            }
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES_MAX);
        }
    }

    async fn read(&self, from: &mut (impl AsyncRead + Unpin), mut bytes: Vec<u8>) -> String {
        let mut silences = 0;
        loop {
            if let Err(why) = self.deliver(&mut bytes) {
                return why;
            }
            bytes.reserve(16 << 10);
            match tokio::time::timeout(SILENCE, from.read_buf(&mut bytes)).await {
                Ok(Ok(0)) => return "the server closed the connection".to_owned(),
                Ok(Ok(_)) => silences = 0,
                Ok(Err(error)) => return format!("reading failed: {error}"),
                Err(_) if self.outbox().sent.is_empty() => silences = 0,
                Err(_) if silences == 0 => silences = 1,
                Err(_) => return format!("no reply for {SILENCE:?}"),
            }
        }
    }

    /// Hands out all replies that are whole.
    fn deliver(&self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let mut used = 0;
        let mut replies = Vec::new();
        while let Some((reply, len)) = parse(&bytes[used..]).map_err(|garbled| garbled.to_string())? {
            used += len;
            replies.push(reply);
        }
        bytes.drain(..used);
        if bytes.is_empty() {
            bytes.shrink_to(KEPT_BYTES_MAX);
        }
        let mut outbox = self.outbox();
        for reply in replies {
            let waiter = outbox.sent.pop_front().ok_or("a reply that nobody asked for")?;
            // Counted before it is told: whoever gets it may send the next command at once, and must not take
            // this reply for that one's. A caller who has given up meanwhile makes it no sign of life.
            self.0.replies.fetch_add(1, Relaxed);
            if waiter.send(Ok(reply)).is_err() {
                self.0.replies.fetch_sub(1, Relaxed);
            }
        }
        Ok(())
    }

    fn fail_all(&self, why: &str) {
        let mut outbox = self.outbox();
        outbox.closed.get_or_insert_with(|| why.to_owned());
        outbox.bytes = Vec::new();
        for waiter in std::mem::take(&mut outbox.sent) {
            let _ = waiter.send(Err(Lost::Sent(why.to_owned())));
        }
        for waiter in std::mem::take(&mut outbox.unsent) {
            let _ = waiter.send(Err(Lost::Unsent(why.to_owned())));
        }
    }
}
