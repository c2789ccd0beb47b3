//! The over-counting sketch: what a full table does with keys it has no place for.
//!
//! **Idea.** Evicting a live key would lift its limit, and refusing all new keys would lock out
//! everybody. So keys without a place share cells, several each, by hash (a count-min sketch). A
//! key's estimate is its smallest cell: what all the keys of that cell were admitted, hence at
//! least what the key itself was. It may deny wrongly and never admits wrongly.
//!
//! **Units.** A cell counts admitted cost per aligned period and keeps this one and the one before;
//! together they cover the last period whatever the algorithm, so that one rule serves all of
//! them: admitted iff the estimate plus the cost fits the limit.
//!
//! **Example.** 5 per minute, 4 rows. A key finds 7, 2, 9 and 3 in its cells: at most 2 of those
//! are its own, so a cost of 3 passes, and the cells become 10, 5, 12 and 6.
//!
//! **Weakness**: with far more keys than cells every cell is full, and new keys are denied until
//! a period has passed or the table has a place.

use crate::sliding_window;
use crate::{Compact, Limit, Meter, Micros, Status, Verdict};

/// Cells that a key has. More rows make a false denial rarer and every look-up dearer.
pub const ROWS: usize = 4;

/// The cells of one limit.
#[derive(Clone, Debug)]
pub struct Sketch {
    rows: Box<[sliding_window::State]>,
    width: usize,
}

impl Sketch {
    /// Memory that one column takes, one cell in each row.
    pub const COLUMN_BYTES: usize = ROWS * size_of::<sliding_window::State>();

    /// A sketch with this many columns, at least one.
    #[must_use]
    pub fn new(width: usize) -> Sketch {
        let width = width.max(1);
        Sketch { rows: vec![sliding_window::State::default(); width * ROWS].into(), width }
    }

    /// Its columns.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// All cells as words, for a snapshot.
    pub fn words(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        self.rows.iter().map(|cell| cell.to_words())
    }

    /// The sketch that [`Sketch::words`] wrote; `None` unless they are whole rows.
    #[must_use]
    pub fn from_words(words: &[[u64; 2]]) -> Option<Sketch> {
        let whole = !words.is_empty() && words.len().is_multiple_of(ROWS);
        let rows = words.iter().map(|cell| sliding_window::State::from_words(*cell)).collect();
        whole.then_some(Sketch { rows, width: words.len() / ROWS })
    }

    /// Memory held.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.rows.len() * size_of::<sliding_window::State>()
    }

    /// What is known of the key with this hash, which must be uniform.
    #[must_use]
    pub fn estimate(&self, hash: u64, limit: &Limit, now: Micros) -> Estimate {
        let settled = |mut cell: sliding_window::State| {
            cell.settle(limit, now);
            cell
        };
        let cells = self.cells(hash).map(|at| settled(self.rows[at]));
        Estimate(cells.into_iter().min_by_key(sliding_window::State::total).unwrap_or_default())
    }

    /// Notes an admission.
    pub fn add(&mut self, hash: u64, limit: &Limit, now: Micros, cost: u32) {
        for at in self.cells(hash) {
            self.rows[at].settle(limit, now);
            self.rows[at].charge(limit, now, cost);
        }
    }

    /// Counts what another sketch of the same limit counted, whatever its width.
    ///
    /// A key lies at the same fraction of every row, so a column of one sketch holds keys of the columns of the
    /// other that cover the same part of the row. All of those are added up: no key is counted less than before.
    pub fn absorb(&mut self, other: &Sketch, limit: &Limit, now: Micros) {
        for row in 0..ROWS {
            for column in 0..other.width {
                let mut counted = other.rows[row * other.width + column];
                counted.settle(limit, now);
                if counted.total() > 0 {
                    let first = column * self.width / other.width;
                    let end = ((column + 1) * self.width).div_ceil(other.width);
                    for cell in &mut self.rows[row * self.width + first..row * self.width + end] {
                        cell.settle(limit, now);
                        cell.absorb(counted);
                    }
                }
            }
        }
    }

    fn cells(&self, hash: u64) -> [usize; ROWS] {
        std::array::from_fn(|row| {
            // Each row takes other bits: the hash times a row's odd constant, its high half.
            let mixed = hash.wrapping_mul(ROW_MULTIPLIERS[row]) >> 32;
            // `mixed` is below 2^32, so this is below the width.
            let column = (u128::from(mixed) * self.width as u128) >> 32;
            row * self.width + usize::try_from(column).unwrap_or(0)
        })
    }
}

/// Odd numbers with many bits set and clear (digits of well-known constants).
const ROW_MULTIPLIERS: [u64; ROWS] =
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0xD6E8_FEB8_6659_FD93];

/// The smallest cell of a key: an upper bound of what it was admitted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Estimate(sliding_window::State);

impl Estimate {
    /// True when the key was surely not admitted anything in this period and the one before.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.0.total() == 0
    }

    /// What the key was admitted at most, in this period and the one before.
    #[must_use]
    pub fn total(&self) -> u32 {
        u32::try_from(self.0.total()).unwrap_or(u32::MAX)
    }

    /// A burst above the count would hide in the cells' period, one below it must not be exceeded.
    fn most(limit: &Limit) -> u64 {
        u64::from(limit.count().min(limit.burst()))
    }
}

impl Meter for Estimate {
    /// An estimate is settled when it is made, over the period of its cells, which may be longer than the limit's.
    fn settle(&mut self, _: &Limit, _: Micros) {}

    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        if self.0.total() + u64::from(cost) <= Self::most(limit) {
            return Verdict::Allow;
        }
        let wait = match self.0.status(limit, now).reset_after {
            // Nothing is counted: only a cost between count and burst comes here, and then a place
            // in the table has to become free.
            Micros::ZERO => limit.period(),
            wait => wait,
        };
        Verdict::Deny { retry_after: Some(wait) }
    }

    fn charge(&mut self, limit: &Limit, now: Micros, cost: u32) {
        self.0.charge(limit, now, cost);
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        let left = Self::most(limit).saturating_sub(self.0.total());
        Status {
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset_after: self.0.status(limit, now).reset_after,
        }
    }

    fn capacity(limit: &Limit) -> u32 {
        limit.burst()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> u64 {
        (key + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    #[test]
    fn m2_over_counts_and_never_under() {
        let limit: Limit = "5 per minute".parse().unwrap();
        let mut sketch = Sketch::new(64);
        let mut admitted = std::collections::HashMap::<u64, Vec<u64>>::new();
        let mut seed = 3_u64;
        for step in 0..200_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, now) = (seed >> 40 & 511, Micros::saturating(step * 20_000));
            let log = admitted.entry(key).or_default();
            log.retain(|at| now.get() - at < limit.period().get());
            if sketch.estimate(hash(key), &limit, now).verdict(&limit, now, 1).is_allowed() {
                sketch.add(hash(key), &limit, now, 1);
                log.push(now.get());
            }
            assert!(log.len() <= 5, "key {key} was admitted {} in a period", log.len());
        }
    }

    /// A snapshot of a large store is loaded into a small one, or two sketches become one.
    #[test]
    fn f5_in_another_width_no_key_is_counted_less() {
        let limit: Limit = "1000 per minute".parse().unwrap();
        let (before, now) = (Micros::from_secs(30), Micros::from_secs(70));
        for (width, other_width) in [(64, 64), (64, 7), (100, 33), (33, 100), (5, 1), (1, 9)] {
            let mut sketch = Sketch::new(width);
            let mut counted = std::collections::HashMap::<u64, u32>::new();
            for key in 0..300_u64 {
                let cost = u32::try_from(key % 5).unwrap();
                sketch.add(hash(key), &limit, if key % 3 == 0 { before } else { now }, cost);
                *counted.entry(key).or_default() += cost;
            }
            let mut other = Sketch::new(other_width);
            other.add(hash(7), &limit, now, 10);
            *counted.entry(7).or_default() += 10;
            other.absorb(&sketch, &limit, now);
            for (key, cost) in counted {
                let estimate = other.estimate(hash(key), &limit, now).total();
                assert!(estimate >= cost, "{width} in {other_width}: key {key} has {estimate} of {cost}");
            }
            let later = Micros::from_secs(240);
            assert!((0..300).all(|key| other.estimate(hash(key), &limit, later).is_fresh()));
        }
        let (mut narrow, wide) = (Sketch::new(10), Sketch::new(1_000));
        narrow.absorb(&wide, &limit, now);
        assert!((0..300).all(|key| narrow.estimate(hash(key), &limit, now).is_fresh()), "nothing comes of nothing");
    }

    #[test]
    fn a_lone_key_gets_its_limit() {
        let limit: Limit = "5 per minute".parse().unwrap();
        let mut sketch = Sketch::new(64);
        let allowed = (0..9).filter(|_| {
            let pass = sketch.estimate(hash(1), &limit, Micros::ZERO).verdict(&limit, Micros::ZERO, 1).is_allowed();
            if pass {
                sketch.add(hash(1), &limit, Micros::ZERO, 1);
            }
            pass
        });
        assert_eq!(allowed.count(), 5);
        assert!(sketch.estimate(hash(1), &limit, Micros::from_secs(120)).is_fresh());
    }
}
