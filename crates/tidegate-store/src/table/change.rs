//! How a table goes over to other rules while it is asked.
//!
//! Invariant: a shard is at most one generation behind, and changes only under its own lock.

use super::{Cell, Table};
use crate::layout::{Migration, Shape};
use crate::shard::{Frame, Shard};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, PoisonError};
use tidegate_core::{Limit, Rules};

/// The rules in force, and how shards that are a generation behind get there.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) rules: Rules,
    pub(super) layout: u32,
    pub(super) migration: Migration,
}

impl Table {
    /// Goes over to other rules, shard by shard, each under its lock: a decision meanwhile finds its
    /// shard in the new layout or brings it there, so that none is lost. One call at a time.
    pub(crate) fn adopt(&self, shape: Shape, rules: &Rules) {
        let old = self.shape();
        let from = followed(self.current().rules.limits(), rules.limits());
        let in_place = old == shape && from.iter().enumerate().all(|(index, origin)| *origin == Some(index));
        let before = self.layout.load(Relaxed);
        let layout = if in_place { before } else { shape.layout(Shape::next_generation(before)) };
        let migration = Migration { old, new: shape, from };
        let current = Arc::new(Current { rules: rules.clone(), layout, migration });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        self.layout.store(layout, Release);
        self.stride.store(shape.stride(), Relaxed);
        if !in_place {
            // A shard is thus never more than one generation behind.
            self.cells.iter().for_each(|cell| drop(self.locked(cell)));
        }
    }

    pub(super) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Brings a locked shard into the layout of the rules in force, and says which those are.
    #[cold]
    pub(super) fn catch_up(&self, cell: &Cell, shard: &mut Shard) -> Arc<Current> {
        let current = self.current();
        if shard.layout == 0 {
            shard.layout = current.layout;
        } else if shard.layout != current.layout {
            let frame = Frame {
                shape: current.migration.new,
                rules: &current.rules,
                variants: None,
                budget: &self.budget,
                hasher: &self.hasher,
                sketch_width: self.sketch_width.load(Relaxed),
                now: shard.latest,
            };
            let displaced = shard.migrate(&current.migration, current.layout, &frame);
            self.displaced.fetch_add(displaced, Relaxed);
            self.account(cell, shard);
        }
        current
    }
}

/// For each new limit, the old one that it follows: the same count and period, else the same period,
/// else the same position; none follows two.
fn followed(old: &[Limit], new: &[Limit]) -> Vec<Option<usize>> {
    let mut from: Vec<Option<usize>> = vec![None; new.len()];
    let tests: [fn(&Limit, &Limit, bool) -> bool; 3] = [
        |old, new, _| old.count() == new.count() && old.period() == new.period(),
        |old, new, _| old.period() == new.period(),
        |_, _, same_position| same_position,
    ];
    for test in tests {
        for (index, limit) in new.iter().enumerate() {
            if from[index].is_none() {
                let free = |origin: &usize| !from.contains(&Some(*origin));
                let fits = |origin: &usize| test(&old[*origin], limit, *origin == index);
                from[index] = (0..old.len()).filter(free).find(fits);
            }
        }
    }
    from
}
