//! Decisions in process, beside governor in the same run: nanoseconds each, and the ratio.
//!
//! `cargo bench -p tidegate --bench decisions [-- --quick]`. One and two threads, one key to ten
//! million, single and in batches of 64. Keys are drawn at random from a set that was touched
//! once before; both sides spend the same time on drawing and formatting them, which is measured
//! apart and subtracted from neither. Rounds of both alternate, and the best round counts: noise on a
//! shared machine only adds. Bytes a key are resident memory before and after filling a table.

#![allow(clippy::unwrap_used, reason = "a bench that cannot set itself up should stop")]

use governor::{DefaultKeyedRateLimiter, Quota};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, Gate, Hit, LimiterSpec, Policy, Rules, Settings};

/// Per day, and as many at once: so slow that no key is as if never used by the time that the housekeeping looks, which would drop it, and the
/// next hit would make it anew.
const COUNT: u32 = 1_000;
const INTERVAL: Duration = Duration::from_millis(86_400);
const BATCH: usize = 64;

fn main() {
    if let Some(what) = std::env::args().skip_while(|arg| arg != "--bytes").nth(1) {
        return bytes_of(&what);
    }
    let quick = std::env::args().any(|arg| arg == "--quick");
    let rounds = if quick { 1 } else { 3 };
    bytes_per_key();
    println!();
    println!(
        "{:<34}{:>10}{:>12}{:>8}{:>12}{:>8}",
        "ns per decision", "governor", "tidegate", "ratio", "batch", "ratio"
    );
    let sizes: &[usize] = if quick { &[1, 10_000, 1_000_000] } else { &[1, 10_000, 1_000_000, 10_000_000] };
    for &keys in sizes {
        for threads in [1, 2] {
            compare(keys, threads, rounds);
        }
    }
}

fn quota() -> Quota {
    Quota::with_period(INTERVAL).unwrap().allow_burst(NonZeroU32::new(COUNT).unwrap())
}

fn compare(keys: usize, threads: usize, rounds: usize) {
    let peer = Arc::new(DefaultKeyedRateLimiter::<String>::keyed(quota()));
    let gate = gate(false, 4 << 30);
    let ours = gate.limiter("bench").unwrap();
    for key in 0..keys {
        let _ = peer.check_key(&name(key));
        let _ = gate.hit_on(&ours, name(key).as_bytes(), 1);
    }
    let mut best = [f64::MAX; 3];
    for _ in 0..rounds {
        let governor = time(keys, threads, |keys, _| {
            for key in keys {
                std::hint::black_box(peer.check_key(key).is_ok());
            }
        });
        let single = time(keys, threads, |_, keys| {
            for key in keys {
                std::hint::black_box(
                    gate.hit_on(&ours, key, 1).is_ok_and(|ruling| ruling.is_some_and(|ruling| ruling.is_allowed())),
                );
            }
        });
        let batch = time(keys, threads, |_, keys| {
            let mut hits = Vec::with_capacity(BATCH);
            for keys in keys.chunks(BATCH) {
                hits.clear();
                hits.extend(keys.iter().filter_map(|key| Hit::new(&ours, key).ok()));
                gate.hit_each(&hits, &gate.batch(gate.now()), |_, answer| {
                    std::hint::black_box(answer);
                });
            }
        });
        for (best, found) in best.iter_mut().zip([governor, single, batch]) {
            *best = best.min(found);
        }
    }
    let [governor, single, batch] = best;
    println!(
        "{:<34}{governor:>10.0}{single:>12.0}{:>7.1}x{batch:>12.0}{:>7.1}x",
        format!("{keys} keys, {threads} thread(s)"),
        governor / single,
        governor / batch
    );
}

/// Wall nanoseconds per decision and thread.
fn time(keys: usize, threads: usize, act: impl Fn(&[String], &[&[u8]]) + Sync) -> f64 {
    const PER_THREAD: usize = 1_000_000;
    let sets: Vec<Vec<String>> = (0..threads).map(|thread| draw(keys, PER_THREAD, thread as u64)).collect();
    // Each side gets the keys in the form that it takes.
    let slices: Vec<Vec<&[u8]>> = sets.iter().map(|set| set.iter().map(|key| key.as_bytes()).collect()).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (set, slices) in sets.iter().zip(&slices) {
            scope.spawn(|| act(set, slices));
        }
    });
    nanos(start.elapsed()) / PER_THREAD as f64
}

fn draw(keys: usize, many: usize, seed: u64) -> Vec<String> {
    let mut state = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0)
    };
    (0..many).map(|_| name(next() % keys)).collect()
}

/// 16 bytes, like a user id.
fn name(key: usize) -> String {
    format!("user-{key:011}")
}

fn gate(names: bool, max_memory: usize) -> Gate {
    let rules = Rules::new(Algorithm::TokenBucket, &[format!("{COUNT} per day").parse().unwrap()]).unwrap();
    let spec = LimiterSpec { names, ..LimiterSpec::new("bench", rules) };
    let settings = Settings { max_memory, ..Settings::default() };
    Gate::open(Policy::new(vec![spec]).unwrap(), &settings, Clock::process()).unwrap()
}

/// Each in a process of its own, as memory that one has freed would hide what the next one takes.
fn bytes_per_key() {
    println!("{:<34}{:>12}{:>12}", "bytes a key at 1M, 16-byte keys", "resident", "accounted");
    for what in ["hashes", "names", "governor"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap()).arg("--bytes").arg(what).status();
        assert!(child.is_ok_and(|status| status.success()));
    }
}

fn bytes_of(what: &str) {
    const KEYS: usize = 1_000_000;
    let per_key = |bytes: usize| bytes as f64 / KEYS as f64;
    let before = resident();
    if what == "governor" {
        let peer = DefaultKeyedRateLimiter::<String>::keyed(Quota::per_minute(NonZeroU32::new(10).unwrap()));
        for key in 0..KEYS {
            let _ = peer.check_key(&name(key));
        }
        println!("{:<34}{:>12.1}", "governor, String keys", per_key(resident() - before));
        return;
    }
    // A slow limit, so that no entry is ever equal to a fresh one.
    let rules = Rules::new(Algorithm::TokenBucket, &["10 per day".parse().unwrap()]).unwrap();
    let spec = LimiterSpec { names: what == "names", ..LimiterSpec::new("bench", rules) };
    let gate = Gate::embedded(Policy::new(vec![spec]).unwrap());
    for key in 0..KEYS {
        let _ = gate.hit("bench", name(key));
    }
    let label = if what == "names" { "tidegate, names kept" } else { "tidegate, hashes only" };
    println!("{label:<34}{:>12.1}{:>12.1}", per_key(resident() - before), per_key(gate.usage().bytes));
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
    pages * 4096
}

fn nanos(span: Duration) -> f64 {
    span.as_secs_f64() * 1e9
}
