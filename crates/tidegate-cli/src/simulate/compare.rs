//! Two policies beside each other: what becomes of each request under one and under the other.

use super::tally::{Charts, Tally, Verdict};
use super::timeline::{Axis, Bars};
use std::collections::HashMap;
use tidegate::Micros;

/// Requests by what both policies said. A request that no limiter applies to is allowed.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) both_allow: u64,
    pub(super) both_deny: u64,
    /// Denied by the new policy alone.
    pub(super) newly_denied: u64,
    /// Denied by the old policy alone.
    pub(super) newly_allowed: u64,
    charts: Charts,
    pub(super) axis: Axis,
    pub(super) newly_denied_bars: Bars,
    pub(super) newly_allowed_bars: Bars,
}

/// A key that one policy denies more often than the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyChange<'a> {
    pub(super) limiter: &'a str,
    pub(super) key: &'a [u8],
    pub(super) before: u64,
    pub(super) now: u64,
}

/// How many keys are limited under one policy alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct KeysChanged {
    pub(super) newly_limited: u64,
    pub(super) no_longer: u64,
}

impl Comparison {
    pub(super) fn new(charts: Charts) -> Comparison {
        Comparison {
            both_allow: 0,
            both_deny: 0,
            newly_denied: 0,
            newly_allowed: 0,
            charts,
            axis: Axis::default(),
            newly_denied_bars: Bars::default(),
            newly_allowed_bars: Bars::default(),
        }
    }

    /// One line under the new and the old policy.
    pub(super) fn count(&mut self, at: Micros, new: Verdict, old: Verdict) {
        if new == Verdict::None {
            return;
        }
        let bar = self.axis.bar(at);
        let changed = match (new == Verdict::Denied, old == Verdict::Denied) {
            (false, false) => return self.both_allow += 1,
            (true, true) => return self.both_deny += 1,
            (true, false) => {
                self.newly_denied += 1;
                &mut self.newly_denied_bars
            }
            (false, true) => {
                self.newly_allowed += 1;
                &mut self.newly_allowed_bars
            }
        };
        if self.charts == Charts::Wanted {
            changed.add(&self.axis, bar);
        }
    }

    /// The keys that change most, at most `most`, and how many are limited under one policy alone.
    pub(super) fn keys<'a>(new: &'a Tally, old: &'a Tally, most: usize) -> (Vec<KeyChange<'a>>, KeysChanged) {
        let mut counts: HashMap<(&str, &[u8]), (u64, u64)> = HashMap::new();
        for (limiter, key, tally) in keys(old) {
            counts.entry((limiter, key)).or_default().0 = tally;
        }
        for (limiter, key, tally) in keys(new) {
            counts.entry((limiter, key)).or_default().1 = tally;
        }
        let count = |of: fn(&(u64, u64)) -> bool| counts.values().filter(|counts| of(counts)).count() as u64;
        let changed = KeysChanged { newly_limited: count(|c| c.0 == 0), no_longer: count(|c| c.1 == 0) };
        let change = |((limiter, key), (before, now))| KeyChange { limiter, key, before, now };
        let mut changes: Vec<KeyChange<'a>> =
            counts.into_iter().map(change).filter(|change| change.before != change.now).collect();
        let order = |change: &KeyChange<'a>| {
            (std::cmp::Reverse(change.before.abs_diff(change.now)), change.limiter, change.key)
        };
        changes.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        changes.truncate(most);
        (changes, changed)
    }
}

fn keys(tally: &Tally) -> impl Iterator<Item = (&str, &[u8], u64)> {
    tally.limiters.iter().flat_map(|limiter| {
        limiter.keys.iter().map(|(key, counts)| (limiter.spec.name.as_str(), &**key, counts.denied))
    })
}
