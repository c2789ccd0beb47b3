//! One limit's memory of one key, whatever the algorithm: a closed set, hence an enum.

use crate::{Algorithm, Decision, Limit, Meter, Micros, Status, Verdict};
use crate::{average, fixed_window, meter, sketch, sliding_log, sliding_window, token_bucket};

/// The state of any algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// See [`token_bucket`].
    TokenBucket(token_bucket::State),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::FirstHit),
    /// See [`fixed_window`].
    AlignedWindow(fixed_window::Aligned),
    /// See [`sliding_log`]. Boxed: the only one that is not a few words.
    SlidingLog(Box<sliding_log::State>),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`average`].
    StrictAverage(average::Strict),
    /// See [`average`].
    LeakyAverage(average::Leaky),
    /// What the [`sketch`] knows of a key that found no place in a full table.
    Sketched(sketch::Estimate),
}

macro_rules! each {
    ($state:expr, $inner:ident => $body:expr) => {
        match $state {
            State::TokenBucket($inner) => $body,
            State::FixedWindow($inner) => $body,
            State::AlignedWindow($inner) => $body,
            State::SlidingLog($inner) => $body,
            State::SlidingWindow($inner) => $body,
            State::StrictAverage($inner) => $body,
            State::LeakyAverage($inner) => $body,
            State::Sketched($inner) => $body,
        }
    };
}

impl State {
    /// The state of a key that was never seen.
    #[must_use]
    #[inline]
    pub fn fresh(algorithm: Algorithm) -> State {
        match algorithm {
            Algorithm::TokenBucket => State::TokenBucket(Default::default()),
            Algorithm::FixedWindow => State::FixedWindow(Default::default()),
            Algorithm::AlignedWindow => State::AlignedWindow(Default::default()),
            Algorithm::SlidingLog => State::SlidingLog(Default::default()),
            Algorithm::SlidingWindow => State::SlidingWindow(Default::default()),
            Algorithm::StrictAverage => State::StrictAverage(Default::default()),
            Algorithm::LeakyAverage => State::LeakyAverage(Default::default()),
        }
    }

    /// See [`Meter::settle`].
    #[inline]
    pub fn settle(&mut self, limit: &Limit, now: Micros) {
        each!(self, state => state.settle(limit, now));
    }

    /// See [`Meter::verdict`]; a cost that can never pass is answered too.
    #[must_use]
    #[inline]
    pub fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        match self {
            State::SlidingLog(state) => meter::verdict_within(&**state, limit, now, cost),
            State::TokenBucket(state) => meter::verdict_within(state, limit, now, cost),
            State::FixedWindow(state) => meter::verdict_within(state, limit, now, cost),
            State::AlignedWindow(state) => meter::verdict_within(state, limit, now, cost),
            State::SlidingWindow(state) => meter::verdict_within(state, limit, now, cost),
            State::StrictAverage(state) => meter::verdict_within(state, limit, now, cost),
            State::LeakyAverage(state) => meter::verdict_within(state, limit, now, cost),
            State::Sketched(state) => meter::verdict_within(state, limit, now, cost),
        }
    }

    /// See [`Meter::charge`].
    #[inline]
    pub fn charge(&mut self, limit: &Limit, now: Micros, cost: u32) {
        each!(self, state => state.charge(limit, now, cost));
    }

    /// See [`Meter::note_denial`].
    #[inline]
    pub(crate) fn note_denial(&mut self, limit: &Limit, now: Micros, cost: u32) {
        each!(self, state => state.note_denial(limit, now, cost));
    }

    /// True when a denial alone is worth an entry.
    #[must_use]
    pub fn remembers_denials(&self) -> bool {
        matches!(self, State::StrictAverage(state) if state.is_used())
    }

    /// See [`Meter::status`].
    #[must_use]
    #[inline]
    pub fn status(&self, limit: &Limit, now: Micros) -> Status {
        each!(self, state => state.status(limit, now))
    }

    /// The verdict with what is left, as they stand.
    #[inline]
    pub(crate) fn decision(&self, limit: &Limit, now: Micros, verdict: Verdict) -> Decision {
        let Status { remaining, reset_after } = self.status(limit, now);
        let rate = each!(self, state => state.rate(limit, remaining));
        Decision { verdict, limit: limit.burst(), remaining, reset_after, rate }
    }
}
