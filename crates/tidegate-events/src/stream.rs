//! One stream, as doors see it: submit, snapshot, subscribe.

use crate::line::Line;
use crate::log::Log;
use crate::subscription::Subscription;
use crate::{Epoch, Outcome, Seen, StreamSpec};
use bytes::Bytes;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Above so many bytes a snapshot is used again for the next subscriber, with the deltas since: encoding it
/// anew for each of many subscribers that come at once would hold the stream up, and each would keep a text of its own until its client has
/// read it.
const SHARED_BYTES: usize = 4 << 10;
/// A snapshot is used again for so many messages, or for as many as are about as long as itself.
const SHARED_FOR: u64 = 4_096;
/// About the bytes of a delta.
const DELTA_BYTES: usize = 128;

/// How long a snapshot or a subscription may take to begin: it waits for the disk or the store.
pub const READ_WITHIN: Duration = Duration::from_secs(2);

/// Why a stream cannot be read now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unavailable {
    /// For clients.
    pub what: &'static str,
    /// For operators; may be empty.
    pub cause: String,
}

impl std::error::Error for Unavailable {}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable { what, cause } if cause.is_empty() => write!(f, "{what}; try again"),
            Unavailable { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

/// A stream.
pub struct Stream {
    pub(crate) spec: StreamSpec,
    pub(crate) log: Arc<Log>,
    pub(crate) line: Line,
    /// The latest large snapshot.
    shared: Mutex<Option<Snapshot>>,
    outcomes: [AtomicU64; 4],
}

/// What a stream did since the start, and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Events that were accepted.
    pub submitted: u64,
    /// Events that were rejected for another of their text.
    pub conflict: u64,
    /// Events that were refused for want of room.
    pub full: u64,
    /// Events whose outcome is not known.
    pub unavailable: u64,
    /// Subscribers now.
    pub subscribers: u64,
    /// Subscribers that were cut for being slow.
    pub cut: u64,
}

/// All incubating events at a clock value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The clock value.
    pub clock: u64,
    /// In which history.
    pub epoch: Epoch,
    /// The key frame's JSON.
    pub body: Bytes,
}

impl Snapshot {
    pub(crate) fn seen(&self) -> Seen {
        Seen { clock: self.clock, epoch: Some(self.epoch) }
    }
}

/// Why a submission was not decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// The text is no event: a sentence with the bound and the remedy.
    Event(String),
    /// The stream cannot take events now. Whether this one was taken is not known.
    Unavailable {
        /// For clients.
        what: &'static str,
        /// For operators; may be empty.
        cause: String,
    },
}

impl std::error::Error for SubmitError {}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Event(message) => f.write_str(message),
            SubmitError::Unavailable { what, cause } if cause.is_empty() => write!(f, "{what}; try again"),
            SubmitError::Unavailable { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

impl Stream {
    pub(crate) fn new(spec: StreamSpec, log: Arc<Log>, line: Line) -> Stream {
        Stream { spec, log, line, shared: Mutex::new(None), outcomes: Default::default() }
    }

    /// Its name and rules.
    #[must_use]
    pub fn spec(&self) -> &StreamSpec {
        &self.spec
    }

    /// Texts that are remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// True when nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes an event. With durability on, the answer comes after it is on disk (promise E5).
    ///
    /// # Errors
    /// When the text is no event, or the stream cannot take any.
    pub async fn submit(&self, event: &[u8]) -> Result<Outcome, SubmitError> {
        let event = crate::check_event(event).map_err(SubmitError::Event)?;
        let answered = self.line.submit(event).await;
        let index = match &answered {
            Ok(Outcome::Submitted { .. }) => 0,
            Ok(Outcome::Conflict { .. }) => 1,
            Ok(Outcome::Full { .. }) => 2,
            Err(_) => 3,
        };
        self.outcomes[index].fetch_add(1, Relaxed);
        answered
    }

    /// The counters of the stream since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let [submitted, conflict, full, unavailable] = self.outcomes.each_ref().map(|count| count.load(Relaxed));
        let (subscribers, cut) = (self.log.listeners.load(Relaxed), self.log.cut.load(Relaxed));
        Counts { submitted, conflict, full, unavailable, subscribers, cut }
    }

    /// A door cut a subscriber that did not read what it was sent.
    pub fn note_cut(&self) {
        self.log.cut.fetch_add(1, Relaxed);
    }

    /// Why nothing can be taken or shown now, if that is known: the disk refuses, or the store was never found.
    #[must_use]
    pub fn failure(&self) -> Option<Unavailable> {
        self.line.failure()
    }

    /// All incubating events; given once everything in it is durable.
    ///
    /// # Errors
    /// When the stream does not answer within [`READ_WITHIN`].
    pub async fn snapshot(&self) -> Result<Snapshot, Unavailable> {
        self.in_time(self.durable_snapshot()).await
    }

    async fn in_time<T>(&self, reading: impl Future<Output = T>) -> Result<T, Unavailable> {
        let late = || Unavailable { what: "the stream's disk or store does not answer in time", cause: String::new() };
        timeout(READ_WITHIN, reading).await.map_err(|_| self.failure().unwrap_or_else(late))
    }

    async fn durable_snapshot(&self) -> Snapshot {
        let snapshot = self.line.snapshot().await;
        // A closed log has reached the end of all clocks.
        let _ = self.log.growth().wait_for(|latest| *latest >= snapshot.clock).await;
        let large = snapshot.body.len() >= SHARED_BYTES;
        *self.shared() = large.then(|| snapshot.clone());
        snapshot
    }

    /// A snapshot to begin with; a large one may be of a moment ago, as the deltas since follow it.
    async fn recent(&self) -> Snapshot {
        let shared = self.shared().clone();
        let lasts = |shared: &Snapshot| SHARED_FOR.min((shared.body.len() / DELTA_BYTES) as u64);
        match shared.filter(|shared| self.log.is_near(shared.seen(), lasts(shared))) {
            Some(shared) => shared,
            None => self.durable_snapshot().await,
        }
    }

    fn shared(&self) -> MutexGuard<'_, Option<Snapshot>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to listen: after what was seen, if that is of the same history and the log still has all since, else
    /// with a snapshot (promise C5).
    ///
    /// # Errors
    /// When the subscription cannot begin within [`READ_WITHIN`].
    pub async fn subscribe(self: &Arc<Stream>, from: Option<Seen>) -> Result<Subscription, Unavailable> {
        self.in_time(self.begin(from)).await
    }

    async fn begin(&self, from: Option<Seen>) -> Subscription {
        self.log.begun().await;
        match from.filter(|seen| self.log.reaches_back_to(*seen)) {
            Some(seen) => Subscription::after(Arc::clone(&self.log), seen),
            None => Subscription::with(Arc::clone(&self.log), self.recent().await),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("spec", &self.spec).finish_non_exhaustive()
    }
}
