//! Entries on the move: out for a snapshot, in from one, and over to another layout.

use super::Shard;
use crate::layout::{BLOCKED_UNTIL, Entry, HASH, Passage, Shape, from_words};
use crate::logs::Logs;
use crate::names::Names;
use crate::shard::SHARD_BITS;
use crate::slots::Slots;
use tidegate_core::sketch::Sketch;
use tidegate_core::{Micros, State};

impl Shard {
    /// Every entry, taken apart.
    pub(crate) fn export(&self, shape: &Shape) -> Vec<Entry> {
        let used = (0..self.slots.capacity()).filter(|index| !self.slots.is_vacant(*index));
        used.map(|index| {
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
    /// states of the one that it follows, or starts afresh. All limits of buckets read one history, which
    /// stays whatever becomes of them.
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
        let origins = if new.states() == new.limits { from.as_slice() } else { &[Some(0)] };
        let passed = entries.into_iter().map(|entry| {
            let states = origins.iter().map(|origin| follow(&entry.states, origin)).collect();
            Entry { states, ..entry }
        });
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
