//! The embedded store: one table a limiter, one budget for all.

use crate::bare::release_free_memory;
use crate::budget::Budget;
use crate::layout::Shape;
use crate::shard::SHARDS;
use crate::table::{EMPTY_BYTES, Table};
use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::Rules;
use tidegate_core::sketch::Sketch;

/// Tables by limiter name, within a memory budget.
#[derive(Debug)]
pub struct Memory {
    seed: [u64; 2],
    shared: &'static SharedSeed,
    max_bytes: usize,
    budget: Arc<Budget>,
    sketch_width: Arc<AtomicUsize>,
    tables: Mutex<HashMap<String, Arc<Table>>>,
    /// Held while tables change their layout and while they are written down, so that a snapshot is of
    /// one layout.
    layouts: Mutex<()>,
    /// The most that was held since freed memory was last released.
    peak: AtomicUsize,
}

/// The part of the budget that sketches may take when tables are full: one of this many.
const SKETCH_SHARE: usize = 8;
/// The part of the budget for what is not counted: what the allocator adds to names and logs, and a shard that is
/// copied while it grows or is saved. One of this many.
const OVERHEAD_SHARE: usize = 12;
/// Less than this is not worth the allocator's attention.
const RELEASE_BYTES: usize = 32 << 20;

impl Memory {
    /// An empty store that stays within `max_bytes`, hashing with `seed`, or a random one.
    #[must_use]
    pub fn new(max_bytes: usize, seed: Option<[u64; 2]>) -> Memory {
        let seed = seed.unwrap_or_else(|| [random(), random()]);
        Memory {
            seed,
            // The hasher wants it for ever. Both parts must be secret: with a known one, keys that end in a
            // certain way have one hash, whatever the other part.
            shared: Box::leak(Box::new(SharedSeed::from_u64(seed[1]))),
            max_bytes,
            budget: Arc::new(Budget::new(max_bytes - max_bytes / SKETCH_SHARE - max_bytes / OVERHEAD_SHARE)),
            sketch_width: Arc::default(),
            tables: Mutex::default(),
            layouts: Mutex::default(),
            peak: AtomicUsize::new(0),
        }
    }

    /// The table of a limiter. An existing one goes over to the new rules: blocks, names, flags and
    /// statistics are kept, and so are the states of limits that are counted the same way: each new
    /// limit follows the old one of the same count and period, else of the same period, else of the same
    /// position.
    pub fn table(&self, name: &str, shape: Shape, rules: &Rules) -> Arc<Table> {
        let _still = self.still();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(name) {
            // Known before its shards go over: they make sketches of this width.
            let others = limits_of(&tables) - table.shape().limits;
            self.share_sketches(others + shape.limits);
            table.adopt(shape, rules);
            return Arc::clone(table);
        }
        let table = Arc::new(self.empty_table(shape, rules));
        tables.insert(name.to_owned(), Arc::clone(&table));
        self.share_sketches(limits_of(&tables));
        table
    }

    /// The table of a limiter, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).get(name).map(Arc::clone)
    }

    /// While this is held, no table changes its layout.
    pub(crate) fn still(&self) -> MutexGuard<'_, ()> {
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that these tables would hold, about: existing ones in their new shape, and empty ones.
    #[must_use]
    pub fn bytes_as(&self, tables: &[(&str, Shape)]) -> usize {
        let existing = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes =
            |(name, shape): &(&str, Shape)| existing.get(*name).map_or(EMPTY_BYTES, |table| table.bytes_as(*shape));
        tables.iter().map(bytes).sum()
    }

    /// Forgets the tables of all other limiters.
    pub fn retain(&self, names: &[&str]) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|name, _| names.contains(&name.as_str()));
        self.share_sketches(limits_of(&tables));
    }

    /// Lets the system have what tables freed, if that is much since it was last done.
    pub fn release_freed(&self) {
        let taken = self.budget.taken();
        let peak = self.peak.fetch_max(taken, Relaxed).max(taken);
        if peak - taken >= RELEASE_BYTES {
            self.peak.store(taken, Relaxed);
            release_free_memory();
        }
    }

    /// The limiter of which a panic has left a part half changed, if there is one: such a store is not to be saved.
    pub(crate) fn half_changed(&self) -> Option<String> {
        self.tables().into_iter().find_map(|(name, table)| table.is_half_changed().then_some(name))
    }

    /// Bytes held by all tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables().iter().map(|(_, table)| table.bytes()).sum()
    }

    /// Bytes that may be held.
    #[must_use]
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Entries of all tables.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.tables().iter().map(|(_, table)| table.entries()).sum()
    }

    /// Entries that the memory of all tables holds before one has to grow.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.tables().iter().map(|(_, table)| table.capacity()).sum()
    }

    /// Keys that found no place when they were loaded, or when their limiter went over to a larger layout. What they
    /// used counts in the sketch, as it does for new keys of a full table.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.tables().iter().map(|(_, table)| table.displaced()).sum()
    }

    /// Bytes that keys may have beside the tables as they are when empty.
    pub(crate) fn room_for_keys(&self) -> usize {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.budget.max().saturating_sub(tables * EMPTY_BYTES)
    }

    pub(crate) fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// All tables, by name.
    pub(crate) fn tables(&self) -> Vec<(String, Arc<Table>)> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tables: Vec<_> = tables.iter().map(|(name, table)| (name.clone(), Arc::clone(table))).collect();
        tables.sort_by(|a, b| a.0.cmp(&b.0));
        tables
    }

    fn empty_table(&self, shape: Shape, rules: &Rules) -> Table {
        let hasher = SeedableRandomState::with_seed(self.seed[0], self.shared);
        Table::new(shape, rules, hasher, Arc::clone(&self.budget), Arc::clone(&self.sketch_width))
    }

    /// Divides the sketches' part of the budget by all limits, each in every shard.
    fn share_sketches(&self, limits: usize) {
        let columns = self.max_bytes / SKETCH_SHARE / (limits.max(1) * SHARDS * Sketch::COLUMN_BYTES);
        self.sketch_width.store(columns.max(1), Relaxed);
    }
}

/// Limits of all tables.
fn limits_of(tables: &HashMap<String, Arc<Table>>) -> usize {
    tables.values().map(|table| table.shape().limits).sum()
}

/// The standard library's map seed is the operating system's randomness, and needs no dependency.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Algorithm;

    fn table(seed: [u64; 2]) -> Arc<Table> {
        let rules = Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap()]).unwrap();
        let shape = Shape { algorithm: Algorithm::TokenBucket, limits: 1, names: false, stats: false };
        Memory::new(1 << 20, Some(seed)).table("t", shape, &rules)
    }

    /// Snapshots of limiters without names hold hashes, so a hasher that changes its mind would lose
    /// them without a word. If this fails after an update, snapshots need a new version.
    #[test]
    fn hashes_stay_what_they_are() {
        assert_eq!(table([1, 2]).hash(b"user-00000000001"), HASH_OF_USER_1);
    }
    const HASH_OF_USER_1: u64 = 16_146_455_246_533_609_509;

    /// The shared part of the seed was once a constant: keys that ended in it had one hash.
    #[test]
    fn m4_no_tail_makes_keys_one() {
        for seed in [[1, 2], [3, 4], [5, 6]] {
            let table = table(seed);
            let tail = b"\xEF\xF7\xA8\x9D\x17\xA9\x40\x98";
            let hash = |name: &[u8]| table.hash(&[name, tail].concat());
            assert_ne!(hash(b"alice-00"), hash(b"bob--001"));
        }
    }
}
