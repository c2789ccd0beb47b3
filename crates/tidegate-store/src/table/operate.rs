//! What people do with a limiter's keys: block, unblock, list, and the housekeeping behind it.
//!
//! Each call takes one shard's lock at a time, so that decisions go on meanwhile.

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
        self.with_shard(rules, hash, clock, |shard, frame| shard.unblock(frame, hash))
    }

    /// Forgets every blocked key; how many were there?
    pub fn unblock_all(&self, rules: &Rules, clock: impl Fn() -> Micros) -> u64 {
        (0..SHARDS).map(|index| self.with_cell(rules, index, &clock, |shard, frame| shard.unblock_all(frame))).sum()
    }

    /// Names of keys, page by page in the order of their hashes.
    pub fn list(&self, rules: &Rules, page: PageOf, clock: impl Fn() -> Micros) -> Listing {
        let PageOf { which, after, most } = page;
        let after = after.unwrap_or(0);
        let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
        for index in shard_of(after)..SHARDS {
            let mut more =
                self.with_cell(rules, index, &clock, |shard, frame| shard.list(frame, which == Which::Blocked, after));
            more.sort_unstable();
            found.append(&mut more);
            if found.len() > most {
                break;
            }
        }
        let next = found.get(most).and_then(|_| found[..most].last()).map(|(hash, _)| *hash);
        found.truncate(most);
        let mut keys: Vec<Vec<u8>> = found.into_iter().map(|(_, name)| name).filter(|name| !name.is_empty()).collect();
        keys.sort_unstable();
        Listing { keys, next }
    }

    /// Drops idle entries of every `SHARDS / share`-th shard, starting at `turn`, and gives memory back.
    pub fn tend(&self, rules: &Rules, turn: usize, share: usize, clock: impl Fn() -> Micros) {
        for index in (0..SHARDS).filter(|index| index % share == turn % share) {
            self.with_cell(rules, index, &clock, |shard, frame| shard.tend(frame));
        }
    }
}
