//! Increment and analyze: the two halves of what a hit does in one step, for buckets. And giving back.

use super::{Table, subject};
use crate::shard::{Frame, Making, Prepared, Shard};
use tidegate_core::all_or_nothing::{self, Analysis, Demand, IfBlocked, Intent, Ruling};
use tidegate_core::{Micros, Rules};

impl Table {
    /// Counts for a key at a time of the caller's, `None`: now; whatever its limits say. Returns the clock's
    /// time, and whether it was counted; `None`: the limiter does not count in buckets.
    pub fn increment(
        &self,
        rules: &Rules,
        key: &[u8],
        count: u32,
        at: Option<Micros>,
        clock: impl FnOnce() -> Micros,
    ) -> Option<(Micros, bool)> {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let (now, at) = (frame.now, at.unwrap_or(frame.now));
            let mut prepared =
                shard.prepare(frame, hash, key, Demand { cost: count, intent: Intent::Hit }, Making::Room);
            let counted = all_or_nothing::increment(&mut subject(frame.rules, &mut prepared), now, at, count);
            put_back(shard, frame, hash, key, count, prepared, counted == Some(true));
            Some((now, counted?))
        })
    }

    /// Has a key reached a limit? Blocks it then. Returns the clock's time with the answer; `None`: the
    /// limiter does not count in buckets.
    pub fn analyze(
        &self,
        rules: &Rules,
        key: &[u8],
        if_blocked: IfBlocked,
        clock: impl FnOnce() -> Micros,
    ) -> Option<(Micros, Analysis)> {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let mut prepared = shard.prepare(frame, hash, key, Demand { cost: 0, intent: Intent::Hit }, Making::Room);
            let mut subject = subject(frame.rules, &mut prepared);
            let analysis = all_or_nothing::analyze(&mut subject, frame.now, if_blocked);
            prepared.blocked_until = subject.blocked_until;
            put_back(shard, frame, hash, key, 0, prepared, false);
            Some((frame.now, analysis?))
        })
    }

    /// Gives back what a key was charged before, the latest first, and says how it stands then. A key without an entry has nothing
    /// to get back, and an average gives nothing back.
    pub fn give_back(&self, rules: &Rules, key: &[u8], cost: u32, clock: impl FnOnce() -> Micros) -> Ruling {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let mut prepared = shard.prepare(frame, hash, key, Demand { cost: 0, intent: Intent::Hit }, Making::Room);
            let ruling = all_or_nothing::give_back(&mut subject(frame.rules, &mut prepared), frame.now, cost);
            put_back(shard, frame, hash, key, 0, prepared, false);
            ruling
        })
    }
}

pub(super) fn put_back(
    shard: &mut Shard,
    frame: &Frame<'_>,
    hash: u64,
    key: &[u8],
    count: u32,
    prepared: Prepared,
    counted: bool,
) {
    shard.latest = frame.now;
    shard.commit(frame, hash, key, count, prepared, counted);
}
