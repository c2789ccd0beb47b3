//! What the shared log still holds, as the messages that it stands for.
//!
//! The log has steps; a key frame's message needs the state at its step, which Redis keeps for the last step only. So
//! the steps are taken back from there, one after another, as far as there is room; then they are applied again from
//! that state on, as a server that was running then did.
//!
//! Known weakness: an invalidated event is forgotten at its time, without a step. One that was forgotten before its stream was read, and
//! was invalidated before the oldest step that is taken back, is in none of the key frames that are made here. Subscribers
//! have dropped it by then, too. A server that was running until right before that step still has the event, and goes on from its own state.

use super::reply::{Dump, Entry};
use crate::Epoch;
use crate::embedded::message_of;
use crate::log::{DELTA_BYTES_MAX, KEY_FRAME_BYTES_MAX, MESSAGES_MAX, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_core::timeline::{Step, StreamRules, Timeline};

/// Bytes of a message beside its texts.
const MESSAGE_BYTES: usize = 110;

/// Steps that lead to a state, and the state before them.
pub(super) struct History {
    clock: u64,
    horizon_ms: u64,
    steps: VecDeque<Step>,
    /// What incubated before the first of the steps, in the order of submission.
    events: BTreeMap<Place, (Arc<str>, Validity)>,
    places: BTreeMap<Arc<str>, Place>,
    /// The turn of the next event that is put back: lower than that of every event of its time that is there.
    place: i64,
    /// Bytes of the deltas, of the key frames, and of one key frame before the first step.
    delta_bytes: usize,
    key_frame_bytes: usize,
    state_bytes: usize,
}

/// An event's place in the order: its time, and its turn among those of one millisecond.
type Place = (u64, i64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Validity {
    Valid,
    Invalid,
}

/// Whether a step was taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Back {
    Taken,
    /// There is no room for more, or the step does not lead to the one after it.
    Enough,
}

impl History {
    /// No steps: the state as it is.
    pub(super) fn ending_with(dump: &Dump) -> History {
        let mut history = History {
            clock: dump.clock,
            horizon_ms: dump.horizon_ms,
            steps: VecDeque::new(),
            events: BTreeMap::new(),
            places: BTreeMap::new(),
            place: -1,
            delta_bytes: 0,
            key_frame_bytes: 0,
            state_bytes: MESSAGE_BYTES,
        };
        for (turn, (event, time_ms, _, valid)) in (0..).zip(&dump.events) {
            let validity = if *valid { Validity::Valid } else { Validity::Invalid };
            history.enter((*time_ms, turn), Arc::clone(event), validity);
        }
        history
    }

    /// The clock value of the first step.
    pub(super) fn first(&self) -> Option<u64> {
        self.steps.front().and_then(Step::clock)
    }

    /// Takes back the step that came before all that were taken back.
    pub(super) fn take_back(&mut self, step: Step) -> Back {
        if !self.leads_on(&step) || !self.has_room() {
            return Back::Enough;
        }
        match &step {
            Step::Submitted { event, .. } => self.leave(event),
            Step::Published { event, time_ms, .. } | Step::Invalidated { event, time_ms, .. } => {
                self.come_back(event, *time_ms);
            }
            Step::KeyFrame { .. } => self.key_frame_bytes += self.state_bytes,
            Step::Rearmed { .. } => {}
        }
        if let Step::Submitted { event, .. } | Step::Published { event, .. } | Step::Invalidated { event, .. } = &step {
            self.delta_bytes += MESSAGE_BYTES + event.len();
        }
        self.steps.push_front(step);
        Back::Taken
    }

    /// A gap in the clock is one for subscribers, too, unless a key frame comes after it.
    fn leads_on(&self, step: &Step) -> bool {
        let Some(clock) = step.clock() else { return false };
        match self.steps.front() {
            Some(Step::KeyFrame { clock: next, .. }) => clock < *next,
            Some(next) => next.clock() == Some(clock + 1),
            None => clock == self.clock,
        }
    }

    /// At most half of what a log keeps, so that the log has room to grow.
    fn has_room(&self) -> bool {
        self.steps.len() < MESSAGES_MAX
            && self.delta_bytes < DELTA_BYTES_MAX / 2
            && self.key_frame_bytes + self.state_bytes < KEY_FRAME_BYTES_MAX / 2
    }

    /// Published or invalidated: before, it was there and valid.
    fn come_back(&mut self, event: &Arc<str>, time_ms: u64) {
        match self.places.get(event) {
            Some(place) => drop(self.events.insert(*place, (Arc::clone(event), Validity::Valid))),
            None => {
                // Events end in the order of submission.
                let place = (time_ms, self.place);
                self.place -= 1;
                self.enter(place, Arc::clone(event), Validity::Valid);
            }
        }
    }

    fn enter(&mut self, place: Place, event: Arc<str>, validity: Validity) {
        self.state_bytes += MESSAGE_BYTES + event.len();
        self.places.insert(Arc::clone(&event), place);
        self.events.insert(place, (event, validity));
    }

    fn leave(&mut self, event: &Arc<str>) {
        if let Some(place) = self.places.remove(event) {
            self.events.remove(&place);
            self.state_bytes -= MESSAGE_BYTES + event.len();
        }
    }

    /// The steps' messages, in order.
    pub(super) fn messages(&self, rules: &StreamRules, epoch: Epoch) -> Vec<Message> {
        self.messages_after(self.timeline(), rules, epoch)
    }

    /// The same, from the state before the first step that a server which was running then has.
    pub(super) fn messages_after(&self, mut timeline: Timeline, rules: &StreamRules, epoch: Epoch) -> Vec<Message> {
        let mut messages = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            follow(&mut timeline, step, rules);
            messages.extend(message_of(step, &timeline, epoch));
        }
        messages
    }

    /// The state before the first step. Submissions from before it have any clock values below, in their order.
    fn timeline(&self) -> Timeline {
        let before = self.first().unwrap_or(self.clock + 1).saturating_sub(1);
        let first = before.saturating_sub(self.events.len() as u64);
        let entry = |(submitted, (place, (event, validity))): (u64, (&Place, &(Arc<str>, Validity)))| -> Entry {
            (Arc::clone(event), place.0, submitted, *validity == Validity::Valid)
        };
        let events = (first + 1..).zip(&self.events).map(entry);
        // The latest time is of the end; what is forgotten on the way goes by the steps' own times.
        Timeline::copied(before, self.horizon_ms, events)
    }
}

/// Applies a step of the log as every server that follows it does.
pub(super) fn follow(timeline: &mut Timeline, step: &Step, rules: &StreamRules) {
    timeline.apply(step);
    if let Step::KeyFrame { time_ms, .. } | Step::Submitted { time_ms, .. } = step {
        timeline.forget(rules, Micros::from_millis(*time_ms));
    }
}
