//! Decisions that are kept for people, where a limiter asks for it: the latest of them, and denials for the log.
//!
//! Both are bounded. The latest decisions are those of the whole limiter, so that a key's are among them for as long as others do not push
//! them out. Of denials a few wait for whoever writes the log; what finds no place is counted.

use super::Table;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::Ruling;

/// Most decisions that a limiter may keep.
pub const DECISIONS_MAX: usize = 100_000;
/// Denials that wait for the log.
const DENIALS_MAX: usize = 64;

/// A decision on a hit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decided {
    /// When.
    pub at: Micros,
    /// What the hit cost.
    pub cost: u32,
    /// What the limiter said.
    pub ruling: Ruling,
}

/// A denial for the log.
#[derive(Clone, PartialEq, Debug)]
pub struct Denied {
    /// Whose.
    pub key: Vec<u8>,
    /// The decision.
    pub decided: Decided,
}

/// Denials that wait for the log.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Denials {
    /// The first of them.
    pub first: Vec<Denied>,
    /// How many more there were, about.
    pub more: u64,
}

/// What is kept of decisions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Keeping {
    /// So many of the latest decisions.
    pub latest: usize,
    /// Denials, for the log.
    pub denials: bool,
}

/// What a table keeps.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    keeping: Keeping,
    latest: VecDeque<(u64, Decided)>,
    denials: Denials,
}

impl Table {
    /// Says what is kept of decisions from now on.
    pub fn keep_decisions(&self, keeping: Keeping) {
        let keeping = Keeping { latest: keeping.latest.min(DECISIONS_MAX), ..keeping };
        let mut held = self.held();
        let (before, after) = (held.keeping, keeping);
        if before == after {
            return;
        }
        *held = Held { keeping, latest: VecDeque::with_capacity(after.latest), denials: Denials::default() };
        self.budget.replace(before.latest * ENTRY_BYTES, after.latest * ENTRY_BYTES);
        drop(held);
        self.set_keeping(after.latest > 0, after.denials);
        // Countdowns may be under way in which no hit is looked at.
        self.cells.iter().for_each(|cell| cell.lock().note_next());
    }

    /// The latest decisions on a key that are still known, the newest first, `most` of them; `None`: none are kept.
    #[must_use]
    pub fn latest_decisions(&self, key: &[u8], most: usize) -> Option<Vec<Decided>> {
        let hash = self.hash(key);
        let held = self.held();
        let of_key = held.latest.iter().rev().filter(|(of, _)| *of == hash).map(|(_, decided)| *decided);
        (held.keeping.latest > 0).then(|| of_key.take(most).collect())
    }

    /// The denials since it was asked last, for the log.
    #[must_use]
    pub fn take_denials(&self) -> Denials {
        if !self.logs_denials() {
            return Denials::default();
        }
        std::mem::take(&mut self.held().denials)
    }

    /// Keeps a decision among the latest.
    pub(super) fn keep_latest(&self, hash: u64, decided: Decided) {
        let mut held = self.held();
        while held.latest.len() >= held.keeping.latest.max(1) {
            held.latest.pop_front();
        }
        if held.keeping.latest > 0 {
            held.latest.push_back((hash, decided));
        }
    }

    /// Keeps a denial for the log, which stands for `weight` of them.
    pub(super) fn keep_denial(&self, key: &[u8], decided: Decided, weight: u16) {
        let Held { denials, .. } = &mut *self.held();
        if denials.first.len() < DENIALS_MAX {
            denials.first.push(Denied { key: key.to_vec(), decided });
            denials.more += u64::from(weight.saturating_sub(1));
        } else {
            denials.more += u64::from(weight);
        }
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.held().keeping.latest * ENTRY_BYTES
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.kept.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const ENTRY_BYTES: usize = size_of::<(u64, Decided)>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Shape, Single};
    use tidegate_core::all_or_nothing::Intent;
    use tidegate_core::{Algorithm, Rules};

    #[test]
    fn the_latest_decisions_on_a_key_are_told_newest_first() {
        let rules = Rules::new(Algorithm::TokenBucket, &["2 per hour".parse().unwrap()]).unwrap();
        let shape = Shape { algorithm: Algorithm::TokenBucket, limits: 1, names: true, stats: false };
        let store = Memory::new(64 << 20, Some([1, 2]));
        let table = store.table("t", shape, &rules);
        let hit = |key: &str, at: u64| {
            let _ = table.decide(Single::new(&rules, key.as_bytes(), 1, Intent::Hit), || Micros::from_secs(at));
        };
        // What came before is not known, however many there were.
        (0..10_000).for_each(|_| hit("a", 1));
        assert_eq!(table.latest_decisions(b"a", 10), None);
        let (empty, before) = (store.bytes(), Keeping::default());
        table.keep_decisions(Keeping { latest: 4, denials: true });
        assert_eq!(store.bytes(), empty + 4 * ENTRY_BYTES);
        (2..=3).for_each(|at| hit("b", at));
        hit("a", 4);
        hit("b", 5);
        let told = |key: &[u8]| {
            let decided = table.latest_decisions(key, 10).unwrap();
            decided.iter().map(|one| (one.at.get() / 1_000_000, one.ruling.is_allowed())).collect::<Vec<_>>()
        };
        assert_eq!(told(b"b"), [(5, false), (3, true), (2, true)]);
        assert_eq!(told(b"a"), [(4, false)]);
        hit("c", 6);
        assert_eq!(told(b"b"), [(5, false), (3, true)], "the oldest has made room");
        let denials = table.take_denials();
        let keys: Vec<&[u8]> = denials.first.iter().map(|denied| denied.key.as_slice()).collect();
        assert_eq!((keys, denials.more), (vec![b"a".as_slice(), b"b"], 0));
        assert_eq!(table.take_denials(), Denials::default());
        // However many there are, a few wait, and the others are counted.
        (0..50_000).for_each(|_| hit("b", 7));
        let denials = table.take_denials();
        assert_eq!((denials.first.len(), denials.more), (DENIALS_MAX, 50_000 - DENIALS_MAX as u64));
        let held = store.bytes();
        table.keep_decisions(before);
        assert_eq!((store.bytes(), table.latest_decisions(b"b", 10)), (held - 4 * ENTRY_BYTES, None));
    }
}
