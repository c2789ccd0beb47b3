//! Sliding window from two counters: tiny state, and an error that is stated.
//!
//! **Idea.** Count per aligned window; estimate what the last period holds as this window's count
//! plus the part of the previous window's that the sliding period still covers, as if that count
//! had been spread evenly.
//!
//! **Units.** Microseconds and whole costs; the estimate is compared as integers
//! (`previous × left ≤ room × period`), rounded against the caller.
//!
//! **Example.** 10 per minute: 8 in the minute before, now 15 s into this one with 3 used. The
//! period covers 45 s of the previous minute: 8 × 45 / 60 = 6, so 6 + 3 = 9 are used and 1 is left.
//!
//! **A changed limit** keeps the counts, as whole windows of the new period.
//!
//! **Weakness** (A3): requests are not spread evenly. If the previous window's all came at its
//! end, up to twice the count, less one, can pass within one period; if they came at its start,
//! requests are denied that an exact log would allow. The share of such decisions on recorded
//! traffic is printed by the tests. Where exactness matters use `sliding-log`.

use crate::meter::{Step, step};
use crate::{Compact, Limit, Meter, Micros, Status, Verdict};

/// This window's count and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct State {
    start: Micros,
    previous: u32,
    current: u32,
}

impl State {
    /// Both windows' counts: an upper bound of what any period that ends now holds.
    #[must_use]
    pub(crate) fn total(&self) -> u64 {
        u64::from(self.previous) + u64::from(self.current)
    }

    /// Counts what another state of the same limit counted, too. Both were settled at the same time.
    pub(crate) fn absorb(&mut self, other: State) {
        if self.start == other.start {
            self.previous = self.previous.saturating_add(other.previous);
            self.current = self.current.saturating_add(other.current);
        } else {
            // The clock stepped back in between: all of it counts for the longer time.
            let total = u32::try_from(self.total() + other.total()).unwrap_or(u32::MAX);
            *self = State { start: self.start.max(other.start), previous: 0, current: total };
        }
    }

    /// Takes `cost` off what this window holds. What the previous one was charged fades by itself.
    pub(crate) fn give_back(&mut self, cost: u32) {
        self.current = self.current.saturating_sub(cost);
    }

    /// When this window began.
    pub(crate) const fn start(&self) -> Micros {
        self.start
    }

    /// Takes `cost` off the window that began at `start`, this one or the one before; how much of it was there.
    pub(crate) fn give_back_of(&mut self, limit: &Limit, start: Micros, cost: u32) -> u32 {
        let count = match self.start {
            this if this == start => &mut self.current,
            this if this == start.saturating_add(limit.period()) => &mut self.previous,
            _ => return 0,
        };
        let back = cost.min(*count);
        *count -= back;
        back
    }

    /// What is left of the current window; while a clock that stepped back catches up, all of it.
    fn left(&self, limit: &Limit, now: Micros) -> Micros {
        limit.period().saturating_sub(now.saturating_sub(self.start))
    }

    /// The estimate of what the last period holds, rounded up.
    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        let covered = u128::from(self.previous) * u128::from(self.left(limit, now).get());
        // At most `previous`, as the window's rest is at most the period.
        let covered = u64::try_from(covered.div_ceil(u128::from(limit.period().get()))).unwrap_or(u64::MAX);
        u64::from(self.current) + covered
    }

    /// From `now` until the window ends, which is longer than the window while the clock catches up.
    fn until_end(&self, limit: &Limit, now: Micros) -> Micros {
        self.start.saturating_add(limit.period()).saturating_sub(now)
    }
}

/// How much of a window must pass before `count` has faded to at most `room`, rounded up.
fn fade(count: u32, room: u32, period: Micros) -> Micros {
    if count <= room {
        return Micros::ZERO;
    }
    let still_covered = u128::from(room) * u128::from(period.get()) / u128::from(count);
    period.saturating_sub(Micros::saturating(u64::try_from(still_covered).unwrap_or(u64::MAX)))
}

impl Compact for State {
    #[inline]
    fn to_words(self) -> [u64; 2] {
        [self.start.get(), u64::from(self.previous) << 32 | u64::from(self.current)]
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    #[inline]
    fn from_words([start, counts]: [u64; 2]) -> State {
        State { start: Micros::saturating(start), previous: (counts >> 32) as u32, current: counts as u32 }
    }
}

impl Meter for State {
    fn settle(&mut self, limit: &Limit, now: Micros) {
        let period = limit.period();
        if self.total() == 0 {
            // Nothing is counted, so there is no window to wait for either.
            self.start = now;
        }
        let effective = match step(self.start, now, period) {
            Step::Onward { effective } => effective,
            Step::Reanchor => {
                self.start = now;
                now
            }
        };
        let current = Micros::saturating(effective.get() - effective.get() % period.get());
        let behind = current.saturating_sub(self.start);
        if behind > period {
            *self = State::default();
        } else if !behind.is_zero() {
            (self.previous, self.current) = (self.current, 0);
        }
        self.start = current;
    }

    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        if self.used(limit, now) + u64::from(cost) <= u64::from(limit.count()) {
            return Verdict::Allow;
        }
        let period = limit.period();
        let room = limit.count() - cost.min(limit.count());
        let wait = if let Some(room) = room.checked_sub(self.current) {
            // The previous window's part fades to what this window leaves free.
            let passed = period.saturating_sub(self.left(limit, now));
            let early = self.start.saturating_sub(now);
            early.saturating_add(fade(self.previous, room, period).saturating_sub(passed))
        } else {
            // This window is full by itself: it must end, and then fade in turn.
            self.until_end(limit, now).saturating_add(fade(self.current, room, period))
        };
        Verdict::Deny { retry_after: Some(wait) }
    }

    fn charge(&mut self, _: &Limit, _: Micros, cost: u32) {
        self.current = self.current.saturating_add(cost);
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        let left = u64::from(limit.count()).saturating_sub(self.used(limit, now));
        let reset_after = match (self.current, self.previous) {
            (0, 0) => Micros::ZERO,
            (0, _) => self.until_end(limit, now),
            _ => self.until_end(limit, now).saturating_add(limit.period()),
        };
        Status { remaining: u32::try_from(left).unwrap_or(u32::MAX), reset_after }
    }
}

#[cfg(test)]
mod tests {
    use super::State;
    use crate::scenario::check;

    #[test]
    fn the_previous_window_fades() {
        check::<State>(
            "10 per minute",
            "
            0         8 -> allow left=2 reset=120000000
            60000000  2 -> allow left=0 reset=120000000
            60000000  1 -> deny retry=7500000
            67500000  1 -> allow left=0
            75000000  0 -> allow left=1 reset=105000000",
        );
    }

    #[test]
    fn a_full_window_must_end_and_fade() {
        check::<State>(
            "10 per minute",
            "
            0          10 -> allow left=0 reset=120000000
            30000000   1  -> deny retry=36000000
            66000000   1  -> allow left=0
            66000000   1  -> deny retry=6000000
            72000000   1  -> allow left=0
            190000000  10 -> allow left=0",
        );
    }

    #[test]
    fn retry_after_crosses_the_boundary() {
        check::<State>(
            "4 per minute",
            "
            0         4 -> allow left=0
            59000000  4 -> deny retry=61000000
            59000000  5 -> deny retry=never
            120000000 4 -> allow left=0",
        );
    }

    #[test]
    fn t1_steps_back_hold_or_carry_over() {
        check::<State>(
            "2 per minute",
            "
            120000000  2 -> allow left=0
            70000000   1 -> deny retry=140000000
            210000000  1 -> allow left=0
            9000000000 2 -> allow left=0
            5000000    1 -> deny retry=85000000
            90000000   1 -> allow left=0",
        );
    }

    #[test]
    fn a_changed_limit_keeps_the_counts() {
        check::<State>(
            "4 per minute",
            "
            0        4 -> allow left=0
            limit 6 per minute
            30000000 2 -> allow left=0
            limit 3 per minute
            30000000 0 -> allow left=0",
        );
    }
}
