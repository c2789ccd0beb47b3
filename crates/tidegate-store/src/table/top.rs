//! What is noted of decisions for people to look at: the keys that are hit and denied most.
//!
//! Every hit pays for one countdown in its shard, which is in the cache anyway; only when that has run out is a hit noted (see
//! `tidegate_core::top_keys`), in one summary for the whole table. Nobody waits for it: a hit that finds it locked leaves the
//! noting to the next one. A limiter that keeps no names, or wants no ranking, has none here either.

use super::{Cell, Decided, Single, Table};
use crate::budget::Budget;
use crate::layout::Shape;
use crate::shard::{SHARDS, Shard};
use std::sync::{Mutex, PoisonError};
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::top_keys::{TopKey, TopKeys};
use tidegate_core::{Micros, Rules};

/// What is told covers between one and two of these.
const WINDOW: Micros = Micros::from_secs(300);

/// What keys are ranked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopBy {
    /// Hits, denied ones included.
    Hits,
    /// Hits that were denied.
    Denials,
}

/// The keys that come first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopListing {
    /// Since when they were counted.
    pub since: Micros,
    /// The keys, the first with most.
    pub keys: Vec<TopKey>,
}

/// The summaries of a table.
#[derive(Debug)]
pub(super) struct Top(Mutex<Summaries>);

#[derive(Debug)]
struct Summaries {
    hits: TopKeys,
    denials: TopKeys,
    /// Bytes that the budget was told of.
    accounted: usize,
}

impl Default for Top {
    fn default() -> Top {
        Top(Mutex::new(Summaries { hits: TopKeys::new(WINDOW), denials: TopKeys::new(WINDOW), accounted: 0 }))
    }
}

impl Top {
    /// Memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).accounted
    }
}

impl Summaries {
    fn account(&mut self, budget: &Budget) {
        let bytes = self.hits.bytes() + self.denials.bytes();
        budget.replace(self.accounted, bytes);
        self.accounted = bytes;
    }
}

impl Table {
    /// Counts down to the next hit that is noted, and notes it.
    #[inline(always)]
    pub(super) fn pass(&self, shard: &mut Shard, hash: u64, key: &[u8], cost: u32, ruling: &Ruling, now: Micros) {
        if shard.count_down(ruling.is_allowed()) {
            self.look_at(shard, hash, key, Decided { at: now, cost, ruling: *ruling });
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at(&self, shard: &mut Shard, hash: u64, key: &[u8], decided: Decided) {
        let keeps_latest = self.keeps_latest();
        if keeps_latest {
            self.keep_latest(hash, decided);
        }
        match Shape::of_layout(shard.layout).names && self.is_ranked() {
            true => self.note_top(shard, hash, key, decided),
            false => shard.rest_from_noting(),
        }
        if keeps_latest {
            // None may be passed over.
            shard.note_next();
        }
    }

    /// Memory of what is noted for people.
    pub(super) fn noted_bytes(&self) -> usize {
        self.top.bytes() + self.kept_bytes()
    }

    fn note_top(&self, shard: &mut Shard, hash: u64, key: &[u8], decided: Decided) {
        let now = decided.at;
        let Ok(mut top) = self.top.0.try_lock() else { return shard.postpone_noting() };
        let due = shard.due(hash, now);
        if let Some(weight) = due.hit {
            top.hits.note(hash, key, weight, now);
        }
        if let Some(weight) = due.denial {
            top.denials.note(hash, key, weight, now);
            if self.logs_denials() {
                self.keep_denial(key, decided, weight);
            }
        }
        top.account(&self.budget);
    }

    /// The keys that come first, `most` of them.
    #[must_use]
    pub fn top(&self, by: TopBy, most: usize, now: Micros) -> TopListing {
        let top = self.top.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = match by {
            TopBy::Hits => &top.hits,
            TopBy::Denials => &top.denials,
        };
        TopListing { since: keys.since(now), keys: keys.top(most, now) }
    }

    /// The keys that are blocked longest from now, `most` of them, and until when; in steps, as a listing.
    pub fn longest_blocked(&self, rules: &Rules, most: usize, clock: impl Fn() -> Micros) -> Vec<(Micros, Vec<u8>)> {
        let mut longest = Vec::new();
        for index in 0..SHARDS {
            let mut after = Some(0);
            while let Some(from) = after {
                after =
                    self.with_cell(rules, index, &clock, |shard, frame| shard.blocked_piece(frame, from, &mut longest));
                // Not after each piece that found some: the vector stays short all the same.
                if longest.len() >= 2 * most.max(64) {
                    keep_longest(&mut longest, most);
                }
            }
        }
        keep_longest(&mut longest, most);
        longest
    }

    /// Counts a decision that a remote store made, and keeps its key's statistics if there are any. The cost does not matter to it.
    pub fn note(&self, single: Single<'_>, ruling: &Ruling, all_allow: bool, at: Micros) {
        let Single { rules, key, intent, door, .. } = single;
        let hash = self.hash(key);
        self.with_shard(
            rules,
            hash,
            || at,
            |shard, frame| {
                shard.count(ruling, all_allow, intent, door);
                if intent == Intent::Hit {
                    self.pass(shard, hash, key, 1, ruling, at);
                    if frame.shape.stats {
                        shard.note_stats(frame, hash, ruling);
                    }
                }
            },
        );
    }
}

/// Those that last longest, in order.
fn keep_longest(keys: &mut Vec<(Micros, Vec<u8>)>, most: usize) {
    keys.sort_unstable_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.cmp(right)));
    keys.truncate(most);
}

impl Cell {
    /// Hits are noted one by one again, until there are many.
    pub(super) fn restart_noting(&self) {
        self.lock().restart_noting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::sync::Arc;
    use tidegate_core::Algorithm;

    fn table(names: bool) -> (Arc<Table>, Rules, Memory) {
        let rules = Rules::new(Algorithm::TokenBucket, &["10 per second burst 10 block 1h".parse().unwrap()]).unwrap();
        let shape = Shape { algorithm: Algorithm::TokenBucket, limits: 1, names, stats: false };
        let store = Memory::new(64 << 20, Some([1, 2]));
        (store.table("t", shape, &rules), rules, store)
    }

    fn told(listing: TopListing) -> Vec<(String, u64, u64)> {
        let told = |key: TopKey| (String::from_utf8(key.key).unwrap(), key.count, key.error);
        listing.keys.into_iter().map(told).collect()
    }

    #[test]
    fn few_hits_are_all_told() {
        let (table, rules, _store) = table(true);
        let now = Micros::from_secs(1_000);
        let hit = |key: &str, times: usize| {
            for _ in 0..times {
                let _ = table.decide(Single::new(&rules, key.as_bytes(), 1, Intent::Hit), || now);
            }
        };
        hit("few", 3);
        hit("many", 15);
        let _ = table.decide(Single::new(&rules, b"looked at", 1, Intent::Peek), || now);
        table.note(Single::new(&rules, b"remote", 1, Intent::Hit), &crate::PartAnswer::UNKNOWN.ruling, true, now);
        let of = |key: &str, count| (key.to_owned(), count, 0);
        let expected = [of("many", 15), of("few", 3), of("remote", 1)];
        assert_eq!(told(table.top(TopBy::Hits, 20, now)), expected);
        assert_eq!(told(table.top(TopBy::Hits, 1, now)), [of("many", 15)]);
        assert_eq!(told(table.top(TopBy::Denials, 20, now)), [of("many", 5)]);
        table.block(&rules, b"longer", Micros::from_secs(7_200), || now);
        let blocked = table.longest_blocked(&rules, 20, || now);
        let expected = [(8_200, "longer"), (4_600, "many")];
        let expected = expected.map(|(until, key)| (Micros::from_secs(until), key.as_bytes().to_vec()));
        assert_eq!(blocked, expected);
        assert_eq!(table.longest_blocked(&rules, 1, || now), expected[..1]);
    }

    #[test]
    fn a_limiter_without_names_tells_none() {
        let (table, rules, _store) = table(false);
        let now = Micros::from_secs(1_000);
        for _ in 0..100_000 {
            let _ = table.decide(Single::new(&rules, b"key", 1, Intent::Hit), || now);
        }
        assert_eq!(told(table.top(TopBy::Hits, 20, now)), []);
    }

    /// Many more hits than are noted one by one, of ten times as many keys as there are counters: each key that has a percent of them is told, with a
    /// count that is right within its error.
    #[test]
    fn of_many_hits_a_sample_is_told_with_its_error() {
        let (table, rules, store) = table(true);
        let before = store.bytes();
        let mut random = 5_u64;
        let mut exact = std::collections::HashMap::<String, u64>::new();
        for step in 0..2_000_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = (random >> 33) % 1_000;
            let key = if drawn < 300 { format!("heavy {}", drawn % 15) } else { format!("{}", (random >> 20) % 2_600) };
            let now = Micros::saturating(1_000_000_000 + step);
            let _ = table.decide(Single::new(&rules, key.as_bytes(), 1, Intent::Hit), || now);
            *exact.entry(key).or_default() += 1;
        }
        let now = Micros::from_secs(1_002);
        let top = told(table.top(TopBy::Hits, 15, now));
        assert_eq!(top.len(), 15);
        for (key, count, error) in top {
            let exact = exact[&key];
            assert!(key.starts_with("heavy"), "{key} {count}");
            assert!(count.abs_diff(exact) <= error && error < exact, "{key}: {count} ± {error}, and it is {exact}");
        }
        assert!(store.bytes() > before, "it is accounted for");
        // Quiet again: hits are noted one by one, once the table was tended.
        table.tend(&rules, 0, 1, || now);
        let later = Micros::from_secs(5_000);
        for _ in 0..3 {
            let _ = table.decide(Single::new(&rules, b"bob", 1, Intent::Hit), || later);
        }
        assert_eq!(told(table.top(TopBy::Hits, 20, later)), [("bob".to_owned(), 3, 0)]);
    }
}
