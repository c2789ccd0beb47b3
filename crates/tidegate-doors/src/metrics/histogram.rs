//! Times in buckets, which Prometheus reads and percentiles are taken from.
//!
//! Counting is two additions, without a lock.

use super::seconds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Micros;

/// Where one bucket ends and the next begins.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// At these times, in microseconds and ascending; one more bucket is for all that took longer.
    Bounds(&'static [u64]),
    /// Each power of two of microseconds has eight buckets, so that a percentile is at most an eighth too high. Prometheus gets
    /// the powers of two.
    Eighths,
}

/// Buckets in each power of two.
const PARTS: u64 = 8;
/// Powers of two: up to 2^36 µs, 19 hours.
const POWERS: usize = 34;
const EIGHTHS: usize = 8 * POWERS;

/// How often something took how long.
#[derive(Debug)]
pub struct Histogram {
    scale: Scale,
    buckets: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub fn new(scale: Scale) -> Histogram {
        let buckets = match scale {
            Scale::Bounds(bounds) => bounds.len() + 1,
            Scale::Eighths => EIGHTHS,
        };
        Histogram { scale, buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(), sum_us: AtomicU64::new(0) }
    }

    /// Something took this long.
    pub fn note(&self, took: Micros) {
        let us = took.get();
        let bucket = match self.scale {
            Scale::Bounds(bounds) => bounds.iter().position(|bound| us <= *bound).unwrap_or(bounds.len()),
            Scale::Eighths => eighth(us),
        };
        self.buckets[bucket].fetch_add(1, Relaxed);
        if us > 0 {
            self.sum_us.fetch_add(us, Relaxed);
        }
    }

    /// What was counted so far; the counts of one moment, nearly.
    #[must_use]
    pub fn read(&self) -> Reading {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Reading { scale: self.scale, counts, sum_us: self.sum_us.load(Relaxed) }
    }
}

/// A histogram at one moment.
#[derive(Debug)]
pub struct Reading {
    scale: Scale,
    counts: Vec<u64>,
    /// All times together, in microseconds.
    pub sum_us: u64,
}

impl Reading {
    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time within which this share, in thousandths, was done, in microseconds; 0 when nothing was counted.
    #[must_use]
    pub fn percentile_us(&self, thousandths: u64) -> u64 {
        let wanted = (self.count() * thousandths).div_ceil(1000).max(1);
        let mut so_far = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            so_far += count;
            if so_far >= wanted {
                return self.highest_us(bucket).unwrap_or(u64::MAX);
            }
        }
        0
    }

    /// A bound as it is printed, in seconds. Eighths always had six digits, and 0 as well: a label stays what it was.
    pub(super) fn bound(&self, us: u64) -> String {
        match self.scale {
            Scale::Bounds(_) => seconds(us),
            Scale::Eighths => format!("{}.{:06}", us / 1_000_000, us % 1_000_000),
        }
    }

    /// Upper bounds in microseconds, and how many times were at or below each.
    pub(crate) fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut so_far = 0;
        let mut all = Vec::new();
        for (bucket, count) in self.counts.iter().enumerate() {
            so_far += count;
            if let Some(highest) = self.highest_us(bucket).filter(|highest| self.is_told(*highest)) {
                all.push((highest, so_far));
            }
        }
        all
    }

    /// Of eighths only every power of two: Prometheus keeps a series for each.
    fn is_told(&self, highest_us: u64) -> bool {
        matches!(self.scale, Scale::Bounds(_)) || (highest_us + 1).is_power_of_two()
    }

    /// The longest time that falls into a bucket; `None`: there is none.
    fn highest_us(&self, bucket: usize) -> Option<u64> {
        match self.scale {
            Scale::Bounds(bounds) => bounds.get(bucket).copied(),
            Scale::Eighths => Some(highest_us(bucket)),
        }
    }
}

/// The first eight microseconds have a bucket each; then each power of two has eight.
fn eighth(us: u64) -> usize {
    let power = us.max(PARTS).ilog2();
    let part = if us < PARTS { us } else { (us >> (power - 3)) - PARTS };
    let row = if us < PARTS { 0 } else { u64::from(power) - 2 };
    usize::try_from(row * PARTS + part).unwrap_or(EIGHTHS).min(EIGHTHS - 1)
}

/// The longest time that falls into a bucket.
fn highest_us(bucket: usize) -> u64 {
    let (row, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match row {
        0 => part,
        row => ((PARTS + part + 1) << (row - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_a_bucket_that_is_at_most_an_eighth_too_high() {
        for us in (0..2_000).chain((11..35).map(|power| (1 << power) + 12_345 % (1 << power))) {
            let highest = highest_us(eighth(us));
            assert!(us <= highest && highest <= us + us / 8, "{us} in {highest}");
            assert!(eighth(us) == 0 || highest_us(eighth(us) - 1) < us, "{us}");
        }
        assert_eq!(eighth(u64::MAX), EIGHTHS - 1);
    }

    #[test]
    fn percentiles_and_bounds() {
        let histogram = Histogram::new(Scale::Eighths);
        assert_eq!(histogram.read().percentile_us(500), 0);
        for us in 1..=1_000 {
            histogram.note(Micros::saturating(us));
        }
        let reading = histogram.read();
        assert_eq!((reading.count(), reading.sum_us), (1_000, 500_500));
        assert_eq!((reading.percentile_us(500), reading.percentile_us(990)), (511, 1_023));
        let bounds = reading.cumulative();
        assert_eq!(bounds.iter().find(|(bound, _)| *bound == 127), Some(&(127, 127)));
        assert_eq!(bounds.last().map(|(_, count)| *count), Some(1_000));
    }
}
