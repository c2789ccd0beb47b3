//! The clock of the windows: the process's, set by the store's where replicas count at a store.
//!
//! A process's clock never goes back, so that it stays ahead for ever once the machine's was. A store that counts goes by
//! its own clock, and refuses every other window. So a refusal is taken for what the clock should have said: the
//! difference is kept here and added to every time.
//! Invariant: only a refusal sets the clock, and only if the time that its way took does not explain it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tidegate::{Clock, Micros};

/// Clones are the same clock.
#[derive(Clone)]
pub(crate) struct WindowClock {
    process: Clock,
    /// The store's time less the process's.
    offset_us: Arc<AtomicI64>,
}

/// How far the clocks may be apart: a store serves its windows so much too early and too late.
const DIFFER_US: i64 = tidegate_core::replicas::CLOCKS_DIFFER.get().cast_signed();

impl WindowClock {
    pub(crate) fn new(process: Clock) -> WindowClock {
        WindowClock { process, offset_us: Arc::default() }
    }

    pub(crate) fn now(&self) -> Micros {
        let now = self.process.now().get();
        Micros::saturating(now.saturating_add_signed(self.offset_us.load(Relaxed)))
    }

    /// The process's own time, for [`WindowClock::set_by`].
    pub(crate) fn process_now(&self) -> Micros {
        self.process.now()
    }

    /// Lets the process's clock follow the machine's.
    pub(crate) fn follow_wall(&self) {
        self.process.follow_wall();
    }

    /// The store's clock said `theirs` in answer to a request that was sent at `sent`, by the process's clock. Returns by how
    /// many microseconds this clock was set ahead, or back; `None`: it was right, as far as can be told.
    pub(crate) fn set_by(&self, theirs: Micros, sent: Micros) -> Option<i64> {
        let less = |ours: Micros| theirs.get().cast_signed() - ours.get().cast_signed();
        let (received, offset) = (self.process.now(), self.offset_us.load(Relaxed));
        let (least, most) = (less(received), less(sent));
        if (least - DIFFER_US..=most + DIFFER_US).contains(&offset) {
            return None;
        }
        // The middle: the request and its answer took the same time, for all that is known.
        let set_to = least.midpoint(most);
        self.offset_us.store(set_to, Relaxed);
        Some(set_to - offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request is sent at `sent` and answered at `received`, by the process's clock, by a store whose clock says
    /// `theirs`: by how much is the clock set, and what does it say then? All in milliseconds.
    #[track_caller]
    fn check(
        clock: &WindowClock,
        process: &Clock,
        (sent, theirs, received): (u64, u64, u64),
        set: Option<i64>,
        now: u64,
    ) {
        process.set(Micros::from_millis(received));
        let was_set = clock.set_by(Micros::from_millis(theirs), Micros::from_millis(sent));
        assert_eq!((was_set, clock.now()), (set.map(|set| set * 1_000), Micros::from_millis(now)), "{theirs}");
    }

    #[test]
    fn the_store_sets_the_clock_unless_the_way_explains_the_difference() {
        let process = Clock::manual(Micros::ZERO);
        let clock = WindowClock::new(process.clone());
        let check = |times, set, now| check(&clock, &process, times, set, now);
        // Within the tolerance, and late on a slow way: right.
        check((60_000, 60_000, 60_010), None, 60_010);
        check((60_000, 59_960, 60_010), None, 60_010);
        check((60_000, 60_400, 60_600), None, 60_600);
        // This process is 5 s ahead, and its requests that were sent before that was known change nothing.
        check((61_000, 56_005, 61_010), Some(-5_000), 56_010);
        check((60_990, 56_005, 61_020), None, 56_020);
        check((62_000, 57_000, 62_000), None, 57_000);
        // The store's clock goes ahead, and back.
        check((63_000, 68_000, 63_000), Some(10_000), 68_000);
        check((64_000, 59_000, 64_000), Some(-10_000), 59_000);
    }
}
