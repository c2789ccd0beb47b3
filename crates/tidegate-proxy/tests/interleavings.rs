//! The waiting line's shell under thousands of interleavings, and its futures dropped at random points.
//!
//! The shell is the very file of the crate, on shuttle's locks instead of the system's.
//! `TIDEGATE_INTERLEAVINGS=100000 TIDEGATE_CANCELS=1000000 cargo test --release -p tidegate-proxy --test interleavings`
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![allow(dead_code, reason = "the shell has more than is used here")]

mod sync {
    pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
}

#[path = "../src/queue.rs"]
mod queue;
#[path = "../src/window_clock.rs"]
mod window_clock;

use queue::{Census, Queue, Slot};
use std::task::{Context, Poll, Waker};
use sync::Arc;
use tidegate::{Clock, Micros};
use tidegate_core::turnstile::{Bounds, Grant, KeyHash, Name, Outlook, StoreTerms};
use tidegate_testkit::{Random, number};
use window_clock::WindowClock;

const INTERLEAVINGS: usize = 1_000;
const CANCELS: u64 = 20_000;

fn bounds(count: u32, in_flight: u32, total: u32) -> Bounds {
    let limit = tidegate::Limit::new(count, Micros::from_secs(1)).unwrap();
    Bounds { limit, in_flight, total, waiting: 1_000, waiting_weight: 1_000_000, keys: 100 }
}

const EMPTY: Census = Census { waiting: 0, in_flight: 0, keys: 0 };

/// Threads that pass, wait, leave in the middle and give back; a window turns among them. No request is lost.
#[test]
fn p1_p2_no_wakeup_is_lost_and_no_permit_leaks() {
    let rounds = usize::try_from(number("TIDEGATE_INTERLEAVINGS", INTERLEAVINGS as u64)).unwrap();
    shuttle::check_random(
        || {
            let clock = Clock::manual(Micros::from_secs(100));
            let queue = Arc::new(Queue::new(bounds(2, 1, 2), WindowClock::new(clock.clone())));
            let threads: Vec<_> = (0..4_u64)
                .map(|who| {
                    let (queue, clock) = (Arc::clone(&queue), clock.clone());
                    shuttle::thread::spawn(move || shuttle::future::block_on(visit(queue, &clock, who)))
                })
                .collect();
            let turning = {
                let (queue, clock) = (Arc::clone(&queue), clock.clone());
                shuttle::thread::spawn(move || {
                    for second in 101..104 {
                        clock.set(Micros::from_secs(second));
                        let _ = queue.turn();
                        shuttle::thread::yield_now();
                    }
                })
            };
            turning.join().unwrap();
            // The requests that are left wait for a window: they come one after the other.
            for (second, thread) in (104..).zip(threads) {
                clock.set(Micros::from_secs(second));
                let _ = queue.turn();
                clock.set(Micros::from_secs(second + 100));
                let _ = queue.turn();
                thread.join().unwrap();
            }
            let census = queue.census();
            assert_eq!((census.waiting, census.in_flight), (0, 0));
        },
        rounds,
    );
}

/// Waits twice; every other visitor leaves at his first wait.
async fn visit(queue: Arc<Queue>, clock: &Clock, who: u64) {
    let key = KeyHash::new(who % 2, 7);
    match queue.pass(key, clock.now()) {
        Ok(slot) if who == 3 => drop(slot),
        Ok(mut slot) => {
            slot.start();
            shuttle::thread::yield_now();
            drop(slot);
        }
        Err(_) => {
            let Ok(waiting) = queue.wait(key, 1) else { return };
            if who == 2 {
                let mut waiting = waiting;
                let _ = std::pin::Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
                shuttle::thread::yield_now();
                drop(waiting);
            } else {
                if let Ok(mut slot) = waiting.await {
                    slot.start();
                }
            }
        }
    }
}

/// Futures dropped after any number of polls, slots dropped, started or exchanged: nothing is left.
#[test]
fn p1_p2_futures_dropped_at_random_points() {
    let wanted = number("TIDEGATE_CANCELS", CANCELS);
    let per_run = 2_000;
    static ROUND: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    shuttle::check_random(
        move || {
            let clock = Clock::manual(Micros::from_secs(100));
            let queue = Arc::new(Queue::new(bounds(3, 2, 5), WindowClock::new(clock.clone())));
            let seed = ROUND.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (mut random, mut cancels, mut now) = (Random(seed), 0, 100_000);
            let mut waiting: Vec<queue::Waiting> = Vec::new();
            let mut slots: Vec<Slot> = Vec::new();
            let mut cx = Context::from_waker(Waker::noop());
            while cancels < per_run {
                match random.below(8) {
                    0..3 => {
                        let key = KeyHash::new(random.below(4), 7);
                        match queue.pass(key, clock.now()) {
                            Ok(slot) => slots.push(slot),
                            Err(_) => waiting.extend(queue.wait(key, 1)),
                        }
                    }
                    3 if !waiting.is_empty() => {
                        let at = random.index(waiting.len());
                        if let Poll::Ready(Ok(slot)) = std::pin::Pin::new(&mut waiting[at]).poll(&mut cx) {
                            drop(waiting.swap_remove(at));
                            slots.push(slot);
                        }
                    }
                    4 if !waiting.is_empty() => {
                        drop(waiting.swap_remove(random.index(waiting.len())));
                        cancels += 1;
                    }
                    5 if !slots.is_empty() => {
                        let mut slot = slots.swap_remove(random.index(slots.len()));
                        cancels += 1;
                        match random.below(3) {
                            0 => drop(slot),
                            1 => slot.start(),
                            _ => waiting.push(slot.again(Micros::from_millis(now), 1, false)),
                        }
                    }
                    6 => {
                        now += random.below(400);
                        clock.set(Micros::from_millis(now));
                        let _ = queue.turn();
                    }
                    7 if random.below(50) == 0 => queue.tend(),
                    _ => {}
                }
            }
            waiting.clear();
            slots.clear();
            clock.set(Micros::from_secs(10_000));
            queue.tend();
            assert_eq!(queue.census(), EMPTY);
        },
        usize::try_from(wanted / per_run).unwrap().max(1),
    );
}

/// The task that asks the store sleeps until something is due: looking does not wake it.
#[test]
fn who_asks_the_store_is_woken_for_what_is_due_earlier_and_for_nothing_else() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    shuttle::check_random(
        || {
            let clock = Clock::manual(Micros::from_secs(100));
            let queue = Arc::new(Queue::new(bounds(2, 1, 2), WindowClock::new(clock.clone())));
            queue.count_at_store(StoreTerms { outage_max: Micros::from_secs(3), call_all: false });
            let count = std::sync::Arc::new(Count(Default::default()));
            let (waker, woken) =
                (Waker::from(std::sync::Arc::clone(&count)), || count.0.load(std::sync::atomic::Ordering::Relaxed));
            assert_eq!(queue.requests(&waker, 9), Err(None));
            let _waiting = queue.wait_as(KeyHash::new(1, 7), Name([1; 16]), 1, false);
            assert_eq!(woken(), 1, "there is something to ask");
            let pending = queue.requests(&waker, 9).unwrap().pop().unwrap();
            queue.answered(pending, Grant { granted: 0, outlook: Outlook::Exhausted });
            let before = woken();
            for _ in 0..3 {
                assert!(matches!(queue.requests(&waker, 9), Err(Some(_))), "it is asked again later");
                let _ = queue.turn();
            }
            assert_eq!(woken(), before, "woken for nothing");
        },
        1,
    );
}
