//! The latest messages of a stream, in order, read by clock value.
//!
//! One log serves all subscribers: each keeps only the clock value that it has reached, so that
//! its queue is the part of the log that it has not read. The log is bounded, and so is every
//! queue: a subscriber whose next message has left the log is behind, and is cut (promise C4).
//! No part of the server waits for a subscriber. Invariant: the clock values in the log are contiguous, but for a jump before a key
//! frame, which a stream makes after a possible loss: the key frame holds the whole state, so that a
//! subscriber goes on with it from any clock value before.

use crate::{Epoch, Seen};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Most messages in the log.
pub(crate) const MESSAGES_MAX: usize = 65_536;
/// Most bytes of deltas in the log.
pub(crate) const DELTA_BYTES_MAX: usize = 32 << 20;
/// Most bytes of key frames in the log. They are counted separately: a subscriber is slow by the deltas that it has not read.
pub(crate) const KEY_FRAME_BYTES_MAX: usize = 64 << 20;

/// A message, encoded once and shared by all subscribers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its clock value.
    pub clock: u64,
    /// In which history.
    pub epoch: Epoch,
    /// Its JSON.
    pub body: Bytes,
    /// Whether it is a snapshot of the whole state.
    pub is_key_frame: bool,
}

impl Message {
    pub(crate) fn seen(&self) -> Seen {
        Seen { clock: self.clock, epoch: Some(self.epoch) }
    }
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
    /// Of the latest message; `None` before the stream is known.
    epoch: Option<Epoch>,
    messages: VecDeque<Message>,
    /// The clock value before the first message kept.
    before: u64,
    /// How often it was begun anew.
    begins: u64,
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
    /// The log was begun anew since, and does not lead on from there.
    Anew,
}

impl Log {
    /// An empty log of a stream that stands at `clock`.
    pub(crate) fn new(clock: u64, epoch: Epoch) -> Log {
        let kept = Kept { before: clock, epoch: Some(epoch), ..Kept::default() };
        Log::with(kept, clock)
    }

    fn with(kept: Kept, latest: u64) -> Log {
        Log {
            kept: Mutex::new(kept),
            latest: watch::Sender::new(latest),
            listeners: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        }
    }

    /// A log of a stream that is not known yet; it begins with [`Log::begin`].
    #[cfg(feature = "redis")]
    pub(crate) fn unknown() -> Log {
        Log::with(Kept::default(), UNKNOWN)
    }

    /// Begins, or begins anew, after `clock`, with messages that do not follow those before.
    #[cfg(feature = "redis")]
    pub(crate) fn begin(&self, clock: u64, epoch: Epoch, messages: impl IntoIterator<Item = Message>) {
        let mut kept = self.kept();
        *kept = Kept { epoch: Some(epoch), before: clock, begins: kept.begins + 1, ..Kept::default() };
        messages.into_iter().for_each(|message| kept.push(message));
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

    /// The messages after a clock value, at most about `bytes` of them, but one at least. `begins`: how often the log had begun
    /// when the subscriber came to that clock value.
    pub(crate) fn read(&self, after: Seen, begins: u64, bytes: usize) -> Read {
        let kept = self.kept();
        if begins != kept.begins && !kept.reaches_back_to(after) {
            return Read::Anew;
        }
        if after.clock < kept.before {
            return Read::Behind;
        }
        let at = kept.messages.partition_point(|message| message.clock <= after.clock);
        let mut room = bytes;
        let mut taken = Vec::new();
        for message in kept.messages.range(at..) {
            if message.body.len() > room && !taken.is_empty() {
                break;
            }
            room = room.saturating_sub(message.body.len());
            taken.push(message.clone());
        }
        if taken.is_empty() { Read::Nothing } else { Read::Messages(taken) }
    }

    /// How often the log was begun anew, and the epoch of its messages now.
    pub(crate) fn begins(&self) -> (u64, Option<Epoch>) {
        let kept = self.kept();
        (kept.begins, kept.epoch)
    }

    /// Whether a subscriber that has come so far can go on from there.
    pub(crate) fn reaches_back_to(&self, seen: Seen) -> bool {
        self.kept().reaches_back_to(seen)
    }

    /// Whether at most `messages` messages came after `seen`, and the log has all of them.
    pub(crate) fn is_near(&self, seen: Seen, messages: u64) -> bool {
        let kept = self.kept();
        kept.reaches_back_to(seen) && kept.latest() - seen.clock <= messages
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
        self.messages.back().map_or(self.before, |message| message.clock)
    }

    fn reaches_back_to(&self, seen: Seen) -> bool {
        let is_same = seen.epoch.is_none_or(|epoch| Some(epoch) == self.epoch);
        is_same && (self.before..=self.latest()).contains(&seen.clock)
    }

    fn push(&mut self, message: Message) {
        debug_assert!(message.clock == self.latest() + 1 || message.is_key_frame && message.clock > self.latest());
        *self.bytes_of(&message) += message.body.len();
        self.epoch = Some(message.epoch);
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

    const EPOCH: &str = "00000000a1b2c";

    fn empty(clock: u64) -> Log {
        Log::new(clock, EPOCH.parse().unwrap())
    }

    fn message(clock: u64, len: usize, is_key_frame: bool) -> Message {
        Message { clock, epoch: EPOCH.parse().unwrap(), body: vec![b'x'; len].into(), is_key_frame }
    }

    fn clocks(read: Read) -> Vec<u64> {
        match read {
            Read::Messages(messages) => messages.iter().map(|message| message.clock).collect(),
            Read::Nothing => Vec::new(),
            Read::Behind | Read::Anew => vec![0],
        }
    }

    #[test]
    fn c2_it_is_read_by_clock_value() {
        let log = empty(5);
        assert_eq!(log.read(5.into(), 0, 100), Read::Nothing);
        assert_eq!(log.read(4.into(), 0, 100), Read::Behind);
        log.push((6..10).map(|clock| message(clock, 40, false)));
        assert_eq!(clocks(log.read(5.into(), 0, 1_000)), [6, 7, 8, 9]);
        assert_eq!(clocks(log.read(7.into(), 0, 1_000)), [8, 9]);
        assert_eq!(clocks(log.read(5.into(), 0, 100)), [6, 7]);
        assert_eq!(clocks(log.read(5.into(), 0, 1)), [6], "one at least");
        assert!(log.reaches_back_to(5.into()) && log.reaches_back_to(9.into()));
        assert!(!log.reaches_back_to(4.into()) && !log.reaches_back_to(10.into()));
    }

    #[test]
    fn c6_a_jump_is_read_over_from_before_it_and_from_within() {
        let log = empty(5);
        log.push([message(6, 1, false), message(7, 1, false), message(1_000, 1, true), message(1_001, 1, false)]);
        for (after, expected) in [(5, &[6, 7, 1_000, 1_001][..]), (7, &[1_000, 1_001]), (9, &[1_000, 1_001])] {
            assert_eq!(clocks(log.read(after.into(), 0, 1_000)), expected, "after {after}");
        }
        assert_eq!(clocks(log.read(1_000.into(), 0, 1_000)), [1_001]);
    }

    #[test]
    fn c4_it_is_bounded_in_messages_deltas_and_key_frames() {
        let log = empty(0);
        log.push((1..=70_000).map(|clock| message(clock, 1, false)));
        assert_eq!(log.read((70_000 - 65_537).into(), 0, 1), Read::Behind);
        assert_eq!(clocks(log.read((70_000 - 65_536).into(), 0, 1)), [70_000 - 65_535]);

        let log = empty(0);
        log.push((1..=100).map(|clock| message(clock, 1 << 20, false)));
        assert_eq!(log.read(67.into(), 0, 1), Read::Behind);
        assert_eq!(clocks(log.read(68.into(), 0, 1)), [69]);

        let log = empty(0);
        log.push((1..=40).map(|clock| message(clock, 4 << 20, clock % 2 == 0)));
        assert!(log.reaches_back_to(30.into()), "key frames do not count against the deltas' room");
        log.push([message(41, 100 << 20, true)]);
        assert_eq!(clocks(log.read(40.into(), 0, 1)), [41], "one that is larger than all room is kept all the same");
    }
}
