//! What people do with a limiter's keys: block, unblock, list, and the housekeeping behind it.
//!
//! Each call takes one shard's lock at a time, for some dozens of entries, so that decisions go on meanwhile.

use super::{Table, shard_of};
use crate::shard::SHARDS;
use tidegate_core::{Micros, Rules};

/// Which keys to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// All that differ from a fresh key.
    Tracked,
    /// Only the blocked ones.
    Blocked,
}

/// Which keys to list, and which page of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageOf {
    /// All, or the blocked ones.
    pub which: Which,
    /// Where the page before ended; `None`: the first page.
    pub after: Option<u64>,
    /// How many keys, about.
    pub most: usize,
}

/// Names of keys, and where the next page starts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Listing {
    /// The names, sorted.
    pub keys: Vec<Vec<u8>>,
    /// Pass this as `after` for more; `None`: that was all.
    pub next: Option<u64>,
}

impl Table {
    /// Blocks a key until `now + span`; `None` when the table is full and it finds no place.
    pub fn block(&self, rules: &Rules, key: &[u8], span: Micros, clock: impl FnOnce() -> Micros) -> Option<Micros> {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let until = frame.now.saturating_add(span);
            shard.block(frame, hash, key, until).then_some(until)
        })
    }

    /// Forgets a key's history and block; was it blocked?
    pub fn unblock(&self, rules: &Rules, key: &[u8], clock: impl FnOnce() -> Micros) -> bool {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            self.reservations.forget(hash);
            shard.unblock(frame, hash)
        })
    }

    /// Forgets the blocked keys of one of [`SHARDS`] shards; how many were there?
    pub(crate) fn unblock_shard(&self, rules: &Rules, index: usize, clock: impl Fn() -> Micros) -> u64 {
        let (mut unblocked, mut after) = (0, Some(0));
        while let Some(from) = after {
            let forget = |hash| self.reservations.forget(hash);
            let (more, next) =
                self.with_cell(rules, index, &clock, |shard, frame| shard.unblock_piece(frame, from, forget));
            (unblocked, after) = (unblocked + more, next);
        }
        unblocked
    }

    /// Forgets every blocked key; how many were there?
    pub fn unblock_all(&self, rules: &Rules, clock: impl Fn() -> Micros) -> u64 {
        (0..SHARDS).map(|index| self.unblock_shard(rules, index, &clock)).sum()
    }

    /// Names of keys, page by page in the order of their hashes.
    pub fn list(&self, rules: &Rules, page: PageOf, clock: impl Fn() -> Micros) -> Listing {
        let mut walk = Walk::new(page);
        while self.step(rules, &mut walk, &clock) {}
        walk.listing()
    }

    /// The next few entries of a listing; false: it is whole. The lock is held for those alone, so that decisions go on between steps.
    pub(crate) fn step(&self, rules: &Rules, walk: &mut Walk, clock: impl FnOnce() -> Micros) -> bool {
        if walk.shard >= SHARDS || walk.found.len() > walk.page.most {
            return false;
        }
        let (blocked_only, after) = (walk.page.which == Which::Blocked, walk.after);
        let last = self.with_cell(rules, walk.shard, clock, |shard, frame| {
            shard.list_piece(frame, blocked_only, after, &mut walk.found)
        });
        match last {
            Some(last) => walk.after = last,
            None => (walk.shard, walk.after) = (walk.shard + 1, 0),
        }
        true
    }

    /// Drops idle entries of every `SHARDS / share`-th shard, starting at `turn`, and gives memory back.
    pub fn tend(&self, rules: &Rules, turn: usize, share: usize, clock: impl Fn() -> Micros) {
        self.reservations.drop_ended(clock());
        for index in (0..SHARDS).filter(|index| index % share == turn % share) {
            self.cells[index].restart_noting();
            let mut after = Some(0);
            while let Some(from) = after {
                after = self.with_cell(rules, index, &clock, |shard, frame| shard.purge_piece(frame, from));
            }
            while self.with_cell(rules, index, &clock, |shard, frame| shard.tidy(frame)) {}
        }
    }
}

/// A listing under way.
pub(crate) struct Walk {
    page: PageOf,
    shard: usize,
    /// The last hash that was looked at there.
    after: u64,
    /// Hashes and names, in the order of the hashes.
    found: Vec<(u64, Vec<u8>)>,
}

impl Walk {
    pub(crate) fn new(page: PageOf) -> Walk {
        let after = page.after.unwrap_or(0);
        Walk { page, shard: shard_of(after), after, found: Vec::new() }
    }

    /// What was found. What is more than the page may have is left to the next.
    pub(crate) fn listing(self) -> Listing {
        let Walk { page: PageOf { most, .. }, mut found, .. } = self;
        let next = found.get(most).and_then(|_| found[..most].last()).map(|(hash, _)| *hash);
        found.truncate(most);
        let mut keys: Vec<Vec<u8>> = found.into_iter().map(|(_, name)| name).filter(|name| !name.is_empty()).collect();
        keys.sort_unstable();
        Listing { keys, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Shape, Single};
    use std::collections::BTreeSet;
    use tidegate_core::Algorithm;
    use tidegate_core::all_or_nothing::Intent;

    /// Between two steps keys come, so that tables grow, and go, so that entries move back: every key that was there all the time is
    /// listed, once.
    #[test]
    fn a_listing_in_steps_has_each_key_once_while_others_come_and_go() {
        const STAYING: u32 = 300_000;
        let rules = Rules::new(Algorithm::FixedWindow, &["5 per hour".parse().unwrap()]).unwrap();
        let shape = Shape { algorithm: Algorithm::FixedWindow, limits: 1, names: true, stats: false };
        for (which, most) in [(Which::Tracked, 20_000), (Which::Blocked, 70_000), (Which::Tracked, usize::MAX / 2)] {
            let store = Memory::new(128 << 20, Some([1, 2]));
            let table = store.table("t", shape, &rules);
            let now = Micros::from_secs(1_000_000);
            let enter = |key: &str| match which {
                Which::Blocked => drop(table.block(&rules, key.as_bytes(), Micros::from_secs(60), || now)),
                Which::Tracked => drop(table.decide(Single::new(&rules, key.as_bytes(), 1, Intent::Hit), || now)),
            };
            (0..STAYING).for_each(|key| enter(&format!("stays {key}")));
            let (mut seen, mut steps, mut passing) = (BTreeSet::new(), 0, 0_u32);
            let mut after = None;
            loop {
                let mut walk = Walk::new(PageOf { which, after, most });
                while table.step(&rules, &mut walk, || now) {
                    steps += 1;
                    for _ in 0..40 {
                        passing += 1;
                        enter(&format!("passes {passing}"));
                        // Gone, most of them: what lay behind moves back.
                        if passing % 4 > 0 {
                            table.unblock(&rules, format!("passes {}", passing - passing % 7).as_bytes(), || now);
                        }
                    }
                }
                let Listing { keys, next } = walk.listing();
                assert!(keys.len() <= most);
                for key in keys.into_iter().filter(|key| key.starts_with(b"stays")) {
                    assert!(seen.insert(key), "listed twice");
                }
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen.len(), STAYING as usize, "{which:?}, pages of {most}");
            assert!(steps >= 2 * SHARDS, "{steps} steps");
            let after_the_last = table.list(&rules, PageOf { which, after: Some(u64::MAX), most }, || now);
            assert_eq!(after_the_last, Listing::default());
        }
    }
}
