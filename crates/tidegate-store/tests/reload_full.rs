//! F5: a store that was full loads again from its own snapshot: all of it under the same budget; under a smaller one,
//! or in a larger layout, no limit is lifted and no block is lost.
//!
//! A server that was flooded with distinct keys once did not start again: its tables were made an eighth larger when
//! they were loaded, which was more than the budget they had filled.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Arc;
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::buckets::Grid;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_store::{Directory, Loaded, Memory, Shape, Single, Table};

const NOW: Micros = Micros::from_secs(1_000_000);
/// Keys that are hit once each: far more than any of the budgets below holds.
const FLOOD: u32 = 30_000;
const BLOCKED: u32 = 50;

struct Limiter {
    store: Memory,
    table: Arc<Table>,
    rules: Rules,
}

fn rules(algorithm: Algorithm, limits: &[&str]) -> Rules {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    match algorithm {
        Algorithm::Buckets => {
            Rules::buckets(Grid::new(Micros::from_secs(10), Micros::from_secs(7_200)).unwrap(), &limits).unwrap()
        }
        _ => Rules::new(algorithm, &limits).unwrap(),
    }
}

impl Limiter {
    fn on(store: Memory, algorithm: Algorithm, limits: &[&str], names: bool) -> Limiter {
        let rules = rules(algorithm, limits);
        let shape = Shape { algorithm, limits: limits.len(), names, stats: false };
        let table = store.table("full", shape, &rules);
        Limiter { store, table, rules }
    }

    fn ask(&self, key: &str, intent: Intent) -> bool {
        self.table.decide(Single::new(&self.rules, key.as_bytes(), 1, intent), || NOW).is_allowed()
    }

    /// Of so many hits of a key, how many pass?
    fn passes(&self, key: u32, hits: usize) -> usize {
        (0..hits).filter(|_| self.ask(&name(key), Intent::Hit)).count()
    }

    fn block(&self) {
        let span = Micros::from_secs(100_000);
        let block = |key| self.table.block(&self.rules, blocked(key).as_bytes(), span, || NOW).unwrap();
        (0..BLOCKED).for_each(|key| assert!(block(key) > NOW));
    }

    fn are_blocked(&self) -> bool {
        (0..BLOCKED).all(|key| !self.ask(&blocked(key), Intent::Peek))
    }
}

/// Of many lengths, as names are.
fn name(key: u32) -> String {
    format!("{key:0width$}", width = 7 + (key % 41) as usize)
}

fn blocked(key: u32) -> String {
    format!("blocked {key}")
}

/// Fills a store of `max` bytes, saves it, and loads it under `again` bytes into a limiter with other limits.
fn reloaded(
    algorithm: Algorithm,
    names: bool,
    max: usize,
    again: usize,
    limits: &[&str],
) -> (Limiter, Vec<usize>, Limiter) {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let full = Limiter::on(Memory::new(max, Some([1, 2])), algorithm, &["3 per hour"], names);
    full.block();
    let mut admitted: Vec<usize> = (0..FLOOD).map(|key| full.passes(key, 1)).collect();
    // Some have used all they may, some have not.
    (0..FLOOD).step_by(3).for_each(|key| admitted[key as usize] += full.passes(key, 4));
    directory.save(&full.store, NOW).unwrap();
    let Loaded { store, at, .. } = directory.load(again, Micros::MAX).unwrap().unwrap();
    assert_eq!(at, NOW);
    (full, admitted, Limiter::on(store, algorithm, limits, names))
}

#[test]
fn f5_a_full_table_loads_again_whole() {
    for algorithm in Algorithm::ALL {
        for (names, max) in [(false, 1 << 20), (true, 1 << 20)] {
            let (full, _, again) = reloaded(algorithm, names, max, max, &["3 per hour"]);
            let case = format!("{algorithm:?}, names {names}, {max} bytes");
            assert!(full.table.counts().sketched_denied > 0, "{case}: it was not full");
            assert_eq!(again.store.displaced(), 0, "{case}");
            assert_eq!(again.table.entries(), full.table.entries(), "{case}");
            assert!(again.store.bytes() <= full.store.bytes(), "{case}: {} bytes", again.store.bytes());
            assert!(again.are_blocked(), "{case}");
            for key in (0..FLOOD).step_by(7) {
                assert_eq!(again.ask(&name(key), Intent::Peek), full.ask(&name(key), Intent::Peek), "{case}: {key}");
            }
        }
    }
}

#[test]
fn f5_under_a_smaller_budget_no_limit_is_lifted() {
    for algorithm in Algorithm::ALL {
        for (names, again) in [(false, 600 << 10), (true, 600 << 10), (true, 300 << 10)] {
            let (full, admitted, small) = reloaded(algorithm, names, 1 << 20, again, &["3 per hour"]);
            let case = format!("{algorithm:?}, names {names}, {again} bytes");
            let entries = small.table.entries();
            assert!(small.store.displaced() > 0 && entries > 0, "{case}: {entries}");
            let lost = full.table.entries() - entries;
            assert!(small.store.displaced() <= lost as u64, "{case}: {lost}");
            // A denial of buckets blocks the key, and blocked keys keep their places even beyond the budget.
            let most = if algorithm == Algorithm::Buckets { again * 3 / 2 } else { again + again / 20 };
            assert!(small.store.bytes() <= most, "{case}: {} bytes", small.store.bytes());
            assert!(small.are_blocked(), "{case}");
            // An average lets one more pass when the rate is just below the limit.
            let fades = matches!(algorithm, Algorithm::StrictAverage | Algorithm::LeakyAverage);
            for key in (0..FLOOD).step_by(11) {
                let all = admitted[key as usize] + small.passes(key, 4);
                assert!(all <= 3 + usize::from(fades), "{case}: key {key} got {all}");
            }
        }
    }
}

/// The same share of every shard's keys has a place: nobody is displaced for coming late in the file.
#[test]
fn f5_places_are_divided_evenly() {
    let (full, _, small) = reloaded(Algorithm::FixedWindow, true, 1 << 20, 600 << 10, &["3 per hour"]);
    let has_place = |limiter: &Limiter, key: u32| {
        let before = limiter.table.counts().sketched_denied;
        let _ = limiter.passes(key, 5);
        limiter.table.counts().sketched_denied == before
    };
    let held: Vec<u32> = (0..FLOOD).step_by(3).filter(|key| has_place(&full, *key)).collect();
    for part in held.chunks_exact(held.len() / 8) {
        let placed = part.iter().filter(|key| has_place(&small, **key)).count();
        assert!((part.len() / 5..part.len() * 4 / 5).contains(&placed), "{placed} of {}", part.len());
    }
}

#[test]
fn f5_a_larger_layout_lifts_no_limit() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::SlidingLog] {
        let limits = ["3 per hour", "100 per day", "1000 per week"];
        // An eighth less: what the full store noted of its busiest keys is not loaded, and leaves room.
        let again = 7 << 17;
        let (_, admitted, wide) = reloaded(algorithm, true, 1 << 20, again, &limits);
        assert!(wide.store.displaced() > 0, "{algorithm:?}");
        assert!(wide.store.bytes() <= again + again / 20, "{algorithm:?}: {} bytes", wide.store.bytes());
        assert!(wide.are_blocked(), "{algorithm:?}");
        for key in (0..FLOOD).step_by(11) {
            let all = admitted[key as usize] + wide.passes(key, 4);
            assert!(all <= 3, "{algorithm:?}: key {key} got {all}");
        }
    }
}

/// A bucket's debt above its count outlasts a sketch: such keys have a place whatever it takes.
#[test]
fn f5_a_burst_is_not_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let limits = ["2 per minute burst 50"];
    let full = Limiter::on(Memory::new(1 << 20, Some([1, 2])), Algorithm::TokenBucket, &limits, false);
    let spent: Vec<u32> = (0..200).collect();
    spent.iter().for_each(|key| assert_eq!(full.passes(*key, 60), 50));
    assert!((200..FLOOD).map(|key| full.passes(key, 1)).sum::<usize>() > 0);
    directory.save(&full.store, NOW).unwrap();
    let store = directory.load(400 << 10, Micros::MAX).unwrap().unwrap().store;
    let small = Limiter::on(store, Algorithm::TokenBucket, &limits, false);
    assert!(small.store.displaced() > 0);
    let later = NOW.saturating_add(Micros::from_secs(180));
    for key in spent {
        let hit = || {
            small.table.decide(Single::new(&small.rules, name(key).as_bytes(), 1, Intent::Hit), || later).is_allowed()
        };
        assert_eq!((0..60).filter(|_| hit()).count(), 6, "key {key}");
    }
}
