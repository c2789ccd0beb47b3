//! Fixed window: one counter that starts anew each period.
//!
//! **Idea.** A window opens, costs add up, what does not fit waits for the next window. Two ways to
//! open it: at the key's first hit ([`FirstHit`]; each key has its own windows), or at wall-clock
//! multiples of the period ([`Aligned`]; all keys share the windows, so that several servers agree
//! on them and "per day" means the UTC day; whole weeks begin on Mondays, unless the limit says otherwise).
//!
//! **Units.** Microseconds and whole costs. Windows are half-open: exactly one period after its
//! start a window is over.
//!
//! **Example.** 3 per minute by first hit, hits at 50, 51, 52, 53 s: three pass, the fourth waits
//! until 110 s. Aligned, the window 0–60 s takes the same three, and the fourth passes at 60 s.
//!
//! **A changed limit** keeps the count. First hit: the window's start stays and the new period runs
//! from it. Aligned: the count belongs to the new current window if the old one began inside it.
//!
//! **Replicas** may share an aligned window's limit (A8): what this process may take is worked out from the window's
//! number, so that it changes with the window and not with the clock of the process that asks.
//!
//! **Promise** (A2): no window holds more than the count. **Weakness**: a burst at the end of one
//! window and another at the start of the next put up to twice the count into one period.

use crate::meter::{Step, step};
use crate::{Compact, Limit, Meter, Micros, Status, Verdict};

/// A window that opens at the key's first hit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FirstHit(Window);

/// A window that opens at multiples of the period since the epoch; of whole weeks on their first day.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Aligned(Window);

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Window {
    start: Micros,
    used: u32,
}

impl Window {
    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        if self.used.checked_add(cost).is_some_and(|sum| sum <= limit.count_from(self.start)) {
            return Verdict::Allow;
        }
        Verdict::Deny { retry_after: Some(self.remains(limit, now)) }
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        Status {
            remaining: limit.count_from(self.start).saturating_sub(self.used),
            reset_after: if self.used == 0 { Micros::ZERO } else { self.remains(limit, now) },
        }
    }

    fn remains(&self, limit: &Limit, now: Micros) -> Micros {
        self.start.saturating_add(limit.period()).saturating_sub(now)
    }

    /// Takes `cost` off the window that began at `start`; how much of it was there.
    fn give_back_of(&mut self, start: Micros, cost: u32) -> u32 {
        let back = if self.start == start { cost.min(self.used) } else { 0 };
        self.used -= back;
        back
    }

    fn to_words(self) -> [u64; 2] {
        [self.start.get(), u64::from(self.used)]
    }

    #[expect(clippy::cast_possible_truncation, reason = "written from a u32")]
    fn from_words([start, used]: [u64; 2]) -> Window {
        Window { start: Micros::saturating(start), used: used as u32 }
    }
}

impl FirstHit {
    /// Takes `cost` off what the window holds, as what an earlier one was charged is gone with it; of an empty one nothing is left, so that the next hit opens a new one.
    pub(crate) fn give_back(&mut self, cost: u32) {
        self.0.give_back_of(self.0.start, cost);
        if self.0.used == 0 {
            *self = FirstHit::default();
        }
    }

    /// When its window began.
    pub(crate) const fn start(&self) -> Micros {
        self.0.start
    }

    /// Takes `cost` off the window that began at `start`; how much of it was there.
    pub(crate) fn give_back_of(&mut self, start: Micros, cost: u32) -> u32 {
        self.0.give_back_of(start, cost)
    }
}

impl Compact for FirstHit {
    #[inline]
    fn to_words(self) -> [u64; 2] {
        self.0.to_words()
    }

    #[inline]
    fn from_words(words: [u64; 2]) -> FirstHit {
        FirstHit(Window::from_words(words))
    }
}

impl Meter for FirstHit {
    fn settle(&mut self, limit: &Limit, now: Micros) {
        match step(self.0.start, now, limit.period()) {
            Step::Reanchor => self.0.start = now,
            Step::Onward { effective } if effective.saturating_sub(self.0.start) >= limit.period() => {
                *self = FirstHit::default();
            }
            Step::Onward { .. } => {}
        }
    }

    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        self.0.verdict(limit, now, cost)
    }

    fn charge(&mut self, _: &Limit, now: Micros, cost: u32) {
        if self.0.used == 0 {
            self.0.start = now;
        }
        self.0.used = self.0.used.saturating_add(cost);
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        self.0.status(limit, now)
    }
}

impl Aligned {
    /// When its window began.
    pub(crate) const fn start(&self) -> Micros {
        self.0.start
    }

    /// Takes `cost` off the window that began at `start`; how much of it was there.
    pub(crate) fn give_back_of(&mut self, start: Micros, cost: u32) -> u32 {
        self.0.give_back_of(start, cost)
    }

    /// Takes `cost` off what the window holds.
    pub(crate) fn give_back(&mut self, cost: u32) {
        self.0.give_back_of(self.0.start, cost);
    }
}

impl Compact for Aligned {
    #[inline]
    fn to_words(self) -> [u64; 2] {
        self.0.to_words()
    }

    #[inline]
    fn from_words(words: [u64; 2]) -> Aligned {
        Aligned(Window::from_words(words))
    }
}

impl Meter for Aligned {
    fn settle(&mut self, limit: &Limit, now: Micros) {
        match step(self.0.start, now, limit.period()) {
            _ if self.0.used == 0 => self.0.start = limit.window_start(now),
            Step::Reanchor => self.0.start = limit.window_start(now),
            Step::Onward { effective } => {
                let current = limit.window_start(effective);
                if self.0.start < current {
                    self.0.used = 0;
                }
                self.0.start = current;
            }
        }
    }

    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        self.0.verdict(limit, now, cost)
    }

    fn charge(&mut self, _: &Limit, _: Micros, cost: u32) {
        self.0.used = self.0.used.saturating_add(cost);
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        self.0.status(limit, now)
    }
}

#[cfg(test)]
mod tests {
    use super::{Aligned, FirstHit};
    use crate::scenario::check;

    #[test]
    fn a2_opens_at_the_first_hit_and_closes_one_period_later() {
        check::<FirstHit>(
            "3 per minute",
            "
            50000000   1 -> allow left=2 reset=60000000
            51000000   2 -> allow left=0 reset=59000000
            53000000   1 -> deny retry=57000000 left=0
            109999999  1 -> deny retry=1
            110000000  1 -> allow left=2 reset=60000000",
        );
    }

    #[test]
    fn a2_aligned_windows_open_at_multiples_of_the_period() {
        check::<Aligned>(
            "3 per minute",
            "
            50000000  3 -> allow left=0 reset=10000000
            53000000  1 -> deny retry=7000000
            59999999  1 -> deny retry=1
            60000000  1 -> allow left=2 reset=60000000",
        );
    }

    /// 2026-11-16 was a Monday. Weeks once began on Thursdays, as the epoch did.
    #[test]
    fn a2_aligned_weeks_begin_on_a_monday() {
        check::<Aligned>(
            "3 per week",
            "
            1794787199000000 3 -> allow left=0 reset=1000000
            1794787199000000 1 -> deny retry=1000000
            1794787200000000 1 -> allow left=2 reset=604800000000
            1795391999999999 2 -> allow left=0 reset=1
            1795392000000000 1 -> allow left=2",
        );
    }

    #[test]
    fn refused_requests_do_not_count() {
        check::<FirstHit>(
            "3 per minute",
            "
            0 2 -> allow left=1
            0 2 -> deny retry=60000000 left=1
            0 1 -> allow left=0
            0 4 -> deny retry=never
            0 0 -> allow left=0",
        );
    }

    #[test]
    fn t1_a_short_step_back_holds_the_window() {
        check::<FirstHit>(
            "1 per minute",
            "
            100000000 1 -> allow left=0
            70000000  1 -> deny retry=90000000
            160000000 1 -> allow left=0",
        );
        check::<Aligned>(
            "1 per minute",
            "
            120000000 1 -> allow left=0
            70000000  1 -> deny retry=110000000
            180000000 1 -> allow left=0",
        );
    }

    #[test]
    fn t1_a_long_step_back_locks_out_for_a_period_at_most() {
        check::<FirstHit>(
            "1 per minute",
            "
            9000000000 1 -> allow left=0
            5000000    1 -> deny retry=60000000
            65000000   1 -> allow left=0",
        );
        check::<Aligned>(
            "1 per minute",
            "
            9000000000 1 -> allow left=0
            5000000    1 -> deny retry=55000000
            60000000   1 -> allow left=0",
        );
    }

    #[test]
    fn a_changed_limit_keeps_the_count() {
        check::<FirstHit>(
            "3 per minute",
            "
            0 3 -> allow left=0
            limit 5 per 2m
            90000000  2 -> allow left=0 reset=30000000
            90000000  1 -> deny retry=30000000
            limit 2 per 2m
            90000000  0 -> allow left=0 reset=30000000",
        );
        check::<Aligned>(
            "3 per minute",
            "
            3540000000 3 -> allow left=0
            limit 4 per hour
            3541000000 1 -> allow left=0 reset=59000000",
        );
    }
}
