//! One shard of a table: entries, their logs and names, and the sketch for those without a place.
//!
//! A shard is what a lock guards. It is asked in two steps, so that several shards can be asked
//! together: *prepare* brings a key's states, *commit* puts back what the core's rule made of them.
//! Nothing here decides; nothing here locks.
//! Invariant: only an entry equal to a fresh key is dropped (promise M2), except when told to forget.

use crate::budget::Budget;
use crate::logs::Logs;
use crate::names::Names;
use crate::slots::Slots;
use crate::stats::{self, KeyStats, Stats};
use tidegate_core::all_or_nothing::{self, Intent, Room, Ruling};
use tidegate_core::sketch::Sketch;
use tidegate_core::{Algorithm, Compact, Limit, Meter, Micros, Rules, State};
use tidegate_core::{average, fixed_window, sliding_log, sliding_window, token_bucket};

/// High bits of the hash that choose the shard.
pub(crate) const SHARD_BITS: u32 = 8;
/// Shards of a table.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

/// What fixes the layout of a table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How the limiter counts.
    pub algorithm: Algorithm,
    /// How many limits it has.
    pub limits: usize,
    /// Are key names kept?
    pub names: bool,
    /// Are statistics kept?
    pub stats: bool,
}

const HASH: usize = 0;
const BLOCKED_UNTIL: usize = 1;
const STATES: usize = 2;

impl Shape {
    fn words_per_state(&self) -> usize {
        if self.algorithm == Algorithm::SlidingLog { 1 } else { 2 }
    }

    fn name_word(&self) -> usize {
        STATES + self.words_per_state() * self.limits
    }

    pub(crate) fn stride(&self) -> usize {
        self.name_word() + usize::from(self.names)
    }

    /// The shape and a generation in one number that can be read without a lock; never 0.
    pub(crate) fn layout(&self, generation: u16) -> u32 {
        let algorithm = Algorithm::ALL.iter().position(|other| *other == self.algorithm).unwrap_or(0);
        let limits = u32::try_from(self.limits).unwrap_or(0);
        let flags = u32::from(self.names) << 8 | u32::from(self.stats) << 9;
        u32::from(generation) << 16 | flags | limits << 4 | u32::try_from(algorithm).unwrap_or(0)
    }

    /// The shape of a [`Shape::layout`].
    #[inline]
    pub(crate) fn of_layout(layout: u32) -> Shape {
        Shape {
            algorithm: Algorithm::ALL[(layout & 0xf) as usize % Algorithm::ALL.len()],
            limits: (layout >> 4 & 0xf) as usize,
            names: layout >> 8 & 1 == 1,
            stats: layout >> 9 & 1 == 1,
        }
    }

    /// The next generation of a layout.
    pub(crate) fn next_generation(layout: u32) -> u16 {
        u16::try_from(layout >> 16).unwrap_or(0).wrapping_add(1)
    }
}

/// Limits fit the four bits that a layout has for them, and so do algorithms.
const _: () = assert!(tidegate_core::LIMITS_MAX < 16 && Algorithm::ALL.len() < 16);

/// How a table's entries go over to new rules.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    pub(crate) old: Shape,
    pub(crate) new: Shape,
    /// For each new limit, the old one whose states it takes over.
    pub(crate) from: Vec<Option<usize>>,
}

/// What a shard needs to know of its surroundings for one call.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) shape: Shape,
    pub(crate) rules: &'a Rules,
    pub(crate) budget: &'a Budget,
    /// Columns of a sketch, should one be needed.
    pub(crate) sketch_width: usize,
    pub(crate) now: Micros,
}

/// How decisions went, since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Hits allowed, sketched ones included.
    pub allowed: u64,
    /// Hits denied, sketched ones included.
    pub denied: u64,
    /// Peeks.
    pub peeked: u64,
    /// Hits that the sketch allowed.
    pub sketched_allowed: u64,
    /// Hits that the sketch denied.
    pub sketched_denied: u64,
}

/// What a plain decision touches lies here, in the lock's own two cache lines, so that the shards of
/// a table stay in the nearest cache; all else is behind `rest`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Shard {
    /// The layout that its entries have.
    pub(crate) layout: u32,
    pub(crate) slots: Slots,
    /// The newest time that decided here; a batch, whose clock was read earlier, stays behind it.
    pub(crate) latest: Micros,
    allowed: u64,
    denied: u64,
    rest: Box<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    peeked: u64,
    sketched_allowed: u64,
    sketched_denied: u64,
    /// Bytes told to the budget.
    accounted: usize,
    logs: Logs,
    names: Names,
    stats: Stats,
    sketches: Vec<Sketch>,
    /// When all that the sketches hold will be gone.
    sketch_until: Micros,
    /// Where the next look for droppable entries starts.
    hand: usize,
    inserts_since_purge: usize,
    scratch: Vec<State>,
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
/// What a sliding log takes with its first entries.
const NEW_LOG: usize = 256;
/// What a sliding log may need for its next entry and the growth around it.
const LOG_GROWTH: usize = 512;

impl Shard {
    /// Decides the plain case: a hit on a key with a slot, not blocked, with one limit in words.
    /// `None`: it is not plain, and nothing was charged.
    #[inline]
    pub(crate) fn hit_plain(&mut self, frame: &Frame<'_>, hash: u64, cost: u32) -> Option<Ruling> {
        let [limit] = frame.rules.limits() else {
            return None;
        };
        let index = self.slots.find(hash, SHARD_BITS)?;
        let entry = self.slots.entry_mut(index);
        if entry[BLOCKED_UNTIL] > frame.now.get() {
            return None;
        }
        let words = &mut entry[STATES..];
        let ruling = match frame.shape.algorithm {
            Algorithm::TokenBucket => hit_plain::<token_bucket::State>(words, limit, frame.now, cost),
            Algorithm::FixedWindow => hit_plain::<fixed_window::FirstHit>(words, limit, frame.now, cost),
            Algorithm::AlignedWindow => hit_plain::<fixed_window::Aligned>(words, limit, frame.now, cost),
            Algorithm::SlidingWindow => hit_plain::<sliding_window::State>(words, limit, frame.now, cost),
            Algorithm::StrictAverage => hit_plain::<average::Strict>(words, limit, frame.now, cost),
            Algorithm::LeakyAverage => hit_plain::<average::Leaky>(words, limit, frame.now, cost),
            Algorithm::SlidingLog => None,
        }?;
        self.latest = frame.now;
        self.count(&ruling, ruling.is_allowed(), Intent::Hit, Place::At(index));
        Some(ruling)
    }

    pub(crate) fn prepare(&mut self, frame: &Frame<'_>, hash: u64, key: &[u8], cost: u32, intent: Intent) -> Prepared {
        let mut states = std::mem::take(&mut self.rest.scratch);
        states.clear();
        let counts = intent == Intent::Hit && cost > 0;
        let mut blocked_until = Micros::ZERO;
        let place = if let Some(index) = self.slots.find(hash, SHARD_BITS) {
            blocked_until = Micros::saturating(self.slots.entry(index)[BLOCKED_UNTIL]);
            self.load(&frame.shape, index, intent, &mut states);
            Place::At(index)
        } else if self.was_sketched(frame, hash)
            || if counts { !self.make_place(frame, key.len()) } else { !self.could_make_place(frame, key.len()) }
        {
            self.ensure_sketches(frame);
            let pairs = frame.rules.limits().iter().zip(&self.rest.sketches);
            states.extend(pairs.map(|(limit, sketch)| State::Sketched(sketch.estimate(hash, limit, frame.now))));
            Place::Sketched
        } else {
            states.extend((0..frame.shape.limits).map(|_| State::fresh(frame.shape.algorithm)));
            Place::New
        };
        let grows = frame.shape.algorithm == Algorithm::SlidingLog;
        let room = if grows && !frame.budget.has_room_for(LOG_GROWTH) { Room::Exhausted } else { Room::Free };
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
                for (sketch, limit) in self.rest.sketches.iter_mut().zip(frame.rules.limits()) {
                    sketch.add(hash, limit, frame.now, cost);
                }
                let longest = frame.rules.limits().iter().map(Limit::period).max().unwrap_or_default();
                let until = frame.now.saturating_add(longest).saturating_add(longest);
                self.rest.sketch_until = self.rest.sketch_until.max(until);
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

    /// Counts a decision of this limiter: a hit that another limiter denied was neither allowed nor
    /// denied here.
    #[inline]
    pub(crate) fn count(&mut self, ruling: &Ruling, all_allow: bool, intent: Intent, place: Place) {
        if place == Place::Sketched && intent == Intent::Hit {
            self.rest.sketched_allowed += u64::from(all_allow);
            self.rest.sketched_denied += u64::from(!ruling.is_allowed());
        }
        match intent {
            Intent::Peek => self.rest.peeked += 1,
            Intent::Hit if all_allow => self.allowed += 1,
            Intent::Hit if !ruling.is_allowed() => self.denied += 1,
            Intent::Hit => {}
        }
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

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            allowed: self.allowed,
            denied: self.denied,
            peeked: self.rest.peeked,
            sketched_allowed: self.rest.sketched_allowed,
            sketched_denied: self.rest.sketched_denied,
        }
    }

    /// Bytes told to the budget.
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
        if shape.algorithm == Algorithm::SlidingLog {
            let words = &entry[STATES..STATES + shape.limits];
            let logs = &mut self.rest.logs;
            states.extend(words.iter().map(|word| {
                State::SlidingLog(match intent {
                    Intent::Hit => logs.take(*word),
                    Intent::Peek => Box::new(logs.get(*word).cloned().unwrap_or_default()),
                })
            }));
        } else {
            let pairs = entry[STATES..STATES + 2 * shape.limits].chunks_exact(2);
            states.extend(pairs.map(|pair| from_words(shape.algorithm, [pair[0], pair[1]])));
        }
    }

    fn save(&mut self, shape: &Shape, index: usize, blocked_until: Micros, states: &mut Vec<State>) {
        let step = shape.words_per_state();
        let entry = self.slots.entry_mut(index);
        entry[BLOCKED_UNTIL] = blocked_until.get();
        for (i, state) in states.drain(..).enumerate() {
            let words = &mut entry[STATES + i * step..STATES + (i + 1) * step];
            match state {
                State::SlidingLog(log) => words[0] = self.rest.logs.put(words[0], log),
                state => words.copy_from_slice(&to_words(&state)),
            }
        }
    }

    fn insert(&mut self, shape: &Shape, hash: u64, key: &[u8]) -> usize {
        let index = self.slots.insert(hash, SHARD_BITS);
        if shape.names {
            self.slots.entry_mut(index)[shape.name_word()] = self.rest.names.add(key);
        }
        self.rest.inserts_since_purge += 1;
        index
    }

    fn remove(&mut self, shape: &Shape, index: usize) {
        let entry = self.slots.entry(index);
        if shape.algorithm == Algorithm::SlidingLog {
            for word in &entry[STATES..STATES + shape.limits] {
                self.rest.logs.free(*word);
            }
        }
        if shape.names {
            self.rest.names.remove(entry[shape.name_word()]);
        }
        self.slots.remove(index, SHARD_BITS);
    }

    /// True when the entry can be dropped without anybody noticing.
    fn is_fresh(&self, frame: &Frame<'_>, index: usize) -> bool {
        let entry = self.slots.entry(index);
        if entry[BLOCKED_UNTIL] > frame.now.get() {
            return false;
        }
        let limits = frame.rules.limits().iter();
        if frame.shape.algorithm == Algorithm::SlidingLog {
            let unused = |log: &sliding_log::State, limit| log.status(limit, frame.now).reset_after.is_zero();
            return limits
                .zip(&entry[STATES..])
                .all(|(limit, word)| self.rest.logs.get(*word).is_none_or(|log| unused(log, limit)));
        }
        limits.zip(entry[STATES..].chunks_exact(2)).all(|(limit, pair)| {
            let mut state = from_words(frame.shape.algorithm, [pair[0], pair[1]]);
            state.settle(limit, frame.now);
            state.status(limit, frame.now).reset_after.is_zero()
        })
    }

    // ---- room ----

    /// Finds room for one more entry: free slots, then droppable ones, then growth.
    fn make_place(&mut self, frame: &Frame<'_>, key_len: usize) -> bool {
        if self.has_place(frame, key_len) {
            return true;
        }
        // A look at the whole shard is paid for by the inserts since the last one. Keys that come
        // again and again look fresh in between, so growing is the better answer to a first fill.
        if self.rest.inserts_since_purge > self.slots.capacity() {
            self.purge(frame);
            if self.slots.len() <= self.slots.most() / 8 * 7 && self.has_place(frame, key_len) {
                return true;
            }
        }
        if self.slots.len() >= self.slots.most() {
            self.grow(frame);
        }
        if !self.has_place(frame, key_len) {
            self.sweep(frame);
            if self.rest.names.has_holes_for(key_len) {
                self.compact_names(&frame.shape);
            }
        }
        self.has_place(frame, key_len)
    }

    /// Would a hit find room for one more entry? For peeks, which must change nothing.
    fn could_make_place(&self, frame: &Frame<'_>, key_len: usize) -> bool {
        let full = self.slots.len() >= self.slots.most();
        self.has_place(frame, key_len)
            || self.rest.inserts_since_purge > self.slots.capacity()
            || (full && self.may_take(frame, self.growth(frame)))
            || (0..HAND_STEPS.min(self.slots.capacity())).any(|step| {
                let index = (self.rest.hand + step) % self.slots.capacity();
                !self.slots.is_vacant(index) && self.is_fresh(frame, index)
            })
    }

    /// By a quarter, if the budget has room.
    fn grow(&mut self, frame: &Frame<'_>) {
        if self.may_take(frame, self.growth(frame)) {
            self.resize(&frame.shape, self.next_capacity());
        }
    }

    /// Bytes that the next growth takes.
    fn growth(&self, frame: &Frame<'_>) -> usize {
        Slots::bytes_for(frame.shape.stride(), self.next_capacity()) - self.slots.bytes()
    }

    fn next_capacity(&self) -> usize {
        (self.slots.capacity() + self.slots.capacity() / 4).max(16)
    }

    /// May this shard hold `more` bytes than it does? What it freed in this call counts as free.
    fn may_take(&self, frame: &Frame<'_>, more: usize) -> bool {
        let growth = (self.bytes() + more).saturating_sub(self.rest.accounted);
        growth == 0 || frame.budget.has_room_for(growth)
    }

    fn has_place(&self, frame: &Frame<'_>, key_len: usize) -> bool {
        let names = if frame.shape.names { self.rest.names.growth_for(key_len) } else { 0 };
        let logs = if frame.shape.algorithm == Algorithm::SlidingLog { frame.shape.limits * NEW_LOG } else { 0 };
        self.slots.len() < self.slots.most() && (names + logs == 0 || self.may_take(frame, names + logs))
    }

    /// Looks at the next few slots and drops what can be dropped.
    fn sweep(&mut self, frame: &Frame<'_>) {
        for _ in 0..HAND_STEPS.min(self.slots.capacity()) {
            if self.rest.hand >= self.slots.capacity() {
                self.rest.hand = 0;
            }
            if !self.slots.is_vacant(self.rest.hand) && self.is_fresh(frame, self.rest.hand) {
                // The gap is closed by a follower, which is looked at next.
                self.remove(&frame.shape, self.rest.hand);
            } else {
                self.rest.hand += 1;
            }
        }
    }

    /// Drops every entry that can be dropped.
    pub(crate) fn purge(&mut self, frame: &Frame<'_>) {
        self.rest.inserts_since_purge = 0;
        let mut index = 0;
        while index < self.slots.capacity() {
            if !self.slots.is_vacant(index) && self.is_fresh(frame, index) {
                self.remove(&frame.shape, index);
            } else {
                index += 1;
            }
        }
        if self.rest.names.wants_compaction() {
            self.compact_names(&frame.shape);
        }
    }

    /// Purges and gives back memory that is not needed any more.
    pub(crate) fn tend(&mut self, frame: &Frame<'_>) {
        self.purge(frame);
        if self.slots.len() < self.slots.most() / 2 && self.slots.capacity() > 16 {
            let capacity = match self.slots.len() {
                0 => 0,
                len => Slots::capacity_for(len + len / 4).max(16),
            };
            self.resize(&frame.shape, capacity);
        }
        if frame.now >= self.rest.sketch_until {
            self.rest.sketches = Vec::new();
        }
        self.rest.logs.shrink();
    }

    fn resize(&mut self, shape: &Shape, capacity: usize) {
        if self.slots.stride() == shape.stride() {
            self.slots = self.slots.resized(capacity, SHARD_BITS);
        } else {
            self.slots = Slots::new(shape.stride(), capacity);
        }
        self.rest.hand = 0;
    }

    fn compact_names(&mut self, shape: &Shape) {
        let mut names = Names::default();
        let word = shape.name_word();
        for index in 0..self.slots.capacity() {
            if !self.slots.is_vacant(index) {
                let reference = names.add(self.rest.names.get(self.slots.entry(index)[word]));
                self.slots.entry_mut(index)[word] = reference;
            }
        }
        self.rest.names = names;
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
                .zip(frame.rules.limits())
                .any(|(sketch, limit)| !sketch.estimate(hash, limit, frame.now).is_fresh())
    }

    fn ensure_sketches(&mut self, frame: &Frame<'_>) {
        while self.rest.sketches.len() < frame.shape.limits {
            self.rest.sketches.push(Sketch::new(frame.sketch_width));
        }
    }

    // ---- people ----

    /// Blocks a key, making an entry if there is none; `false` when there is no place for it.
    pub(crate) fn block(&mut self, frame: &Frame<'_>, hash: u64, key: &[u8], until: Micros) -> bool {
        let index = match self.slots.find(hash, SHARD_BITS) {
            Some(index) => index,
            None if self.make_place(frame, key.len()) || self.make_place_for_block(frame, key.len()) => {
                let mut states = self.states_of_new(frame, hash);
                let index = self.insert(&frame.shape, hash, key);
                self.save(&frame.shape, index, Micros::ZERO, &mut states);
                index
            }
            None => return false,
        };
        self.slots.entry_mut(index)[BLOCKED_UNTIL] = until.get();
        true
    }

    /// Fresh states; or, if the sketch has admitted the key, states that were charged as much: in a
    /// place of its own it must not start afresh.
    fn states_of_new(&self, frame: &Frame<'_>, hash: u64) -> Vec<State> {
        let mut states = frame.rules.fresh();
        if frame.now < self.rest.sketch_until {
            for ((state, sketch), limit) in states.iter_mut().zip(&self.rest.sketches).zip(frame.rules.limits()) {
                let used = sketch.estimate(hash, limit, frame.now).total().min(limit.burst());
                state.settle(limit, frame.now);
                if used > 0 {
                    state.charge(limit, frame.now, used);
                }
            }
        }
        states
    }

    /// A block is rare and must not be lost to a lazy search: look at the whole shard.
    fn make_place_for_block(&mut self, frame: &Frame<'_>, key_len: usize) -> bool {
        self.purge(frame);
        self.make_place(frame, key_len)
    }

    /// Forgets a key's history and block; was it blocked?
    pub(crate) fn unblock(&mut self, frame: &Frame<'_>, hash: u64) -> bool {
        let Some(index) = self.slots.find(hash, SHARD_BITS) else {
            return false;
        };
        let was_blocked = self.is_blocked(frame, index);
        self.remove(&frame.shape, index);
        was_blocked
    }

    /// Forgets all blocked keys; how many were there?
    pub(crate) fn unblock_all(&mut self, frame: &Frame<'_>) -> u64 {
        let (mut index, mut unblocked) = (0, 0);
        while index < self.slots.capacity() {
            if self.is_blocked(frame, index) {
                self.remove(&frame.shape, index);
                unblocked += 1;
            } else {
                index += 1;
            }
        }
        unblocked
    }

    fn is_blocked(&self, frame: &Frame<'_>, index: usize) -> bool {
        !self.slots.is_vacant(index) && self.slots.entry(index)[BLOCKED_UNTIL] > frame.now.get()
    }

    /// Hashes and names of the live or of the blocked entries whose hash is above `after`.
    pub(crate) fn list(&self, frame: &Frame<'_>, blocked_only: bool, after: u64) -> Vec<(u64, Vec<u8>)> {
        let listed = |index: &usize| {
            !self.slots.is_vacant(*index)
                && self.slots.entry(*index)[HASH] > after
                && if blocked_only { self.is_blocked(frame, *index) } else { !self.is_fresh(frame, *index) }
        };
        let entries = (0..self.slots.capacity()).filter(listed).map(|index| self.slots.entry(index));
        entries.map(|entry| (entry[HASH], self.rest.names.get(entry[frame.shape.name_word()]).to_vec())).collect()
    }

    // ---- snapshots ----

    /// Every entry, taken apart.
    pub(crate) fn export(&self, shape: &Shape) -> Vec<Entry> {
        let used = (0..self.slots.capacity()).filter(|index| !self.slots.is_vacant(*index));
        used.map(|index| {
            let entry = self.slots.entry(index);
            let states = if shape.algorithm == Algorithm::SlidingLog {
                let log =
                    |word: &u64| State::SlidingLog(Box::new(self.rest.logs.get(*word).cloned().unwrap_or_default()));
                entry[STATES..STATES + shape.limits].iter().map(log).collect()
            } else {
                let pairs = entry[STATES..STATES + 2 * shape.limits].chunks_exact(2);
                pairs.map(|pair| from_words(shape.algorithm, [pair[0], pair[1]])).collect()
            };
            Entry {
                hash: entry[HASH],
                blocked_until: Micros::saturating(entry[BLOCKED_UNTIL]),
                name: if shape.names { self.rest.names.get(entry[shape.name_word()]).to_vec() } else { Vec::new() },
                states,
            }
        })
        .collect()
    }

    /// Takes entries in, with room for all of them from the start: what was saved is not thrown away,
    /// and entries in the order of their hashes would make one long row of a table that grows.
    pub(crate) fn import(&mut self, shape: &Shape, entries: Vec<Entry>) {
        let all = self.slots.len() + entries.len();
        if all > self.slots.most() {
            self.resize(shape, Slots::capacity_for(all + all / 8).max(16));
        }
        for mut entry in entries {
            if self.slots.find(entry.hash, SHARD_BITS).is_none() {
                let index = self.insert(shape, entry.hash, &entry.name);
                self.save(shape, index, entry.blocked_until, &mut entry.states);
            }
        }
    }

    /// Brings all entries into a new layout. Blocks, names and statistics stay; a limit goes on with the
    /// states of the one that it follows, or starts afresh.
    pub(crate) fn pass_over(&mut self, passage: &Passage, layout: u32) {
        let entries = self.export(&passage.old);
        self.slots = Slots::default();
        self.rest.names = Names::default();
        self.rest.logs = Logs::default();
        self.rest.hand = 0;
        let Passage { old, new, from } = passage;
        let follow = |states: &[State], origin: &Option<usize>| match origin {
            Some(index) if old.algorithm == new.algorithm => states[*index].clone(),
            _ => State::fresh(new.algorithm),
        };
        let passed = entries
            .into_iter()
            .map(|entry| Entry { states: from.iter().map(|origin| follow(&entry.states, origin)).collect(), ..entry });
        self.import(new, passed.collect());
        if let Some(first) = self.rest.sketches.first() {
            // A cell counts admissions, whatever the algorithm; a new limit starts afresh here too.
            let width = first.width();
            let sketches = std::mem::take(&mut self.rest.sketches);
            let follow = |origin: &Option<usize>| origin.and_then(|index| sketches.get(index).cloned());
            self.rest.sketches = from.iter().map(|o| follow(o).unwrap_or_else(|| Sketch::new(width))).collect();
        }
        self.layout = layout;
    }

    /// The sketches and when they will be forgotten, for a snapshot.
    pub(crate) fn export_sketches(&self) -> (Micros, Vec<Sketch>) {
        (self.rest.sketch_until, self.rest.sketches.clone())
    }

    pub(crate) fn import_sketches(&mut self, until: Micros, sketches: Vec<Sketch>) {
        self.rest.sketch_until = until;
        self.rest.sketches = sketches;
    }
}

/// An entry outside a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) blocked_until: Micros,
    pub(crate) name: Vec<u8>,
    pub(crate) states: Vec<State>,
}

#[inline]
pub(crate) fn to_words(state: &State) -> [u64; 2] {
    match state {
        State::TokenBucket(state) => state.to_words(),
        State::FixedWindow(state) => state.to_words(),
        State::AlignedWindow(state) => state.to_words(),
        State::SlidingWindow(state) => state.to_words(),
        State::StrictAverage(state) => state.to_words(),
        State::LeakyAverage(state) => state.to_words(),
        // Neither is kept in words: logs have their own room, and sketched keys have no entry.
        State::SlidingLog(_) | State::Sketched(_) => [0, 0],
    }
}

#[inline]
pub(crate) fn from_words(algorithm: Algorithm, words: [u64; 2]) -> State {
    match algorithm {
        Algorithm::TokenBucket => State::TokenBucket(token_bucket::State::from_words(words)),
        Algorithm::FixedWindow => State::FixedWindow(fixed_window::FirstHit::from_words(words)),
        Algorithm::AlignedWindow => State::AlignedWindow(fixed_window::Aligned::from_words(words)),
        Algorithm::SlidingWindow => State::SlidingWindow(sliding_window::State::from_words(words)),
        Algorithm::StrictAverage => State::StrictAverage(average::Strict::from_words(words)),
        Algorithm::LeakyAverage => State::LeakyAverage(average::Leaky::from_words(words)),
        Algorithm::SlidingLog => State::fresh(Algorithm::SlidingLog),
    }
}

#[inline]
fn hit_plain<M: Compact>(words: &mut [u64], limit: &Limit, now: Micros, cost: u32) -> Option<Ruling> {
    let mut state = M::from_words([words[0], words[1]]);
    let ruling = all_or_nothing::decide_plain(&mut state, limit, now, cost)?;
    words[..2].copy_from_slice(&state.to_words());
    Some(ruling)
}
