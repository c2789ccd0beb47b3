//! The turnstile against a model that only knows the promises: random arrivals, cancellations at every
//! point, clock steps and changed limits.
//!
//! The model keeps plain lists and counts afresh for every question. After each step it checks: no key over
//! its starts in a window (P4), none over what may be under way, everyone served in the order of arrival (P3),
//! no request waits that could start (P1), no key passed over while another had two turns (P3), and that what the
//! turnstile says of itself is so. In the end all requests leave, and nothing is left (P2).
//!
//! `TIDEGATE_CANCELS=20000000 TIDEGATE_SEED=7 cargo test --release -p tidegate-core --test turnstile_model`
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::BTreeMap;
use tidegate_core::turnstile::{Bounds, KeyHash, LineFull, Permit, Ticket, Turnstile};
use tidegate_core::{Limit, Micros};
use tidegate_testkit::{Random, number};

/// How many times a request leaves, in line, called or with a permit in hand; more with the variable TIDEGATE_CANCELS.
const CANCELS: u64 = 100_000;

#[test]
fn p1_p2_p3_p4_random_cancel_points() {
    let (seed, wanted) = (number("TIDEGATE_SEED", 1_u64), number("TIDEGATE_CANCELS", CANCELS));
    let (mut cancels, mut steps, mut round) = (0, 0, 0);
    while cancels < wanted {
        let mut world = World::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        for _ in 0..4_000 {
            world.step();
        }
        world.all_leave();
        (cancels, steps, round) = (cancels + world.cancels, steps + world.steps, round + 1);
    }
    println!("{cancels} cancellations in {steps} steps, {round} rounds, seed {seed}");
}

struct World {
    random: Random,
    now: u64,
    /// The latest window that the turnstile has seen: going back does not count.
    seen: u64,
    bounds: Bounds,
    turnstile: Turnstile<u32>,
    people: BTreeMap<u32, Person>,
    next: u32,
    /// Starts by key and window.
    starts: BTreeMap<(u64, u64), u32>,
    /// Turns that others had while a key could have started, by (passed over, other).
    turns: BTreeMap<(u64, u64), u32>,
    cancels: u64,
    steps: u64,
    seed: u64,
}

struct Person {
    key: u64,
    came: u64,
    state: State,
}

enum State {
    Waiting(Ticket),
    Called(Ticket, u64),
    Through(Permit, u64),
    OnTheMove,
}

const KEYS: u64 = 5;

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let bounds = random_bounds(&mut random);
        World {
            random,
            now: 1_000_000,
            seen: 0,
            bounds,
            turnstile: Turnstile::new(bounds),
            people: BTreeMap::new(),
            next: 0,
            starts: BTreeMap::new(),
            turns: BTreeMap::new(),
            cancels: 0,
            steps: 0,
            seed,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.random.below(16) {
            0..5 => self.arrive(),
            5 => self.pass_time(),
            6 => {
                let now = self.now();
                if self.random.below(2) == 0 {
                    self.turnstile.turn(now);
                } else {
                    self.turnstile.tend(now);
                }
            }
            7..9 => self.claim(),
            9 => self.someone(Self::again),
            10..12 => self.someone(Self::finish),
            _ => self.someone(Self::cancel),
        }
        if self.random.below(2_000) == 0 {
            self.change();
        }
        self.hear();
        for key in (0..KEYS).filter(|key| !self.is_ready(*key)).collect::<Vec<_>>() {
            self.turns.retain(|(passed_over, _), _| *passed_over != key);
        }
        self.check();
    }

    fn arrive(&mut self) {
        let (key, who) = (self.random.below(KEYS), self.next);
        let (hash, now) = (KeyHash::new(key, key), self.now());
        let passed = self.turnstile.pass(hash, now);
        // Before he joins: his coming may have turned the window for the others.
        self.hear();
        let state = match passed {
            Ok(permit) => {
                assert!(!self.is_waiting(key), "{}: passed the line of {key}", self.seed);
                State::Through(permit, self.start(key))
            }
            Err(_) => match self.turnstile.wait(hash, 3, who, now) {
                Ok(ticket) => State::Waiting(ticket),
                Err(LineFull) => {
                    let waiting = self.in_line();
                    assert!(waiting >= self.bounds.waiting || u64::from(waiting) * 3 + 3 > self.bounds.waiting_weight);
                    return;
                }
            },
        };
        self.next += 1;
        self.people.insert(who, Person { key, came: u64::from(who), state });
    }

    /// Mostly a little, sometimes over a boundary or several, sometimes back.
    fn pass_time(&mut self) {
        let period = self.bounds.limit.period().get();
        self.now = match self.random.below(8) {
            0 => self.now.saturating_sub(self.random.below(2 * period)).max(1_000_000),
            1 => self.now + self.random.below(3 * period),
            2 => self.now - self.now % period + period,
            _ => self.now + self.random.below(period / 4 + 1),
        };
    }

    /// Notes the requests whose turn has come, in order.
    fn hear(&mut self) {
        for who in self.turnstile.called() {
            let key = self.people[&who].key;
            let first = self.people.values().filter(|p| p.key == key && matches!(p.state, State::Waiting(_)));
            let first = first.map(|person| person.came).min();
            assert_eq!(Some(self.people[&who].came), first, "{}: {who} before its turn", self.seed);
            let window = self.start(key);
            let person = self.people.get_mut(&who).unwrap();
            let State::Waiting(ticket) = std::mem::replace(&mut person.state, State::OnTheMove) else {
                panic!("{}: {who} was called twice", self.seed)
            };
            person.state = State::Called(ticket, window);
            self.note_turn(key);
        }
    }

    fn note_turn(&mut self, key: u64) {
        self.turns.retain(|(passed_over, _), _| *passed_over != key);
        for other in (0..KEYS).filter(|other| *other != key) {
            if self.is_ready(other) {
                let turns = self.turns.entry((other, key)).or_default();
                *turns += 1;
                // One turn may have been due already when the other joined the line.
                assert!(*turns <= 2, "{}: {key} had {turns} turns while {other} was ready", self.seed);
            } else {
                self.turns.retain(|(passed_over, _), _| *passed_over != other);
            }
        }
    }

    fn claim(&mut self) {
        self.someone(|world, who, person| match person.state {
            State::Called(ticket, window) => {
                let permit = world.turnstile.claim(ticket).unwrap();
                world.people.insert(who, Person { state: State::Through(permit, window), ..person });
            }
            State::Waiting(ticket) => {
                let ticket = world.turnstile.claim(ticket).unwrap_err();
                world.turnstile.set_call(&ticket, who);
                world.people.insert(who, Person { state: State::Waiting(ticket), ..person });
            }
            state => drop(world.people.insert(who, Person { state, ..person })),
        });
    }

    /// Leaves, wherever he is.
    fn cancel(&mut self, _who: u32, person: Person) {
        self.cancels += 1;
        let now = self.now();
        match person.state {
            State::Waiting(ticket) => self.turnstile.leave(ticket, now),
            State::Called(ticket, window) => {
                self.unstart(person.key, window);
                self.turnstile.leave(ticket, now);
            }
            State::Through(permit, window) => {
                self.unstart(person.key, window);
                self.turnstile.give_back(permit, now);
            }
            State::OnTheMove => unreachable!("only inside hear"),
        }
    }

    fn finish(&mut self, who: u32, person: Person) {
        match person.state {
            State::Through(permit, _) => {
                let now = self.now();
                self.turnstile.finish(permit, now);
            }
            state => drop(self.people.insert(who, Person { state, ..person })),
        }
    }

    /// Comes too late with its permit: as the first of the requests that came with it or after it.
    fn again(&mut self, who: u32, person: Person) {
        match person.state {
            State::Through(permit, window) => {
                self.unstart(person.key, window);
                let (order, now) = (micros(person.came), self.now());
                let ticket = self.turnstile.again(permit, order, 3, who, now);
                // The model serves by arrival; requests that never came back are behind all that did.
                self.people.insert(who, Person { state: State::Waiting(ticket), ..person });
                self.hear();
            }
            state => drop(self.people.insert(who, Person { state, ..person })),
        }
    }

    fn change(&mut self) {
        let period = self.bounds.limit.period();
        // A request that has its turn by the time alone has it by the old bounds.
        let now = self.now();
        self.turnstile.turn(now);
        self.hear();
        self.bounds = random_bounds(&mut self.random);
        // Another period makes other windows; the model follows the same ones.
        self.bounds.limit = Limit::new(self.bounds.limit.count(), period).unwrap();
        self.turnstile.set_bounds(self.bounds, now);
        self.turns.clear();
    }

    fn someone(&mut self, act: impl FnOnce(&mut World, u32, Person)) {
        if self.people.is_empty() {
            return;
        }
        let at = usize::try_from(self.random.below(self.people.len() as u64)).unwrap();
        let who = *self.people.keys().nth(at).unwrap();
        let person = self.people.remove(&who).unwrap();
        act(self, who, person);
    }

    fn all_leave(&mut self) {
        while let Some((who, person)) = self.people.pop_first() {
            self.cancel(who, person);
            self.hear();
        }
        assert_eq!((self.turnstile.waiting(), self.turnstile.waiting_weight()), (0, 0), "{}", self.seed);
        assert_eq!(self.turnstile.in_flight(), 0, "{}: a permit leaked", self.seed);
        assert_eq!(self.turnstile.next_turn(), None, "{}", self.seed);
        // After the latest window that it has seen: the clock may stand far behind it.
        self.turnstile.tend(micros((self.seen + 10) * self.bounds.limit.period().get()));
        assert_eq!(self.turnstile.keys(), 0, "{}: a key is not forgotten", self.seed);
    }

    fn start(&mut self, key: u64) -> u64 {
        let window = self.seen;
        let starts = self.starts.entry((key, window)).or_default();
        *starts += 1;
        // What a lower limit found started stays started.
        assert!(*starts <= self.bounds.limit.count(), "{}: {starts} starts of {key}", self.seed);
        window
    }

    fn unstart(&mut self, key: u64, window: u64) {
        *self.starts.get_mut(&(key, window)).unwrap() -= 1;
    }

    fn check(&self) {
        assert_eq!(self.turnstile.waiting(), self.in_line(), "{}", self.seed);
        assert_eq!(self.turnstile.in_flight(), self.under_way(None), "{}", self.seed);
        for key in 0..KEYS {
            let could = self.is_ready(key) && self.under_way(None) < self.bounds.total;
            assert!(!could, "{}: {key} waits for nothing", self.seed);
        }
    }

    /// The time that the turnstile is given.
    fn now(&mut self) -> Micros {
        self.seen = self.seen.max(self.now / self.bounds.limit.period().get());
        micros(self.now)
    }

    /// A request waits, and nothing but the total can hold it back.
    fn is_ready(&self, key: u64) -> bool {
        self.is_waiting(key) && !self.is_limited(key) && !self.is_full(key)
    }

    fn is_limited(&self, key: u64) -> bool {
        let starts = self.starts.get(&(key, self.seen)).copied().unwrap_or(0);
        starts >= self.bounds.limit.count()
    }

    fn is_full(&self, key: u64) -> bool {
        self.bounds.in_flight > 0 && self.under_way(Some(key)) >= self.bounds.in_flight
    }

    fn is_waiting(&self, key: u64) -> bool {
        self.people.values().any(|person| person.key == key && matches!(person.state, State::Waiting(_)))
    }

    fn in_line(&self) -> u32 {
        count(self.people.values().filter(|person| matches!(person.state, State::Waiting(_))))
    }

    fn under_way(&self, key: Option<u64>) -> u32 {
        let people = self.people.values().filter(|person| key.is_none_or(|key| person.key == key));
        count(people.filter(|person| !matches!(person.state, State::Waiting(_))))
    }
}

fn count<T>(all: impl Iterator<Item = T>) -> u32 {
    u32::try_from(all.count()).unwrap()
}

fn random_bounds(random: &mut Random) -> Bounds {
    let small = |random: &mut Random, from: u64, to: u64| u32::try_from(from + random.below(to - from)).unwrap();
    Bounds {
        limit: Limit::new(small(random, 0, 5), Micros::from_millis(10)).unwrap(),
        in_flight: small(random, 0, 4),
        total: small(random, 1, 8),
        waiting: small(random, 1, 12),
        waiting_weight: 3 * u64::from(small(random, 1, 12)),
        keys: 100,
    }
}

fn micros(us: u64) -> Micros {
    Micros::new(us).unwrap()
}
