//! What people do: block, unblock, list.

use super::{Frame, Shard};
use crate::layout::{BLOCKED_UNTIL, HASH};
use crate::shard::SHARD_BITS;
use crate::slots::Slots;
use tidegate_core::{Micros, State};

impl Shard {
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
        let mut used = vec![0; states.len()];
        if frame.now < self.rest.sketch_until {
            for (sketch, check) in self.rest.sketches.iter().zip(frame.rules.checks()) {
                let most = sketch.estimate(hash, &check.sketched(), frame.now).total().min(check.limit().burst());
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

    /// Hashes and names of the live or of the blocked entries from hash `from` on, of the next few: a listing holds the lock for
    /// [`STEP_SLOTS`] and those that hang on to them. Entries lie in the order of their hashes, or a little behind, so that a step is
    /// a range of hashes: what moves between two steps is neither left out nor told twice.
    pub(crate) fn list(&self, frame: &Frame<'_>, blocked_only: bool, from: u64) -> Step {
        let last = self.last_of_step(from);
        let mut found = Vec::new();
        for index in self.slots_of(from, last) {
            let entry = self.slots.entry(index);
            let is_listed =
                |index| if blocked_only { self.is_blocked(frame, index) } else { !self.is_fresh(frame, index) };
            if (from..=last).contains(&entry[HASH]) && is_listed(index) {
                found.push((entry[HASH], self.rest.names.get(entry[frame.shape.name_word()]).to_vec()));
            }
        }
        found.sort_unstable();
        Step { found, last }
    }

    /// The last hash of the step that begins with this one.
    fn last_of_step(&self, from: u64) -> u64 {
        const OF_SHARD: u64 = u64::MAX >> SHARD_BITS;
        let steps = u64::try_from(self.slots.capacity().div_ceil(STEP_SLOTS).max(1)).unwrap_or(u64::MAX);
        from.saturating_add(OF_SHARD / steps).min(from | OF_SHARD)
    }

    /// The slots in which entries with these hashes may lie, but for vacant ones.
    fn slots_of(&self, from: u64, last: u64) -> impl Iterator<Item = usize> {
        let capacity = self.slots.capacity();
        let [first, end] = [from, last].map(|hash| Slots::home(hash, capacity, SHARD_BITS));
        let homes = (first..=end).take(capacity).filter(|index| !self.slots.is_vacant(*index));
        // Entries that found their place taken lie behind it, up to the next vacant slot.
        let behind = std::iter::successors(Some(end), |index| Some(self.slots.after(*index))).skip(1);
        let behind = behind.take((first + capacity).saturating_sub(end + 1));
        homes.chain(behind.take_while(|index| !self.slots.is_vacant(*index)))
    }
}

/// Slots that a step of a listing looks at under the lock: some ten microseconds.
const STEP_SLOTS: usize = 512;

/// A step of a listing.
pub(crate) struct Step {
    /// Hashes and names, in the order of the hashes.
    pub(crate) found: Vec<(u64, Vec<u8>)>,
    /// The last hash that was looked at.
    pub(crate) last: u64,
}
