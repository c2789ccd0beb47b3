//! Replicas that count at a store while clocks are set: in simulated time, with what the upstream sees by the true clock.
//!
//! A replica's own clock only goes ahead and stays there. The store's goes ahead and back. A replica whose window the store
//! refuses sets its clock by the store's.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::collections::BTreeMap;
use tidegate_core::Micros;
use tidegate_core::replicas::{ReplicaId, Tally};
use tidegate_core::turnstile::{Bounds, Closed, Grant, KeyHash, Name, StoreTerms, Ticket, Turnstile};

const LIMIT: u32 = 6;
const PERIOD_US: u64 = 1_000_000;
const STEP_US: u64 = 10_000;
const START_US: u64 = 1_700_000_000_500_000;
const KEY: KeyHash = KeyHash::new(1, 2);

struct Replica {
    turnstile: Turnstile<()>,
    tickets: Vec<Ticket>,
    /// The process's clock less the true time.
    process_us: i64,
    /// The clock of windows less the process's.
    set_us: i64,
    asked: u64,
}

impl Replica {
    fn new() -> Replica {
        let limit = format!("{LIMIT} per 1s").parse().unwrap();
        let bounds = Bounds { limit, in_flight: 0, total: 99, waiting: 99, waiting_weight: 99, keys: 9 };
        let mut turnstile = Turnstile::new(bounds);
        turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(3), call_all: false });
        Replica { turnstile, tickets: Vec::new(), process_us: 0, set_us: 0, asked: 0 }
    }

    fn now(&self, at_us: u64) -> Micros {
        Micros::new(at_us.checked_add_signed(self.process_us + self.set_us).unwrap()).unwrap()
    }

    /// One step of time: there are always requests in line. Returns how many started, and how many were refused as the store
    /// had failed for too long.
    fn step(&mut self, me: u64, tally: &mut Tally, at_us: u64, store_us: i64) -> (u32, u32) {
        let now = self.now(at_us);
        let mut failed = 0;
        while self.tickets.len() < 12 {
            if self.turnstile.pass(KEY, now) == Err(Closed::StoreFailed) {
                failed += 1;
                break;
            }
            self.tickets.push(self.turnstile.wait_as(KEY, Name::default(), 1, (), now).unwrap());
        }
        self.turnstile.turn(now);
        while let Some(pending) = self.turnstile.next_request(self.now(at_us)) {
            self.asked += 1;
            let theirs = Micros::new(at_us.checked_add_signed(store_us).unwrap()).unwrap();
            let grant = tally.answer(ReplicaId(me), self.asked, &pending.request, theirs);
            self.turnstile.answered(pending, grant.unwrap_or(Grant::FAILED), self.now(at_us));
            if grant.is_none() {
                let ahead = store_us - self.process_us - self.set_us;
                self.set_us += ahead;
                let ahead = Micros::saturating(ahead.max(0).unsigned_abs());
                self.turnstile.clock_was_set(self.now(at_us), ahead);
            }
        }
        (self.start_called(at_us), failed)
    }

    /// The requests whose turn has come start, and end at once.
    fn start_called(&mut self, at_us: u64) -> u32 {
        let now = self.now(at_us);
        let mut started = 0;
        for ticket in std::mem::take(&mut self.tickets) {
            match self.turnstile.claim(ticket) {
                Ok(permit) if now < permit.until() => {
                    self.turnstile.finish(permit, now);
                    started += 1;
                }
                Ok(permit) => self.turnstile.give_back(permit, now),
                Err(ticket) => self.tickets.push(ticket),
            }
        }
        started
    }
}

/// Clocks as `AT REPLICA|store SECONDS`: at this second after the start a clock is set so far ahead. In every window by the
/// true clock at most the limit starts, and all of it in those that are named `full`.
#[track_caller]
fn check(clocks: &str, seconds: u64, full: &[u64]) {
    let (mut replicas, mut tally) = ([(); 3].map(|()| Replica::new()), Tally::default());
    let (mut store_us, mut starts) = (0_i64, BTreeMap::<u64, u32>::new());
    let mut events: Vec<(u64, &str, i64)> = clocks
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0].parse().unwrap(), words[1], words[2].parse::<i64>().unwrap() * 1_000_000)
        })
        .collect();
    for at_us in (START_US..START_US + seconds * 1_000_000).step_by(STEP_US.try_into().unwrap()) {
        while events.first().is_some_and(|(at, ..)| START_US + at * 1_000_000 <= at_us) {
            match events.remove(0) {
                (_, "store", ahead_us) => store_us = ahead_us,
                (_, who, ahead_us) => replicas[who.parse::<usize>().unwrap()].process_us = ahead_us,
            }
        }
        for (me, replica) in (0..).zip(&mut replicas) {
            let (started, failed) = replica.step(me, &mut tally, at_us, store_us);
            *starts.entry((at_us - START_US + PERIOD_US / 2) / PERIOD_US).or_default() += started;
            assert_eq!(failed, 0, "{clocks}: refused as if the store had failed");
        }
    }
    assert!(starts.values().all(|started| *started <= LIMIT), "{clocks}: more than {LIMIT} in a window: {starts:?}");
    for window in full {
        assert_eq!(starts[window], LIMIT, "{clocks}: window {window} of {starts:?}");
    }
}

#[test]
fn t1_p4_a_replica_whose_clock_was_ahead_goes_by_the_stores_again() {
    check("", 6, &[1, 2, 3, 4, 5]);
    check("2 0 5", 8, &[1, 2, 3, 4, 5, 6, 7]);
    check("2 0 5\n 2 1 5\n 2 2 5", 8, &[1, 2, 3, 4, 5, 6, 7]);
    check("2 0 3600\n 3 1 86400\n 4 2 5", 8, &[1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn t1_p4_a_store_whose_clock_was_ahead_counts_again_within_two_windows() {
    // Ahead at 2 s, and back at 5 s.
    check("2 store 5\n 5 store 0", 10, &[1, 4, 7, 8, 9]);
    check("2 store 3600\n 5 store 0", 10, &[1, 4, 7, 8, 9]);
    // One replica went with it and stays ahead.
    check("2 store 5\n 3 0 5\n 5 store 0", 10, &[1, 4, 7, 8, 9]);
}
