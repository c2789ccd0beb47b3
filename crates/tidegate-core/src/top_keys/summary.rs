//! Space-Saving's counters: a key finds its own by a hash table of their numbers, and the smallest by a hand that goes round.
//!
//! Either takes a few steps where a search through all of them took thousands of instructions, for up to ten thousand notes a second.
//! Invariants: `index` has the number of each counter, reached from its hash's home without a vacant place between; no count is
//! below `least`.

use super::{KEYS, TopKey};

/// The counters of one window.
#[derive(Clone, Default, Debug)]
pub(super) struct Summary {
    counters: Vec<Counter>,
    /// Numbers of counters, one up, from the home of their hash on; 0 is vacant.
    index: Vec<u16>,
    /// No count is below.
    least: u64,
    /// The counter that was looked at last for one to take over.
    hand: usize,
    name_bytes: usize,
}

#[derive(Clone, Debug)]
struct Counter {
    hash: u64,
    count: u64,
    /// How much of the count may be other keys'.
    taken_over: u64,
    /// The variance of the count because of sampling.
    variance: u64,
    key: Box<[u8]>,
}

/// Places of the index: four for each counter, so that a search is short.
const PLACES: usize = 4 * KEYS;

impl Summary {
    pub(super) fn note(&mut self, hash: u64, key: &[u8], weight: u16) {
        let (weight, variance) = (u64::from(weight), u64::from(weight) * u64::from(weight.saturating_sub(1)));
        if let Some(at) = self.find(hash) {
            let counter = &mut self.counters[at];
            counter.count = counter.count.saturating_add(weight);
            counter.variance = counter.variance.saturating_add(variance);
            return;
        }
        self.name_bytes += key.len();
        if self.counters.len() < KEYS {
            self.counters.push(Counter { hash, count: weight, taken_over: 0, variance, key: key.into() });
            self.enter(hash, self.counters.len() - 1);
            return;
        }
        let at = self.smallest();
        self.leave(self.counters[at].hash);
        let counter = &mut self.counters[at];
        self.name_bytes -= counter.key.len();
        if counter.key.len() == key.len() {
            counter.key.copy_from_slice(key);
        } else {
            counter.key = key.into();
        }
        (counter.hash, counter.taken_over) = (hash, counter.count);
        counter.count = counter.count.saturating_add(weight);
        counter.variance = counter.variance.saturating_add(variance);
        self.enter(hash, at);
    }

    /// A counter with the smallest count of all.
    fn smallest(&mut self) -> usize {
        loop {
            for _ in 0..self.counters.len() {
                self.hand = (self.hand + 1) % self.counters.len();
                if self.counters[self.hand].count <= self.least {
                    return self.hand;
                }
            }
            self.least = self.counters.iter().map(|counter| counter.count).min().unwrap_or(0);
        }
    }

    /// What a key without a counter may have at most.
    fn most_of_others(&self) -> u64 {
        if self.counters.len() < KEYS {
            0
        } else {
            self.counters.iter().map(|counter| counter.count).min().unwrap_or(0)
        }
    }

    /// Each key that has a counter here, with what it has in another summary.
    pub(super) fn known<'a>(&'a self, other: &'a Summary) -> impl Iterator<Item = TopKey> + 'a {
        self.joined(other).map(|(told, _)| told)
    }

    /// Those of them that have none in the other.
    pub(super) fn known_only_here<'a>(&'a self, other: &'a Summary) -> impl Iterator<Item = TopKey> + 'a {
        self.joined(other).filter(|(_, is_in_both)| !is_in_both).map(|(told, _)| told)
    }

    fn joined<'a>(&'a self, other: &'a Summary) -> impl Iterator<Item = (TopKey, bool)> + 'a {
        let least = other.most_of_others();
        self.counters.iter().map(move |counter| {
            let there = other.find(counter.hash).map(|at| &other.counters[at]);
            let (more, taken_over, variance) =
                there.map_or((least, least, 0), |there| (there.count, there.taken_over, there.variance));
            let spread = counter.variance.saturating_add(variance).saturating_mul(9).isqrt();
            let told = TopKey {
                key: counter.key.to_vec(),
                count: counter.count.saturating_add(more),
                error: counter.taken_over.saturating_add(taken_over).saturating_add(spread),
            };
            (told, there.is_some())
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Summary::default();
    }

    pub(super) fn bytes(&self) -> usize {
        let index = self.index.capacity() * size_of::<u16>();
        index + self.counters.capacity() * size_of::<Counter>() + self.name_bytes
    }

    // ---- the index ----

    /// The counter of this hash.
    fn find(&self, hash: u64) -> Option<usize> {
        if self.index.is_empty() {
            return None;
        }
        let at = |place: usize| usize::from(self.index[place]).checked_sub(1);
        let mut place = home(hash);
        while let Some(counter) = at(place) {
            if self.counters[counter].hash == hash {
                return Some(counter);
            }
            place = (place + 1) % PLACES;
        }
        None
    }

    fn enter(&mut self, hash: u64, counter: usize) {
        if self.index.is_empty() {
            self.index = vec![0; PLACES];
        }
        let mut place = home(hash);
        while self.index[place] != 0 {
            place = (place + 1) % PLACES;
        }
        self.index[place] = u16::try_from(counter + 1).unwrap_or(0);
    }

    /// Takes a hash out; numbers behind it move up where their home lets them.
    fn leave(&mut self, hash: u64) {
        let Some(number) = self.find(hash).and_then(|counter| u16::try_from(counter + 1).ok()) else { return };
        let mut gap = home(hash);
        while self.index[gap] != number {
            gap = (gap + 1) % PLACES;
        }
        let mut next = (gap + 1) % PLACES;
        while let Some(counter) = usize::from(self.index[next]).checked_sub(1) {
            let from_home = |place: usize| (place + PLACES - home(self.counters[counter].hash)) % PLACES;
            if from_home(gap) < from_home(next) {
                self.index[gap] = self.index[next];
                gap = next;
            }
            next = (next + 1) % PLACES;
        }
        self.index[gap] = 0;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "its low bits")]
fn home(hash: u64) -> usize {
    hash as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that share homes, at the end of the index and over it, come and go: each that has a counter is found, and no other.
    #[test]
    fn counters_are_found_whatever_shares_their_home() {
        let (mut summary, mut random) = (Summary::default(), 5_u64);
        for round in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // 600 keys on the last 40 homes and the first.
            let key = (random >> 33) % 600;
            let hash = (PLACES as u64 - 40 + key % 41) | key << 32;
            summary.note(hash, &key.to_le_bytes(), 1 + u16::try_from(round % 3).unwrap());
            let found: Vec<usize> = summary.counters.iter().filter_map(|counter| summary.find(counter.hash)).collect();
            assert!(round % 100 != 0 || found.into_iter().eq(0..summary.counters.len()), "round {round}");
            assert!(
                summary.counters.iter().all(|counter| counter.count >= summary.least || summary.counters.len() < KEYS)
            );
        }
        assert_eq!(summary.index.iter().filter(|place| **place != 0).count(), KEYS);
        assert_eq!(summary.find(1 << 50), None);
    }
}
