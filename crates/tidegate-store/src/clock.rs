//! The one place where time is read.
//!
//! Decisions are stamped by an *authority clock*. For the embedded store that is the process's:
//! the wall clock at start, carried on by the monotonic clock, so that an administrator's or NTP's
//! step back is not seen at all: it admits nothing extra and locks no key out (promise T1). A step
//! forward is followed, so that aligned windows stay aligned with the world's.
//! Simulations and tests set a clock by hand. A process has one clock: clones of it are the same clock.

use std::pin::pin;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_core::Micros;
use tokio::sync::Notify;

/// Where `now` comes from. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// The process's clock.
    Process(ProcessClock),
    /// A clock that stands until it is set.
    Manual(ManualClock),
}

impl Clock {
    /// A clock that goes with the world's and never back.
    #[must_use]
    pub fn process() -> Clock {
        Clock(Arc::new(Source::Process(ProcessClock::start(wall()))))
    }

    /// A clock that stands at `at` until it is set.
    #[must_use]
    pub fn manual(at: Micros) -> Clock {
        Clock(Arc::new(Source::Manual(ManualClock { at_us: AtomicU64::new(at.get()), moved: Notify::new() })))
    }

    /// The time that stamps a decision made now.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Micros {
        match &*self.0 {
            Source::Process(clock) => clock.now(),
            Source::Manual(clock) => clock.now(),
        }
    }

    /// A manual clock's time, which takes the place of a store's own clock; `None`: a process clock.
    #[must_use]
    pub fn manual_now(&self) -> Option<Micros> {
        match &*self.0 {
            Source::Process(_) => None,
            Source::Manual(_) => Some(self.now()),
        }
    }

    /// Sets a manual clock, forwards or backwards; a process clock stays as it is.
    pub fn set(&self, at: Micros) {
        if let Source::Manual(clock) = &*self.0 {
            clock.at_us.store(at.get(), Relaxed);
            clock.moved.notify_waiters();
        }
    }

    /// Lets a process clock start no earlier than `at`: states that were saved by a process whose
    /// clock was ahead must not come from the future.
    pub fn not_before(&self, at: Micros) {
        match &*self.0 {
            Source::Process(clock) => clock.follow(at.get()),
            Source::Manual(clock) => {
                clock.at_us.fetch_max(at.get(), Relaxed);
                clock.moved.notify_waiters();
            }
        }
    }

    /// Waits until it is `at`, or later. By a process clock it needs a running tokio runtime; by a manual one somebody has to set it.
    pub async fn reach(&self, at: Micros) {
        match &*self.0 {
            Source::Process(clock) => {
                while let left @ 1.. = at.saturating_sub(clock.now()).get() {
                    tokio::time::sleep(Duration::from_micros(left)).await;
                }
            }
            Source::Manual(clock) => clock.reach(at).await,
        }
    }

    /// How far a process clock is ahead of the wall clock, which was set back since or was behind what was saved.
    #[must_use]
    pub fn ahead_of_wall(&self) -> Micros {
        match &*self.0 {
            Source::Process(clock) => clock.now().saturating_sub(Micros::saturating(wall())),
            Source::Manual(_) => Micros::ZERO,
        }
    }

    /// Follows the wall clock if it has gone ahead. Called about once a second.
    pub fn follow_wall(&self) {
        if let Source::Process(clock) = &*self.0 {
            clock.follow(wall());
        }
    }
}

/// A clock that stands until it is set, and those who wait for it.
#[derive(Debug)]
struct ManualClock {
    at_us: AtomicU64,
    moved: Notify,
}

impl ManualClock {
    fn now(&self) -> Micros {
        Micros::saturating(self.at_us.load(Relaxed))
    }

    async fn reach(&self, at: Micros) {
        loop {
            let mut moved = pin!(self.moved.notified());
            // Before the time is read: else it could be set in between, and nobody would be told.
            moved.as_mut().enable();
            if self.now() >= at {
                return;
            }
            moved.await;
        }
    }
}

/// The process's clock: the processor's counter, disciplined once a second by the system's clocks.
///
/// Asking the system takes about 30 ns, a third of a decision, and it happens while a key is
/// locked. The counter takes 10. So between two corrections time is a straight line over the counter:
/// `base + (counter - start) × rate`. A correction never moves it back: what is too far ahead is slowed
/// down until the system has caught up.
#[derive(Debug)]
struct ProcessClock {
    counter: quanta::Clock,
    system: Mutex<System>,
    line: Line,
}

/// The system's time: monotonic since the start, plus an offset to the epoch that only grows.
#[derive(Debug)]
struct System {
    origin: Instant,
    offset_us: u64,
    /// Counter and microseconds at the last correction, to measure the counter's rate.
    last: (u64, u64),
}

/// The straight line, readable while it is replaced: readers try again when `version` is odd or moved.
#[derive(Debug, Default)]
struct Line {
    version: AtomicU64,
    start: AtomicU64,
    base_us: AtomicU64,
    /// Microseconds per count, times 2^RATE_BITS.
    rate: AtomicU64,
}

/// How far the wall clock may be ahead before it is followed: less is the noise of reading two clocks.
const NOISE_US: u64 = 1_000;
const RATE_BITS: u32 = 44;
/// An error of the line is worked off by running this much faster or slower, in parts per million.
const SLEW_PPM: u64 = 500;
/// Rates are measured over at least this long: less is noise.
const MEASURE_US: u64 = 2_000;

impl ProcessClock {
    fn start(wall_us: u64) -> ProcessClock {
        let counter = quanta::Clock::new();
        let origin = Instant::now();
        let system = System { origin, offset_us: wall_us, last: (counter.raw(), wall_us) };
        let clock = ProcessClock { counter, system: Mutex::new(system), line: Line::default() };
        while clock.system().now_us() < wall_us + MEASURE_US {
            std::hint::spin_loop();
        }
        clock.correct();
        clock
    }

    #[inline]
    fn now(&self) -> Micros {
        Micros::saturating(self.line.at(self.counter.raw()))
    }

    /// Goes ahead with the wall clock if that has gone ahead, and corrects the line.
    fn follow(&self, wall_us: u64) {
        let mut system = self.system();
        let ahead = wall_us.saturating_sub(system.now_us());
        if ahead > NOISE_US {
            system.offset_us += ahead;
            system.last.1 += ahead;
        }
        drop(system);
        self.correct();
    }

    fn correct(&self) {
        let mut system = self.system();
        let (count, now_us) = (self.counter.raw(), system.now_us());
        let (counts, micros) = (count.saturating_sub(system.last.0), now_us.saturating_sub(system.last.1));
        if counts > 0 && micros >= MEASURE_US {
            let rate = (u128::from(micros) << RATE_BITS) / u128::from(counts);
            self.line.replace(count, now_us, u64::try_from(rate).unwrap_or(0));
            system.last = (count, now_us);
        } else if now_us > self.line.at(count) {
            self.line.replace(count, now_us, self.line.rate.load(Relaxed));
        }
    }

    fn system(&self) -> MutexGuard<'_, System> {
        self.system.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl System {
    fn now_us(&self) -> u64 {
        self.offset_us.saturating_add(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

impl Line {
    #[inline]
    fn at(&self, count: u64) -> u64 {
        loop {
            let version = self.version.load(Acquire);
            let (start, base, rate) = (self.start.load(Relaxed), self.base_us.load(Relaxed), self.rate.load(Relaxed));
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                return base + along(count.saturating_sub(start), rate);
            }
            std::hint::spin_loop();
        }
    }

    /// Goes on from here towards `now_us` at about `rate`. Only one thread at a time.
    fn replace(&self, count: u64, now_us: u64, rate: u64) {
        let reached = self.at(count);
        let slowed = if reached > now_us { rate - rate / 1_000_000 * SLEW_PPM } else { rate };
        self.version.fetch_add(1, AcqRel);
        self.start.store(count, Relaxed);
        // Behind is made up at once: a small step forward is time passing.
        self.base_us.store(reached.max(now_us), Relaxed);
        self.rate.store(slowed, Relaxed);
        self.version.fetch_add(1, Release);
    }
}

#[inline]
fn along(counts: u64, rate: u64) -> u64 {
    let micros = (u128::from(counts) * u128::from(rate)) >> RATE_BITS;
    u64::try_from(micros).unwrap_or(u64::MAX)
}

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
        assert!(clock.now() < Micros::saturating(5_100_000_000));
        clock.follow(9_000_000_000);
        assert!(clock.now() >= Micros::saturating(9_000_000_000));
        assert!(clock.now() < Micros::saturating(9_100_000_000));
    }

    #[test]
    fn keeps_pace_with_the_system_and_never_goes_back() {
        let clock = ProcessClock::start(1_000_000);
        let start = Instant::now();
        let began = clock.now();
        let mut last = began;
        while start.elapsed().as_millis() < 300 {
            for _ in 0..1_000 {
                let now = clock.now();
                assert!(now >= last, "{now:?} after {last:?}");
                last = now;
            }
            clock.correct();
        }
        let (ours, systems) = (clock.now().get() - began.get(), start.elapsed().as_micros());
        assert!(u128::from(ours).abs_diff(systems) < 2_000, "{ours} µs of the clock in {systems} µs");
    }

    #[test]
    fn a_line_that_is_ahead_is_slowed_and_not_turned_back() {
        let line = Line::default();
        let one_to_one = 1 << RATE_BITS;
        line.replace(0, 100, one_to_one);
        assert_eq!(line.at(1_000_000), 1_000_100);
        line.replace(1_000_000, 1_000_000, one_to_one);
        assert_eq!(line.at(1_000_000), 1_000_100);
        let later = line.at(2_000_000);
        assert!((2_000_100 - 501..2_000_100 - 498).contains(&later), "{later}");
        line.replace(2_000_000, 2_000_000, one_to_one);
        assert_eq!(line.at(2_000_000), 2_000_000, "behind is made up at once");
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
