//! What every algorithm's state can do, and the one order in which it is done.
//!
//! A request is answered in four steps: *settle* the state at `now`, ask for the *verdict*,
//! *charge* if it may pass, report the *status*. They are separate because several limits and several
//! keys are charged all together or not at all (see [`crate::all_or_nothing`]).

use crate::{Decision, Limit, Micros, Rate, Status, Verdict};

/// One limit's memory of one key. Its fresh value is `Default`.
///
/// `verdict`, `charge` and `status` expect a state that was settled with the same `limit` and
/// `now`. No method panics for any state, limit, time or cost.
pub trait Meter {
    /// Forgets what `now` has outlived and fits the state to a changed limit; charges nothing.
    fn settle(&mut self, limit: &Limit, now: Micros);

    /// Would `cost` pass? Costs above [`Meter::capacity`] are ruled out before this is asked.
    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict;

    /// Takes `cost`, which the verdict allowed.
    fn charge(&mut self, limit: &Limit, now: Micros, cost: u32);

    /// Takes note of a hit that this limit itself denied. Nearly all forget it: a denial charges
    /// nothing. Strict averages count it.
    #[inline]
    fn note_denial(&mut self, _limit: &Limit, _now: Micros, _cost: u32) {}

    /// What is left.
    fn status(&self, limit: &Limit, now: Micros) -> Status;

    /// How much is in use when so much is left.
    #[inline]
    fn rate(&self, limit: &Limit, remaining: u32) -> Rate {
        Rate::new(f64::from(Self::capacity(limit).saturating_sub(remaining)))
    }

    /// The most that can pass at once.
    fn capacity(limit: &Limit) -> u32 {
        limit.count()
    }

    /// Settles, and charges `cost` if it may pass; otherwise the denial is noted.
    fn decide(&mut self, limit: &Limit, now: Micros, cost: u32) -> Decision
    where
        Self: Sized,
    {
        self.settle(limit, now);
        let verdict = verdict_within(self, limit, now, cost);
        match verdict {
            Verdict::Allow if cost > 0 => self.charge(limit, now, cost),
            Verdict::Allow => {}
            Verdict::Deny { .. } => self.note_denial(limit, now, cost),
        }
        let Status { remaining, reset_after } = self.status(limit, now);
        let rate = self.rate(limit, remaining);
        Decision { verdict, limit: Self::capacity(limit), remaining, reset_after, rate }
    }
}

/// A state of two words, for stores that keep it in a table.
pub trait Compact: Meter + Copy {
    /// The state as words; zeros for a fresh one.
    fn to_words(self) -> [u64; 2];

    /// The state that [`Compact::to_words`] wrote; any words make a valid state.
    fn from_words(words: [u64; 2]) -> Self;
}

/// The verdict, with "more than there ever is" answered first.
#[inline]
pub(crate) fn verdict_within<M: Meter>(meter: &M, limit: &Limit, now: Micros, cost: u32) -> Verdict {
    match cost {
        0 => Verdict::Allow,
        _ if cost > M::capacity(limit) => Verdict::NEVER,
        _ => meter.verdict(limit, now, cost),
    }
}

/// What to make of a stored time in the light of `now`.
///
/// Clocks step back: a failover to a server whose clock lags, an administrator, two threads that
/// read the clock in one order and decide in the other. Two promises pull in opposite directions:
/// a step back must admit nothing extra, and must not lock anybody out for long. So a stored time
/// up to a period ahead is simply waited for (it costs at most that period), and one further ahead
/// cannot come from this clock at all: then the state is carried over to `now` with its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Time went on, or stepped back so little that the stored time holds until `now` has caught up.
    Onward { effective: Micros },
    /// The stored time is more than a period ahead: move the state to `now`, counts and all.
    Reanchor,
}

pub(crate) fn step(stored: Micros, now: Micros, period: Micros) -> Step {
    if stored.saturating_sub(now) > period { Step::Reanchor } else { Step::Onward { effective: now.max(stored) } }
}
