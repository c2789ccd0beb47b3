//! Room for new keys: free slots, then growth within the budget, then droppable entries.
//!
//! What is done for the shard as a whole is done in small pieces, some with each new key and some in housekeeping, so that nobody waits for
//! more than a few dozen entries. Invariant: what is dropped equals a fresh key (promise M2).

use super::{Frame, HAND_STEPS, NEW_LOG, PIECE_SLOTS, Shard};
use crate::layout::Shape;
use crate::names::Names;
use crate::slots::Slots;
use crate::table::hash;

/// Names that are looked at beside a new key, when names are cleaned.
const CLEANED_NAMES: usize = 8;
/// Smallest capacity.
const CAPACITY_MIN: usize = 16;

impl Shard {
    /// Finds room for one more entry: free slots, then growth, then droppable ones.
    pub(super) fn make_place(&mut self, frame: &Frame<'_>, key_len: usize) -> bool {
        self.do_chores(frame);
        if self.slots.is_crowded() {
            self.grow(frame);
        }
        if !self.has_place(frame, key_len) {
            self.sweep(frame);
        }
        if frame.shape.names && self.slots.has_room() && !self.has_place(frame, key_len) {
            self.free_page(frame, key_len);
        }
        self.has_place(frame, key_len)
    }

    /// What each new key does for the shard: it moves some entries on their way to another capacity, and some names. And when slots become
    /// few, as many as there are new keys are looked at for what can be dropped. Not more: keys that come again and again look
    /// fresh in between.
    fn do_chores(&mut self, frame: &Frame<'_>) {
        self.slots.step();
        if self.rest.inserts_since_sweep >= HAND_STEPS && self.slots.len() > self.slots.most() / 4 * 3 {
            self.sweep(frame);
        }
        if self.rest.names.wants_cleaning() {
            self.clean_names(frame, CLEANED_NAMES);
        }
    }

    /// Would a hit find room for one more entry? For peeks, which must change nothing.
    pub(super) fn could_make_place(&self, frame: &Frame<'_>, key_len: usize) -> bool {
        let growth = self.growth(frame).into_iter().flatten().any(|capacity| self.may_grow_to(frame, capacity));
        self.has_place(frame, key_len)
            || (!self.slots.has_room() && growth)
            || (0..HAND_STEPS.min(self.slots.end())).any(|step| {
                let index = (self.rest.hand + step) % self.slots.end();
                !self.slots.is_vacant(index) && self.is_fresh(frame, index)
            })
    }

    /// As far as the budget has room.
    fn grow(&mut self, frame: &Frame<'_>) {
        // It has grown by as much as all new keys since may need; only if the last homes are crowded there is more to do.
        while !self.slots.is_settled() && !self.slots.has_room() {
            self.slots.step();
        }
        let growth = self.growth(frame).into_iter().flatten().find(|capacity| self.may_grow_to(frame, *capacity));
        if let Some(capacity) = growth
            && self.slots.is_settled()
            && self.slots.is_crowded()
        {
            self.begin_resize(&frame.shape, capacity);
        }
    }

    /// Capacities that it may grow to, best first.
    fn growth(&self, frame: &Frame<'_>) -> [Option<usize>; 2] {
        let capacity = self.slots.capacity();
        if self.slots.stride() != frame.shape.stride() {
            return [Some(CAPACITY_MIN), None];
        }
        match capacity {
            ..128 => [Some((capacity + capacity / 2).max(CAPACITY_MIN)), None],
            _ => [Some(capacity + capacity / 8), Some(capacity + capacity / 32)],
        }
    }

    fn may_grow_to(&self, frame: &Frame<'_>, capacity: usize) -> bool {
        let bytes = Slots::bytes_for(frame.shape.stride(), capacity);
        self.may_take(frame, bytes.saturating_sub(self.slots.bytes()))
    }

    /// May this shard hold `more` bytes than it does? What it freed in this call counts as free.
    fn may_take(&self, frame: &Frame<'_>, more: usize) -> bool {
        let growth = (self.bytes() + more).saturating_sub(self.rest.accounted);
        growth == 0 || frame.budget.has_room_for(growth)
    }

    fn has_place(&self, frame: &Frame<'_>, key_len: usize) -> bool {
        let names = if frame.shape.names { self.rest.names.growth_for(key_len) } else { 0 };
        let logs = if frame.shape.grows() { frame.shape.states() * NEW_LOG } else { 0 };
        self.slots.has_room() && (names + logs == 0 || self.may_take(frame, names + logs))
    }

    /// Looks at the next few slots and drops what can be dropped.
    fn sweep(&mut self, frame: &Frame<'_>) {
        self.rest.inserts_since_sweep = 0;
        for _ in 0..HAND_STEPS.min(self.slots.end()) {
            if self.rest.hand >= self.slots.end() {
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
    pub(super) fn purge(&mut self, frame: &Frame<'_>) {
        let mut after = Some(0);
        while let Some(from) = after {
            after = self.purge_piece(frame, from);
        }
    }

    /// Drops what can be dropped in the next piece of a walk by hash. Returns where the walk goes on.
    pub(crate) fn purge_piece(&mut self, frame: &Frame<'_>, after: u64) -> Option<u64> {
        let (mut index, last) = self.slots.piece(after, PIECE_SLOTS)?;
        while self.slots.is_up_to(index, last) {
            if !self.slots.is_vacant(index) && self.is_fresh(frame, index) {
                self.remove(&frame.shape, index);
            } else {
                index += 1;
            }
        }
        Some(last)
    }

    /// Gives back memory that is not needed any more, a piece at a time; true: there is more to do.
    pub(crate) fn tidy(&mut self, frame: &Frame<'_>) -> bool {
        if self.slots.step() {
            return true;
        }
        let (len, capacity) = (self.slots.len(), self.slots.capacity());
        if len == 0 {
            self.slots = Slots::default();
            self.rest.names = Names::default();
        } else if len < self.slots.most() / 2 && capacity > CAPACITY_MIN {
            self.begin_resize(&frame.shape, Slots::capacity_for(len + len / 4).max(CAPACITY_MIN));
            return self.slots.step();
        }
        if frame.now >= self.rest.sketch_until {
            self.rest.sketches = Vec::new();
        }
        self.rest.logs.shrink();
        if self.rest.names.wants_cleaning() {
            self.clean_names(frame, PIECE_SLOTS);
        }
        self.rest.names.wants_cleaning()
    }

    /// Has another capacity, at once.
    pub(super) fn resize(&mut self, shape: &Shape, capacity: usize) {
        while self.slots.step() {}
        self.begin_resize(shape, capacity);
        while self.slots.step() {}
    }

    fn begin_resize(&mut self, shape: &Shape, capacity: usize) {
        if self.slots.stride() == shape.stride() {
            self.slots.begin(capacity);
        } else {
            self.slots = Slots::new(shape.stride(), capacity);
        }
    }

    /// Makes room for a name where there are slots and no memory: entries that were dropped leave gaps in many pages, and a page is given back only
    /// when all of it is one. Of the page with most gaps what equals a fresh key is dropped, and the rest moves behind the last name if it fits
    /// there. A piece at a time: the next new key goes on with it.
    fn free_page(&mut self, frame: &Frame<'_>, key_len: usize) {
        let word = frame.shape.name_word();
        for _ in 0..PIECE_SLOTS {
            let Some(reference) = self.rest.names.next_to_clean() else { return };
            let name = self.rest.names.get(reference);
            let (hash, len) = (hash(frame.hasher, name), name.len());
            let index = self.slots.find(hash).filter(|index| self.slots.entry(*index)[word] == reference);
            match index {
                Some(index) if self.is_fresh(frame, index) => {
                    self.remove(&frame.shape, index);
                    if self.has_place(frame, key_len) {
                        return;
                    }
                }
                Some(index) if self.rest.names.growth_for(len) == 0 => {
                    self.slots.entry_mut(index)[word] = self.rest.names.relocate(reference);
                }
                _ => {}
            }
        }
    }

    /// Moves some names out of the page with most gaps. A name that no entry refers to was removed.
    fn clean_names(&mut self, frame: &Frame<'_>, names: usize) {
        let word = frame.shape.name_word();
        for _ in 0..names {
            let Some(reference) = self.rest.names.next_to_clean() else { return };
            let hash = hash(frame.hasher, self.rest.names.get(reference));
            if let Some(index) = self.slots.find(hash)
                && self.slots.entry(index)[word] == reference
            {
                self.slots.entry_mut(index)[word] = self.rest.names.relocate(reference);
            }
        }
    }
}
