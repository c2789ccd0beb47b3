//! Entries on the move: out for a snapshot, in from one, and over to another layout.

use super::{Frame, PIECE_SLOTS, Shard};
use crate::layout::{BLOCKED_UNTIL, Entry, HASH, Migration, Shape, from_words};
use crate::logs::Logs;
use crate::names::Names;
use crate::slots::Slots;
use tidegate_core::sketch::Sketch;
use tidegate_core::{Check, Micros, State};

impl Shard {
    /// Every entry, taken apart.
    fn export(&self, shape: &Shape) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.slots.len());
        let mut after = 0;
        while let Some(last) = self.export_piece(shape, after, &mut entries) {
            after = last;
        }
        entries
    }

    /// Appends the entries of the next piece of a walk by hash, taken apart. Returns where the walk goes on.
    pub(crate) fn export_piece(&self, shape: &Shape, after: u64, entries: &mut Vec<Entry>) -> Option<u64> {
        let (first, last) = self.slots.piece(after, PIECE_SLOTS)?;
        entries.extend(self.slots.up_to(first, last).map(|index| self.taken_apart(shape, index)));
        Some(last)
    }

    pub(super) fn taken_apart(&self, shape: &Shape, index: usize) -> Entry {
        let entry = self.slots.entry(index);
        let words = &entry[shape.state_words()];
        let states = if shape.grows() {
            words.iter().map(|word| self.rest.logs.copy(shape.algorithm, *word)).collect()
        } else {
            let pairs = words.chunks_exact(2);
            pairs.map(|pair| from_words(shape.algorithm, [pair[0], pair[1]])).collect()
        };
        Entry {
            hash: entry[HASH],
            blocked_until: Micros::saturating(entry[BLOCKED_UNTIL]),
            name: self.name(shape, entry).to_vec(),
            states,
        }
    }

    /// Takes entries in, and holds at most `room` bytes then. Returns how many keys found no place: what they used
    /// is in the sketches, where a full table counts keys, so that no limit is lifted.
    ///
    /// Memory is taken for exactly these entries, so that what a shard held fits where it was held: it grew in
    /// steps, and has holes.
    pub(crate) fn import(&mut self, frame: &Frame<'_>, entries: Vec<Entry>, room: usize) -> u64 {
        let (placed, rest) = self.divide(frame, entries, room);
        self.take_in(frame, placed);
        rest.iter().map(|entry| u64::from(self.spill(frame, entry))).sum()
    }

    /// Bytes that it will hold with these entries.
    pub(crate) fn bytes_with(&self, shape: &Shape, entries: &[Entry]) -> usize {
        let mut need = self.need();
        entries.iter().for_each(|entry| need.add(shape, entry));
        need.bytes(shape)
    }

    /// Those that get a place, and those that do not: first come those that the sketch could not answer for.
    fn divide(&self, frame: &Frame<'_>, mut entries: Vec<Entry>, room: usize) -> (Vec<Entry>, Vec<Entry>) {
        if self.bytes_with(&frame.shape, &entries) <= room {
            return (entries, Vec::new());
        }
        entries.sort_by_key(|entry| !needs_place(frame, entry));
        let mut need = self.need();
        entries.into_iter().partition(|entry| {
            let mut more = need;
            more.add(&frame.shape, entry);
            let placed = more.bytes(&frame.shape) <= room || needs_place(frame, entry);
            if placed {
                need = more;
            }
            placed
        })
    }

    fn take_in(&mut self, frame: &Frame<'_>, entries: Vec<Entry>) {
        let shape = &frame.shape;
        let all = self.slots.len() + entries.len();
        if all > self.slots.most() {
            self.resize(shape, Slots::capacity_for(all));
        }
        let mut names_len: usize = entries.iter().map(|entry| Names::bytes_for(entry.name.len())).sum();
        for mut entry in entries {
            if self.slots.find(entry.hash).is_none() {
                while !self.slots.has_room() {
                    // More than usual have their homes at the end.
                    self.resize(shape, self.slots.capacity() + self.slots.capacity() / 32 + 8);
                }
                if shape.names {
                    self.rest.names.make_room(entry.name.len(), names_len);
                }
                let index = self.insert(shape, entry.hash, &entry.name);
                self.save(shape, index, entry.blocked_until, &mut entry.states);
            }
            names_len -= Names::bytes_for(entry.name.len());
        }
        self.latest = self.latest.max(frame.now);
    }

    /// Counts in the sketches what a key has used; false: nothing.
    fn spill(&mut self, frame: &Frame<'_>, entry: &Entry) -> bool {
        self.ensure_sketches(frame);
        let mut counted = false;
        for (sketch, check) in self.rest.sketches.iter_mut().zip(frame.rules.checks()) {
            let used = used(frame, entry, check);
            if used > 0 {
                sketch.add(entry.hash, &frame.sketched(check), frame.now, used);
                counted = true;
            }
        }
        if counted {
            self.keep_sketches(frame);
        }
        counted
    }

    fn need(&self) -> Need {
        Need {
            entries: self.slots.len(),
            names: self.rest.names.bytes(),
            logs: self.rest.logs.bytes(),
            stats: self.rest.stats.bytes(),
        }
    }

    /// Brings all entries into a new layout. Blocks, names and statistics stay; a limit goes on with the
    /// states of the one that it follows, or starts afresh. All limits of buckets read one history, which
    /// stays whatever becomes of them. Returns how many keys found no place, if the new layout is larger.
    pub(crate) fn migrate(&mut self, migration: &Migration, layout: u32, frame: &Frame<'_>) -> u64 {
        let entries = self.export(&migration.old);
        self.slots = Slots::default();
        self.rest.names = Names::default();
        self.rest.logs = Logs::default();
        self.rest.hand = 0;
        let Migration { old, new, from } = migration;
        let follow = |states: &[State], origin: &Option<usize>| match origin {
            Some(index) if old.algorithm == new.algorithm => states[*index].clone(),
            _ => State::fresh(new.algorithm),
        };
        let origins = if new.states() == new.limits { from.as_slice() } else { &[Some(0)] };
        let passed = entries.into_iter().map(|entry| {
            let states = origins.iter().map(|origin| follow(&entry.states, origin)).collect();
            Entry { states, ..entry }
        });
        let passed: Vec<Entry> = passed.collect();
        if !self.rest.sketches.is_empty() {
            // A cell counts admissions, whatever the algorithm; a new limit starts afresh here too.
            let width = frame.sketch_width;
            let sketches = std::mem::take(&mut self.rest.sketches);
            let follow = |origin: &Option<usize>| origin.and_then(|index| sketches.get(index).cloned());
            self.rest.sketches = from.iter().map(|o| follow(o).unwrap_or_else(|| Sketch::new(width))).collect();
        }
        self.narrow_sketches(frame);
        self.layout = layout;
        let room = self.rest.accounted + frame.budget.room();
        self.import(frame, passed, room)
    }

    /// The sketches and when they will be forgotten, for a snapshot.
    pub(crate) fn export_sketches(&self) -> (Micros, Vec<Sketch>) {
        (self.rest.sketch_until, self.rest.sketches.clone())
    }

    /// Takes sketches in, beside those of keys that found no place.
    pub(crate) fn import_sketches(&mut self, frame: &Frame<'_>, until: Micros, sketches: Vec<Sketch>) {
        self.rest.sketch_until = self.rest.sketch_until.max(until);
        if self.rest.sketches.is_empty() {
            self.rest.sketches = sketches;
            return;
        }
        for ((own, other), check) in self.rest.sketches.iter_mut().zip(&sketches).zip(frame.rules.checks()) {
            own.absorb(other, &frame.sketched(check), frame.now);
        }
    }

    /// Brings sketches of a larger store into this one's width.
    pub(crate) fn narrow_sketches(&mut self, frame: &Frame<'_>) {
        for (sketch, check) in self.rest.sketches.iter_mut().zip(frame.rules.checks()) {
            if sketch.width() > frame.sketch_width {
                let mut narrow = Sketch::new(frame.sketch_width);
                narrow.absorb(sketch, &frame.sketched(check), frame.now);
                *sketch = narrow;
            }
        }
    }
}

/// What entries take in memory.
#[derive(Clone, Copy)]
struct Need {
    entries: usize,
    names: usize,
    logs: usize,
    stats: usize,
}

impl Need {
    fn add(&mut self, shape: &Shape, entry: &Entry) {
        self.entries += 1;
        self.names += if shape.names { Names::bytes_for(entry.name.len()) } else { 0 };
        self.logs += if shape.grows() { entry.states.iter().map(Logs::bytes_for).sum() } else { 0 };
    }

    fn bytes(&self, shape: &Shape) -> usize {
        let slots = Slots::bytes_for(shape.stride(), Slots::capacity_for(self.entries));
        let pages = if shape.names { Names::list_bytes_for(self.names) } else { 0 };
        slots + pages + self.names + self.logs + self.stats
    }
}

/// A block outlasts what a sketch remembers, and so does the debt of a bucket whose burst is above its count.
fn needs_place(frame: &Frame<'_>, entry: &Entry) -> bool {
    entry.blocked_until > frame.now
        || frame.rules.checks().any(|check| used(frame, entry, check) > check.limit().count())
}

/// How much of a limit a key has used.
fn used(frame: &Frame<'_>, entry: &Entry, check: Check<'_>) -> u32 {
    let mut state = entry.states[check.state_index()].clone();
    state.settle(check, frame.now);
    check.limit().burst().saturating_sub(state.status(check, frame.now).remaining)
}
