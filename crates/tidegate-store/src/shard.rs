//! One shard of a table: entries, their logs and names, and the sketch for those without a place.
//!
//! A shard is what a lock guards. It is asked in two steps, so that several shards can be asked
//! together: *prepare* brings a key's states, *commit* puts back what the core's rule made of them.
//! Nothing here decides; nothing here locks. Room, people's wishes and moving are in files of their own.
//! Invariant: only an entry equal to a fresh key is dropped (promise M2), except by unblock.

mod carry;
mod counts;
mod noting;
mod operate;
mod room;

use crate::budget::Budget;
use crate::layout::{BLOCKED_UNTIL, STATES, Shape, from_words, to_words};
use crate::logs::Logs;
use crate::names::Names;
use crate::slots::Slots;
use crate::stats::{self, KeyStats, Stats};
use crate::table::Variants;
use counts::Run;
use foldhash::quality::SeedableRandomState;
use noting::Noting;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Room, Ruling};
use tidegate_core::sketch::Sketch;
use tidegate_core::{Algorithm, Check, Compact, Limit, Micros, Rules, State};
use tidegate_core::{average, fixed_window, sliding_window, token_bucket};

pub use counts::{ByDoor, Counts, Door, Verdicts};

/// High bits of the hash that choose the shard.
pub(crate) const SHARD_BITS: u32 = 8;
/// Shards of a table.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

/// What a shard needs to know of its surroundings for one call.
pub(crate) struct Frame<'a> {
    pub(crate) shape: Shape,
    pub(crate) rules: &'a Rules,
    /// All rules that the table is asked with, where they are several.
    pub(crate) variants: Option<Arc<Variants>>,
    pub(crate) budget: &'a Budget,
    /// What makes a key's hash.
    pub(crate) hasher: &'a SeedableRandomState,
    /// Columns of a sketch, should one be needed.
    pub(crate) sketch_width: usize,
    pub(crate) now: Micros,
}

impl Frame<'_> {
    /// All rules by which an entry must be fresh to be dropped.
    fn all_rules(&self) -> &[Rules] {
        self.variants.as_ref().map_or(std::slice::from_ref(self.rules), |variants| &variants.rules)
    }

    /// A limit as the sketch counts it, over the same period for all keys.
    pub(crate) fn sketched(&self, check: Check<'_>) -> Limit {
        match &self.variants {
            Some(variants) => check.sketched_over(variants.longest[check.index()]),
            None => check.sketched(),
        }
    }
}

/// What a plain decision touches lies here, in the lock's own two cache lines, so that the shards of
/// a table stay in the nearest cache; all else is behind `rest`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Shard {
    /// The layout that its entries have.
    pub(crate) layout: u32,
    /// Hits until the next that is noted for people, and denials; see `noting.rs`.
    hits_left: u16,
    denials_left: u16,
    pub(crate) slots: Slots,
    /// The newest time that decided here; a batch, whose clock was read earlier, stays behind it.
    pub(crate) latest: Micros,
    /// How hits went since another door was asked; see `counts.rs`.
    run: Run,
    rest: Box<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    by_door: ByDoor,
    peeked: u64,
    sketched_allowed: u64,
    sketched_denied: u64,
    /// Bytes reported to the budget.
    accounted: usize,
    logs: Logs,
    names: Names,
    stats: Stats,
    sketches: Vec<Sketch>,
    /// When all that the sketches hold will be gone.
    sketch_until: Micros,
    /// Where the next look for droppable entries starts.
    hand: usize,
    inserts_since_sweep: usize,
    scratch: Vec<State>,
    noting: Noting,
}

/// Where a key stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In this slot.
    At(usize),
    /// Nowhere yet, and there is room.
    New,
    /// Nowhere, and the sketch answers for it.
    Sketched,
}

/// What becomes of a key without a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Making {
    /// Room is made for it, if that can be.
    Room,
    /// It had its chance, see [`Shard::reserve`].
    Reserved,
}

/// A key's states, taken out of the shard for the rule to work on.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) place: Place,
    pub(crate) blocked_until: Micros,
    pub(crate) states: Vec<State>,
    pub(crate) room: Room,
}

/// Slots that are looked at for one to drop when a table is full: a bound on the work of a hit.
const HAND_STEPS: usize = 16;
/// Slots that housekeeping, a snapshot or a listing looks at before it lets go of the shard.
const PIECE_SLOTS: usize = 64;
/// What a state that grows takes with its first entries.
const NEW_LOG: usize = 256;
/// What a sliding log may need for its next entry and the growth around it; for most histories of
/// buckets it is enough, too, and what one takes more is soon accounted for.
const LOG_GROWTH: usize = 512;

impl Shard {
    /// Decides the plain case: a hit on a key with a slot, not blocked, with one limit in words and no
    /// statistics. `None`: it is not plain, and nothing was charged.
    #[inline(always)]
    pub(crate) fn hit_plain(&mut self, rules: &Rules, hash: u64, cost: u32, door: Door, now: Micros) -> Option<Ruling> {
        let [limit] = rules.limits() else {
            return None;
        };
        if !Shape::is_plain(self.layout, rules.algorithm()) {
            return None;
        }
        let [_, blocked_until, words @ ..] = self.slots.plain_mut(hash)?;
        if *blocked_until > now.get() {
            return None;
        }
        let ruling = match rules.algorithm() {
            Algorithm::TokenBucket => hit_plain::<token_bucket::State>(words, limit, now, cost),
            other => hit_other(other, words, limit, now, cost),
        }?;
        self.latest = now;
        self.count_hit(ruling.is_allowed(), door);
        Some(ruling)
    }

    /// Gives a key a slot, if there is room: for requests of several keys of this shard, which are prepared only then, so that no room
    /// is made while states of another are out.
    pub(crate) fn reserve(&mut self, frame: &Frame<'_>, hash: u64, key: &[u8]) {
        let is_new = self.slots.find(hash).is_none() && !self.was_sketched(frame, hash);
        if is_new && self.make_place(frame, key.len()) {
            let index = self.insert(&frame.shape, hash, key);
            let mut states = (0..frame.shape.states()).map(|_| State::fresh(frame.shape.algorithm)).collect();
            self.save(&frame.shape, index, Micros::ZERO, &mut states);
        }
    }

    /// Brings a key's states. `making` says whether room is made for a key without a slot; where none is, the sketch answers for it.
    pub(crate) fn prepare(
        &mut self,
        frame: &Frame<'_>,
        hash: u64,
        key: &[u8],
        Demand { cost, intent }: Demand,
        making: Making,
    ) -> Prepared {
        let mut states = std::mem::take(&mut self.rest.scratch);
        states.clear();
        let counts = intent == Intent::Hit && cost > 0;
        let finds_place = |shard: &mut Shard| match making {
            Making::Reserved if counts => false,
            Making::Room if counts => shard.make_place(frame, key.len()),
            _ => shard.could_make_place(frame, key.len()),
        };
        let mut blocked_until = Micros::ZERO;
        let place = if let Some(index) = self.slots.find(hash) {
            blocked_until = Micros::saturating(self.slots.entry(index)[BLOCKED_UNTIL]);
            self.load(&frame.shape, index, intent, &mut states);
            Place::At(index)
        } else if self.was_sketched(frame, hash) || !finds_place(&mut *self) {
            self.ensure_sketches(frame);
            let pairs = frame.rules.checks().zip(&self.rest.sketches);
            let estimate =
                |(check, sketch): (Check<'_>, &Sketch)| sketch.estimate(hash, &frame.sketched(check), frame.now);
            states.extend(pairs.map(|pair| State::Sketched(estimate(pair))));
            Place::Sketched
        } else {
            states.extend((0..frame.shape.states()).map(|_| State::fresh(frame.shape.algorithm)));
            Place::New
        };
        let room =
            if frame.shape.grows() && !frame.budget.has_room_for(LOG_GROWTH) { Room::Exhausted } else { Room::Free };
        Prepared { place, blocked_until, states, room }
    }

    /// Puts back what the rule made of the states. `charged`: the whole request was allowed and counts.
    pub(crate) fn commit(
        &mut self,
        frame: &Frame<'_>,
        hash: u64,
        key: &[u8],
        cost: u32,
        prepared: Prepared,
        charged: bool,
    ) {
        let Prepared { place, blocked_until, mut states, .. } = prepared;
        match place {
            Place::At(index) => self.save(&frame.shape, index, blocked_until, &mut states),
            Place::New if charged || blocked_until > frame.now || states.iter().any(State::remembers_denials) => {
                let index = self.insert(&frame.shape, hash, key);
                self.save(&frame.shape, index, blocked_until, &mut states);
            }
            Place::Sketched if charged => {
                for (sketch, check) in self.rest.sketches.iter_mut().zip(frame.rules.checks()) {
                    sketch.add(hash, &frame.sketched(check), frame.now, cost);
                }
                self.keep_sketches(frame);
            }
            Place::New | Place::Sketched => {}
        }
        states.clear();
        self.rest.scratch = states;
    }

    /// Gives the states of a peek back without a change.
    pub(crate) fn put_away(&mut self, prepared: Prepared) {
        self.rest.scratch = prepared.states;
    }

    /// Notes a hit in the key's statistics.
    pub(crate) fn note_stats(&mut self, frame: &Frame<'_>, hash: u64, ruling: &Ruling) {
        let over = !ruling.is_allowed();
        self.rest.stats.note(hash, frame.now, over, ruling.decision.rate, frame.budget);
    }

    pub(crate) fn key_stats(&self, hash: u64, now: Micros) -> KeyStats {
        self.rest.stats.get(hash, now)
    }

    pub(crate) fn export_stats(&self) -> Vec<[u64; stats::STRIDE]> {
        self.rest.stats.export()
    }

    pub(crate) fn import_stats(&mut self, words: &[u64; stats::STRIDE]) {
        self.rest.stats.import(words);
    }

    /// Bytes reported to the budget.
    pub(crate) fn accounted(&self) -> usize {
        self.rest.accounted
    }

    /// Tells the budget how much it holds now; was there anything to tell?
    #[inline]
    pub(crate) fn account(&mut self, budget: &Budget) -> bool {
        let bytes = self.bytes();
        let changed = bytes != self.rest.accounted;
        if changed {
            budget.replace(self.rest.accounted, bytes);
            self.rest.accounted = bytes;
        }
        changed
    }

    /// Memory of a shard without entries, apart from the struct itself.
    pub(crate) const EMPTY_BYTES: usize = size_of::<Rest>();

    /// Memory held by entries, names, logs and statistics.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes() + self.rest.names.bytes() + self.rest.logs.bytes() + self.rest.stats.bytes()
    }

    /// Memory held by the sketches, which have a part of the budget to themselves.
    pub(crate) fn sketch_bytes(&self) -> usize {
        self.rest.sketches.iter().map(Sketch::heap_bytes).sum()
    }

    // ---- entries ----

    fn load(&mut self, shape: &Shape, index: usize, intent: Intent, states: &mut Vec<State>) {
        let entry = self.slots.entry(index);
        let words = &entry[shape.state_words()];
        if shape.grows() {
            let logs = &mut self.rest.logs;
            states.extend(words.iter().map(|word| logs.lend(shape.algorithm, *word, intent)));
        } else {
            let pairs = words.chunks_exact(2);
            states.extend(pairs.map(|pair| from_words(shape.algorithm, [pair[0], pair[1]])));
        }
    }

    fn save(&mut self, shape: &Shape, index: usize, blocked_until: Micros, states: &mut Vec<State>) {
        let step = shape.words_per_state();
        let entry = self.slots.entry_mut(index);
        entry[BLOCKED_UNTIL] = blocked_until.get();
        for (i, state) in states.drain(..).enumerate() {
            let words = &mut entry[STATES + i * step..STATES + (i + 1) * step];
            if shape.grows() {
                words[0] = self.rest.logs.put(words[0], state);
            } else {
                words.copy_from_slice(&to_words(&state));
            }
        }
    }

    fn name(&self, shape: &Shape, entry: &[u64]) -> &[u8] {
        if shape.names { self.rest.names.get(entry[shape.name_word()]) } else { &[] }
    }

    fn insert(&mut self, shape: &Shape, hash: u64, key: &[u8]) -> usize {
        let index = self.slots.insert(hash);
        if shape.names {
            self.slots.entry_mut(index)[shape.name_word()] = self.rest.names.add(key);
        }
        self.rest.inserts_since_sweep += 1;
        index
    }

    fn remove(&mut self, shape: &Shape, index: usize) {
        let entry = self.slots.entry(index);
        if shape.grows() {
            for word in &entry[shape.state_words()] {
                self.rest.logs.free(*word);
            }
        }
        if shape.names {
            self.rest.names.remove(entry[shape.name_word()]);
        }
        self.slots.remove(index);
    }

    /// True when the entry can be dropped without anybody noticing.
    fn is_fresh(&self, frame: &Frame<'_>, index: usize) -> bool {
        let entry = self.slots.entry(index);
        if entry[BLOCKED_UNTIL] > frame.now.get() {
            return false;
        }
        let words = &entry[frame.shape.state_words()];
        frame.all_rules().iter().all(|rules| self.is_fresh_by(rules, frame, words))
    }

    fn is_fresh_by(&self, rules: &Rules, frame: &Frame<'_>, words: &[u64]) -> bool {
        let mut checks = rules.checks();
        if frame.shape.grows() {
            let logs = &self.rest.logs;
            return checks.all(|check| logs.is_unused(words[check.state_index()], check, frame.now));
        }
        checks.zip(words.chunks_exact(2)).all(|(check, pair)| {
            let mut state = from_words(frame.shape.algorithm, [pair[0], pair[1]]);
            state.settle(check, frame.now);
            state.status(check, frame.now).reset_after.is_zero()
        })
    }

    // ---- sketch ----

    /// A key that the sketch has admitted stays with it until the sketch has forgotten it: in a new
    /// entry it would start afresh.
    fn was_sketched(&self, frame: &Frame<'_>, hash: u64) -> bool {
        frame.now < self.rest.sketch_until
            && self
                .rest
                .sketches
                .iter()
                .zip(frame.rules.checks())
                .any(|(sketch, check)| !sketch.estimate(hash, &frame.sketched(check), frame.now).is_fresh())
    }

    /// Keeps the sketches for as long as an admission of now can matter.
    fn keep_sketches(&mut self, frame: &Frame<'_>) {
        let longest = frame.rules.checks().map(|check| frame.sketched(check).period()).max().unwrap_or_default();
        let until = frame.now.saturating_add(longest).saturating_add(longest);
        self.rest.sketch_until = self.rest.sketch_until.max(until);
    }

    fn ensure_sketches(&mut self, frame: &Frame<'_>) {
        while self.rest.sketches.len() < frame.shape.limits {
            self.rest.sketches.push(Sketch::new(frame.sketch_width));
        }
    }
}

/// Apart, so that the default algorithm's way stays short enough to be inlined.
#[inline(never)]
fn hit_other(algorithm: Algorithm, words: &mut [u64; 2], limit: &Limit, now: Micros, cost: u32) -> Option<Ruling> {
    match algorithm {
        Algorithm::TokenBucket => hit_plain::<token_bucket::State>(words, limit, now, cost),
        Algorithm::FixedWindow => hit_plain::<fixed_window::FirstHit>(words, limit, now, cost),
        Algorithm::AlignedWindow => hit_plain::<fixed_window::Aligned>(words, limit, now, cost),
        Algorithm::SlidingWindow => hit_plain::<sliding_window::State>(words, limit, now, cost),
        Algorithm::StrictAverage => hit_plain::<average::Strict>(words, limit, now, cost),
        Algorithm::LeakyAverage => hit_plain::<average::Leaky>(words, limit, now, cost),
        Algorithm::SlidingLog | Algorithm::Buckets => None,
    }
}

#[inline]
fn hit_plain<M: Compact>(words: &mut [u64; 2], limit: &Limit, now: Micros, cost: u32) -> Option<Ruling> {
    let mut state = M::from_words(*words);
    let ruling = all_or_nothing::decide_plain(&mut state, limit, now, cost)?;
    *words = state.to_words();
    Some(ruling)
}
