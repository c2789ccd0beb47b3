//! Times in buckets, from which percentiles are read.
//!
//! Each power of two of microseconds has eight buckets, so that a percentile is at most an eighth too high.
//! Counting is two additions, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Micros;

/// Buckets in each power of two.
const PARTS: u64 = 8;
/// Powers of two: up to 2^36 µs, 19 hours.
const POWERS: usize = 34;
const BUCKETS: usize = 8 * POWERS;

/// How often something took how long.
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_us: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub(crate) fn note(&self, took: Micros) {
        self.buckets[bucket(took.get())].fetch_add(1, Relaxed);
        if took > Micros::ZERO {
            self.sum_us.fetch_add(took.get(), Relaxed);
        }
    }

    /// What was counted so far; the counts of one moment, nearly.
    pub(crate) fn read(&self) -> Reading {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Reading { counts, sum_us: self.sum_us.load(Relaxed) }
    }
}

/// A histogram at one moment.
pub(crate) struct Reading {
    counts: Vec<u64>,
    pub(crate) sum_us: u64,
}

impl Reading {
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time within which this share, in thousandths, was done; 0 when nothing was counted.
    pub(crate) fn percentile_us(&self, thousandths: u64) -> u64 {
        let wanted = (self.count() * thousandths).div_ceil(1000).max(1);
        let mut so_far = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            so_far += count;
            if so_far >= wanted {
                return highest_us(bucket);
            }
        }
        0
    }

    /// Upper bounds at powers of two, and how many were at or below each: what Prometheus reads.
    pub(crate) fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut so_far = 0;
        let mut all = Vec::new();
        for (bucket, count) in self.counts.iter().enumerate() {
            so_far += count;
            let highest = highest_us(bucket);
            if (highest + 1).is_power_of_two() {
                all.push((highest, so_far));
            }
        }
        all
    }
}

/// The first eight microseconds have a bucket each; then each power of two has eight.
fn bucket(us: u64) -> usize {
    let power = us.max(PARTS).ilog2();
    let part = if us < PARTS { us } else { (us >> (power - 3)) - PARTS };
    let row = if us < PARTS { 0 } else { u64::from(power) - 2 };
    usize::try_from(row * PARTS + part).unwrap_or(BUCKETS).min(BUCKETS - 1)
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
            let highest = highest_us(bucket(us));
            assert!(us <= highest && highest <= us + us / 8, "{us} in {highest}");
            assert!(bucket(us) == 0 || highest_us(bucket(us) - 1) < us, "{us}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_and_bounds() {
        let histogram = Histogram::default();
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
