//! Open addressing over plain words: a hash, then as many words as an entry needs.
//!
//! One cache miss is the physical floor of a look-up, so the state lies beside the hash, and slots start at a cache line.
//! What the words mean is the shard's business.
//!
//! **Order.** A hash's home is its fraction of the capacity, so homes are in the order of hashes, and entries are kept in that order:
//! whoever comes behind its home is behind all smaller hashes. There are no tombstones, a search for what is not there ends early, and a
//! walk by hash can stop and go on whatever happened meanwhile.
//!
//! **Growing where it is.** A capacity of any number becomes an eighth larger without a second table. New memory is behind the old, and
//! entries move to their new homes from the last to the first, some with each new entry. Hashes above `border` have moved:
//! their home counts by `high`, that of the others by `low`. As `low` is never above `high`, homes are in the order of hashes at
//! every moment, so that searching, inserting and removing are the same before, amid and after it. Shrinking is
//! the same the other way round, from the first to the last.
//!
//! **Example.** 8 slots become 9. Hashes at 0.2, 0.5 and 0.9 of the range have their homes at slots 1, 4 and 7, and then at 1, 4 and 8:
//! first the one at 0.9 moves to slot 8 and the border goes below it, and so on.
//!
//! Invariants: entries are in the order of hashes; between an entry's home and itself no slot is vacant; no entry
//! is beyond the last slot. Behind the capacity there are spare slots; if they do not do, there are more of them.

use crate::bare::Words;
use crate::shard::SHARD_BITS;

/// Entries of `stride` words each; the first is the hash, and 0 means vacant.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    words: Words,
    /// Fractions above have their home by `high`, others by `low`.
    border: u64,
    low: u32,
    high: u32,
    stride: u16,
    course: Course,
    len: u32,
}

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Course {
    /// `low` and `high` are the same.
    #[default]
    Settled,
    Growing,
    Shrinking,
}

/// Words of the smallest entry: its hash, its block, and one state in two words.
pub(crate) const PLAIN_WORDS: usize = 4;
/// Most words of an entry: its hash, its block, two for each of eight states, and its name.
const STRIDE_MAX: usize = 19;

/// Of 100 slots this many are used at most. Above it, probes get long.
const LOAD_PERCENT: usize = 90;
/// From so many on it should grow, where there is memory for it: a look-up of four-word entries takes 2.1 cache lines then, and 3.1 to 3.2 at 90
/// of 100 (simulated, 4,000 entries), of which a decision fetches two ahead.
const CROWDED_PERCENT: usize = 82;
/// Slots behind the capacity, for entries whose homes are the last ones.
const SPARE_MIN: usize = 8;
const SPARE_MAX: usize = 32;
/// Slots whose entries move in one step of growing or shrinking: what a decision does beside its own work.
pub(crate) const STEP_SLOTS: usize = 32;

impl Slots {
    pub(crate) fn new(stride: usize, capacity: usize) -> Slots {
        assert!(stride <= STRIDE_MAX, "an entry of {stride} words; at most {STRIDE_MAX}");
        let words = Words::zeroed(Self::slots_for(capacity) * stride);
        let (stride, capacity) = (u16::try_from(stride).unwrap_or(u16::MAX), narrow(capacity));
        Slots { words, border: 0, low: capacity, high: capacity, stride, course: Course::Settled, len: 0 }
    }

    /// Memory of a table of this size.
    pub(crate) fn bytes_for(stride: usize, capacity: usize) -> usize {
        Words::bytes_for(Self::slots_for(capacity) * stride)
    }

    pub(crate) fn bytes(&self) -> usize {
        Words::bytes_for(self.words.len())
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride.into()
    }

    /// What it has, or will have when it has grown or shrunk.
    pub(crate) fn capacity(&self) -> usize {
        (if self.course == Course::Shrinking { self.low } else { self.high }) as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Slots to look at, the spare ones included.
    pub(crate) fn end(&self) -> usize {
        self.words.len().checked_div(self.stride()).unwrap_or(0)
    }

    /// Entries it takes before it should grow.
    pub(crate) fn most(&self) -> usize {
        self.capacity() * LOAD_PERCENT / 100
    }

    /// Takes it one more, wherever its home is?
    pub(crate) fn has_room(&self) -> bool {
        self.len() < self.most() && self.end().checked_sub(1).is_some_and(|last| self.is_vacant(last))
    }

    /// Should it grow, if there is memory?
    pub(crate) fn is_crowded(&self) -> bool {
        self.len() >= self.capacity() * CROWDED_PERCENT / 100 || !self.has_room()
    }

    /// The smallest capacity that takes this many.
    pub(crate) fn capacity_for(entries: usize) -> usize {
        (entries * 100).div_ceil(LOAD_PERCENT)
    }

    /// With as many spare ones as entries of the last homes may need. Never fewer for a larger capacity.
    fn slots_for(capacity: usize) -> usize {
        if capacity == 0 { 0 } else { capacity + (capacity / 16).clamp(SPARE_MIN, SPARE_MAX) }
    }

    /// Where slot 0 lies, for prefetching without the lock.
    pub(crate) fn address(&self) -> usize {
        self.words.as_ptr().addr()
    }

    /// What homes count by, for prefetching without the lock: `low`, `high` and the border between them.
    pub(crate) fn homes(&self) -> (u32, u32, u64) {
        (self.low, self.high, self.border)
    }

    /// The slot where this hash is first looked for.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        let fraction = fraction(hash);
        home(fraction, if fraction > self.border { self.high } else { self.low })
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> &[u64] {
        let at = index * self.stride();
        &self.words[at..at + self.stride()]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut [u64] {
        let (at, stride) = (index * self.stride(), self.stride());
        &mut self.words[at..at + stride]
    }

    /// The hash in a slot; 0 for a vacant one, and beyond the last.
    #[inline]
    pub(crate) fn hash_at(&self, index: usize) -> u64 {
        self.words.get(index * self.stride()).copied().unwrap_or(0)
    }

    pub(crate) fn is_vacant(&self, index: usize) -> bool {
        self.hash_at(index) == 0
    }

    pub(crate) fn find(&self, hash: u64) -> Option<usize> {
        let at = self.find_word(hash)?;
        Some(at / self.stride())
    }

    /// Where a hash's entry begins.
    #[inline]
    fn find_word(&self, hash: u64) -> Option<usize> {
        let stride = self.stride();
        let mut at = self.home(hash) * stride;
        loop {
            // Slots without any capacity have no words.
            let found = *self.words.get(at)?;
            if found == hash {
                return Some(at);
            }
            if found > hash || found == 0 {
                return None;
            }
            at += stride;
        }
    }

    /// The first words of a hash's entry, for entries that have at least as many.
    #[inline]
    pub(crate) fn plain_mut(&mut self, hash: u64) -> Option<&mut [u64; PLAIN_WORDS]> {
        let at = self.find_word(hash)?;
        self.words.get_mut(at..)?.first_chunk_mut()
    }

    /// Makes an entry of zeros for a hash that is not there yet. The caller has seen that there is room: [`Slots::has_room`].
    pub(crate) fn insert(&mut self, hash: u64) -> usize {
        let mut index = self.home(hash);
        while self.hash_at(index) != 0 && self.hash_at(index) < hash {
            index += 1;
        }
        let mut vacant = index;
        while !self.is_vacant(vacant) {
            vacant += 1;
        }
        assert!(self.high > 0, "the caller makes room first");
        let stride = self.stride();
        if vacant >= self.end() {
            // More than usual have their homes at the end.
            self.words.resize((vacant + SPARE_MIN) * stride);
        }
        self.words.copy_within(index * stride..vacant * stride, (index + 1) * stride);
        let entry = self.entry_mut(index);
        entry.fill(0);
        entry[0] = hash;
        self.len += 1;
        index
    }

    /// Removes an entry and closes the gap, so that what follows can still be found.
    pub(crate) fn remove(&mut self, index: usize) {
        let mut next = index + 1;
        while !self.is_vacant(next) && self.home(self.hash_at(next)) < next {
            next += 1;
        }
        let stride = self.stride();
        self.words.copy_within((index + 1) * stride..next * stride, index * stride);
        self.entry_mut(next - 1).fill(0);
        self.len -= 1;
    }

    /// The next piece of a walk in the order of hashes, from above `after`: its first slot, and the hash of its last entry, about so many
    /// slots on; `None`: there is no entry above. Entries keep their order whatever happens between two pieces.
    pub(crate) fn piece(&self, after: u64, slots: usize) -> Option<(usize, u64)> {
        let mut first = self.home(after);
        while self.is_vacant(first) && first < self.end() || (1..=after).contains(&self.hash_at(first)) {
            first += 1;
        }
        let hashes = (first..self.end().min(first + slots.max(1))).map(|index| self.hash_at(index));
        Some((first, hashes.max()?))
    }

    /// Slots from this one on with entries up to this hash.
    pub(crate) fn up_to(&self, first: usize, last: u64) -> impl Iterator<Item = usize> {
        let slots = (first..self.end()).take_while(move |index| self.hash_at(*index) <= last);
        slots.filter(|index| !self.is_vacant(*index))
    }

    /// Is this slot among them, or vacant before them?
    pub(crate) fn is_up_to(&self, index: usize, last: u64) -> bool {
        index < self.end() && self.hash_at(index) <= last
    }

    // ---- growing and shrinking ----

    pub(crate) fn is_settled(&self) -> bool {
        self.course == Course::Settled
    }

    /// Begins to become as large, or as small; entries move in [`Slots::step`]. What began before must be over. To shrink, it has to have
    /// fewer entries than the new capacity takes.
    pub(crate) fn begin(&mut self, capacity: usize) {
        assert!(self.is_settled(), "one at a time");
        let capacity = narrow(capacity);
        if capacity > self.high {
            let slots = Self::slots_for(capacity as usize).max(self.end());
            self.words.resize(slots * self.stride());
            (self.high, self.border, self.course) = (capacity, u64::MAX, Course::Growing);
        } else if capacity < self.low {
            (self.low, self.border, self.course) = (capacity, 0, Course::Shrinking);
        }
    }

    /// Moves the entries of the next [`STEP_SLOTS`] slots; true: there is more to do.
    pub(crate) fn step(&mut self) -> bool {
        match self.course {
            Course::Settled => {}
            Course::Growing => self.step_down(),
            Course::Shrinking => self.step_up(),
        }
        !self.is_settled()
    }

    /// Entries from the border down, the last one first, go to their homes in a larger capacity.
    fn step_down(&mut self) {
        let first = home(self.border, self.low).saturating_sub(STEP_SLOTS);
        let until = if first == 0 { 0 } else { last_before(first, self.low) };
        while let Some(index) = self.last_to_move(first) {
            let fraction = fraction(self.hash_at(index));
            if fraction <= until {
                break;
            }
            self.move_entry(index, fraction - 1);
        }
        self.border = until;
        if until == 0 {
            (self.low, self.course) = (self.high, Course::Settled);
        }
    }

    /// The last entry up to the border, if it is in this slot or behind it.
    fn last_to_move(&self, first: usize) -> Option<usize> {
        let mut index = home(self.border, self.low);
        // Those that came behind the home of the border have no vacant slot before them.
        while self.is_to_move(index) && self.is_to_move(index + 1) {
            index += 1;
        }
        (first..=index).rev().find(|index| self.is_to_move(*index))
    }

    fn is_to_move(&self, index: usize) -> bool {
        let hash = self.hash_at(index);
        hash != 0 && fraction(hash) <= self.border
    }

    /// Entries from the border up, the first one first, go to their homes in a smaller capacity.
    fn step_up(&mut self) {
        let (first, all) = (home(self.border, self.high), self.high as usize);
        let last = (first + STEP_SLOTS).min(all);
        let until = if last == all { u64::MAX } else { last_before(last, self.high) };
        let mut index = first;
        while index < self.end() && (index < last || !self.is_vacant(index)) {
            let fraction = fraction(self.hash_at(index));
            if fraction > until {
                break;
            }
            if fraction > self.border {
                self.move_entry(index, fraction);
            } else {
                index += 1;
            }
        }
        self.border = until;
        if until == u64::MAX {
            (self.high, self.border, self.course) = (self.low, 0, Course::Settled);
            let mut end = self.low as usize;
            while !self.is_vacant(end) {
                end += 1;
            }
            self.words.resize(end.max(Self::slots_for(self.low as usize)) * self.stride());
        }
    }

    /// Takes an entry out and puts it where it belongs with this border.
    fn move_entry(&mut self, index: usize, border: u64) {
        let mut entry = [0; STRIDE_MAX];
        let stride = self.stride();
        entry[..stride].copy_from_slice(self.entry(index));
        self.remove(index);
        self.border = border;
        let index = self.insert(entry[0]);
        self.entry_mut(index).copy_from_slice(&entry[..stride]);
    }

    /// Becomes as large or as small at once: for what is small, or not in use yet.
    pub(crate) fn resize_at_once(&mut self, capacity: usize) {
        while self.step() {}
        self.begin(capacity);
        while self.step() {}
    }
}

/// A shard of 2^32 slots would take 128 GiB.
fn narrow(capacity: usize) -> u32 {
    u32::try_from(capacity).unwrap_or(u32::MAX)
}

/// What of a hash says where it is in its shard: all but the bits that chose the shard.
#[inline]
pub(crate) fn fraction(hash: u64) -> u64 {
    hash << SHARD_BITS
}

#[inline]
pub(crate) fn home(fraction: u64, capacity: u32) -> usize {
    let spread = u128::from(fraction) * u128::from(capacity);
    usize::try_from(spread >> 64).unwrap_or(0)
}

/// The last fraction whose home is before this slot, which is not the first.
fn last_before(slot: usize, capacity: u32) -> u64 {
    let first = ((slot as u128) << 64).div_ceil(u128::from(capacity));
    u64::try_from(first - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 ^ self.0 >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        }
    }

    /// Every invariant, and the model's entries.
    fn check(slots: &Slots, model: &BTreeMap<u64, u64>) {
        let used: Vec<usize> = (0..slots.end()).filter(|index| !slots.is_vacant(*index)).collect();
        let found: Vec<(u64, u64)> =
            used.iter().map(|index| (slots.entry(*index)[0], slots.entry(*index)[1])).collect();
        assert!(found.iter().copied().eq(model.iter().map(|(hash, value)| (*hash, *value))), "order and values");
        for index in used {
            let home = slots.home(slots.hash_at(index));
            assert!(home <= index && (home..index).all(|slot| !slots.is_vacant(slot)), "{home} to {index}");
        }
        assert_eq!(slots.len(), model.len());
    }

    /// Hashes of three kinds: spread evenly, at the very end, and a few homes that many share.
    #[test]
    fn agrees_with_a_map_through_inserts_removals_growing_and_shrinking() {
        for (kind, stride) in [(0, 2), (0, 4), (1, 2), (2, 5)] {
            let mut random = Random(11 + kind);
            let mut slots = Slots::new(stride, 16);
            let mut model = BTreeMap::new();
            for step in 0..60_000_u64 {
                let drawn = random.next();
                let hash = match kind {
                    0 => (drawn >> 8) % 3_000 * 0x0000_5D36_7A11_CA57,
                    1 => (1 << 56) - 1 - drawn % 20,
                    _ => ((drawn >> 33) % 50 + 1) << 48 | drawn >> 20 & 7,
                };
                let hash = 7 << 56 | hash & ((1 << 56) - 1);
                // Waves: it fills, and it empties.
                let fills = step / 10_000 % 2 == 0;
                match slots.find(hash) {
                    Some(index) if !fills || drawn.is_multiple_of(4) => {
                        assert_eq!(Some(slots.entry(index)[1]), model.remove(&hash));
                        slots.remove(index);
                    }
                    Some(index) => assert_eq!(slots.entry(index)[1], model[&hash]),
                    None => {
                        assert!(!model.contains_key(&hash));
                        if !slots.has_room() && slots.is_settled() {
                            slots.begin(slots.capacity() + slots.capacity() / 8 + 1);
                        }
                        if slots.has_room() {
                            let index = slots.insert(hash);
                            slots.entry_mut(index)[1] = step;
                            model.insert(hash, step);
                        }
                    }
                }
                if drawn.is_multiple_of(8) {
                    slots.step();
                }
                if slots.is_settled() && slots.len() < slots.most() / 3 && slots.capacity() > 32 {
                    slots.begin(Slots::capacity_for(slots.len() * 2));
                }
                if step % 64 == 0 {
                    check(&slots, &model);
                }
            }
            slots.resize_at_once(Slots::capacity_for(model.len()).max(16) + 7);
            check(&slots, &model);
        }
    }

    /// The work of a decision is bounded: it moves what is in a few slots, however large the table.
    #[test]
    fn a_step_moves_few_entries() {
        let mut random = Random(5);
        let mut slots = Slots::new(4, 20_000);
        while slots.has_room() {
            slots.insert(random.next() >> 8 | 1 << 56);
        }
        for capacity in [22_500, 20_100] {
            let entries = |slots: &Slots| -> Vec<(usize, u64)> {
                (0..slots.end()).map(|index| (index, slots.hash_at(index))).filter(|(_, hash)| *hash != 0).collect()
            };
            slots.begin(capacity);
            let (mut most, mut steps, mut before) = (0, 0, entries(&slots));
            let mut goes_on = true;
            while goes_on {
                goes_on = slots.step();
                let after = entries(&slots);
                most = most.max(before.iter().zip(&after).filter(|(before, after)| before != after).count());
                (steps, before) = (steps + 1, after);
            }
            assert!((600..800).contains(&steps) && most <= 8 * STEP_SLOTS, "{steps} steps, {most} entries in one");
        }
    }

    #[test]
    fn slots_start_at_a_cache_line() {
        assert_eq!(Slots::new(4, 100).address() % 64, 0);
    }
}
