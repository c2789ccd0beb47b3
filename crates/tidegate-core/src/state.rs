//! One limit's memory of one key, whatever the algorithm: a closed set, hence an enum. In buckets it
//! is the memory of all limits, and each check reads what concerns it.

use crate::{Algorithm, Check, Decision, Meter, Micros, Rate, Status, Verdict};
use crate::{average, buckets, fixed_window, meter, sketch, sliding_log, sliding_window, token_bucket};

/// The state of any algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// See [`token_bucket`].
    TokenBucket(token_bucket::State),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::FirstHit),
    /// See [`fixed_window`].
    AlignedWindow(fixed_window::Aligned),
    /// See [`sliding_log`]. Boxed, as it is more than a few words.
    SlidingLog(Box<sliding_log::State>),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`average`].
    StrictAverage(average::Strict),
    /// See [`average`].
    LeakyAverage(average::Leaky),
    /// See [`buckets`]. Boxed, as it is more than a few words.
    Buckets(Box<buckets::State>),
    /// What the [`sketch`] knows of a key that found no place in a full table.
    Sketched(sketch::Estimate),
}

/// Hands a state that counts one limit that limit; buckets get the check.
macro_rules! each {
    ($state:expr, $check:ident, ($inner:ident, $limit:ident) => $one:expr, $buckets:ident => $all:expr) => {
        match $state {
            State::TokenBucket($inner) => each!(@ $check, $limit => $one),
            State::FixedWindow($inner) => each!(@ $check, $limit => $one),
            State::AlignedWindow($inner) => each!(@ $check, $limit => $one),
            State::SlidingLog($inner) => each!(@ $check, $limit => $one),
            State::SlidingWindow($inner) => each!(@ $check, $limit => $one),
            State::StrictAverage($inner) => each!(@ $check, $limit => $one),
            State::LeakyAverage($inner) => each!(@ $check, $limit => $one),
            State::Sketched($inner) => {
                let $limit = &$check.sketched();
                $one
            }
            State::Buckets($buckets) => $all,
        }
    };
    (@ $check:ident, $limit:ident => $one:expr) => {{
        let $limit = $check.limit();
        $one
    }};
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
            Algorithm::Buckets => State::Buckets(Default::default()),
        }
    }

    /// See [`Meter::settle`].
    #[inline]
    pub fn settle(&mut self, check: Check<'_>, now: Micros) {
        each!(self, check,
            (state, limit) => state.settle(limit, now),
            buckets => buckets.settle(check.grid(), check.shortest_period(), now));
    }

    /// See [`Meter::verdict`]; a cost that can never pass is answered too.
    #[must_use]
    #[inline]
    pub fn verdict(&self, check: Check<'_>, now: Micros, cost: u32) -> Verdict {
        match self {
            State::SlidingLog(state) => meter::verdict_within(&**state, check.limit(), now, cost),
            State::TokenBucket(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::FixedWindow(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::AlignedWindow(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::SlidingWindow(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::StrictAverage(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::LeakyAverage(state) => meter::verdict_within(state, check.limit(), now, cost),
            State::Sketched(state) => meter::verdict_within(state, &check.sketched(), now, cost),
            State::Buckets(_) if cost == 0 => Verdict::Allow,
            State::Buckets(_) if cost > check.limit().count() => Verdict::NEVER,
            State::Buckets(state) => state.verdict(check.limit(), check.grid(), now, cost),
        }
    }

    /// See [`Meter::charge`]. All limits of buckets are charged at once.
    #[inline]
    pub fn charge(&mut self, check: Check<'_>, now: Micros, cost: u32) {
        each!(self, check,
        (state, limit) => state.charge(limit, now, cost),
        buckets => {
            // What is not past always has a block.
            let _ = buckets.add(check.grid(), check.shortest_period(), now, now, cost);
        });
    }

    /// The same without taking memory, for states that grow when a store has none left.
    pub(crate) fn charge_coarsely(&mut self, check: Check<'_>, now: Micros, cost: u32) {
        match self {
            State::SlidingLog(log) if log.must_grow() => log.charge_coarsely(check.limit(), now, cost),
            State::Buckets(buckets) if buckets.must_grow(check.grid(), now) => {
                let _ = buckets.add_coarsely(check.grid(), check.shortest_period(), now, now, cost);
            }
            state => state.charge(check, now, cost),
        }
    }

    /// Takes back what was charged before: the latest first, never more than is charged, and of windows only what the present one holds. An average
    /// does not know what it is made of, and the sketch counts other keys, too: both stay as they are.
    pub(crate) fn give_back(&mut self, check: Check<'_>, now: Micros, cost: u32) {
        match self {
            State::TokenBucket(state) => state.give_back(check.limit(), now, cost),
            State::FixedWindow(state) => state.give_back(cost),
            State::AlignedWindow(state) => state.give_back(cost),
            State::SlidingLog(state) => state.give_back(cost),
            State::SlidingWindow(state) => state.give_back(cost),
            State::Buckets(state) => state.give_back(cost),
            State::StrictAverage(_) | State::LeakyAverage(_) | State::Sketched(_) => {}
        }
    }

    /// See [`Meter::note_denial`].
    #[inline]
    pub(crate) fn note_denial(&mut self, check: Check<'_>, now: Micros, cost: u32) {
        each!(self, check, (state, limit) => state.note_denial(limit, now, cost), _buckets => {});
    }

    /// True when a denial alone is worth an entry.
    #[must_use]
    pub fn remembers_denials(&self) -> bool {
        matches!(self, State::StrictAverage(state) if state.is_used())
    }

    /// See [`Meter::status`].
    #[must_use]
    #[inline]
    pub fn status(&self, check: Check<'_>, now: Micros) -> Status {
        each!(self, check,
            (state, limit) => state.status(limit, now),
            buckets => buckets.status(check.limit(), check.grid(), now))
    }

    /// The verdict with what is left, as they stand.
    #[inline]
    pub(crate) fn decision(&self, check: Check<'_>, now: Micros, verdict: Verdict) -> Decision {
        let Status { remaining, reset_after } = self.status(check, now);
        let rate = each!(self, check,
            (state, limit) => state.rate(limit, remaining),
            _buckets => Rate::new(f64::from(check.limit().count().saturating_sub(remaining))));
        Decision { verdict, limit: check.limit().burst(), remaining, reset_after, rate }
    }
}
