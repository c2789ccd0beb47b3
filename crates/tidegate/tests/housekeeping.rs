//! A library user makes a gate and asks it: idle keys go, and memory comes back, without another call.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::fs;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, Policy, Rules, Settings};
use tidegate_testkit::eventually;

const KEYS: usize = 20_000;

fn gate(clock: Clock) -> Gate {
    let rules = Rules::new(Algorithm::TokenBucket, &["1 per 10ms".parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    Gate::open(policy, &Settings { max_memory: 8 << 20, path: None }, clock).unwrap()
}

fn fill(gate: &Gate) {
    (0..KEYS).for_each(|key| assert!(gate.hit("api", format!("key {key}")).unwrap().allowed));
}

/// Threads of this process that tend a gate.
fn tending() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    tasks.filter(|name| fs::read_to_string(name).is_ok_and(|name| name.trim() == "tidegate-tend")).count()
}

/// Nothing dropped them: the table filled up with idle keys, and new ones were counted by the sketch.
#[test]
fn m1_idle_keys_are_dropped_without_a_call_and_the_thread_ends_with_the_gate() {
    let gate = gate(Clock::process());
    fill(&gate);
    let full = gate.usage();
    eventually("idle keys are dropped", || gate.usage().entries < full.entries);
    eventually("their memory is given back", || gate.usage().bytes < full.bytes);
    let clone = gate.clone();
    drop(gate);
    assert_eq!((clone.hit("api", "still there").unwrap().allowed, tending()), (true, 1));
    drop(clone);
    eventually("the thread ends", || tending() == 0);
}

/// A replay must come out the same every time: nobody but its owner moves on what a clock set by hand stamps.
#[test]
fn a_gate_with_a_clock_set_by_hand_is_tended_by_its_owner() {
    let clock = Clock::manual(Micros::from_secs(1_000));
    let gate = gate(clock.clone());
    assert_eq!(tending(), 0);
    fill(&gate);
    clock.set(Micros::from_secs(2_000));
    (0..16).for_each(|_| gate.tend());
    assert_eq!(gate.usage().entries, 0);
}
