//! Open addressing over plain words: a hash, then as many words as an entry needs.
//!
//! One cache miss is the physical floor of a look-up, so the state lies beside the hash, and slots
//! start at a cache line. Capacities are any number, not powers of two: growing by a quarter keeps
//! memory within a third of what the entries need. Removal shifts followers back, so there are no
//! tombstones to clean. What the words mean is the shard's business.
//! Invariant: an entry lies at its home slot or behind it with no vacant slot in between.

use crate::bare::Words;

/// Entries of `stride` words each; the first is the hash, and 0 means vacant.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    words: Words,
    /// First word that starts a cache line.
    base: usize,
    stride: usize,
    capacity: usize,
    len: usize,
}

/// Words of the smallest entry: its hash, its block, and one state in two words.
pub(crate) const PLAIN_WORDS: usize = 4;
const LINE_WORDS: usize = 8;
/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = LINE_WORDS * size_of::<u64>();

/// Of 100 slots this many are used at most. Above it, probes get long.
const LOAD_PERCENT: usize = 85;

impl Slots {
    pub(crate) fn new(stride: usize, capacity: usize) -> Slots {
        let words = Words::zeroed(if capacity == 0 { 0 } else { capacity * stride + LINE_WORDS });
        let base = words.as_ptr().align_offset(LINE_BYTES).min(LINE_WORDS);
        Slots { words, base, stride, capacity, len: 0 }
    }

    /// Memory of a table of this size.
    pub(crate) fn bytes_for(stride: usize, capacity: usize) -> usize {
        if capacity == 0 { 0 } else { Words::bytes_for(capacity * stride + LINE_WORDS) }
    }

    pub(crate) fn bytes(&self) -> usize {
        Self::bytes_for(self.stride, self.capacity)
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Entries it takes before it should grow.
    pub(crate) fn most(&self) -> usize {
        self.capacity * LOAD_PERCENT / 100
    }

    /// The smallest capacity that takes this many.
    pub(crate) fn capacity_for(entries: usize) -> usize {
        (entries * 100).div_ceil(LOAD_PERCENT)
    }

    /// Where slot 0 lies, for prefetching without the lock.
    pub(crate) fn address(&self) -> usize {
        self.words.as_ptr() as usize + self.base * size_of::<u64>()
    }

    /// The slot where this hash would be first looked for. `bits` of the hash chose the shard and
    /// say nothing here.
    pub(crate) fn home(hash: u64, capacity: usize, bits: u32) -> usize {
        let spread = u128::from(hash << bits) * capacity as u128;
        usize::try_from(spread >> 64).unwrap_or(0)
    }

    pub(crate) fn entry(&self, index: usize) -> &[u64] {
        let at = self.base + index * self.stride;
        &self.words[at..at + self.stride]
    }

    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut [u64] {
        let at = self.base + index * self.stride;
        &mut self.words[at..at + self.stride]
    }

    pub(crate) fn is_vacant(&self, index: usize) -> bool {
        self.words[self.base + index * self.stride] == 0
    }

    pub(crate) fn find(&self, hash: u64, bits: u32) -> Option<usize> {
        let mut index = Self::home(hash, self.capacity, bits);
        loop {
            // Slots without any capacity have no words.
            match self.words.get(self.base + index * self.stride) {
                None | Some(0) => return None,
                Some(found) if *found == hash => return Some(index),
                Some(_) => index = self.after(index),
            }
        }
    }

    /// The first words of a hash's entry, for entries that have at least as many.
    #[inline]
    pub(crate) fn plain_mut(&mut self, hash: u64, bits: u32) -> Option<&mut [u64; PLAIN_WORDS]> {
        let at = self.base + self.find(hash, bits)? * self.stride;
        self.words.get_mut(at..)?.first_chunk_mut()
    }

    /// Makes an entry of zeros for a hash that is not there yet. At least one slot must stay vacant,
    /// or `find` would not end.
    pub(crate) fn insert(&mut self, hash: u64, bits: u32) -> usize {
        assert!(self.len + 1 < self.capacity, "the caller makes room first");
        let mut index = Self::home(hash, self.capacity, bits);
        while !self.is_vacant(index) {
            index = self.after(index);
        }
        self.entry_mut(index)[0] = hash;
        self.len += 1;
        index
    }

    /// Removes an entry and closes the gap, so that what follows can still be found.
    pub(crate) fn remove(&mut self, index: usize, bits: u32) {
        let (mut gap, mut next) = (index, self.after(index));
        while !self.is_vacant(next) {
            let home = Self::home(self.entry(next)[0], self.capacity, bits);
            // The entry may move back only if its home is not between the gap and itself.
            let stays = if gap <= next { gap < home && home <= next } else { gap < home || home <= next };
            if !stays {
                let from = self.base + next * self.stride;
                self.words.copy_within(from..from + self.stride, self.base + gap * self.stride);
                gap = next;
            }
            next = self.after(next);
        }
        self.entry_mut(gap).fill(0);
        self.len -= 1;
    }

    /// The same entries in another capacity.
    pub(crate) fn resized(&self, capacity: usize, bits: u32) -> Slots {
        let mut other = Slots::new(self.stride, capacity);
        for index in (0..self.capacity).filter(|index| !self.is_vacant(*index)) {
            let entry = self.entry(index);
            let at = other.insert(entry[0], bits);
            other.entry_mut(at).copy_from_slice(entry);
        }
        other
    }

    pub(crate) fn after(&self, index: usize) -> usize {
        if index + 1 == self.capacity { 0 } else { index + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_map_through_inserts_removals_and_resizes() {
        const BITS: u32 = 8;
        let mut slots = Slots::new(3, 60);
        let mut model = HashMap::new();
        let mut seed = 11_u64;
        for step in 0..100_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few homes, so that probes are long and wrap around the end.
            let hash = ((seed >> 33) % 50 + 1) << 50 | 1;
            match slots.find(hash, BITS) {
                Some(index) if seed & 1 << 20 == 0 => {
                    assert_eq!(slots.entry(index)[1], model.remove(&hash).unwrap());
                    slots.remove(index, BITS);
                }
                Some(index) => assert_eq!(slots.entry(index)[1], model[&hash]),
                None => {
                    assert!(!model.contains_key(&hash));
                    if slots.len() < slots.most() {
                        let index = slots.insert(hash, BITS);
                        slots.entry_mut(index)[1] = step;
                        model.insert(hash, step);
                    }
                }
            }
            assert_eq!(slots.len(), model.len());
            if step % 1_000 == 0 {
                slots = slots.resized(60 + usize::try_from(step % 7).unwrap() * 10, BITS);
            }
        }
    }

    #[test]
    fn slots_start_at_a_cache_line() {
        assert_eq!(Slots::new(4, 100).address() % 64, 0);
    }
}
