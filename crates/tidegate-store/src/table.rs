//! A limiter's table: shards behind locks, one key or many at a time.
//!
//! Locks are held for arithmetic only. The clock is read inside (promise T2). A request of
//! several keys locks its shards in one global order, so that two such requests cannot wait for each
//! other. Keys are known by a seeded 64-bit hash; names are kept only to be listed.

mod carry;
mod change;
mod decisions;
mod each;
mod flags;
mod operate;
mod overrides;
mod reserve;
mod separate;
mod several;
mod top;
mod variants;

pub use decisions::{DECISIONS_MAX, Decided, Denials, Denied, Keeping};
pub use each::Single;
pub(crate) use operate::Walk;
pub use operate::{Listing, PageOf, Which};
pub use overrides::OVERRIDES_MAX;
pub use reserve::{NotReserved, RESERVATIONS_MAX};
#[cfg(feature = "etcd")]
pub(crate) use several::answer_all;
pub use several::decide_all;
pub use top::{TopBy, TopListing};
pub(crate) use variants::Variants;

use crate::bare::{Guard, LINE_BYTES, Lock, prefetch};
use crate::budget::Budget;
use crate::layout::{Migration, Shape};
use crate::panic_point;
use crate::shard::{Counts, Door, Frame, Making, Place, Prepared, SHARD_BITS, SHARDS, Shard};
use crate::slots;
use crate::stats::KeyStats;
use change::Current;
use foldhash::quality::SeedableRandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use tidegate_core::all_or_nothing::{self, Demand, Intent, Role, Ruling, Subject};
use tidegate_core::{Decision, Micros, Rate, Rules, Verdict};

/// The states of one limiter's keys.
#[derive(Debug)]
pub struct Table {
    /// The layout that shards should have, readable without a lock; they pass over under their own.
    layout: AtomicU32,
    /// Words of an entry, for prefetching; a hint, like the cells' own.
    stride: AtomicUsize,
    current: RwLock<Arc<Current>>,
    hasher: SeedableRandomState,
    budget: Arc<Budget>,
    sketch_width: Arc<AtomicUsize>,
    /// See `flags.rs`: all that a plain decision has to look at.
    flags: AtomicU32,
    variants: RwLock<Option<Arc<Variants>>>,
    overrides: Mutex<overrides::Held>,
    reservations: reserve::Reservations,
    top: top::Top,
    kept: decisions::Kept,
    /// Keys that found no place when they were taken in.
    displaced: AtomicU64,
    cells: Box<[Cell; SHARDS]>,
}

/// A shard with its lock, alone on its cache lines so that neighbours do not slow each other.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Cell {
    /// Where the shard's slots lie, and what their homes count by: hints for prefetching, read without the lock.
    slots_at: AtomicUsize,
    capacities: AtomicU64,
    border: AtomicU64,
    shard: Lock<Shard>,
}

/// One key of a request of several.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The limiter's table. Parts of one request are distinct keys, of distinct tables or of one.
    pub table: &'a Table,
    /// Its rules.
    pub rules: &'a Rules,
    /// The key.
    pub key: &'a [u8],
    /// What its word counts for.
    pub role: Role,
    /// What is asked of it, where it is not what the request asks of all its keys.
    pub own: Option<Demand>,
    /// Where the request came in.
    pub door: Door,
}

/// The answer for one key of a request, in full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartAnswer {
    /// What it says of the request.
    pub ruling: Ruling,
    /// Until when its key is blocked; in the past: it is not.
    pub blocked_until: Micros,
    /// True when the sketch answered.
    pub sketched: bool,
    /// False: it is a candidate, and the store did not tell what it says. The rest is then of no meaning.
    pub is_known: bool,
    /// Each limit's verdict and its counters afterwards, if asked for.
    pub decisions: Vec<Decision>,
}

impl PartAnswer {
    /// Of a candidate that the store did not tell of.
    pub const UNKNOWN: PartAnswer = PartAnswer {
        ruling: Ruling {
            limit_index: 0,
            decision: Decision {
                verdict: Verdict::Allow,
                limit: 0,
                remaining: 0,
                reset_after: Micros::ZERO,
                rate: Rate::new(0.0),
            },
            reason: all_or_nothing::Reason::Ok,
        },
        blocked_until: Micros::ZERO,
        sketched: false,
        is_known: false,
        decisions: Vec::new(),
    };
}

/// Memory of a table without entries, in bytes: what every limiter takes.
pub const EMPTY_BYTES: usize = SHARDS * (size_of::<Cell>() + Shard::EMPTY_BYTES);
const _: () = assert!(size_of::<Cell>() == 128, "a cell is two cache lines");

impl Table {
    pub(crate) fn new(
        shape: Shape,
        rules: &Rules,
        hasher: SeedableRandomState,
        budget: Arc<Budget>,
        sketch_width: Arc<AtomicUsize>,
    ) -> Table {
        let cells = Box::new(std::array::from_fn(|_| Cell::default()));
        budget.take(EMPTY_BYTES);
        let migration = Migration { old: shape, new: shape, from: Vec::new() };
        let layout = shape.layout(1);
        Table {
            layout: AtomicU32::new(layout),
            stride: AtomicUsize::new(shape.stride()),
            current: RwLock::new(Arc::new(Current { rules: rules.clone(), layout, migration })),
            hasher,
            budget,
            sketch_width,
            flags: AtomicU32::new(0),
            variants: RwLock::default(),
            overrides: Mutex::default(),
            reservations: reserve::Reservations::default(),
            top: top::Top::default(),
            kept: decisions::Kept::default(),
            displaced: AtomicU64::new(0),
            cells,
        }
    }

    /// What fixes the layout of its entries.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::of_layout(self.layout.load(Acquire))
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.current().rules.clone()
    }

    /// Bytes that it would hold under another shape, about.
    pub(crate) fn bytes_as(&self, shape: Shape) -> usize {
        self.bytes() * shape.stride() / self.shape().stride()
    }

    /// Decides one key's request. `clock` is read once the shard is locked.
    pub fn decide(&self, single: Single<'_>, clock: impl FnOnce() -> Micros) -> Ruling {
        // The entry is on its way while the lock is taken and the clock is read.
        let hash = self.announce(single.key);
        let cell = self.cell(hash);
        let mut shard = self.locked(cell);
        let now = clock();
        self.decide_locked(cell, &mut shard, hash, &single, now)
    }

    /// The key's hash, with its entry on the way into the cache.
    #[inline]
    fn announce(&self, key: &[u8]) -> u64 {
        let hash = self.hash(key);
        self.cell(hash).prefetch(hash, self.stride.load(Relaxed));
        hash
    }

    /// The inner step of `decide` and `decide_each`, and nowhere else.
    #[inline(always)]
    fn decide_locked(&self, cell: &Cell, shard: &mut Shard, hash: u64, single: &Single<'_>, now: Micros) -> Ruling {
        panic_point("shard");
        let Single { rules, key, cost, intent, door } = *single;
        if intent == Intent::Hit
            && let Some(ruling) = shard.hit_plain(rules, hash, cost, door, now)
        {
            self.pass(shard, hash, key, cost, &ruling, now);
            return ruling;
        }
        self.decide_at_length(cell, shard, hash, single, now)
    }

    /// The general case: every request that is not a plain hit.
    #[inline(never)]
    fn decide_at_length(&self, cell: &Cell, shard: &mut Shard, hash: u64, single: &Single<'_>, now: Micros) -> Ruling {
        let Single { cost, intent, .. } = *single;
        let mut held = None;
        let rules = self.in_force(cell, shard, single.rules, &mut held);
        let frame = self.frame(shard, rules, now);
        let mut prepared = shard.prepare(&frame, hash, single.key, Demand { cost, intent }, Making::Room);
        let mut subject = subject(rules, &mut prepared);
        let ruling = all_or_nothing::decide(&mut subject, now, cost, intent);
        prepared.blocked_until = subject.blocked_until;
        self.conclude(cell, shard, &frame, hash, single, prepared, &ruling, ruling.is_allowed());
        ruling
    }

    #[expect(clippy::too_many_arguments, reason = "the last step of every decision, nowhere else")]
    #[inline]
    fn conclude(
        &self,
        cell: &Cell,
        shard: &mut Shard,
        frame: &Frame<'_>,
        hash: u64,
        single: &Single<'_>,
        prepared: Prepared,
        ruling: &Ruling,
        all_allow: bool,
    ) {
        let Single { key, cost, intent, door, .. } = *single;
        shard.latest = frame.now;
        shard.count(ruling, all_allow, intent, door);
        if intent == Intent::Hit && prepared.place == Place::Sketched {
            shard.count_sketched(ruling, all_allow);
        }
        if intent == Intent::Hit && cost > 0 {
            self.pass(shard, hash, key, cost, ruling, frame.now);
            if frame.shape.stats {
                shard.note_stats(frame, hash, ruling);
            }
        }
        match intent {
            Intent::Hit => shard.commit(frame, hash, key, cost, prepared, all_allow && cost > 0),
            Intent::Peek => shard.put_away(prepared),
        }
        self.account(cell, shard);
    }

    /// Tells the budget and the prefetch hint what changed.
    #[inline]
    fn account(&self, cell: &Cell, shard: &mut Shard) {
        if shard.account(&self.budget) || !shard.slots.is_settled() {
            cell.slots_at.store(shard.slots.address(), Relaxed);
            let (low, high, border) = shard.slots.homes();
            cell.capacities.store(u64::from(high) << 32 | u64::from(low), Relaxed);
            cell.border.store(border, Relaxed);
        }
    }

    /// How decisions went.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.cells.iter().for_each(|cell| sum.add(&cell.lock().counts()));
        sum
    }

    /// Entries held, idle ones included.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.cells.iter().map(|cell| cell.lock().slots.len()).sum()
    }

    /// Entries that its memory holds before it has to grow.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.cells.iter().map(|cell| cell.lock().slots.most()).sum()
    }

    /// What a key did since start, if the limiter keeps statistics.
    #[must_use]
    pub fn key_stats(&self, key: &[u8], now: Micros) -> KeyStats {
        let hash = self.hash(key);
        self.cell(hash).lock().key_stats(hash, now)
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let held = |shard: &Shard| shard.accounted() + shard.sketch_bytes();
        EMPTY_BYTES + self.noted_bytes() + self.cells.iter().map(|cell| held(&cell.lock())).sum::<usize>()
    }

    fn with_shard<R>(
        &self,
        rules: &Rules,
        hash: u64,
        clock: impl FnOnce() -> Micros,
        act: impl FnOnce(&mut Shard, &Frame<'_>) -> R,
    ) -> R {
        self.with_cell(rules, shard_of(hash), clock, act)
    }

    fn with_cell<R>(
        &self,
        rules: &Rules,
        index: usize,
        clock: impl FnOnce() -> Micros,
        act: impl FnOnce(&mut Shard, &Frame<'_>) -> R,
    ) -> R {
        let cell = &self.cells[index];
        let mut shard = self.locked(cell);
        let mut held = None;
        let rules = self.in_force(cell, &mut shard, rules, &mut held);
        let frame = self.frame(&shard, rules, clock());
        let result = act(&mut shard, &frame);
        self.account(cell, &mut shard);
        result
    }

    /// Locks a shard, in the table's layout.
    #[inline]
    fn locked<'a>(&self, cell: &'a Cell) -> Guard<'a, Shard> {
        self.in_layout(cell, cell.lock())
    }

    #[inline]
    fn in_layout<'a>(&self, cell: &'a Cell, mut shard: Guard<'a, Shard>) -> Guard<'a, Shard> {
        if shard.layout != self.layout.load(Acquire) {
            self.catch_up(cell, &mut shard);
        }
        shard
    }

    /// The caller's rules, if the locked shard has their layout; otherwise they are from before or after
    /// a change that is under way, and those in force count.
    #[inline]
    fn in_force<'a>(
        &self,
        cell: &Cell,
        shard: &mut Shard,
        rules: &'a Rules,
        held: &'a mut Option<Arc<Current>>,
    ) -> &'a Rules {
        if Shape::of_layout(shard.layout).fits(rules) {
            return rules;
        }
        &held.insert(self.catch_up(cell, shard)).rules
    }

    #[inline]
    fn frame<'a>(&'a self, shard: &Shard, rules: &'a Rules, now: Micros) -> Frame<'a> {
        let sketch_width = self.sketch_width.load(Relaxed);
        let shape = Shape::of_layout(shard.layout);
        let variants = self.variants().filter(|all| all.rules.iter().all(|rules| shape.fits(rules)));
        Frame { shape, rules, variants, budget: &self.budget, hasher: &self.hasher, sketch_width, now }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        hash(&self.hasher, key)
    }

    #[inline]
    fn cell(&self, hash: u64) -> &Cell {
        &self.cells[shard_of(hash)]
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // A shard that a panic left half changed is not counted: to panic here, too, would be an abort.
        let whole = self.cells.iter().filter_map(|cell| cell.shard.lock_whole());
        let held: usize = whole.map(|shard| shard.accounted()).sum();
        self.budget.give_back(EMPTY_BYTES + self.noted_bytes() + held);
    }
}

#[inline]
pub(crate) fn shard_of(hash: u64) -> usize {
    usize::try_from(hash >> (u64::BITS - SHARD_BITS)).unwrap_or(0)
}

/// A key's hash; never 0, which marks a vacant slot.
#[inline]
pub(crate) fn hash(hasher: &SeedableRandomState, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish().max(1)
}

fn subject<'a>(rules: &'a Rules, prepared: &'a mut Prepared) -> Subject<'a> {
    Subject {
        rules,
        blocked_until: prepared.blocked_until,
        states: &mut prepared.states,
        room: prepared.room,
        role: Role::Enforced,
        own: None,
    }
}

impl Cell {
    #[inline]
    fn lock(&self) -> Guard<'_, Shard> {
        self.shard.lock()
    }

    #[inline]
    fn prefetch(&self, hash: u64, stride: usize) {
        let (fraction, capacities) = (slots::fraction(hash), self.capacities.load(Relaxed));
        let shift = if fraction > self.border.load(Relaxed) { 32 } else { 0 };
        #[expect(clippy::cast_possible_truncation, reason = "one half of a word")]
        let home = slots::home(fraction, (capacities >> shift) as u32);
        let address = self.slots_at.load(Relaxed).wrapping_add(home * stride * size_of::<u64>());
        prefetch(address);
        // A probe often goes on into the next line: fetched together, the two cost one miss.
        prefetch(address.wrapping_add(LINE_BYTES));
    }
}
