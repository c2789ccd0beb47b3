//! How long the slowest decisions take: while a table grows, while a snapshot is written; and how long loading takes.
//!
//! `cargo bench -p tidegate-store --bench tail [-- --quick]`. Every decision is timed by itself. Beside each run stands the same number of
//! decisions while nothing grows and nothing is saved, or while another thread only writes as large a file: what the machine does to a
//! program that does nothing special. A tail is worth what it is above that one. Growing comes three times, with the same hashes: the
//! shortest of a decision's three times is what it takes itself, without what the machine had for others.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot set itself up should stop")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_store::{Clock, Directory, Memory, Shape, Single, Table};

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let part = if quick { 10 } else { 1 };
    println!(
        "{:<52}{:>8}{:>8}{:>8}{:>9}{:>10}{:>10}",
        "ns per decision", "p50", "p99", "p99.9", "p99.99", "p99.999", "max"
    );
    for names in [false, true] {
        grow(5_000_000 / part, names);
    }
    save(2_000_000 / part);
    load(10_000_000 / part);
}

struct Limiter {
    store: Memory,
    table: Arc<Table>,
    rules: Rules,
    clock: Clock,
}

impl Limiter {
    fn new(names: bool) -> Limiter {
        let rules = Rules::new(Algorithm::TokenBucket, &["10 per day".parse().unwrap()]).unwrap();
        Limiter::on(Memory::new(4 << 30, Some([1, 2])), rules, names)
    }

    fn on(store: Memory, rules: Rules, names: bool) -> Limiter {
        let shape = Shape { algorithm: Algorithm::TokenBucket, limits: 1, names, stats: false };
        let table = store.table("tail", shape, &rules);
        Limiter { store, table, rules, clock: Clock::process() }
    }

    fn hit(&self, key: &str) {
        let ruling = self.table.decide(Single::new(&self.rules, key.as_bytes(), 1, Intent::Hit), || self.clock.now());
        std::hint::black_box(ruling.is_allowed());
    }

    /// Hits these keys, and how long each took.
    fn timed(&self, keys: impl Iterator<Item = usize>, goes_on: impl Fn() -> bool) -> Vec<u32> {
        let mut spans = Vec::with_capacity(8 << 20);
        for key in keys {
            let key = name(key);
            let start = Instant::now();
            self.hit(&key);
            spans.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
            if !goes_on() {
                break;
            }
        }
        spans
    }
}

/// From nothing to so many keys.
fn grow(keys: usize, names: bool) {
    let what = if names { "names kept" } else { "hashes only" };
    let mut shortest: Vec<u32> = Vec::new();
    for _ in 0..3 {
        let limiter = Limiter::new(names);
        let spans = limiter.timed(0..keys, || true);
        shortest = if shortest.is_empty() { spans.clone() } else { shorter(&shortest, &spans) };
        report(&format!("a table grows to {keys} keys, {what}"), spans);
        report("  the same keys again: nothing grows", limiter.timed(0..keys, || true));
    }
    report("  growing, the shortest of three", shortest);
}

/// A snapshot is written three times, one right after the other.
fn save(keys: usize) {
    let limiter = Limiter::new(true);
    (0..keys).for_each(|key| limiter.hit(&name(key)));
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let while_another = |act: &(dyn Fn() + Sync)| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..3).for_each(|_| act());
                done.store(true, Relaxed);
            });
            let drawn = (0_usize..).map(|turn| turn.wrapping_mul(2_654_435_761) % keys);
            limiter.timed(drawn, || !done.load(Relaxed))
        })
    };
    let saving = while_another(&|| directory.save(&limiter.store, limiter.clock.now()).unwrap());
    report(&format!("a snapshot of {keys} keys is written"), saving);
    let bytes = std::fs::metadata(folder.path().join("snapshot")).unwrap().len();
    let writing = while_another(&|| {
        let mut file = std::fs::File::create(folder.path().join("control")).unwrap();
        let block = vec![7; 1 << 16];
        (0..bytes >> 16).for_each(|_| file.write_all(&block).unwrap());
        file.sync_all().unwrap();
    });
    report("  as large a file is written: nothing is saved", writing);
}

fn load(keys: usize) {
    for names in [false, true] {
        let limiter = Limiter::new(names);
        (0..keys).for_each(|key| limiter.hit(&name(key)));
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let start = Instant::now();
        directory.save(&limiter.store, limiter.clock.now()).unwrap();
        let saved = start.elapsed().as_secs_f64();
        let rules = limiter.rules.clone();
        drop(limiter);
        let start = Instant::now();
        let store = directory.load(4 << 30, Micros::MAX).unwrap().unwrap().store;
        let loaded = start.elapsed().as_secs_f64();
        let limiter = Limiter::on(store, rules, names);
        assert_eq!(limiter.table.entries(), keys);
        let what = if names { "names kept" } else { "hashes only" };
        println!("{keys} keys, {what}: saved in {saved:.2} s, loaded in {loaded:.2} s");
    }
}

fn shorter(some: &[u32], others: &[u32]) -> Vec<u32> {
    some.iter().zip(others).map(|(a, b)| *a.min(b)).collect()
}

fn report(what: &str, mut spans: Vec<u32>) {
    spans.sort_unstable();
    let at = |of_100_000: usize| spans[(spans.len() * of_100_000 / 100_000).min(spans.len() - 1)];
    let [p50, p99, p999, p9999, p99999] = [50_000, 99_000, 99_900, 99_990, 99_999].map(at);
    println!("{what:<52}{p50:>8}{p99:>8}{p999:>8}{p9999:>9}{p99999:>10}{:>10}", at(100_000));
}

fn name(key: usize) -> String {
    format!("user-{key:011}")
}
