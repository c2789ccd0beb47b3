//! The embedded store: one table a limiter, one budget for all.

use crate::bare::release_free_memory;
use crate::budget::Budget;
use crate::shard::{SHARDS, Shape};
use crate::table::Table;
use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tidegate_core::State;
use tidegate_core::sketch::Sketch;

/// Tables by limiter name, within a memory budget.
#[derive(Debug)]
pub struct Memory {
    seed: u64,
    max_bytes: usize,
    budget: Arc<Budget>,
    sketch_width: Arc<AtomicUsize>,
    tables: Mutex<HashMap<String, Arc<Table>>>,
    /// The most that was held since freed memory was last released.
    peak: AtomicUsize,
}

/// The part of the budget that sketches may take when tables are full: one of this many.
const SKETCH_SHARE: usize = 8;
/// Less than this is not worth the allocator's attention.
const RELEASE_BYTES: usize = 32 << 20;

impl Memory {
    /// An empty store that stays within `max_bytes`, hashing with `seed`, or a random one.
    #[must_use]
    pub fn new(max_bytes: usize, seed: Option<u64>) -> Memory {
        Memory {
            seed: seed.unwrap_or_else(random),
            max_bytes,
            budget: Arc::new(Budget::new(max_bytes - max_bytes / SKETCH_SHARE)),
            sketch_width: Arc::default(),
            tables: Mutex::default(),
            peak: AtomicUsize::new(0),
        }
    }

    /// The table of a limiter. One of another shape is carried over: blocks, names, flags and statistics
    /// are kept, and the states of limits that are counted the same way, by position.
    pub fn table(&self, name: &str, shape: Shape) -> Arc<Table> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let table = match tables.get(name) {
            Some(table) if *table.shape() == shape => return Arc::clone(table),
            Some(other) => self.carried_over(other, shape),
            None => self.empty_table(shape),
        };
        let table = Arc::new(table);
        tables.insert(name.to_owned(), Arc::clone(&table));
        self.share_sketches(&tables);
        table
    }

    /// Forgets the tables of all other limiters.
    pub fn retain(&self, names: &[&str]) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|name, _| names.contains(&name.as_str()));
        self.share_sketches(&tables);
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

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// All tables, by name.
    pub(crate) fn tables(&self) -> Vec<(String, Arc<Table>)> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tables: Vec<_> = tables.iter().map(|(name, table)| (name.clone(), Arc::clone(table))).collect();
        tables.sort_by(|a, b| a.0.cmp(&b.0));
        tables
    }

    fn empty_table(&self, shape: Shape) -> Table {
        static SHARED: OnceLock<SharedSeed> = OnceLock::new();
        // One for all: the secret part of the hash is each store's own seed.
        let shared = SHARED.get_or_init(|| SharedSeed::from_u64(0x7469_6465_6761_7465));
        let hasher = SeedableRandomState::with_seed(self.seed, shared);
        Table::new(shape, hasher, Arc::clone(&self.budget), Arc::clone(&self.sketch_width))
    }

    fn carried_over(&self, old: &Table, shape: Shape) -> Table {
        let table = self.empty_table(shape);
        table.set_disabled(old.is_disabled());
        let same = old.shape().algorithm == shape.algorithm;
        for mut entry in (0..SHARDS).flat_map(|index| old.export(index)) {
            entry.states.truncate(if same { shape.limits } else { 0 });
            entry.states.resize_with(shape.limits, || State::fresh(shape.algorithm));
            table.import(entry);
        }
        (0..SHARDS).flat_map(|index| old.export_stats(index)).for_each(|words| table.import_stats(&words));
        table
    }

    /// Divides the sketches' part of the budget by all limits, each in every shard.
    fn share_sketches(&self, tables: &HashMap<String, Arc<Table>>) {
        let limits: usize = tables.values().map(|table| table.shape().limits).sum();
        let columns = self.max_bytes / SKETCH_SHARE / (limits.max(1) * SHARDS * Sketch::COLUMN_BYTES);
        self.sketch_width.store(columns.max(1), Relaxed);
    }
}

/// The standard library's map seed is the operating system's randomness, and needs no dependency.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
