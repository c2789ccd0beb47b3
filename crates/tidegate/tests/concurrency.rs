//! Exact under any interleaving: as many pass as the limit says, with a hundred threads at it.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Request, Rules};

const THREADS: usize = 100;

/// 100 threads, limit 10, 1,000 rounds: exactly 10 each time. On a real clock, within a long period.
#[track_caller]
fn check(algorithm: Algorithm, rounds: usize, hit: impl Fn(&Gate, usize, usize) -> bool + Sync) {
    let rules = Rules::new(algorithm, &["10 per day".parse().unwrap()]).unwrap();
    let by = |name: &str, by: &str| LimiterSpec::new(name, rules.clone()).by(None, &[by]);
    let gate = Gate::embedded(Policy::new(vec![by("user", "user"), by("ip", "ip")]).unwrap());
    let allowed: Vec<AtomicU32> = (0..rounds).map(|_| AtomicU32::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (gate, allowed, barrier, hit) = (&gate, &allowed, &barrier, &hit);
            scope.spawn(move || {
                for (round, allowed) in allowed.iter().enumerate() {
                    if round % 10 == 0 {
                        barrier.wait();
                    }
                    if hit(gate, round, thread) {
                        allowed.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    let counts: Vec<u32> = allowed.iter().map(|count| count.load(SeqCst)).collect();
    assert!(counts.iter().all(|count| *count == 10), "{counts:?}");
}

#[test]
fn a1_a_hundred_threads_get_exactly_ten() {
    // An average fades from one microsecond to the next: it promises no whole number.
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.name() != "average") {
        check(algorithm, 1_000, |gate, round, _| gate.hit("user", format!("key {round}")).unwrap().allowed);
    }
}

#[test]
fn a5_two_keys_at_once_never_lock_each_other_out() {
    // Every thread asks for one user and one address; which limiter is first differs by thread.
    check(Algorithm::SlidingLog, 1_000, |gate, round, thread| {
        let key = format!("key {round}").into_bytes();
        let attributes: [(&str, &[u8]); 2] = match thread % 2 {
            0 => [("user", &key), ("ip", &key)],
            _ => [("ip", &key), ("user", &key)],
        };
        gate.decide(&Request::of(None, &attributes)).unwrap().allowed
    });
}

#[test]
fn a1_batches_and_single_hits_share_one_count() {
    check(Algorithm::TokenBucket, 1_000, |gate, round, thread| {
        let key = format!("key {round}").into_bytes();
        match thread % 2 {
            0 => gate.hit("ip", &key).unwrap().allowed,
            _ => gate.decide_many("ip", &[&key], 1).unwrap()[0].allowed,
        }
    });
}
