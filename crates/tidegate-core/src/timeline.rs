//! Only-once and strictly-once events: what is accepted, what is published, and in which order all
//! of that happened.
//!
//! **The idea.** An event is a text. Accepted at time t it *incubates* for the duration D and is then
//! published. In between another of the same text is a conflict. *Only once*: the later one is
//! rejected, and the first is published. *Strictly once*: the later one is rejected, **and** the
//! first is invalidated; and as every attempt counts, a rejected one re-arms the window: the next is
//! accepted D after the last attempt of any kind. Windows are half-open: exactly D later is no conflict.
//!
//! **Example**, D = 3, attempts at 2, 3, 4 and 7. Only once: 2 accepted (published at 5), 3 and 4
//! rejected, 7 accepted. Strictly once: 2 accepted, 3 rejected and 2 invalidated, 4 rejected, 7
//! accepted as 4 + 3 <= 7.
//!
//! **Steps.** Every change is one [`Step`], and each step that is sent to subscribers takes the next
//! value of the scalar clock. State is the sum of its steps: [`Timeline::apply`] is the only function
//! that changes events, live and when a journal is replayed alike, whatever the rules were then.
//! What needs no step: an invalidated event, and the memory of a rejected attempt, go at their time.
//!
//! **Time** comes in as an argument, in whole milliseconds (floored). Publishing at t + D comes before
//! a submission at t + D. A time before the latest seen admits nothing extra: a text without a record
//! is then taken as received at the latest time seen, as its record may have been dropped by that.
//!
//! **Cost.** O(log n) a step; about 150 bytes an event of 20 bytes. Texts are ordered, not hashed, so
//! that no client can choose colliding ones.

mod step;
#[cfg(test)]
mod tests;

pub use step::{Outcome, Step};

use crate::Micros;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Longest event, in bytes of UTF-8.
pub const EVENT_LEN_MAX: usize = 1_024;
/// Above so many incubating events no periodic key frame is sent: it would be megabytes, and subscribers
/// that are in sync do not need it.
pub const KEY_FRAME_EVENTS_MAX: usize = 50_000;

/// What becomes of an event that occurs again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The first is published, those within D after it are rejected.
    OnlyOnce,
    /// None of those within D of one another is published.
    StrictlyOnce,
}

/// A stream's rules. Never part of the state: changed ones apply from the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRules {
    /// What becomes of an event that occurs again.
    pub mode: Mode,
    /// D, in milliseconds, at least 1.
    pub duration_ms: u64,
    /// Most texts that are remembered at once.
    pub max_events: usize,
    /// Time between two key frames, in milliseconds, at least 1.
    pub snapshot_every_ms: u64,
}

/// What happens at start to events that came due while no server ran.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Overdue {
    /// They are published, late.
    #[default]
    Publish,
    /// They are invalidated.
    Invalidate,
}

/// An event that was accepted and is not published yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incubating {
    /// Its text.
    pub event: Arc<str>,
    /// When it was accepted, in milliseconds.
    pub time_ms: u64,
    /// False once it was invalidated.
    pub valid: bool,
    /// The clock value of its submission: its place in the order.
    submitted: u64,
}

impl Incubating {
    /// An invalidated event goes at its time without a step.
    fn goes_silently(&self, rules: &StreamRules, now_ms: u64) -> bool {
        !self.valid && self.time_ms + rules.duration_ms <= now_ms
    }
}

/// What is remembered of a text.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The last attempt that counts, in milliseconds.
    last_ms: u64,
    /// The clock value of its accepted event; 0: that is not known any more.
    submitted: u64,
}

/// A stream's state.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    clock: u64,
    /// The latest time seen.
    horizon_ms: u64,
    records: BTreeMap<Arc<str>, Record>,
    /// In the order of submission, which is that of time.
    incubating: VecDeque<Incubating>,
    /// Records that outlive their event, as a later attempt re-armed them; by that attempt.
    rearmed: BTreeSet<(u64, Arc<str>)>,
    key_frame_ms: Option<u64>,
}

/// Called with every step, in order, and the state right after it.
pub type Witness<'a> = &'a mut dyn FnMut(&Step, &Timeline);

impl Timeline {
    /// A stream that knows nothing any more of what was before, but goes on from there.
    #[must_use]
    pub fn going_on(clock: u64, horizon_ms: u64) -> Timeline {
        Timeline { clock, horizon_ms, ..Timeline::default() }
    }

    /// A stream as another keeps it: what incubates there, in the order of submission, each with the clock value
    /// of its submission.
    #[must_use]
    pub fn copied(
        clock: u64,
        horizon_ms: u64,
        events: impl IntoIterator<Item = (Arc<str>, u64, u64, bool)>,
    ) -> Timeline {
        let mut copy = Timeline::default();
        for (event, time_ms, submitted, valid) in events {
            copy.enter(&event, time_ms, submitted);
            if !valid {
                copy.apply(&Step::Invalidated { clock, event, time_ms, last_ms: time_ms });
            }
        }
        (copy.clock, copy.horizon_ms) = (clock, horizon_ms.max(copy.horizon_ms));
        copy
    }

    /// The clock value of the latest message; 0 before the first.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// The latest time seen, in milliseconds.
    #[must_use]
    pub fn horizon_ms(&self) -> u64 {
        self.horizon_ms
    }

    /// Texts that count towards `max_events`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The snapshot: what incubates at [`Timeline::clock`], in the order of submission.
    pub fn snapshot(&self) -> impl ExactSizeIterator<Item = &Incubating> {
        self.incubating.iter()
    }

    /// The snapshot without the events that go without a step by `now`.
    pub fn snapshot_at(&self, rules: &StreamRules, now: Micros) -> impl ExactSizeIterator<Item = &Incubating> {
        let now_ms = now.get() / 1_000;
        let gone = self.incubating.iter().take_while(|event| event.goes_silently(rules, now_ms)).count();
        self.incubating.range(gone..)
    }

    /// The earliest time that anything here depends on: steps up to it may be forgotten.
    #[must_use]
    pub fn oldest_ms(&self) -> Option<u64> {
        let event = self.incubating.front().map(|front| front.time_ms);
        let attempt = self.rearmed.first().map(|(last, _)| *last);
        [event, attempt].into_iter().flatten().min()
    }

    /// When [`Timeline::advance`] has something to do.
    #[must_use]
    pub fn wake_at(&self, rules: &StreamRules) -> Option<Micros> {
        let due = self.incubating.front().map(|front| front.time_ms + rules.duration_ms);
        [due, self.key_frame_ms].into_iter().flatten().min().map(Micros::from_millis)
    }

    /// Begins service: overdue events come to their end, and a key frame says where all stands.
    pub fn start(&mut self, rules: &StreamRules, overdue: Overdue, now: Micros, witness: Witness<'_>) {
        let now_ms = self.see(now);
        if overdue == Overdue::Invalidate {
            self.invalidate_due(rules, now_ms, witness);
        }
        self.publish_due(rules, now_ms, witness);
        self.expire(rules, now_ms);
        self.key_frame_ms = Some(now_ms + rules.snapshot_every_ms);
        self.step(Step::KeyFrame { clock: self.clock + 1, time_ms: now_ms }, witness);
    }

    /// Brings all to `now`: publishes what is due, in order, then the key frame if it is time.
    pub fn advance(&mut self, rules: &StreamRules, now: Micros, witness: Witness<'_>) {
        let now_ms = self.see(now);
        self.publish_due(rules, now_ms, witness);
        self.expire(rules, now_ms);
        let Some(due_ms) = self.key_frame_ms.filter(|due_ms| *due_ms <= now_ms) else { return };
        let next_ms = due_ms + rules.snapshot_every_ms;
        // After a pause one is enough.
        self.key_frame_ms = Some(if next_ms > now_ms { next_ms } else { now_ms + rules.snapshot_every_ms });
        if self.incubating.len() <= KEY_FRAME_EVENTS_MAX {
            self.step(Step::KeyFrame { clock: self.clock + 1, time_ms: now_ms }, witness);
        }
    }

    /// Takes an event in, received at `now`, after everything due by then.
    pub fn submit(&mut self, rules: &StreamRules, event: &str, now: Micros, witness: Witness<'_>) -> Outcome {
        self.advance(rules, now, witness);
        let received_ms = now.get() / 1_000;
        match self.records.get_key_value(event).map(|(event, record)| (Arc::clone(event), *record)) {
            Some((event, record)) => self.conflict(rules, event, record, received_ms, witness),
            None if self.records.len() >= rules.max_events => Outcome::Full { next: self.next_room(rules) },
            None => {
                let (clock, time_ms) = (self.clock + 1, received_ms.max(self.horizon_ms));
                self.step(Step::Submitted { clock, event: event.into(), time_ms }, witness);
                Outcome::Submitted { clock }
            }
        }
    }

    /// Another of a text that is remembered.
    fn conflict(
        &mut self,
        rules: &StreamRules,
        event: Arc<str>,
        record: Record,
        received_ms: u64,
        witness: Witness<'_>,
    ) -> Outcome {
        let too_old = received_ms + rules.duration_ms <= record.last_ms;
        if rules.mode == Mode::OnlyOnce || too_old {
            return Outcome::Conflict { next: Micros::from_millis(record.last_ms + rules.duration_ms) };
        }
        let last_ms = record.last_ms.max(received_ms);
        match self.position(record.submitted) {
            Some(at) if self.incubating[at].valid => {
                let time_ms = self.incubating[at].time_ms;
                self.step(Step::Invalidated { clock: self.clock + 1, event, time_ms, last_ms }, witness);
            }
            _ if last_ms > record.last_ms => self.step(Step::Rearmed { event, last_ms }, witness),
            _ => {}
        }
        Outcome::Conflict { next: Micros::from_millis(last_ms + rules.duration_ms) }
    }

    fn step(&mut self, step: Step, witness: Witness<'_>) {
        self.apply(&step);
        witness(&step, self);
    }

    /// Makes a step that was decided: just now, or before a restart.
    pub fn apply(&mut self, step: &Step) {
        self.clock = step.clock().unwrap_or(self.clock);
        match step {
            Step::Submitted { clock, event, time_ms } => self.enter(event, *time_ms, *clock),
            Step::Published { event, .. } => self.leave(event),
            Step::Rearmed { event, last_ms } => self.rearm(event, *last_ms),
            Step::Invalidated { event, last_ms, .. } => {
                let submitted = self.records.get(event).map_or(0, |record| record.submitted);
                if let Some(at) = self.position(submitted) {
                    self.incubating[at].valid = false;
                }
                self.rearm(event, *last_ms);
            }
            Step::KeyFrame { time_ms, .. } => self.horizon_ms = self.horizon_ms.max(*time_ms),
        }
    }

    fn enter(&mut self, event: &Arc<str>, time_ms: u64, clock: u64) {
        self.horizon_ms = self.horizon_ms.max(time_ms);
        let fresh = Record { last_ms: time_ms, submitted: clock };
        // A replayed stream meets records here whose going needed no step.
        if let Some(old) = self.records.insert(Arc::clone(event), fresh) {
            self.rearmed.remove(&(old.last_ms, Arc::clone(event)));
        }
        self.incubating.push_back(Incubating { event: Arc::clone(event), time_ms, valid: true, submitted: clock });
    }

    /// Published. Those before it can only be invalidated ones whose time was up already.
    fn leave(&mut self, event: &Arc<str>) {
        let submitted = self.records.get(event).map_or(0, |record| record.submitted);
        while self.incubating.front().is_some_and(|front| front.submitted <= submitted) {
            self.drop_front();
        }
    }

    fn rearm(&mut self, event: &Arc<str>, last_ms: u64) {
        self.horizon_ms = self.horizon_ms.max(last_ms);
        let record = self.records.entry(Arc::clone(event)).or_insert(Record { last_ms, submitted: 0 });
        self.rearmed.remove(&(record.last_ms, Arc::clone(event)));
        record.last_ms = last_ms;
        self.rearmed.insert((last_ms, Arc::clone(event)));
    }

    /// The oldest event goes, and its record unless a later attempt keeps it.
    fn drop_front(&mut self) {
        let Some(front) = self.incubating.pop_front() else { return };
        let Some(record) = self.records.get(&front.event) else { return };
        if record.submitted == front.submitted && !self.rearmed.contains(&(record.last_ms, Arc::clone(&front.event))) {
            self.records.remove(&front.event);
        }
    }

    /// Forgets what goes without a step by `now`. For replays, so that a key frame is again what it was.
    pub fn forget(&mut self, rules: &StreamRules, now: Micros) {
        let now_ms = now.get() / 1_000;
        while self.incubating.front().is_some_and(|front| front.goes_silently(rules, now_ms)) {
            self.drop_front();
        }
        self.expire(rules, now_ms);
    }

    fn publish_due(&mut self, rules: &StreamRules, now_ms: u64, witness: Witness<'_>) {
        while let Some(front) = self.incubating.front()
            && front.time_ms + rules.duration_ms <= now_ms
        {
            if front.valid {
                let (event, time_ms) = (Arc::clone(&front.event), front.time_ms);
                self.step(Step::Published { clock: self.clock + 1, event, time_ms }, witness);
            } else {
                self.drop_front();
            }
        }
    }

    fn invalidate_due(&mut self, rules: &StreamRules, now_ms: u64, witness: Witness<'_>) {
        let due = self.incubating.iter().take_while(|event| event.time_ms + rules.duration_ms <= now_ms);
        let due: Vec<Incubating> = due.filter(|event| event.valid).cloned().collect();
        for Incubating { event, time_ms, .. } in due {
            let last_ms = self.records.get(&event).map_or(time_ms, |record| record.last_ms);
            self.step(Step::Invalidated { clock: self.clock + 1, event, time_ms, last_ms }, witness);
        }
    }

    /// Attempts that are D old are forgotten.
    fn expire(&mut self, rules: &StreamRules, now_ms: u64) {
        while let Some((last_ms, _)) = self.rearmed.first()
            && last_ms + rules.duration_ms <= now_ms
        {
            if let Some((_, event)) = self.rearmed.pop_first() {
                self.records.remove(&event);
            }
        }
    }

    fn see(&mut self, now: Micros) -> u64 {
        self.horizon_ms = self.horizon_ms.max(now.get() / 1_000);
        self.horizon_ms
    }

    fn position(&self, submitted: u64) -> Option<usize> {
        self.incubating.binary_search_by_key(&submitted, |event| event.submitted).ok()
    }

    /// The first that goes may have been re-armed since; then there is room a little later.
    fn next_room(&self, rules: &StreamRules) -> Micros {
        Micros::from_millis(self.oldest_ms().unwrap_or(self.horizon_ms) + rules.duration_ms)
    }
}
