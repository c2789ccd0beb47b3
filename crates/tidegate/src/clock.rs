//! The one place where time is read.
//!
//! Decisions are stamped by an *authority clock*. For the embedded store that is the process's:
//! the wall clock at start, carried on by the monotonic clock, so that an administrator's or NTP's
//! step back is not seen at all: it admits nothing extra and locks nobody out (promise T1). A step
//! forward is followed, so that aligned windows stay aligned with the world's.
//! Simulations and tests set a clock by hand.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidegate_core::Micros;

/// Where `now` comes from.
#[derive(Debug)]
pub enum Clock {
    /// The process's clock.
    Process(ProcessClock),
    /// A clock that stands until it is set.
    Manual(ManualClock),
}

impl Clock {
    /// A clock that goes with the world's and never back.
    #[must_use]
    pub fn process() -> Clock {
        Clock::Process(ProcessClock::start(wall()))
    }

    /// A clock that stands at `at` until it is set.
    #[must_use]
    pub fn manual(at: Micros) -> Clock {
        Clock::Manual(ManualClock(AtomicU64::new(at.get())))
    }

    /// The time that stamps a decision made now.
    #[must_use]
    pub fn now(&self) -> Micros {
        match self {
            Clock::Process(clock) => clock.now(),
            Clock::Manual(clock) => Micros::saturating(clock.0.load(Relaxed)),
        }
    }

    /// Sets a manual clock, forwards or backwards; a process clock stays as it is.
    pub fn set(&self, at: Micros) {
        if let Clock::Manual(clock) = self {
            clock.0.store(at.get(), Relaxed);
        }
    }

    /// Lets a process clock start no earlier than `at`: states that were saved by a process whose
    /// clock was ahead must not come from the future.
    pub fn not_before(&self, at: Micros) {
        match self {
            Clock::Process(clock) => clock.follow(at.get()),
            Clock::Manual(clock) => {
                clock.0.fetch_max(at.get(), Relaxed);
            }
        }
    }

    /// Follows the wall clock if it has gone ahead. Called about once a second.
    pub fn follow_wall(&self) {
        if let Clock::Process(clock) = self {
            clock.follow(wall());
        }
    }
}

/// Epoch microseconds = `offset` + time since `origin`; the offset only grows.
#[derive(Debug)]
pub struct ProcessClock {
    origin: Instant,
    offset_us: AtomicU64,
}

/// How far the wall clock may be ahead before it is followed: less is the noise of reading two clocks.
const NOISE_US: u64 = 1_000;

impl ProcessClock {
    fn start(wall_us: u64) -> ProcessClock {
        ProcessClock { origin: Instant::now(), offset_us: AtomicU64::new(wall_us) }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> Micros {
        Micros::saturating(self.offset_us.load(Relaxed).saturating_add(self.elapsed()))
    }

    fn follow(&self, wall_us: u64) {
        let wanted = wall_us.saturating_sub(self.elapsed());
        if wanted > self.offset_us.load(Relaxed) + NOISE_US {
            self.offset_us.fetch_max(wanted, Relaxed);
        }
    }
}

/// A clock set by hand.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_a_step_back_of_the_wall_clock_is_not_seen() {
        let clock = ProcessClock::start(5_000_000_000);
        let before = clock.now();
        clock.follow(1_000_000_000);
        assert!(clock.now() >= before);
        clock.follow(9_000_000_000);
        assert!(clock.now() >= Micros::saturating(9_000_000_000));
    }

    #[test]
    fn a_manual_clock_stands_until_it_is_set() {
        let clock = Clock::manual(Micros::from_secs(7));
        clock.follow_wall();
        assert_eq!(clock.now(), Micros::from_secs(7));
        clock.set(Micros::from_secs(3));
        assert_eq!(clock.now(), Micros::from_secs(3));
    }
}
