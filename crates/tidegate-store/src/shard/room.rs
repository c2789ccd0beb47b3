//! Room for new keys: free slots, then droppable entries, then growth within the budget.
//!
//! Invariant: what is dropped equals a fresh key (promise M2).

use super::{Frame, HAND_STEPS, NEW_LOG, Shard};
use crate::layout::Shape;
use crate::names::Names;
use crate::shard::SHARD_BITS;
use crate::slots::Slots;

impl Shard {
    /// Finds room for one more entry: free slots, then droppable ones, then growth.
    pub(super) fn make_place(&mut self, frame: &Frame<'_>, key_len: usize) -> bool {
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
    pub(super) fn could_make_place(&self, frame: &Frame<'_>, key_len: usize) -> bool {
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
        let logs = if frame.shape.grows() { frame.shape.states() * NEW_LOG } else { 0 };
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

    pub(super) fn resize(&mut self, shape: &Shape, capacity: usize) {
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
}
