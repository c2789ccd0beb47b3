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
    in_line_before: Duration,
    crowd_before: Crowd,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        let watch = watch();
        Stopwatch {
            since: Instant::now(),
            lost_before: watch.lost(),
            in_line_before: waited_for_processor(std::process::id()),
            crowd_before: *watch.crowd.lock().unwrap(),
        }
    }

    /// The time since the start that the machine had for this process.
    pub fn elapsed(&self) -> Duration {
        let lost = watch().lost().saturating_sub(self.lost_before);
        self.since.elapsed().saturating_sub(lost)
    }

    /// The time since the start less what the threads of this process stood in line for a processor, added up: for what
    /// happens in this process, where few threads work.
    pub fn own_time(&self) -> Duration {
        let in_line = waited_for_processor(std::process::id()).saturating_sub(self.in_line_before);
        self.since.elapsed().saturating_sub(in_line)
    }

    /// Which part of the time since the start the machine had for others, from 0 to 1.
    pub fn lost_share(&self) -> f64 {
        1.0 - self.elapsed().as_secs_f64() / self.since.elapsed().as_secs_f64()
    }

    /// How many threads of the whole machine wanted a processor since the start, on average.
    pub fn crowd(&self) -> f64 {
        let now = *watch().crowd.lock().unwrap();
        let (threads, looks) = (now.threads - self.crowd_before.threads, now.looks - self.crowd_before.looks);
        f64::from(threads) / f64::from(looks.max(1))
    }
}

/// How often slower than a quiet one this machine is now, from 1 on: for the deadlines that a test gives to a process
/// under test, which cannot know. Takes 100 ms on a quiet machine.
///
/// By how late a thread is woken, or by how many threads want a processor, whichever is more: one that sleeps is woken soon
/// where those that work wait long. Two for each processor are what a test may have itself.
pub fn slowness() -> u32 {
    let (watch, rounds) = (Instant::now(), 50);
    let mut wanting = 0;
    for _ in 0..rounds {
        std::thread::sleep(NAP);
        wanting += wanting_a_processor();
    }
    let quiet = rounds * (NAP + USUAL / 4);
    let late = u32::try_from(watch.elapsed().as_micros() / quiet.as_micros()).unwrap();
    let processors = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap());
    late.max(wanting / rounds / (2 * processors)).max(1)
}

/// How many threads of the machine want a processor now, this one not among them.
fn wanting_a_processor() -> u32 {
    // Three averages, then those that want a processor, of all: `0.20 0.18 0.12 2/345 11206`.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let wanting: u32 = load.split([' ', '/']).nth(3).unwrap().parse().unwrap();
    wanting.saturating_sub(1)
}

/// How long the threads of a process have waited for a processor so far, added up, by the kernel's own count.
///
/// For a bound on what another process does: a thread that sleeps is woken soon even where one that works waits long, so
/// that a [`Stopwatch`] knows too little of it. Next to nothing on a quiet machine. Where several threads wait at the same
/// time it is more than the time that passed: what is left of a bound is then lenient, never strict. Threads that ended
/// are forgotten.
pub fn waited_for_processor(process: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Duration::ZERO };
    let waited = |thread: std::fs::DirEntry| {
        // Nanoseconds on a processor, nanoseconds in line for one, and how often.
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some(Duration::from_nanos(stat.split(' ').nth(1)?.parse().ok()?))
    };
    threads.filter_map(|thread| waited(thread.ok()?)).sum()
}

/// What the watching thread knows.
struct Watch {
    start: Instant,
    lost_us: AtomicU64,
    /// When it was awake last, from the start.
    awake: Mutex<Duration>,
    crowd: Mutex<Crowd>,
}

/// Threads that wanted a processor, added up over so many looks.
#[derive(Clone, Copy, Default)]
struct Crowd {
    threads: u32,
    looks: u32,
}

/// The watching thread looks around once in so many naps.
const LOOK_EVERY: u32 = 32;

impl Watch {
    /// What was lost so far, a nap that should be over included.
    fn lost(&self) -> Duration {
        let awake = self.awake.lock().unwrap();
        Duration::from_micros(self.lost_us.load(Relaxed)) + late(self.start.elapsed().saturating_sub(*awake))
    }

    fn keep(&self) {
        for nap in (0..LOOK_EVERY).cycle() {
            std::thread::sleep(NAP);
            if nap == 0 {
                self.look_around();
            }
            let mut awake = self.awake.lock().unwrap();
            let now = self.start.elapsed();
            let lost_us = u64::try_from(late(now - *awake).as_micros()).unwrap();
            self.lost_us.fetch_add(lost_us, Relaxed);
            *awake = now;
        }
    }

    fn look_around(&self) {
        let mut crowd = self.crowd.lock().unwrap();
        *crowd = Crowd { threads: crowd.threads + wanting_a_processor(), looks: crowd.looks + 1 };
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
    let new = || Watch {
        start: Instant::now(),
        lost_us: AtomicU64::new(0),
        awake: Mutex::default(),
        crowd: Mutex::default(),
    };
    let watch = WATCH.get_or_init(new);
    THREAD.get_or_init(|| drop(std::thread::spawn(|| watch.keep())));
    watch
}
