//! M1, M2: a table that is full of live keys drops none of them, and no key gets more than its limit.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent};
use tidegate_core::buckets::Grid;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_store::{Memory, PageOf, Shape, Single, Table, Which};

const MAX_BYTES: usize = 1 << 20;

struct Full {
    store: Memory,
    table: Arc<Table>,
    rules: Rules,
    now: Micros,
}

impl Full {
    fn new(algorithm: Algorithm, limits: &[&str], names: bool) -> Full {
        let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
        let rules = match algorithm {
            Algorithm::Buckets => Rules::buckets(grid(), &limits).unwrap(),
            _ => Rules::new(algorithm, &limits).unwrap(),
        };
        let store = Memory::new(MAX_BYTES, Some([1, 2]));
        let table = store.table("full", Shape { algorithm, limits: limits.len(), names, stats: false }, &rules);
        Full { store, table, rules, now: Micros::from_secs(1_000_000) }
    }

    fn hit(&self, key: u32) -> bool {
        let key = format!("a key of some length {key}");
        self.table.decide(Single::new(&self.rules, key.as_bytes(), 1, Intent::Hit), || self.now).is_allowed()
    }

    fn flood(&self, keys: u32) {
        for key in 0..keys {
            self.hit(key);
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.saturating_add(Micros::from_secs(seconds));
    }
}

fn grid() -> Grid {
    Grid::new(Micros::from_secs(10), Micros::from_secs(3_600)).unwrap()
}

#[test]
fn m2_no_key_is_admitted_more_than_its_limit_for_any_algorithm() {
    for algorithm in Algorithm::ALL {
        for names in [false, true] {
            let mut full = Full::new(algorithm, &["3 per minute", "5 per hour"], names);
            let mut admitted: HashMap<u32, Vec<Micros>> = HashMap::new();
            // Rounds of many keys, some of them again and again, over three periods of the shorter limit.
            for round in 0..9_u32 {
                for key in (0..40_000_u32).filter(|key| key % (round + 1) == 0) {
                    if full.hit(key) {
                        admitted.entry(key).or_default().push(full.now);
                    }
                }
                full.wait(20);
            }
            // An average fades between requests: the sixth finds a rate just below 5.
            let fades = matches!(algorithm, Algorithm::StrictAverage | Algorithm::LeakyAverage);
            let most = if fades { 6 } else { 5 };
            for (key, times) in &admitted {
                assert!(times.len() <= most, "{algorithm:?}: key {key} got {} in an hour", times.len());
            }
            // The bucket and the fixed windows may put twice their count into one period; the others not.
            if matches!(algorithm, Algorithm::SlidingLog | Algorithm::Buckets) {
                for times in admitted.values() {
                    let worst = times.iter().map(|end| {
                        let start = end.saturating_sub(Micros::from_secs(60));
                        times.iter().filter(|at| **at > start && *at <= end).count()
                    });
                    assert!(worst.max().unwrap() <= 3);
                }
            }
            let counts = full.table.counts();
            assert!(counts.sketched_allowed > 0 && counts.sketched_denied > 0, "{algorithm:?}: {counts:?}");
            assert!(full.store.bytes() <= MAX_BYTES + 64 * 1024, "{algorithm:?}: {} bytes", full.store.bytes());
        }
    }
}

#[test]
fn m2_a_sketched_key_stays_with_the_sketch_until_it_is_forgotten() {
    let mut full = Full::new(Algorithm::FixedWindow, &["50 per minute"], false);
    full.flood(40_000);
    let before = full.table.counts();
    let late = 100_000;
    let first = (0..60).filter(|_| full.hit(late)).count();
    assert!((1..=50).contains(&first), "{first}");
    assert_eq!(full.table.counts().sketched_allowed, before.sketched_allowed + first as u64);
    // The table empties, but what the sketch let through still counts in its period.
    full.wait(60);
    (0..16).for_each(|turn| full.table.tend(&full.rules, turn, 16, || full.now));
    assert_eq!(full.table.entries(), 0);
    let second = (0..60).filter(|_| full.hit(late)).count();
    assert!(first + second <= 50, "{first} and {second}");
    full.wait(180);
    (0..16).for_each(|turn| full.table.tend(&full.rules, turn, 16, || full.now));
    assert_eq!((0..60).filter(|_| full.hit(late)).count(), 50, "afterwards it has a place of its own");
    assert_eq!(full.table.entries(), 1);
}

#[test]
fn m2_blocked_keys_keep_their_place_and_new_blocks_are_refused_when_there_is_none() {
    let mut full = Full::new(Algorithm::TokenBucket, &["1 per second"], true);
    let block = |full: &Full, key: u32, seconds| {
        let span = Micros::from_secs(seconds);
        full.table.block(&full.rules, format!("blocked {key}").as_bytes(), span, || full.now)
    };
    let blocked = (0..100_000).take_while(|key| block(&full, *key, 3_600).is_some()).count();
    assert!((5_000..50_000).contains(&blocked), "{blocked}");
    full.flood(100_000);
    full.wait(3_599);
    (0..16).for_each(|turn| full.table.tend(&full.rules, turn, 16, || full.now));
    let listed = full
        .table
        .list(&full.rules, PageOf { which: Which::Blocked, after: None, most: usize::MAX / 2 }, || full.now)
        .keys
        .len();
    assert_eq!(listed, blocked);
    full.wait(1);
    assert!(block(&full, 1_000_000, 1).is_some(), "the first ones are over and give way");
}

#[test]
fn memory_comes_back_when_keys_are_idle() {
    for algorithm in Algorithm::ALL {
        let mut full = Full::new(algorithm, &["3 per minute"], true);
        let empty = full.store.bytes();
        full.flood(4_000);
        assert!(full.store.bytes() > empty + 100_000);
        // An average is forgotten last, after a hundred periods.
        full.wait(6_000);
        (0..16).for_each(|turn| full.table.tend(&full.rules, turn, 16, || full.now));
        assert_eq!(full.table.entries(), 0, "{algorithm:?}");
        assert!(full.store.bytes() <= empty + 64 * 1024, "{algorithm:?}: {} of {empty}", full.store.bytes());
    }
}

#[test]
fn m2_blocking_a_sketched_key_does_not_lift_its_limit() {
    let mut full = Full::new(Algorithm::FixedWindow, &["3 per hour"], false);
    full.flood(26_000);
    let keys: Vec<u32> = (100_000..101_000).collect();
    let mut admitted: HashMap<u32, usize> = HashMap::new();
    for key in &keys {
        *admitted.entry(*key).or_default() += (0..5).filter(|_| full.hit(*key)).count();
    }
    for key in &keys {
        let name = format!("a key of some length {key}");
        let _ = full.table.block(&full.rules, name.as_bytes(), Micros::from_millis(1), || full.now);
    }
    full.wait(1);
    for key in &keys {
        *admitted.entry(*key).or_default() += (0..5).filter(|_| full.hit(*key)).count();
    }
    assert!(admitted.values().any(|count| *count > 0));
    assert!(admitted.values().all(|count| *count <= 3), "{:?}", admitted.values().max());
}

#[test]
fn m2_counting_apart_in_a_full_table_limits_as_well() {
    let mut full = Full::new(Algorithm::Buckets, &["300 per minute", "400 per hour"], false);
    full.flood(40_000);
    let sketched = full.table.entries();
    let key = b"a late key";
    let analyze = |full: &Full| full.table.analyze(&full.rules, key, IfBlocked::Tell, || full.now).unwrap().1;
    let mut counted = 0;
    while analyze(&full) == Analysis::Ok {
        full.table.increment(&full.rules, key, 1, None, || full.now).unwrap();
        counted += 1;
    }
    assert!((1..=300).contains(&counted), "{counted}");
    assert!(matches!(analyze(&full), Analysis::Limited { .. }), "the sketch keeps no blocks");
    assert_eq!(full.table.entries(), sketched);
    // A resolution longer than the period, as a block counts for that much longer.
    full.wait(69);
    assert_ne!(analyze(&full), Analysis::Ok);
}

#[test]
fn m2_a_peek_in_a_full_table_says_what_a_hit_would() {
    let full = Full::new(Algorithm::TokenBucket, &["3 per hour burst 10"], false);
    full.flood(40_000);
    for key in 100_000..101_000 {
        let key = format!("key {key}");
        let ask =
            |intent| full.table.decide(Single::new(&full.rules, key.as_bytes(), 5, intent), || full.now).is_allowed();
        assert_eq!(ask(Intent::Peek), ask(Intent::Hit), "{key}");
    }
}

#[test]
fn m2_a_restart_does_not_lift_the_limits_of_sketched_keys() {
    let files = tempfile::tempdir().unwrap();
    let directory = tidegate_store::Directory::open(files.path()).unwrap();
    let mut full = Full::new(Algorithm::SlidingLog, &["30 per hour"], false);
    full.flood(20_000);
    let keys: Vec<u32> = (100_000..100_200).collect();
    let hits = |full: &Full| keys.iter().map(|key| (0..40).filter(|_| full.hit(*key)).count()).collect::<Vec<_>>();
    let before = hits(&full);
    assert!(before.iter().any(|count| *count > 0) && full.table.counts().sketched_allowed > 0);
    directory.save(&full.store, full.now).unwrap();
    full.store = directory.load(MAX_BYTES, Micros::MAX).unwrap().unwrap().store;
    full.table = full.store.table("full", full.table.shape(), &full.rules);
    let after = hits(&full);
    let worst = before.iter().zip(after).map(|(before, after)| before + after).max().unwrap();
    assert!(worst <= 30, "{worst}");
}
