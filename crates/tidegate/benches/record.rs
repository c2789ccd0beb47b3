//! What recording and watching cost: decisions at a million keys with and without them, in the same run, in turns.
//!
//! `cargo bench -p tidegate --bench record`. A gate that is not recorded beside one of which 1 % of the keys are recorded (the
//! default), then beside one of which all are; then one that keeps names, notes the keys that come first, is recorded by 1 % and has its figures read in
//! every round (many times as often as a monitor does), beside one that keeps names alone. Rounds alternate, and so does who goes first; a round's figure is divided by that of
//! the gate without a recording in the same round, and the median of these is told. Time is what the thread had of a processor, as
//! the machine may be busy with others; the recording's own thread is not in it.

#![allow(clippy::unwrap_used, reason = "a bench that cannot set itself up should stop")]

use std::path::Path;
use tidegate::{
    Algorithm, Clock, Gate, LimiterSpec, Policy, RECORD_BYTES_MIN, RecordSettings, RecordedKeys, Recording, Rules,
    Sample, Settings,
};

const KEYS: usize = 1_000_000;
const PER_ROUND: usize = 500_000;
const ROUNDS: usize = 40;

fn main() {
    println!("{:<34}{:>12}{:>12}{:>10}", "1M keys, one thread", "ns, best", "without", "ratio");
    compare("1 % of the keys recorded", Watched::No, Sample::millionths(10_000));
    compare("all keys recorded", Watched::No, Sample::ALL);
    compare("top keys, metrics, 1 % recorded", Watched::Yes, Sample::millionths(10_000));
}

/// Are the keys that come first noted, and the figures read?
#[derive(Clone, Copy, PartialEq)]
enum Watched {
    Yes,
    No,
}

fn compare(what: &str, watched: Watched, sample: Sample) {
    let folder = tempfile::tempdir().unwrap();
    let names = watched == Watched::Yes;
    let plain = gate(names, false);
    let (recorded, _recording) = recorded(&folder.path().join("recorded"), gate(names, names), sample);
    for key in 0..KEYS {
        [&plain, &recorded].iter().for_each(|gate| drop(gate.hit("bench", name(key)).unwrap()));
    }
    let (mut ratios, mut best) = (Vec::new(), [f64::MAX; 2]);
    for round in 0..ROUNDS {
        let keys = draw(round as u64);
        let (first, second) = if round % 2 == 0 { (&plain, &recorded) } else { (&recorded, &plain) };
        let read = |gate: &Gate| usize::from(watched == Watched::Yes && std::ptr::eq(gate, &raw const recorded));
        let (one, two) = (time(first, &keys, read(first)), time(second, &keys, read(second)));
        let (without, with) = if round % 2 == 0 { (one, two) } else { (two, one) };
        best = [best[0].min(without), best[1].min(with)];
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let stats = recorded.record_stats().unwrap();
    println!(
        "{what:<34}{:>12.0}{:>12.0}{:>9.3}x   {} written, {} dropped",
        best[1],
        best[0],
        ratios[ROUNDS / 2],
        stats.written,
        stats.dropped
    );
}

/// Nanoseconds a decision; its figures are read so many times meanwhile.
fn time(gate: &Gate, keys: &[String], reads: usize) -> f64 {
    let limiter = gate.limiter("bench").unwrap();
    let start = on_processor();
    for _ in 0..reads {
        std::hint::black_box(gate.limiters());
    }
    for key in keys {
        std::hint::black_box(gate.hit_on(&limiter, key.as_bytes(), 1).is_ok());
    }
    (on_processor() - start) / keys.len() as f64
}

/// Nanoseconds that this thread has run.
fn on_processor() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    told.split(' ').next().unwrap().parse().unwrap()
}

fn recorded(folder: &Path, gate: Gate, sample: Sample) -> (Gate, Recording) {
    let folder = folder.to_owned();
    let settings = RecordSettings { folder, sample, keys: RecordedKeys::Hashes, max_bytes: RECORD_BYTES_MIN };
    let recording = gate.record(&settings).unwrap();
    (gate, recording)
}

fn gate(names: bool, top_keys: bool) -> Gate {
    let rules = Rules::new(Algorithm::TokenBucket, &["1000000 per second".parse().unwrap()]).unwrap();
    let spec = LimiterSpec { names, top_keys, ..LimiterSpec::new("bench", rules) };
    let settings = Settings { max_memory: 1 << 30, ..Settings::default() };
    Gate::open(Policy::new(vec![spec]).unwrap(), &settings, Clock::process()).unwrap()
}

fn draw(seed: u64) -> Vec<String> {
    let mut state = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0)
    };
    (0..PER_ROUND).map(|_| name(next() % KEYS)).collect()
}

/// 16 bytes, like a user id.
fn name(key: usize) -> String {
    format!("user-{key:011}")
}
