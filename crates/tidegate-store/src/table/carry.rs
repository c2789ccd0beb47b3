//! A table on the move: out for a snapshot, in from one, shard by shard.

use super::Table;
use crate::bare::Guard;
use crate::budget::Fit;
use crate::layout::{Entry, Shape};
use crate::shard::{SHARDS, Shard};
use crate::stats::STRIDE;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::Micros;
use tidegate_core::sketch::Sketch;

impl Table {
    /// Did a panic leave a shard half changed?
    pub(crate) fn is_half_changed(&self) -> bool {
        self.cells.iter().any(|cell| cell.shard.is_broken())
    }

    /// One shard for a snapshot.
    ///
    /// # Errors
    /// When a panic left it half changed.
    fn whole(&self, index: usize) -> io::Result<Guard<'_, Shard>> {
        let cell = &self.cells[index];
        let shard = cell.shard.lock_whole().ok_or_else(|| io::Error::other("a panic left keys half changed"))?;
        Ok(self.in_layout(cell, shard))
    }

    /// Appends the entries of one shard for a snapshot, from above the hash `after`: so few that decisions hardly wait. Returns where
    /// to go on; `None`: that was all.
    pub(crate) fn export(&self, index: usize, after: u64, entries: &mut Vec<Entry>) -> io::Result<Option<u64>> {
        let shard = self.whole(index)?;
        Ok(shard.export_piece(&Shape::of_layout(shard.layout), after, entries))
    }

    /// Takes in entries of one shard as they were at this time, as many as `fit` has room for.
    pub(crate) fn import(&self, entries: Vec<Entry>, at: Micros, fit: &mut Fit) {
        let Some(first) = entries.first() else { return };
        let (cell, current) = (self.cell(first.hash), self.current());
        let mut shard = self.locked(cell);
        let frame = self.frame(&shard, &current.rules, at);
        let held = shard.bytes();
        let more = shard.bytes_with(&frame.shape, &entries).saturating_sub(held);
        if let Some(granted) = fit.grant(more, self.budget.room()) {
            let displaced = shard.import(&frame, entries, held + granted);
            self.displaced.fetch_add(displaced, Relaxed);
            self.account(cell, &mut shard);
        }
    }

    /// Keys that found no place when they were loaded or went over to a larger layout. The sketch answers for them.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Relaxed)
    }

    /// One shard's sketches, and until when they matter.
    pub(crate) fn export_sketches(&self, index: usize) -> io::Result<(Micros, Vec<Sketch>)> {
        Ok(self.whole(index)?.export_sketches())
    }

    /// Takes one shard's sketches in.
    pub(crate) fn import_sketches(&self, index: usize, at: Micros, until: Micros, sketches: Vec<Sketch>) {
        let current = self.current();
        let mut shard = self.locked(&self.cells[index]);
        let frame = self.frame(&shard, &current.rules, at);
        shard.import_sketches(&frame, until, sketches);
    }

    /// Brings sketches that came from a larger store into the width that they have here.
    pub(crate) fn narrow_sketches(&self, at: Micros) {
        let rules = self.rules();
        for index in 0..SHARDS {
            self.with_cell(&rules, index, || at, |shard, frame| shard.narrow_sketches(frame));
        }
    }

    /// The statistics of one shard's keys, for a snapshot.
    pub(crate) fn export_stats(&self, index: usize) -> io::Result<Vec<[u64; STRIDE]>> {
        Ok(self.whole(index)?.export_stats())
    }

    /// Takes a key's statistics in, if there is room; a table that keeps none lets them go.
    pub(crate) fn import_stats(&self, words: &[u64; STRIDE], fit: &mut Fit) {
        let room = self.budget.room();
        if self.shape().stats && fit.grant(size_of_val(words), room).is_some() && room >= size_of_val(words) {
            let cell = self.cell(words[0]);
            let mut shard = self.locked(cell);
            shard.import_stats(words);
            self.account(cell, &mut shard);
        }
    }
}
