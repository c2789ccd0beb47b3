//! What keys did since start, for limiters that keep statistics: requests, denials, and the highest
//! rate of the previous five minutes.
//!
//! They lie apart from the states, as they outlive them: a key whose state is dropped keeps its
//! counts. Invariant: they are bounded, by [`KEYS_MAX`] a shard and by the budget. When there is no more
//! room, a new key takes the place of one that was not used in these five minutes nor in those before, whose
//! highest rate is 0 by then; a key that finds no place is limited like any other, and only its counts stay
//! at 0, which is counted.

use crate::budget::Budget;
use crate::slots::Slots;
use tidegate_core::{Micros, Rate};

/// What one key did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyStats {
    /// Hits since start.
    pub requests: u64,
    /// Those that the limiter denied.
    pub over: u64,
    /// The whole part of the highest rate in the previous five minutes of the clock.
    pub last_max_rate: u32,
}

/// Most keys of a shard with statistics: 131,072 of a table, which take about 7 MB.
pub(crate) const KEYS_MAX: usize = 512;
/// Rates are kept by five minutes, aligned to the clock.
const BUCKET: Micros = Micros::from_secs(300);

const REQUESTS: usize = 1;
const OVER: usize = 2;
const NUMBER: usize = 3;
const RATES: usize = 4;
/// Words of an entry: the hash, and the four above.
pub(crate) const STRIDE: usize = 5;

/// The statistics of one shard's keys.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    slots: Slots,
    /// Where the next look for an idle key starts.
    hand: usize,
    refused: u64,
}

/// Slots that are looked at for an idle key: a bound on the work of a hit.
const HAND_STEPS: usize = 16;

impl Stats {
    /// Counts a hit.
    pub(crate) fn note(&mut self, hash: u64, now: Micros, over: bool, rate: Rate, budget: &Budget) {
        let Some(index) = self.place(hash, now, budget) else {
            self.refused += 1;
            return;
        };
        let entry = self.slots.entry_mut(index);
        entry[REQUESTS] += 1;
        entry[OVER] += u64::from(over);
        let (current, previous) = rates_at(entry, now);
        entry[NUMBER] = number(now).max(entry[NUMBER]);
        entry[RATES] = u64::from(current.max(whole(rate))) << 32 | u64::from(previous);
    }

    /// What a key did; zeros for one that is not known.
    pub(crate) fn get(&self, hash: u64, now: Micros) -> KeyStats {
        let Some(index) = self.slots.find(hash) else { return KeyStats::default() };
        let entry = self.slots.entry(index);
        KeyStats { requests: entry[REQUESTS], over: entry[OVER], last_max_rate: rates_at(entry, now).1 }
    }

    /// Hits whose key found no place, since start.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Every entry as words, for a snapshot.
    pub(crate) fn export(&self) -> Vec<[u64; STRIDE]> {
        let used = (0..self.slots.end()).filter(|index| !self.slots.is_vacant(*index));
        used.map(|index| std::array::from_fn(|word| self.slots.entry(index)[word])).collect()
    }

    /// Takes an entry in, within the bound.
    pub(crate) fn import(&mut self, words: &[u64; STRIDE]) {
        if self.slots.find(words[0]).is_none() && self.slots.len() < KEYS_MAX {
            if !self.slots.has_room() {
                self.grow();
            }
            let index = self.slots.insert(words[0]);
            self.slots.entry_mut(index).copy_from_slice(words);
        }
    }

    fn place(&mut self, hash: u64, now: Micros, budget: &Budget) -> Option<usize> {
        if let Some(index) = self.slots.find(hash) {
            return Some(index);
        }
        let has_room = self.make_room(budget) || (self.drop_idle(now) && self.slots.has_room());
        has_room.then(|| self.slots.insert(hash))
    }

    /// Has room for one more key, if it may grow so far.
    fn make_room(&mut self, budget: &Budget) -> bool {
        if self.slots.len() >= KEYS_MAX {
            return false;
        }
        if self.slots.has_room() {
            return true;
        }
        let more = Slots::bytes_for(STRIDE, self.next_capacity()).saturating_sub(self.slots.bytes());
        let room = budget.has_room_for(more);
        if room {
            self.grow();
        }
        room
    }

    /// Drops the key that was idle for longest among the next few; was there one?
    fn drop_idle(&mut self, now: Micros) -> bool {
        let slots = self.slots.end();
        let steps = HAND_STEPS.min(slots);
        let looked_at = (0..steps).map(|step| (self.hand + step) % slots);
        let used = looked_at.filter(|index| !self.slots.is_vacant(*index));
        let last_used = |index: usize| self.slots.entry(index)[NUMBER];
        let oldest = used.min_by_key(|index| last_used(*index)).filter(|index| number(now) > last_used(*index) + 1);
        self.hand = (self.hand + steps) % slots.max(1);
        if let Some(index) = oldest {
            self.slots.remove(index);
        }
        oldest.is_some()
    }

    /// There are never many: at once.
    fn grow(&mut self) {
        match self.slots.capacity() {
            0 => self.slots = Slots::new(STRIDE, self.next_capacity()),
            _ => self.slots.resize_at_once(self.next_capacity()),
        }
    }

    /// From few to many by half: most limiters with statistics have a handful of keys.
    fn next_capacity(&self) -> usize {
        (self.slots.capacity() + self.slots.capacity() / 2).max(4)
    }
}

fn number(now: Micros) -> u64 {
    now.get() / BUCKET.get()
}

/// The highest rates of the five minutes that hold `now` and of those before.
/// Sets the time of an entry back, so that it is not waited for after a clock was ahead by so much.
pub(crate) fn set_back(entry: &mut [u64; STRIDE], by: Micros) {
    entry[NUMBER] = entry[NUMBER].saturating_sub(by.get().div_ceil(BUCKET.get()));
}

fn rates_at(entry: &[u64], now: Micros) -> (u32, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    let (current, previous) = ((entry[RATES] >> 32) as u32, entry[RATES] as u32);
    // A clock that stepped back is waited for.
    match number(now).saturating_sub(entry[NUMBER]) {
        0 => (current, previous),
        1 => (0, current),
        _ => (0, 0),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
fn whole(rate: Rate) -> u32 {
    rate.get() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    #[test]
    fn the_highest_rate_is_that_of_the_previous_five_minutes() {
        let (mut stats, budget) = (Stats::default(), Budget::new(1 << 20));
        for (seconds, rate) in [(10, 3.9), (299, 7.99), (299, 2.0), (300, 1.0)] {
            stats.note(1, at(seconds), rate > 7.0, Rate::new(rate), &budget);
        }
        let told = |stats: &Stats, seconds| stats.get(1, at(seconds)).last_max_rate;
        assert_eq!(stats.get(1, at(300)), KeyStats { requests: 4, over: 1, last_max_rate: 7 });
        assert_eq!([told(&stats, 599), told(&stats, 600), told(&stats, 900)], [7, 1, 0]);
        assert_eq!(stats.get(2, at(300)), KeyStats::default());
        let mut copy = Stats::default();
        stats.export().iter().for_each(|words| copy.import(words));
        assert_eq!(copy.get(1, at(300)), stats.get(1, at(300)));
    }

    #[test]
    fn m1_statistics_are_bounded() {
        let (mut stats, budget) = (Stats::default(), Budget::new(1 << 20));
        let random = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        (0..10_000).for_each(|i| stats.note(random(i), at(0), false, Rate::default(), &budget));
        assert_eq!(stats.export().len(), KEYS_MAX);
        assert!(stats.bytes() < 40_000, "{}", stats.bytes());
        assert_eq!(stats.refused(), 10_000 - KEYS_MAX as u64);
        let none = Budget::new(0);
        let mut stats = Stats::default();
        stats.note(1, at(0), false, Rate::default(), &none);
        assert_eq!((stats.bytes(), stats.get(1, at(0))), (0, KeyStats::default()));
    }
    /// Places were never freed: after 131,072 keys no other ever had statistics.
    #[test]
    fn idle_keys_make_room_and_busy_ones_stay() {
        let (mut stats, budget) = (Stats::default(), Budget::new(1 << 20));
        let random = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        let note = |stats: &mut Stats, i: u64, seconds| {
            stats.note(random(i), at(seconds), false, Rate::default(), &budget);
            stats.get(random(i), at(seconds)).requests
        };
        let most = KEYS_MAX as u64;
        (0..most).for_each(|i| assert_eq!(note(&mut stats, i, 10), 1));
        assert_eq!(note(&mut stats, most, 10), 0, "all are busy");
        assert_eq!(note(&mut stats, most, 599), 0, "the rates of the five minutes before are still told");
        // Half of them are used again and stay; the others make room.
        (0..most / 2).for_each(|i| assert_eq!(note(&mut stats, i, 590), 2));
        let placed: u64 = (most..2 * most).map(|i| note(&mut stats, i, 610)).sum();
        assert!(placed * 10 > most / 2 * 9, "{placed} of {} places", most / 2);
        (0..most / 2).for_each(|i| assert_eq!(note(&mut stats, i, 611), 3));
        assert_eq!(stats.export().len(), KEYS_MAX);
    }
}
