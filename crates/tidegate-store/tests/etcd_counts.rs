//! Counts in etcd against the core, number for number, and from several processes at once.
//!
//! `TIDEGATE_SEED=7 TIDEGATE_STEPS=100000 cargo nextest run -p tidegate-store --test etcd_counts`
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::time::Duration;
use tidegate_core::all_or_nothing::{self, Intent, Room, Ruling, Subject};
use tidegate_core::{Algorithm, Limit, Micros, Rules, State};
use tidegate_store::etcd::{Counts, Etcd};
use tidegate_store::{Asked, Clock, Layout, Question, StoreError};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers::etcd::Etcd as Server;
use tidegate_testkit::{Random, number};
use tokio::time::Instant;

/// Steps in all, over all limits.
const STEPS: u64 = 3_000;
/// Few, so that each meets its limits.
const KEYS: usize = 3;
const START_US: u64 = 1_700_000_000_000_000;

const LIMITS: [&[&str]; 5] = [
    &["3 per minute"],
    &["5 per 97s block 30s"],
    &["10 per 20s", "40 per hour block 2m", "100 per day"],
    &["0 per hour"],
    &["4294967295 per 366d"],
];

/// A process: what it has seen of the etcd is its own.
async fn process(endpoints: &str, clock: &Clock) -> Counts {
    Counts::new(Etcd::open(endpoints.parse().unwrap()).await, clock.clone())
}

fn rules(texts: &[&str]) -> Rules {
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    Rules::new(Algorithm::AlignedWindow, &limits).unwrap()
}

fn question<'a>(limiter: &'a str, rules: &'a Rules, key: &'a [u8]) -> Question<'a> {
    Question { limiter, rules, key, names: false, layout: Layout::Native, role: Default::default(), own: None }
}

fn by() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn asked(cost: u32, intent: Intent) -> Asked {
    Asked { now: None, cost, intent, explain: false, by: by() }
}

async fn hit(counts: &Counts, limiter: &str, rules: &Rules, key: &[u8]) -> Result<bool, StoreError> {
    Ok(counts.decide(&[question(limiter, rules, key)], &asked(1, Intent::Hit)).await?.1[0].ruling.is_allowed())
}

/// One to three keys at once, by two processes in turn, at times that also go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn etcd_counts_as_the_core_does() {
    let server = Server::start();
    let clock = Clock::manual(Micros::saturating(START_US));
    let processes = [process(&server.endpoints(), &clock).await, process(&server.endpoints(), &clock).await];
    let (seed, steps) = (number("TIDEGATE_SEED", 1), number("TIDEGATE_STEPS", STEPS));
    for (index, texts) in LIMITS.iter().enumerate() {
        let mut run = Run {
            name: format!("limiter-{index}"),
            keys: (0..KEYS).map(|key| Key::new(key, &rules(texts))).collect(),
            rules: rules(texts),
            dice: Random(seed ^ (index as u64) << 32),
            clock: &clock,
        };
        for step in 0..steps / LIMITS.len() as u64 {
            run.step(&processes, &format!("TIDEGATE_SEED={seed}, {texts:?}, step {step}")).await;
        }
    }
    assert_eq!(server.keys_without_lease(), Vec::<String>::new(), "A9: everything has a lease");
}

struct Run<'a> {
    name: String,
    rules: Rules,
    keys: Vec<Key>,
    dice: Random,
    clock: &'a Clock,
}

struct Key {
    name: Vec<u8>,
    states: Vec<State>,
    blocked_until: Micros,
}

impl Run<'_> {
    async fn step(&mut self, processes: &[Counts; 2], what: &str) {
        let now = self.pass_time();
        let dice = &mut self.dice;
        let capacity = u64::from(self.rules.limits()[0].count());
        let cost = match dice.below(10) {
            0 => 0,
            1 => dice.below(capacity + 2),
            2 => dice.below(capacity / 3 + 2),
            _ => 1,
        };
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let intent = if dice.below(6) == 0 { Intent::Peek } else { Intent::Hit };
        let explain = dice.below(5) == 0;
        let several = if dice.below(4) == 0 { 1 + dice.index(KEYS) } else { 1 };
        let first = dice.index(KEYS);
        let chosen: Vec<usize> = (0..several).map(|step| (first + step) % KEYS).collect();
        let process = &processes[dice.index(2)];

        let expected = self.expected(&chosen, now, cost, intent);
        let questions: Vec<Question<'_>> =
            chosen.iter().map(|key| question(&self.name, &self.rules, &self.keys[*key].name)).collect();
        let (at, told) = process.decide(&questions, &Asked { explain, ..asked(cost, intent) }).await.unwrap();
        let context = format!("{what}: at {now:?} {intent:?} of {cost} by {chosen:?}");
        let rulings: Vec<Ruling> = told.iter().map(|answer| answer.ruling).collect();
        assert_eq!((at, rulings), (now, expected), "{context}");
        for (key, answer) in chosen.iter().zip(&told) {
            assert_eq!(answer.decisions.len(), if explain { self.rules.limits().len() } else { 0 });
            if intent == Intent::Hit {
                assert_eq!(answer.blocked_until > now, self.keys[*key].blocked_until > now, "{context}");
            }
        }
    }

    /// What the core says.
    fn expected(&mut self, chosen: &[usize], now: Micros, cost: u32, intent: Intent) -> Vec<Ruling> {
        let mut states: Vec<Vec<State>> = chosen.iter().map(|key| self.keys[*key].states.clone()).collect();
        let parts = chosen.iter().zip(&mut states);
        let mut subjects: Vec<Subject<'_>> = parts
            .map(|(key, states)| {
                let blocked_until = self.keys[*key].blocked_until;
                Subject {
                    rules: &self.rules,
                    blocked_until,
                    states,
                    room: Room::Free,
                    role: Default::default(),
                    own: None,
                }
            })
            .collect();
        let rulings = all_or_nothing::decide_all(&mut subjects, now, cost, intent);
        let blocked: Vec<Micros> = subjects.iter().map(|subject| subject.blocked_until).collect();
        if intent == Intent::Hit {
            for ((key, states), blocked_until) in chosen.iter().zip(states).zip(blocked) {
                (self.keys[*key].states, self.keys[*key].blocked_until) = (states, blocked_until);
                self.keys[*key].forget_if_fresh(&self.rules, now);
            }
        }
        rulings
    }

    /// Mostly onward by some of a period; sometimes not at all, or a jump, or back.
    fn pass_time(&mut self) -> Micros {
        let limits = self.rules.limits();
        let period = limits[self.dice.index(limits.len())].period().get();
        let dice = &mut self.dice;
        let now = self.clock.now().get();
        let now = match dice.below(40) {
            0..8 => now,
            8..30 => now + dice.below(period / 3),
            30..34 => now + dice.below(period * 2),
            34..36 => now + period,
            36 => now - now % period + period,
            37 => now.saturating_sub(dice.below(period)),
            38 => now.saturating_sub(dice.below(period * 3)),
            _ => now.saturating_sub(period),
        };
        let now = now % (1 << 51);
        self.clock.set(Micros::saturating(now));
        Micros::new(now).unwrap()
    }
}

impl Key {
    fn new(index: usize, rules: &Rules) -> Key {
        let name = format!("key {index} / é \u{1}").into_bytes();
        Key { name, states: rules.fresh(), blocked_until: Micros::ZERO }
    }

    /// As every store does: an entry equal to a fresh key is dropped.
    fn forget_if_fresh(&mut self, rules: &Rules, now: Micros) {
        let mut pairs = rules.checks().zip(&self.states);
        if self.blocked_until <= now && pairs.all(|(check, state)| state.status(check, now).reset_after.is_zero()) {
            (self.states, self.blocked_until) = (rules.fresh(), Micros::ZERO);
        }
    }
}

/// Two processes, 64 hits each at once: exactly the limit, in few transactions. Half of the requests bring a second
/// key, which must be charged as often as they pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2_a5_many_at_once_from_two_processes_pass_exactly_the_limit() {
    let server = Server::start();
    let clock = Clock::manual(Micros::saturating(START_US));
    let processes = [process(&server.endpoints(), &clock).await, process(&server.endpoints(), &clock).await];
    let (ten, many) = (rules(&["10 per day"]), rules(&["1000000 per day"]));
    for round in 0..20 {
        let key = format!("round {round}").into_bytes();
        let hits = (0..128_usize).map(|number| {
            let (counts, ten, many, key) = (processes[number % 2].clone(), ten.clone(), many.clone(), key.clone());
            tokio::spawn(async move {
                let mut questions = vec![question("ten", &ten, &key)];
                if number >= 64 {
                    questions.push(question("many", &many, &key));
                }
                let (_, told) = counts.decide(&questions, &asked(1, Intent::Hit)).await.unwrap();
                (number >= 64, told.iter().all(|answer| answer.ruling.is_allowed()))
            })
        });
        let (mut passed, mut both) = (0, 0);
        for hit in hits.collect::<Vec<_>>() {
            let (is_both, allowed) = hit.await.unwrap();
            passed += u32::from(allowed);
            both += u32::from(allowed && is_both);
        }
        assert_eq!(passed, 10, "round {round}");
        let peek = question("many", &many, &key);
        let (_, told) = processes[0].decide(&[peek], &asked(1, Intent::Peek)).await.unwrap();
        assert_eq!(told[0].ruling.decision.remaining, 1_000_000 - both, "round {round}: charged as often as passed");
    }
    let trips = processes[0].round_trips() + processes[1].round_trips();
    println!("{trips} transactions for {} decisions", 20 * 129);
    assert!(trips < 20 * 129 / 2, "{trips} transactions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_uncontended_decision_is_one_round_trip() {
    let server = Server::start();
    let clock = Clock::manual(Micros::saturating(START_US));
    let counts = process(&server.endpoints(), &clock).await;
    let five = rules(&["5 per minute"]);
    for expected in [true, true, true, true, true, false, false] {
        assert_eq!(hit(&counts, "five", &five, b"k").await, Ok(expected));
    }
    assert_eq!(counts.round_trips(), 7);
    clock.set(Micros::saturating(START_US + 60_000_000));
    assert_eq!(hit(&counts, "five", &five, b"k").await, Ok(true), "the next window");
    assert_eq!(counts.round_trips(), 8);
    // What somebody else does to the key is seen, for one round trip more.
    server.control("del --prefix tidegate/count/");
    assert_eq!(hit(&counts, "five", &five, b"k").await, Ok(true));
    assert_eq!(counts.round_trips(), 10);
}

/// The original took a lease for the window's clock: a change of leader gave the lease its full time again, and the
/// count with it. Here the leader dies in the middle of two windows, and each holds what it may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_change_of_leader_neither_restarts_nor_extends_a_count() {
    let mut server = Server::three();
    let clock = Clock::manual(Micros::saturating(START_US));
    let counts = process(&server.endpoints(), &clock).await;
    let three = rules(&["3 per minute"]);
    for window in 1..=2 {
        let mut passed = 0;
        for _ in 0..2 {
            passed += u32::from(hit(&counts, "three", &three, b"k").await.unwrap());
        }
        let leader = server.leader();
        server.members[leader].kill();
        assert_ne!(server.leader(), leader);
        // A process that knows nothing yet sees the same.
        let other = process(&server.endpoints(), &clock).await;
        for counts in [&counts, &other, &counts, &other] {
            passed += u32::from(hit_when_it_answers(counts, &three).await);
        }
        assert_eq!(passed, 3, "window {window}");
        server.members[leader].start_again(&[]);
        // To the very start of the next window.
        clock.set(Micros::saturating(START_US - START_US % 60_000_000 + window * 60_000_000));
    }
}

/// While nobody leads there is no answer, and nothing is charged.
async fn hit_when_it_answers(counts: &Counts, rules: &Rules) -> bool {
    let since = Instant::now();
    loop {
        match hit(counts, "three", rules, b"k").await {
            Ok(allowed) => return allowed,
            Err(error) => assert!(!error.is_ambiguous() && since.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A decision whose reply is lost may have been charged, and is never made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a7_a_lost_reply_charges_once_at_most() {
    let server = Server::start();
    let proxy = Proxy::before(server.members[0].port);
    let clock = Clock::manual(Micros::saturating(START_US));
    let counts = process(&format!("http://127.0.0.1:{}", proxy.port), &clock).await;
    let ten = rules(&["10 per minute"]);
    let (mut passed, mut lost) = (0, 0);
    for number in 0..40 {
        if number % 4 == 3 {
            proxy.strike(Fault::Cut(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match hit(&counts, "ten", &ten, b"k").await {
            Ok(allowed) => passed += u32::from(allowed),
            Err(error) => {
                assert!(error.is_ambiguous(), "{error}");
                lost += 1;
            }
        }
    }
    proxy.set(Fault::None);
    assert!(lost >= 5, "{lost}");
    assert!(passed <= 10 && passed + lost >= 10, "{passed} passed, {lost} lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn flags_and_refusals() {
    let server = Server::start();
    let clock = Clock::manual(Micros::saturating(START_US));
    let counts = process(&server.endpoints(), &clock).await;
    assert_eq!(counts.disabled(&["a", "b"], by()).await, Ok(vec![false, false]));
    counts.set_disabled("b", true, by()).await.unwrap();
    assert_eq!(counts.disabled(&["a", "b"], by()).await, Ok(vec![false, true]));
    counts.set_disabled("b", false, by()).await.unwrap();
    assert_eq!(counts.disabled(&["a", "b"], by()).await, Ok(vec![false, false]));

    let other = Rules::new(Algorithm::TokenBucket, &["3 per minute".parse().unwrap()]).unwrap();
    assert!(matches!(hit(&counts, "a", &other, b"k").await, Err(StoreError::Unsupported(_))));
    server.control("put tidegate/count/a/k nonsense");
    let error = hit(&counts, "a", &rules(&["3 per minute"]), b"k").await.unwrap_err().to_string();
    assert!(error.contains("no count, under the key tidegate/count/a/k; delete it"), "{error}");
}
