//! One connection that many callers share.
//!
//! A caller appends its command to the outbox and waits for its reply; whatever has gathered there
//! goes out in one write. Replies come in the order of commands. Invariant: a caller learns whether
//! its command may have reached the server ([`Lost::Sent`]) or cannot have ([`Lost::Unsent`]).

use super::resp::{Replies, Reply};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// A handle to the connection; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    outbox: Mutex<Outbox>,
    /// Something is in the outbox, or the connection is to be closed.
    wake: Notify,
    since: Instant,
    /// When the last reply came that a caller still waited for, in microseconds from `since`.
    last_reply_us: AtomicU64,
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
/// Room for commands that is kept while there are none.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A server that has commands and says nothing for two of these in a row is taken for gone.
const SILENCE: Duration = Duration::from_secs(1);

impl Connection {
    /// A handle, and the work that must be run for it; it ends when the connection does.
    pub(crate) fn over<S>(stream: S) -> (Connection, impl Future<Output = String>)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let shared = Shared {
            outbox: Mutex::default(),
            wake: Notify::new(),
            since: Instant::now(),
            last_reply_us: AtomicU64::new(0),
        };
        let connection = Connection(Arc::new(shared));
        let served = connection.clone();
        (connection, async move { served.serve(stream).await })
    }

    /// Sends a command; `write` appends it. The reply comes through what is returned.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Pending, Lost> {
        self.put(None, write)
    }

    /// The same with another command right before it, whose reply no caller waits for.
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

    /// Closes it; callers that wait get the reason.
    pub(crate) fn close(&self, why: &str) {
        self.outbox().closed.get_or_insert_with(|| why.to_owned());
        self.0.wake.notify_one();
    }

    /// Ends it when its work is not run any more; callers that wait get the reason.
    pub(crate) fn end(&self, why: &str) {
        self.fail_all(why);
    }

    /// For how long no reply has come in time for a caller that waited.
    pub(crate) fn silence(&self) -> Duration {
        let last = Duration::from_micros(self.0.last_reply_us.load(Relaxed));
        self.0.since.elapsed().saturating_sub(last)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.0.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve<S: AsyncRead + AsyncWrite>(self, stream: S) -> String {
        let (mut from, mut to) = tokio::io::split(stream);
        // Both at once: a server that waits for us to read must not keep us waiting to write.
        let why = tokio::select! {
            why = self.read(&mut from) => why,
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

    async fn read(&self, from: &mut (impl AsyncRead + Unpin)) -> String {
        let (mut replies, mut silences) = (Replies::default(), 0);
        loop {
            if let Err(why) = self.deliver(&mut replies) {
                return why;
            }
            let room = replies.room();
            room.reserve(16 << 10);
            match tokio::time::timeout(SILENCE, from.read_buf(room)).await {
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
    fn deliver(&self, replies: &mut Replies) -> Result<(), String> {
        let mut whole = Vec::new();
        while let Some(reply) = replies.take().map_err(|garbled| garbled.to_string())? {
            whole.push(reply);
        }
        let mut in_time = false;
        let mut outbox = self.outbox();
        for reply in whole {
            let waiter = outbox.sent.pop_front().ok_or("a reply without a request")?;
            // A caller may have given up meanwhile; a server that is always too late is as bad as a silent one.
            in_time |= waiter.send(Ok(reply)).is_ok();
        }
        drop(outbox);
        if in_time {
            let now = u64::try_from(self.0.since.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.0.last_reply_us.store(now, Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers that have all the time in the world and a server that takes nothing: past a bound they are refused at once,
    /// and the others when the silence is over.
    #[track_caller]
    fn check_bound(command_len: usize, accepted: usize, why: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (near, _silent) = tokio::io::duplex(64);
            let (connection, work) = Connection::over(near);
            let mut pending = Vec::new();
            let told = loop {
                match connection.send(|bytes| bytes.resize(bytes.len() + command_len, b'x')) {
                    Ok(reply) => pending.push(reply),
                    Err(lost) => break lost,
                }
            };
            assert_eq!((pending.len(), told), (accepted, Lost::Unsent(why.to_owned())));
            let ended = "no reply for 1s".to_owned();
            assert_eq!(work.await, ended);
            for reply in pending {
                assert_eq!(reply.await.unwrap(), Err(Lost::Sent(ended.clone())));
            }
        });
    }

    #[test]
    fn m1_what_waits_for_a_silent_server_is_bounded() {
        check_bound(100, 100_000, "100000 requests are waiting for its replies already");
        check_bound(1 << 10, 16 << 10, "16777216 bytes of requests are waiting to be sent already");
    }
}
