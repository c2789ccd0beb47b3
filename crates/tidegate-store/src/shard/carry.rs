//! Entries on the move: out for a snapshot, in from one, and over to another layout.

use super::Shard;
use crate::layout::{BLOCKED_UNTIL, Entry, HASH, Passage, STATES, Shape, from_words};
use crate::logs::Logs;
use crate::names::Names;
use crate::shard::SHARD_BITS;
use crate::slots::Slots;
use tidegate_core::sketch::Sketch;
use tidegate_core::{Algorithm, Micros, State};

impl Shard {
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
