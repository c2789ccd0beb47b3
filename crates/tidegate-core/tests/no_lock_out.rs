//! A9: after a period of silence a key is admitted again, whatever it did before.
//!
//! Two counters (`sliding-window`) weigh the window before the present one and may want a second period of silence, and
//! `buckets` a resolution more. With a clock that steps back it may take one more period: times that lie ahead by up to one hold until the clock has
//! caught up with them. A block ends at a time, and not after one, so that a clock that is set back lengthens it
//! (docs/guide/time.md). Averages promise no period of silence: a rate fades, and a strict one has no bound.
//!
//! `TIDEGATE_SEEDS=1000000 TIDEGATE_SEED=7 cargo test --release -p tidegate-core --test no_lock_out`
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate_core::all_or_nothing::{self, Intent, Room, Subject};
use tidegate_core::buckets::Grid;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_testkit::{Random, number};

const SEEDS: u64 = 2_000;
/// Long after the epoch, so that steps back stay behind it.
const START: u64 = 1_700_000_000_000_000;

#[test]
fn a9_after_a_period_of_silence_a_key_is_admitted() {
    let first = number("TIDEGATE_SEED", 1);
    for seed in first..first + number("TIDEGATE_SEEDS", SEEDS) {
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.name() != "average") {
            run(algorithm, seed, Steps::Ahead);
            run(algorithm, seed, Steps::AheadAndBack);
        }
    }
}

/// How a clock may move.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Steps {
    Ahead,
    AheadAndBack,
}

/// Requests of any cost while the clock runs, stands, leaps and perhaps steps back; then silence, then one request.
#[track_caller]
fn run(algorithm: Algorithm, seed: u64, steps: Steps) {
    let mut random = Random(seed);
    let rules = rules(algorithm, &mut random);
    let longest = rules.limits().iter().map(|limit| limit.period().get()).max().unwrap();
    let (mut states, mut blocked_until, mut now) = (rules.fresh(), Micros::ZERO, START);
    let mut hit = |blocked_until: &mut Micros, now: u64, cost: u32| {
        let mut subject = Subject {
            rules: &rules,
            blocked_until: *blocked_until,
            states: &mut states,
            room: Room::Free,
            role: Default::default(),
            own: None,
        };
        let ruling = all_or_nothing::decide(&mut subject, Micros::new(now).unwrap(), cost, Intent::Hit);
        *blocked_until = subject.blocked_until;
        ruling
    };
    for _ in 0..random.below(40) {
        now = match random.below(if steps == Steps::Ahead { 10 } else { 12 }) {
            0..4 => now,
            4..9 => now + random.below(longest / 2),
            9 => now + random.below(longest * 3),
            10 => now - random.below(longest),
            _ => now - random.below(longest * 50),
        };
        let _ = hit(&mut blocked_until, now, random.small(4));
    }
    let silent_until = (now + silence(&rules, steps)).max(blocked_until.get());
    let ruling = hit(&mut blocked_until, silent_until, 1);
    assert!(
        ruling.is_allowed(),
        "A9, {algorithm:?} {steps:?} {:?}: {ruling:?}\nagain: TIDEGATE_SEED={seed} TIDEGATE_SEEDS=1 cargo nextest run -p tidegate-core a9_",
        rules.limits()
    );
}

/// How long is long enough, in microseconds.
fn silence(rules: &Rules, steps: Steps) -> u64 {
    let longest = rules.limits().iter().map(|limit| limit.period().get()).max().unwrap();
    let back = if steps == Steps::AheadAndBack { longest } else { 0 };
    back + match rules.algorithm() {
        Algorithm::SlidingWindow => 2 * longest,
        Algorithm::Buckets => longest + rules.grid().resolution().get(),
        _ => longest,
    }
}

/// One or two limits, of which every other has a block.
fn rules(algorithm: Algorithm, random: &mut Random) -> Rules {
    let limits: Vec<_> = (0..1 + random.below(2))
        .map(|_| {
            let (count, seconds) = (1 + random.below(6), 1 + random.below(90));
            let block = if random.below(2) == 0 { String::new() } else { format!(" block {}s", 1 + random.below(200)) };
            format!("{count} per {seconds}s{block}").parse().unwrap()
        })
        .collect();
    match algorithm {
        Algorithm::Buckets => Rules::buckets(Grid::new(Micros::from_secs(1), Micros::from_secs(100)).unwrap(), &limits),
        _ => Rules::new(algorithm, &limits),
    }
    .unwrap()
}
