//! Bounds on time that hold on a busy machine: time that the machine had for others is not counted.
//!
//! A thread sleeps for a millisecond at a time and adds up by how much it was woken late. On a quiet machine that is
//! next to nothing, and a bound is as strict as it is written. On one with forty other processes for two processors, it
//! is most of the time, and what is left is what the work would have taken with the machine to itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long the watching thread sleeps.
const NAP: Duration = Duration::from_millis(1);
/// Waking so much late is what any machine does.
const USUAL: Duration = Duration::from_millis(4);

/// Measures time less what the machine had for others.
pub struct Stopwatch {
    since: Instant,
    lost_before: Duration,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        Stopwatch { since: Instant::now(), lost_before: watch().lost() }
    }

    /// The time since the start that the machine had for this process.
    pub fn elapsed(&self) -> Duration {
        let lost = watch().lost().saturating_sub(self.lost_before);
        self.since.elapsed().saturating_sub(lost)
    }
}

/// How often slower than a quiet one this machine is now, from 1 on: for the deadlines that a test gives to a process
/// under test, which cannot know. Takes 100 ms on a quiet machine.
pub fn slowness() -> u32 {
    let (watch, rounds) = (Instant::now(), 50);
    (0..rounds).for_each(|_| std::thread::sleep(NAP));
    let quiet = rounds * (NAP + USUAL / 4);
    u32::try_from(watch.elapsed().as_micros() / quiet.as_micros()).unwrap().max(1)
}

/// What the watching thread knows.
struct Watch {
    start: Instant,
    lost_us: AtomicU64,
    /// When it was awake last, from the start.
    awake: Mutex<Duration>,
}

impl Watch {
    /// What was lost so far, a nap that should be over included.
    fn lost(&self) -> Duration {
        let awake = self.awake.lock().unwrap();
        Duration::from_micros(self.lost_us.load(Relaxed)) + late(self.start.elapsed().saturating_sub(*awake))
    }

    fn keep(&self) {
        loop {
            std::thread::sleep(NAP);
            let mut awake = self.awake.lock().unwrap();
            let now = self.start.elapsed();
            let lost_us = u64::try_from(late(now - *awake).as_micros()).unwrap();
            self.lost_us.fetch_add(lost_us, Relaxed);
            *awake = now;
        }
    }
}

/// By how much a nap was too long, if that is worth a word.
fn late(nap: Duration) -> Duration {
    let late = nap.saturating_sub(NAP);
    if late > USUAL { late } else { Duration::ZERO }
}

/// The one watch of a process, and its thread, which ends with it.
fn watch() -> &'static Watch {
    static WATCH: OnceLock<Watch> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let new = || Watch { start: Instant::now(), lost_us: AtomicU64::new(0), awake: Mutex::default() };
    let watch = WATCH.get_or_init(new);
    THREAD.get_or_init(|| drop(std::thread::spawn(|| watch.keep())));
    watch
}
