//! The latest messages of a stream, in order, read by clock value.
//!
//! One log serves all subscribers: each keeps only the clock value that it has reached, so that
//! its queue is the part of the log that it has not read. The log is bounded, and so is every
//! queue: a subscriber whose next message has left the log is behind, and is cut (promise C4).
//! Nobody waits for a subscriber. Invariant: the clock values in the log are contiguous.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Most messages in the log.
const MESSAGES_MAX: usize = 65_536;
/// Most bytes of deltas in the log.
const DELTA_BYTES_MAX: usize = 32 << 20;
/// Most bytes of key frames in the log. They are counted apart: what makes a subscriber slow is deltas.
const KEY_FRAME_BYTES_MAX: usize = 64 << 20;

/// A message, encoded once and shared by all subscribers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its clock value.
    pub clock: u64,
    /// Its JSON.
    pub body: Bytes,
    /// Whether it is a snapshot of all.
    pub is_key_frame: bool,
}

/// The log and the tasks that wait for it to grow.
#[derive(Debug)]
pub(crate) struct Log {
    kept: Mutex<Kept>,
    /// The latest clock value; [`UNKNOWN`] before there is one, [`CLOSED`] once there will be no more.
    latest: watch::Sender<u64>,
    /// Subscribers now, and those that were cut for being slow.
    pub(crate) listeners: AtomicU64,
    pub(crate) cut: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Message>,
    /// The clock value before the first message kept.
    before: u64,
    /// How often it was begun anew, and the clock value before the key frame that it began with.
    begins: u64,
    anew: Option<u64>,
    delta_bytes: usize,
    key_frame_bytes: usize,
}

const CLOSED: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

/// What reading gives.
#[derive(Debug, PartialEq)]
pub(crate) enum Read {
    /// The next ones.
    Messages(Vec<Message>),
    /// Nothing new yet.
    Nothing,
    /// The next one has left the log.
    Behind,
}

impl Log {
    /// An empty log of a stream that stands at `clock`.
    pub(crate) fn new(clock: u64) -> Log {
        let kept = Kept { before: clock, ..Kept::default() };
        Log {
            kept: Mutex::new(kept),
            latest: watch::Sender::new(clock),
            listeners: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        }
    }

    /// A log of a stream that is not known yet; it begins with [`Log::begin`].
    #[cfg(feature = "redis")]
    pub(crate) fn unknown() -> Log {
        Log { latest: watch::Sender::new(UNKNOWN), ..Log::new(0) }
    }

    /// Begins, or begins anew, after `clock`. Whoever stood elsewhere goes on with the first of these messages, if
    /// it is a key frame, and is behind otherwise.
    #[cfg(feature = "redis")]
    pub(crate) fn begin(&self, clock: u64, messages: impl IntoIterator<Item = Message>) {
        let mut kept = self.kept();
        *kept = Kept { before: clock, begins: kept.begins + 1, ..Kept::default() };
        messages.into_iter().for_each(|message| kept.push(message));
        kept.anew = kept.messages.front().filter(|first| first.is_key_frame).map(|_| clock);
        let latest = kept.latest();
        drop(kept);
        self.latest.send_if_modified(|known| {
            let open = *known != CLOSED;
            *known = if open { latest } else { CLOSED };
            open
        });
    }

    /// Waits until the stream is known.
    pub(crate) async fn begun(&self) {
        // The sender lives as long as the log.
        let _ = self.growth().wait_for(|latest| *latest != UNKNOWN).await;
    }

    /// True as long as [`Log::begun`] waits.
    #[cfg(feature = "redis")]
    pub(crate) fn is_unknown(&self) -> bool {
        *self.latest.borrow() == UNKNOWN
    }

    /// Adds messages; subscribers wake once.
    pub(crate) fn push(&self, messages: impl IntoIterator<Item = Message>) {
        let mut kept = self.kept();
        messages.into_iter().for_each(|message| kept.push(message));
        let latest = kept.latest();
        drop(kept);
        self.latest.send_if_modified(|known| {
            let grown = *known < latest;
            *known = latest.max(*known);
            grown
        });
    }

    /// Those after a clock value, at most about `bytes` of them, but one at least.
    pub(crate) fn read(&self, after: u64, bytes: usize) -> Read {
        let kept = self.kept();
        let Some(at) = after.checked_sub(kept.before).and_then(|at| usize::try_from(at).ok()) else {
            return Read::Behind;
        };
        let mut room = bytes;
        let mut taken = Vec::new();
        for message in kept.messages.iter().skip(at) {
            if message.body.len() > room && !taken.is_empty() {
                break;
            }
            room = room.saturating_sub(message.body.len());
            taken.push(message.clone());
        }
        if taken.is_empty() { Read::Nothing } else { Read::Messages(taken) }
    }

    /// How often it was begun anew.
    pub(crate) fn begins(&self) -> u64 {
        self.kept().begins
    }

    /// The clock value before the key frame that it began with, if that is still kept.
    pub(crate) fn anew(&self) -> Option<u64> {
        let kept = self.kept();
        kept.anew.filter(|clock| *clock == kept.before)
    }

    /// Whether one who has reached `clock` can go on from there.
    pub(crate) fn reaches_back_to(&self, clock: u64) -> bool {
        let kept = self.kept();
        (kept.before..=kept.latest()).contains(&clock)
    }

    /// Whether at most `messages` came after `clock`, and all of them are kept.
    pub(crate) fn is_near(&self, clock: u64, messages: u64) -> bool {
        let kept = self.kept();
        (kept.before..=kept.latest()).contains(&clock) && kept.latest() - clock <= messages
    }

    /// Wakes at every growth.
    pub(crate) fn growth(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// There will be no more messages.
    pub(crate) fn close(&self) {
        self.latest.send_replace(CLOSED);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.latest.borrow() == CLOSED
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn latest(&self) -> u64 {
        self.before + self.messages.len() as u64
    }

    fn push(&mut self, message: Message) {
        debug_assert_eq!(message.clock, self.latest() + 1);
        *self.bytes_of(&message) += message.body.len();
        self.messages.push_back(message);
        while self.messages.len() > MESSAGES_MAX
            || self.delta_bytes > DELTA_BYTES_MAX
            || (self.key_frame_bytes > KEY_FRAME_BYTES_MAX && self.messages.len() > 1)
        {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(first) = self.messages.pop_front() else { return };
        *self.bytes_of(&first) -= first.body.len();
        self.before = first.clock;
    }

    fn bytes_of(&mut self, message: &Message) -> &mut usize {
        if message.is_key_frame { &mut self.key_frame_bytes } else { &mut self.delta_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(clock: u64, len: usize, is_key_frame: bool) -> Message {
        Message { clock, body: vec![b'x'; len].into(), is_key_frame }
    }

    fn clocks(read: Read) -> Vec<u64> {
        match read {
            Read::Messages(messages) => messages.iter().map(|message| message.clock).collect(),
            Read::Nothing => Vec::new(),
            Read::Behind => vec![0],
        }
    }

    #[test]
    fn c2_it_is_read_by_clock_value() {
        let log = Log::new(5);
        assert_eq!(log.read(5, 100), Read::Nothing);
        assert_eq!(log.read(4, 100), Read::Behind);
        log.push((6..10).map(|clock| message(clock, 40, false)));
        assert_eq!(clocks(log.read(5, 1_000)), [6, 7, 8, 9]);
        assert_eq!(clocks(log.read(7, 1_000)), [8, 9]);
        assert_eq!(clocks(log.read(5, 100)), [6, 7]);
        assert_eq!(clocks(log.read(5, 1)), [6], "one at least");
        assert!(log.reaches_back_to(5) && log.reaches_back_to(9));
        assert!(!log.reaches_back_to(4) && !log.reaches_back_to(10));
    }

    #[test]
    fn c4_it_is_bounded_in_messages_deltas_and_key_frames() {
        let log = Log::new(0);
        log.push((1..=70_000).map(|clock| message(clock, 1, false)));
        assert_eq!(log.read(70_000 - 65_537, 1), Read::Behind);
        assert_eq!(clocks(log.read(70_000 - 65_536, 1)), [70_000 - 65_535]);

        let log = Log::new(0);
        log.push((1..=100).map(|clock| message(clock, 1 << 20, false)));
        assert_eq!(log.read(67, 1), Read::Behind);
        assert_eq!(clocks(log.read(68, 1)), [69]);

        let log = Log::new(0);
        log.push((1..=40).map(|clock| message(clock, 4 << 20, clock % 2 == 0)));
        assert!(log.reaches_back_to(30), "key frames do not count against the deltas' room");
        log.push([message(41, 100 << 20, true)]);
        assert_eq!(clocks(log.read(40, 1)), [41], "one that is larger than all room is told all the same");
    }
}
