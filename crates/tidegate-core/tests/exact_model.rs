//! Replicas that get their starts from one store, against the promises: random arrivals, departures, crashes, answers
//! that are late, lost or overtaken.
//!
//! After each step: no key has started more often in a window than its limit, over all replicas (P4), and no more of it
//! are under way than may be. In the end every request that waits is served within the windows that it takes, the store
//! holds nothing, and all places are forgotten (P2).
//!
//! `TIDEGATE_SEEDS=20000 TIDEGATE_SEED=7 cargo test --release -p tidegate-core --test exact_model`
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::BTreeMap;
use tidegate_core::replicas::{ReplicaId, Tally};
use tidegate_core::turnstile::{
    Bounds, Closed, Grant, KeyHash, Name, Outlook, PendingRequest, Permit, QuotaRequest, StoreTerms, Ticket, Turnstile,
};
use tidegate_core::{Limit, Micros};
use tidegate_testkit::{Random, number};

const SEEDS: u64 = 1_000;
const KEYS: u64 = 3;
const PERIOD: u64 = 100_000;

#[test]
fn p4_replicas_that_buy_never_start_more_than_the_limit() {
    let (seed, seeds) = (number("TIDEGATE_SEED", 1), number("TIDEGATE_SEEDS", SEEDS));
    let (mut starts, mut asks) = (0, 0);
    for seed in seed..seed + seeds {
        let _replay = Replay(seed);
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.come_to_rest();
        (starts, asks) = (starts + world.granted, asks + world.asked);
    }
    println!("{starts} starts by {asks} requests, {seeds} seeds from {seed}");
}

/// Says how a seed that fails is run again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("again: TIDEGATE_SEED={} TIDEGATE_SEEDS=1 cargo test -p tidegate-core --test exact_model", self.0);
        }
    }
}

struct World {
    random: Random,
    seed: u64,
    now: u64,
    bounds: Bounds,
    /// Messages are lost or late.
    lossy: bool,
    /// Replicas die. What they had under way ends only with their lease.
    deadly: bool,
    replicas: Vec<Replica>,
    next_replica: u64,
    store: BTreeMap<Name, Tally>,
    /// Questions that the store has not received yet, though no replica waits for the answer.
    lost: Vec<(ReplicaId, u64, QuotaRequest)>,
    starts: BTreeMap<(u64, u64), u32>,
    granted: u64,
    asked: u64,
}

struct Replica {
    id: ReplicaId,
    requests: u64,
    turnstile: Turnstile<u64>,
    people: BTreeMap<u64, Person>,
    next: u64,
    /// On their way to the store, and on their way back.
    there: Vec<(u64, PendingRequest)>,
    back: Vec<(PendingRequest, Grant)>,
}

struct Person {
    key: u64,
    state: State,
}

enum State {
    Waiting(Ticket),
    Through(Permit, u64),
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let mut small = |from: u64, to: u64| u32::try_from(from + random.below(to - from)).unwrap();
        let bounds = Bounds {
            limit: Limit::new(small(1, 6), micros(PERIOD)).unwrap(),
            in_flight: small(0, 4),
            total: small(1, 8),
            waiting: 10,
            waiting_weight: 1_000,
            keys: 100,
        };
        let (lossy, deadly) = (small(0, 2) == 1, small(0, 2) == 1);
        let mut world = World {
            random,
            seed,
            now: 1_000_000_000,
            bounds,
            lossy,
            deadly,
            replicas: Vec::new(),
            next_replica: 1,
            store: BTreeMap::new(),
            lost: Vec::new(),
            starts: BTreeMap::new(),
            granted: 0,
            asked: 0,
        };
        (0..3).for_each(|_| world.add_replica());
        world
    }

    fn add_replica(&mut self) {
        let mut turnstile = Turnstile::new(self.bounds);
        turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(5), call_all: false });
        let id = ReplicaId(self.next_replica);
        self.next_replica += 1;
        let (people, there, back) = (BTreeMap::new(), Vec::new(), Vec::new());
        self.replicas.push(Replica { id, requests: 0, turnstile, people, next: 0, there, back });
    }

    fn step(&mut self) {
        let at = usize::try_from(self.random.below(self.replicas.len() as u64)).unwrap();
        match self.random.below(20) {
            0..6 => self.arrive(at),
            6 => self.now += self.random.below(PERIOD / 4),
            7..10 => self.take_requests(at),
            10..13 => self.store_hears(at),
            13..16 => self.answer_comes(at),
            16 => self.finish(at, true),
            17 => self.finish(at, false),
            18 => self.leave(at),
            _ => self.fault(at),
        }
        self.hear(at);
        self.check();
    }

    fn arrive(&mut self, at: usize) {
        let (key, now) = (self.random.below(KEYS), micros(self.now));
        let replica = &mut self.replicas[at];
        let (hash, who) = (KeyHash::new(key, key), replica.next);
        let state = match replica.turnstile.pass(hash, now) {
            Ok(permit) => State::Through(permit, self.now / PERIOD),
            Err(_) => match replica.turnstile.wait_as(hash, name(key), 1, who, now) {
                Ok(ticket) => State::Waiting(ticket),
                Err(_) => return,
            },
        };
        if matches!(state, State::Through(..)) {
            *self.starts.entry((key, self.now / PERIOD)).or_default() += 1;
            self.granted += 1;
        }
        replica.next += 1;
        replica.people.insert(who, Person { key, state });
    }

    fn take_requests(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        while let Some(pending) = replica.turnstile.next_request(micros(self.now)) {
            assert!(
                replica.there.iter().all(|(_, other)| other.request.name != pending.request.name),
                "two requests of one key are out"
            );
            replica.requests += 1;
            replica.there.push((replica.requests, pending));
            self.asked += 1;
        }
    }

    fn store_hears(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        for (request, pending) in replica.there.drain(..) {
            let tally = self.store.entry(pending.request.name).or_default();
            let grant = tally.answer(replica.id, request, &pending.request, micros(self.now)).unwrap_or(Grant::FAILED);
            replica.back.push((pending, grant));
        }
    }

    fn answer_comes(&mut self, at: usize) {
        let now = micros(self.now);
        let replica = &mut self.replicas[at];
        for (pending, grant) in std::mem::take(&mut replica.back) {
            replica.turnstile.answered(pending, grant, now);
        }
    }

    /// A question or an answer is lost, the store receives a question long after, or a replica dies.
    fn fault(&mut self, at: usize) {
        let now = micros(self.now);
        let replica = &mut self.replicas[at];
        match self.random.below(4) {
            0 if self.lossy => {
                for (request, pending) in std::mem::take(&mut replica.there) {
                    self.lost.push((replica.id, request, pending.request));
                    replica.turnstile.answered(pending, Grant::FAILED, now);
                }
            }
            1 if self.lossy => {
                for (pending, _) in std::mem::take(&mut replica.back) {
                    replica.turnstile.answered(pending, Grant::FAILED, now);
                }
            }
            2 => {
                for (id, request, pending) in self.lost.drain(..) {
                    let _ = self.store.entry(pending.name).or_default().answer(id, request, &pending, now);
                }
            }
            3 if self.deadly => {
                self.replicas.remove(at);
                self.add_replica();
            }
            _ => {}
        }
    }

    fn finish(&mut self, at: usize, used: bool) {
        let now = micros(self.now);
        let replica = &mut self.replicas[at];
        let through = replica.people.iter().find(|(_, person)| matches!(person.state, State::Through(..)));
        let Some(who) = through.map(|(who, _)| *who) else { return };
        let Some(Person { key, state: State::Through(permit, window) }) = replica.people.remove(&who) else { return };
        if used {
            replica.turnstile.finish(permit, now);
        } else {
            *self.starts.get_mut(&(key, window)).unwrap() -= 1;
            replica.turnstile.give_back(permit, now);
        }
    }

    fn leave(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let waiting = replica.people.iter().find(|(_, person)| matches!(person.state, State::Waiting(_)));
        let Some(who) = waiting.map(|(who, _)| *who) else { return };
        let Some(Person { state: State::Waiting(ticket), .. }) = replica.people.remove(&who) else { return };
        replica.turnstile.leave(ticket, micros(self.now));
    }

    fn hear(&mut self, at: usize) {
        if at >= self.replicas.len() {
            return;
        }
        // A window may have turned since it was given the step's time.
        let window = self.now / PERIOD;
        let replica = &mut self.replicas[at];
        for who in replica.turnstile.called() {
            let Some(Person { key, state: State::Waiting(ticket) }) = replica.people.remove(&who) else {
                panic!("{}: {who} was called twice", self.seed)
            };
            let permit = match replica.turnstile.claim(ticket) {
                Ok(permit) => permit,
                // The store had failed for long. He waits on, and is called again.
                Err(ticket) => {
                    replica.turnstile.set_call(&ticket, who);
                    replica.people.insert(who, Person { key, state: State::Waiting(ticket) });
                    continue;
                }
            };
            *self.starts.entry((key, window)).or_default() += 1;
            self.granted += 1;
            replica.people.insert(who, Person { key, state: State::Through(permit, window) });
        }
    }

    fn check(&self) {
        let limit = self.bounds.limit.count();
        for ((key, window), starts) in &self.starts {
            assert!(*starts <= limit, "{}: {starts} starts of {key} in {window}, limit {limit}", self.seed);
        }
        if self.bounds.in_flight > 0 && !self.deadly {
            for key in 0..KEYS {
                let people = self.replicas.iter().flat_map(|replica| replica.people.values());
                let through = people.filter(|person| person.key == key && matches!(person.state, State::Through(..)));
                let count = through.count();
                assert!(count <= self.bounds.in_flight as usize, "{}: {count} of {key} under way", self.seed);
            }
        }
    }

    /// No more requests come, and messages arrive: the requests that wait are served, and then nothing is left.
    fn come_to_rest(&mut self) {
        self.lost.clear();
        // Whatever a dead replica held is given up.
        self.now += 11_000_000;
        let waiting = |world: &World| world.replicas.iter().map(|replica| replica.turnstile.waiting()).sum::<u32>();
        let windows = waiting(self) * u32::try_from(KEYS).unwrap() + 10;
        let end = self.now + u64::from(windows) * PERIOD;
        while self.now < end {
            self.now += PERIOD / 20;
            for at in 0..self.replicas.len() {
                self.replicas[at].turnstile.turn(micros(self.now));
                self.hear(at);
                self.take_requests(at);
                self.store_hears(at);
                self.answer_comes(at);
                self.hear(at);
                while self.replicas[at].people.values().any(|person| matches!(person.state, State::Through(..))) {
                    self.finish(at, true);
                    self.hear(at);
                }
            }
            self.check();
        }
        assert_eq!(waiting(self), 0, "{}: a request waits for ever", self.seed);
        for replica in &mut self.replicas {
            replica.turnstile.tend(micros(self.now + 10 * PERIOD));
            assert_eq!(replica.turnstile.in_flight(), 0, "{}", self.seed);
            assert_eq!(replica.turnstile.next_request_at(), None, "{}: something is left to ask", self.seed);
            assert_eq!(replica.turnstile.keys(), 0, "{}: a key is not forgotten", self.seed);
        }
        let held: u32 = self.store.values().map(|tally| tally.held(micros(self.now))).sum();
        assert_eq!(held, 0, "{}: the store holds slots that no request has", self.seed);
    }
}

/// Three replicas with more demand than the limit: each window all of it is used, by few questions.
#[test]
fn p4_all_starts_are_used_when_there_is_demand() {
    let limit = Limit::new(30, micros(PERIOD)).unwrap();
    let bounds = Bounds { limit, in_flight: 0, total: 1_000, waiting: 1_000, waiting_weight: 1_000, keys: 10 };
    let (mut tally, mut requests, key) = (Tally::default(), 0, KeyHash::new(1, 1));
    let mut replicas: Vec<Turnstile<()>> = (0..3).map(|_| Turnstile::new(bounds)).collect();
    for turnstile in &mut replicas {
        turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(1), call_all: false });
        for _ in 0..100 {
            let _ = turnstile.wait_as(key, name(1), 1, (), micros(50 * PERIOD)).unwrap();
        }
    }
    for window in 50..60 {
        for millis in [0, 1, 50, 99] {
            let now = micros(window * PERIOD + millis * 1_000);
            for (id, turnstile) in (1..).zip(&mut replicas) {
                turnstile.turn(now);
                while let Some(pending) = turnstile.next_request(now) {
                    requests += 1;
                    let grant = tally.answer(ReplicaId(id), requests, &pending.request, now).unwrap();
                    turnstile.answered(pending, grant, now);
                }
            }
        }
        assert_eq!(tally.started(window), 30, "window {window}");
    }
    let served: usize = replicas.iter_mut().map(|turnstile| turnstile.called().len()).sum();
    assert_eq!(served, 300);
    assert!(requests < 100, "{requests} requests for {served} starts");
}

/// A store that does not answer: for a while requests wait for it, then none does.
#[test]
fn a_store_that_fails_is_waited_for_and_then_given_up() {
    let limit = Limit::new(3, micros(PERIOD)).unwrap();
    let bounds = Bounds { limit, in_flight: 0, total: 10, waiting: 10, waiting_weight: 100, keys: 10 };
    let (mut turnstile, key, start) = (Turnstile::new(bounds), KeyHash::new(1, 1), 50 * PERIOD);
    turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(1), call_all: false });
    assert_eq!(turnstile.pass(key, micros(start)), Err(Closed::Unknown));
    let ticket = turnstile.wait_as(key, name(1), 1, "called", micros(start)).unwrap();
    let fail = |turnstile: &mut Turnstile<&str>, at| {
        let pending = turnstile.next_request(micros(at)).unwrap();
        turnstile.answered(pending, Grant::FAILED, micros(at));
    };
    fail(&mut turnstile, start);
    assert_eq!((turnstile.why(&ticket), turnstile.called()), (Some(Closed::Unknown), vec![]));
    assert_eq!(turnstile.next_request(micros(start + 1_000)), None, "it is left alone for a while");
    fail(&mut turnstile, start + 1_000_000);
    assert_eq!((turnstile.why(&ticket), turnstile.called()), (Some(Closed::StoreFailed), vec!["called"]));
    assert_eq!(turnstile.pass(key, micros(start + 1_000_000)), Err(Closed::StoreFailed));
    let pending = turnstile.next_request(micros(start + 2_000_000)).unwrap();
    let grant = Grant { granted: pending.request.want, outlook: Outlook::Open };
    turnstile.answered(pending, grant, micros(start + 2_000_000));
    let permit = turnstile.claim(ticket).unwrap();
    turnstile.finish(permit, micros(start + 2_000_000));
}

fn name(key: u64) -> Name {
    Name((u128::from(key) + 1).to_be_bytes())
}

fn micros(us: u64) -> Micros {
    Micros::new(us).unwrap()
}

/// A replica that was short of slots and wants no more reports that: otherwise the others would keep some for it.
#[test]
fn p3_a_want_that_has_gone_is_withdrawn() {
    let limit = Limit::new(9, micros(PERIOD)).unwrap();
    let bounds = Bounds { limit, in_flight: 4, total: 10, waiting: 10, waiting_weight: 100, keys: 10 };
    let (mut turnstile, key, start) = (Turnstile::new(bounds), KeyHash::new(1, 1), 50 * PERIOD);
    turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(1), call_all: false });
    let ticket = turnstile.wait_as(key, name(1), 1, (), micros(start)).unwrap();
    let pending = turnstile.next_request(micros(start)).unwrap();
    let full = Grant { granted: 0, outlook: Outlook::Full };
    turnstile.answered(pending, full, micros(start));
    turnstile.leave(ticket, micros(start + 1_000));
    let pending = turnstile.next_request(micros(start + 30_000)).unwrap();
    assert_eq!((pending.request.want, pending.request.held), (0, 0));
    turnstile.answered(pending, Grant { outlook: Outlook::Open, ..full }, micros(start + 31_000));
    assert_eq!(turnstile.next_request_at(), None);
}

/// A key that cannot be answered is given up, though others are; and one that can be is not refused for its sake.
#[test]
fn one_key_that_fails_is_given_up_by_itself() {
    let limit = Limit::new(9, micros(PERIOD)).unwrap();
    let bounds = Bounds { limit, in_flight: 0, total: 10, waiting: 10, waiting_weight: 100, keys: 10 };
    let (mut turnstile, start) = (Turnstile::new(bounds), 50 * PERIOD);
    turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(1), call_all: false });
    let (bad, good) = (KeyHash::new(1, 1), KeyHash::new(2, 2));
    let _ticket = turnstile.wait_as(bad, name(1), 1, (), micros(start)).unwrap();
    for now in (start..start + 1_500_000).step_by(100_000) {
        let ticket = turnstile.wait_as(good, name(2), 1, (), micros(now)).unwrap();
        while let Some(pending) = turnstile.next_request(micros(now)) {
            let grant = match pending.request.name == name(1) {
                true => Grant::FAILED,
                false => Grant { granted: pending.request.want, outlook: Outlook::Open },
            };
            turnstile.answered(pending, grant, micros(now));
        }
        let permit = turnstile.claim(ticket).unwrap();
        turnstile.finish(permit, micros(now));
    }
    assert_eq!(turnstile.pass(bad, micros(start + 1_500_000)), Err(Closed::StoreFailed));
    assert_ne!(turnstile.pass(good, micros(start + 1_500_000)), Err(Closed::StoreFailed));
}
