//! What people do: block, unblock, list.

use super::{Frame, PIECE_SLOTS, Shard};
use crate::layout::{BLOCKED_UNTIL, HASH};
use tidegate_core::{Micros, State};

impl Shard {
    /// Blocks a key, making an entry if there is none; `false` when there is no place for it.
    pub(crate) fn block(&mut self, frame: &Frame<'_>, hash: u64, key: &[u8], until: Micros) -> bool {
        let index = match self.slots.find(hash) {
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
        let mut used = vec![0; states.len()];
        if frame.now < self.rest.sketch_until {
            for (sketch, check) in self.rest.sketches.iter().zip(frame.rules.checks()) {
                let most = sketch.estimate(hash, &frame.sketched(check), frame.now).total().min(check.limit().burst());
                let used = &mut used[check.state_index()];
                *used = most.max(*used);
            }
        }
        for ((state, used), check) in states.iter_mut().zip(used).zip(frame.rules.checks()) {
            state.settle(check, frame.now);
            if used > 0 {
                state.charge(check, frame.now, used);
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
        let Some(index) = self.slots.find(hash) else {
            return false;
        };
        let was_blocked = self.is_blocked(frame, index);
        self.remove(&frame.shape, index);
        was_blocked
    }

    /// Forgets the blocked keys of the next piece of a walk by hash: how many were there, and where does the walk go on?
    /// `forget` gets the hash of each.
    pub(crate) fn unblock_piece(&mut self, frame: &Frame<'_>, after: u64, forget: impl Fn(u64)) -> (u64, Option<u64>) {
        let Some((mut index, last)) = self.slots.piece(after, PIECE_SLOTS) else { return (0, None) };
        let mut unblocked = 0;
        while self.slots.is_up_to(index, last) {
            if self.is_blocked(frame, index) {
                forget(self.slots.hash_at(index));
                self.remove(&frame.shape, index);
                unblocked += 1;
            } else {
                index += 1;
            }
        }
        (unblocked, Some(last))
    }

    fn is_blocked(&self, frame: &Frame<'_>, index: usize) -> bool {
        !self.slots.is_vacant(index) && self.slots.entry(index)[BLOCKED_UNTIL] > frame.now.get()
    }

    /// Appends the hashes and names of the live or of the blocked entries in the next piece of a walk by hash. Returns where the walk goes on.
    pub(crate) fn list_piece(
        &self,
        frame: &Frame<'_>,
        blocked_only: bool,
        after: u64,
        found: &mut Vec<(u64, Vec<u8>)>,
    ) -> Option<u64> {
        let (first, last) = self.slots.piece(after, PIECE_SLOTS)?;
        let listed =
            |index: &usize| if blocked_only { self.is_blocked(frame, *index) } else { !self.is_fresh(frame, *index) };
        let entries = self.slots.up_to(first, last).filter(listed).map(|index| self.slots.entry(index));
        found.extend(entries.map(|entry| (entry[HASH], self.name(&frame.shape, entry).to_vec())));
        Some(last)
    }
}
