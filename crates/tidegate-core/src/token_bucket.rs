//! Token bucket, kept as the time at which it will be empty (the generic cell rate algorithm).
//!
//! **Idea.** The bucket is a debt that drains at the limit's rate. A request of cost `c` adds
//! `c × period / count` of draining time and passes if the debt then still fits the burst. The only
//! thing to remember is when the debt will be gone.
//!
//! **Units.** Three per second is one per 333,333⅓ µs, which no integer holds, and a rounded one
//! would be a different limit. So count and period are reduced to lowest terms and time is counted
//! in *ticks*, of which a microsecond holds `per_micro` (the reduced count): then one unit of cost
//! is exactly `interval` ticks (the reduced period). 3 per second: 3 ticks a microsecond, 1,000,000
//! ticks a request. The state keeps the emptying time as whole microseconds, rounded up, together
//! with the ticks by which that is too late and how many of those make a microsecond.
//!
//! **Example.** 3 per second, burst 3, three requests at 0: the debt is 3,000,000 ticks, empty at
//! 1,000,000 µs. One more needs the debt to fall by 1,000,000 ticks: 333,333⅓ µs, answered as 333,334.
//! At 333,334 it passes, and the bucket is empty at 1,333,333⅓: stored as 1,333,334 less 2 ticks.
//!
//! **A changed limit** keeps the time until empty, capped at what the new burst can owe. The part
//! of a microsecond counts in the old limit's ticks, so it is rounded up when the rate changes.
//!
//! **Promise** (A4): in any interval of length L at most `burst + floor(L × count / period)` pass,
//! whatever idle gap came before. **Weakness**: a full burst and the refill after it fit into one
//! period, so up to twice the count can pass in it. Where that matters use `sliding-log`.

use crate::{Compact, Decision, Limit, Meter, Micros, Status, Verdict};

/// A bucket as a charge left it, and the limit that it was charged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    after: State,
    interval: u64,
    full: u64,
}

/// When the bucket will be empty, exactly: `empty_at - early / per_micro` microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct State {
    empty_at: Micros,
    early: u32,
    per_micro: u32,
}

impl State {
    /// The debt in ticks of this limit, at most the burst's.
    #[inline]
    fn debt(&self, limit: &Limit, now: Micros) -> u64 {
        let bucket = limit.bucket();
        let wait = self.empty_at.saturating_sub(now).get();
        // Compared before multiplied: a longer wait would overflow the product, and is capped anyway.
        if wait > bucket.full_micros {
            return bucket.full;
        }
        let early = if self.per_micro == bucket.per_micro { u64::from(self.early) } else { 0 };
        (wait * u64::from(bucket.per_micro)).saturating_sub(early).min(bucket.full)
    }

    #[inline]
    fn set_debt(&mut self, limit: &Limit, now: Micros, debt: u64) {
        if debt == 0 {
            // Not "empty at now": a clock that steps back would make a debt of it.
            *self = State::default();
            return;
        }
        let bucket = limit.bucket();
        // Most limits reduce to one per so many microseconds; a division is a third of the work.
        let (wait, early) = match u64::from(bucket.per_micro) {
            1 => (debt, 0),
            per_micro => {
                let wait = debt.div_ceil(per_micro);
                (wait, u32::try_from(wait * per_micro - debt).unwrap_or(0))
            }
        };
        self.empty_at = now.saturating_add(Micros::saturating(wait));
        self.early = early;
        self.per_micro = bucket.per_micro;
    }

    /// Takes the price of `cost` off the debt, which does not fall below nothing.
    pub fn give_back(&mut self, limit: &Limit, now: Micros, cost: u32) {
        let debt = self.debt(limit, now).saturating_sub(price(limit, cost));
        self.set_debt(limit, now, debt);
    }

    /// What a charge that was made right now has left, so that it can be given back.
    #[must_use]
    pub fn mark(&self, limit: &Limit) -> Mark {
        let bucket = limit.bucket();
        Mark { after: *self, interval: bucket.interval, full: bucket.full }
    }

    /// Takes the price of `cost` off the debt, as far as it is still owed of the charge that left the mark: later charges lie on top of
    /// it. Returns how many whole costs that was. By another limit nothing is given back.
    pub fn give_back_of(&mut self, limit: &Limit, now: Micros, mark: &Mark, cost: u32) -> u32 {
        let bucket = limit.bucket();
        if (bucket.interval, bucket.full, bucket.per_micro) != (mark.interval, mark.full, mark.after.per_micro) {
            return 0;
        }
        let debt = self.debt(limit, now);
        let back = price(limit, cost).min(mark.after.debt(limit, now)).min(debt);
        self.set_debt(limit, now, debt - back);
        u32::try_from(back / bucket.interval).unwrap_or(u32::MAX)
    }

    /// Takes `cost` whatever the burst; the debt stops at a full one.
    pub fn overdraw(&mut self, limit: &Limit, now: Micros, cost: u32) {
        let debt = self.debt(limit, now).saturating_add(price(limit, cost)).min(limit.bucket().full);
        self.set_debt(limit, now, debt);
    }

    /// What to say of a settled state that owes `debt`.
    #[inline]
    fn decision(&self, limit: &Limit, now: Micros, verdict: Verdict, debt: u64) -> Decision {
        let bucket = limit.bucket();
        let remaining = u32::try_from((bucket.full - debt) / bucket.interval).unwrap_or(u32::MAX);
        let rate = self.rate(limit, remaining);
        Decision { verdict, limit: limit.burst(), remaining, reset_after: self.empty_at.saturating_sub(now), rate }
    }
}

/// What to say of a bucket that owes `debt` when a store has decided: of a request that was allowed, whose price the debt holds, or of one of
/// this cost that was denied.
pub fn describe(limit: &Limit, debt: u64, denied: Option<u32>) -> Decision {
    let mut state = State::default();
    state.set_debt(limit, Micros::ZERO, debt.min(limit.bucket().full));
    let verdict = denied.map_or(Verdict::Allow, |cost| state.verdict(limit, Micros::ZERO, cost));
    state.decision(limit, Micros::ZERO, verdict, state.debt(limit, Micros::ZERO))
}

#[inline]
fn price(limit: &Limit, cost: u32) -> u64 {
    u64::from(cost).saturating_mul(limit.bucket().interval)
}

impl Compact for State {
    #[inline]
    fn to_words(self) -> [u64; 2] {
        [self.empty_at.get(), u64::from(self.early) << 32 | u64::from(self.per_micro)]
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    #[inline]
    fn from_words([empty_at, rest]: [u64; 2]) -> State {
        State { empty_at: Micros::saturating(empty_at), early: (rest >> 32) as u32, per_micro: rest as u32 }
    }
}

impl Meter for State {
    /// Caps the debt at the burst's: after a burst was reduced, and after a clock stepped back.
    /// A full bucket stays full, so nothing extra passes, and it drains from here on.
    #[inline]
    fn settle(&mut self, limit: &Limit, now: Micros) {
        if self.empty_at <= now {
            *self = State::default();
        } else if self.empty_at.saturating_sub(now).get() > limit.bucket().full_micros {
            self.set_debt(limit, now, limit.bucket().full);
        }
    }

    #[inline]
    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        let bucket = limit.bucket();
        let after = self.debt(limit, now).saturating_add(price(limit, cost));
        if after <= bucket.full {
            return Verdict::Allow;
        }
        let wait = (after - bucket.full).div_ceil(u64::from(bucket.per_micro));
        Verdict::Deny { retry_after: Some(Micros::saturating(wait)) }
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, now: Micros, cost: u32) {
        let debt = self.debt(limit, now).saturating_add(price(limit, cost));
        self.set_debt(limit, now, debt);
    }

    /// The same steps as apart, with the debt worked out once: it is most of a decision. It is the same before and after
    /// settling, and a charge writes a settled state.
    #[inline]
    fn decide(&mut self, limit: &Limit, now: Micros, cost: u32) -> Decision {
        let bucket = limit.bucket();
        let debt = self.debt(limit, now);
        let after = debt.saturating_add(price(limit, cost));
        let verdict = if cost == 0 {
            Verdict::Allow
        } else if cost > limit.burst() {
            Verdict::NEVER
        } else if after > bucket.full {
            let wait = (after - bucket.full).div_ceil(u64::from(bucket.per_micro));
            Verdict::Deny { retry_after: Some(Micros::saturating(wait)) }
        } else {
            self.set_debt(limit, now, after);
            return self.decision(limit, now, Verdict::Allow, after);
        };
        self.settle(limit, now);
        self.decision(limit, now, verdict, debt)
    }

    #[inline]
    fn status(&self, limit: &Limit, now: Micros) -> Status {
        let left = (limit.bucket().full - self.debt(limit, now)) / limit.bucket().interval;
        Status { remaining: u32::try_from(left).unwrap_or(u32::MAX), reset_after: self.empty_at.saturating_sub(now) }
    }

    fn capacity(limit: &Limit) -> u32 {
        limit.burst()
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    use crate::scenario::check;

    #[test]
    fn three_per_second_is_exactly_three() {
        check::<State>(
            "3 per second",
            "
            0        3 -> allow left=0 reset=1000000
            0        1 -> deny retry=333334
            333333   1 -> deny retry=1
            333334   1 -> allow left=0 reset=1000000
            666666   1 -> deny retry=1
            666667   1 -> allow left=0
            1000000  1 -> allow left=0 reset=1000000
            1000000  1 -> deny retry=333334",
        );
    }

    #[test]
    fn a4_idling_earns_one_burst_and_no_more() {
        check::<State>(
            "100 per minute",
            "
            0          100 -> allow left=0
            0          1   -> deny retry=600000
            118000000  100 -> allow left=0
            118000000  1   -> deny retry=600000",
        );
    }

    #[test]
    fn a4_one_per_minute_is_one() {
        check::<State>(
            "1 per minute",
            "
            0          1 -> allow left=0
            59999999   1 -> deny retry=1
            60000000   1 -> allow left=0
            600000000  1 -> allow left=0
            600000000  1 -> deny retry=60000000",
        );
    }

    #[test]
    fn burst_is_apart_from_the_rate() {
        check::<State>(
            "20 per minute burst 40",
            "
            0         40 -> allow left=0 limit=40
            0         1  -> deny retry=3000000
            3000000   1  -> allow left=0
            63000000  20 -> allow left=0
            63000000  41 -> deny retry=never",
        );
    }

    #[test]
    fn cost_zero_looks_and_never_is_never() {
        check::<State>(
            "2 per second",
            "
            0 0 -> allow left=2 reset=0
            0 2 -> allow left=0
            0 0 -> allow left=0 reset=1000000
            0 3 -> deny retry=never",
        );
        check::<State>(
            "0 per second",
            "
            0 1 -> deny retry=never left=0
            0 0 -> allow left=0",
        );
    }

    #[test]
    fn t1_a_step_back_admits_nothing_and_refills_from_there() {
        check::<State>(
            "10 per minute",
            "
            600000000 10 -> allow left=0
            1         1  -> deny retry=6000000
            6000001   1  -> allow left=0",
        );
    }

    #[test]
    fn a_smaller_burst_caps_the_time_until_empty() {
        check::<State>(
            "100 per minute",
            "
            0 100 -> allow left=0 reset=60000000
            limit 100 per minute burst 10
            0       1 -> deny retry=600000 left=0 reset=6000000
            600000  1 -> allow left=0",
        );
    }

    /// A count of 0 capped the debt to nothing but kept the time; after a step back of the clock
    /// that time was a debt again. Found by the model after 475,337 steps.
    #[test]
    fn t1_no_debt_is_no_time_either() {
        check::<State>(
            "5 per second",
            "
            9000000 5 -> allow left=0
            limit 0 per second
            9000000 1 -> deny retry=never
            limit 5 per second
            1000000 1 -> allow left=4",
        );
    }

    #[test]
    fn a_faster_rate_keeps_the_time_until_empty() {
        check::<State>(
            "6 per minute",
            "
            0 3 -> allow left=3 reset=30000000
            limit 60 per minute
            0 0 -> allow left=30 reset=30000000",
        );
    }
}
