//! T2: the time of a decision is read while the key's state is held, so that decisions on a key have their times in the
//! order in which they are made.
//!
//! The clock here gives a later time to every reader. Were it read before the lock, a thread could come to the state with
//! a time that another has passed already: to a bucket that earns one token between two readings, a step back, in which
//! nothing is earned.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_store::{Memory, Shape, Single};

const THREADS: usize = 8;
const HITS: usize = 20_000;
/// What one token takes to come.
const TOKEN: Micros = Micros::from_millis(1);

#[test]
fn t2_the_time_is_read_under_the_lock() {
    let rules = Rules::new(Algorithm::TokenBucket, &["1 per 1ms".parse().unwrap()]).unwrap();
    let shape = Shape { algorithm: Algorithm::TokenBucket, limits: 1, names: false, stats: false };
    let table = Memory::new(1 << 20, None).table("api", shape, &rules);
    let clock = AtomicU64::new(Micros::from_secs(1_000).get());
    let barrier = Barrier::new(THREADS);
    let hit = || {
        let now = || Micros::new(clock.fetch_add(TOKEN.get(), Relaxed)).unwrap();
        table.decide(Single::new(&rules, b"key", 1, Intent::Hit), now).is_allowed()
    };
    let denied: usize = std::thread::scope(|scope| {
        let threads = std::array::from_fn::<_, THREADS, _>(|_| {
            scope.spawn(|| {
                barrier.wait();
                (0..HITS).filter(|_| !hit()).count()
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(denied, 0, "of {} decisions, so many had a time older than the one before", THREADS * HITS);
}
