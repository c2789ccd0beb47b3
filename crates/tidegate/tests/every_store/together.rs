//! Several requests that are charged together or not at all, each at its own cost: what the embedded store answers is written down here, and every other store must
//! answer the same, in a random run too.

use crate::play::T;
use crate::stores::{Store, patient};
use std::time::Duration;
use tidegate::{
    Algorithm, Answer, AskError, Clock, Counts, Gate, Grid, LimiterSpec, Micros, OnFailure, Policy, Reason, Request,
    Rules, StoreError, StoreSettings,
};
use tidegate_testkit::{Random, number};

/// Two limiters, of which the first has a candidate and the second blocks; requests name keys of both, and several of one.
fn limiters(algorithm: Algorithm, run: &str) -> Vec<LimiterSpec> {
    let rules = |limit: &str| {
        let limits = [limit.parse().unwrap()];
        let rules = match algorithm {
            Algorithm::Buckets => {
                Rules::buckets(Grid::new(Micros::from_secs(10), Micros::from_secs(120)).unwrap(), &limits)
            }
            _ => Rules::new(algorithm, &limits),
        };
        rules.unwrap()
    };
    let of = |name: &str, limit: &str| LimiterSpec::new(name, rules(limit)).in_scope(format!("together-{run}-{name}"));
    let small = LimiterSpec { candidate_rules: Some(rules("3 per minute")), ..of("small", "5 per minute") };
    vec![small, of("large", "20 per minute block 2m")]
}

/// `small/k hit 2 & large/k peek 1`.
fn ask(store: &Store, gate: &Gate, text: &str) -> Vec<Answer> {
    let requests: Vec<Request<'_>> = text
        .split('&')
        .map(|part| {
            let words: Vec<&str> = part.split_whitespace().collect();
            let (limiter, key) = words[0].split_once('/').unwrap();
            let request = Request::hit(limiter, key.as_bytes()).cost(words[2].parse().unwrap());
            if words[1] == "peek" { request.peek() } else { request }
        })
        .collect();
    store.wait(gate.ask_together(&requests, Duration::from_secs(5))).unwrap()
}

fn told(answers: &[Answer]) -> String {
    let one = |answer: &Answer| {
        let wait = answer.retry_after.map_or(String::new(), |wait| format!(" retry={}", wait.get()));
        format!("{} left={}{wait}", if answer.allowed { "allow" } else { "deny" }, answer.remaining.unwrap())
    };
    answers.iter().map(one).collect::<Vec<_>>().join(" & ")
}

const SCRIPT: &str = "
    small/a hit 2 & large/a hit 10                -> allow left=3 & allow left=10
    small/a hit 4 & large/a hit 1                 -> deny left=3 retry=40000000 & allow left=10
    small/a hit 1 & large/a peek 10               -> allow left=2 & allow left=10
    small/a hit 1 & large/a peek 11               -> allow left=2 & deny left=10 retry=40000000
    small/b hit 1 & small/c hit 2 & small/d hit 5 -> allow left=4 & allow left=3 & allow left=0
    small/b hit 4 & small/c hit 3 & small/d hit 1 -> allow left=4 & allow left=3 & deny left=0 retry=40000000
    small/e hit 3 & small/e hit 3                 -> deny left=5 & deny left=5
    small/e hit 3 & small/e hit 2                 -> allow left=0 & allow left=0
    small/f hit 0 & large/f hit 20                -> allow left=5 & allow left=0
    small/f hit 1 & large/f hit 1                 -> allow left=5 & deny left=0 retry=120000000
    small/f hit 1                                 -> allow left=4";

pub(crate) fn requests_are_charged_together_or_not_at_all(store: &Store) {
    let gate = store.gate(limiters(Algorithm::AlignedWindow, "script"), patient(), manual());
    for line in SCRIPT.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (asked, expected) = line.split_once("->").unwrap();
        assert_eq!(told(&ask(store, &gate, asked)), expected.trim(), "{:?}: {line}", store.kind);
    }
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| store.capabilities().counts(*algorithm)) {
        is_as_embedded(store, algorithm);
    }
}

/// Two alternatives, of which one has to allow, beside a limiter that always has to.
fn alternatives(run: &str) -> Vec<LimiterSpec> {
    let of = |name: &str, limit: &str| {
        let rules = Rules::new(Algorithm::AlignedWindow, &[limit.parse().unwrap()]).unwrap();
        LimiterSpec::new(name, rules).in_scope(format!("alternatives-{run}-{name}"))
    };
    let one = LimiterSpec { alternative: true, ..of("one", "2 per minute") };
    let two = LimiterSpec { alternative: true, ..of("two", "5 per minute") };
    vec![one, two, of("all", "20 per minute")]
}

const ALTERNATIVES: &str = "
    one/a hit 2 & two/a hit 2 & all/a hit 2 -> allow left=0 & allow left=3 & allow left=18
    one/a hit 1 & two/a hit 1 & all/a hit 1 -> deny left=0 retry=40000000 & allow left=2 & allow left=17
    one/a hit 1 & two/a hit 3 & all/a hit 1 -> deny left=0 retry=40000000 & deny left=2 retry=40000000 & allow left=17
    one/a hit 1                             -> deny left=0 retry=40000000
    two/a hit 2 & all/a hit 18              -> allow left=2 & deny left=17 retry=40000000
    two/a hit 2 & all/a hit 17              -> allow left=0 & allow left=0
    one/b hit 1 & one/c hit 3               -> allow left=1 & deny left=2";

/// And in a random run of requests with keys of all of them.
pub(crate) fn one_of_the_alternatives_has_to_allow(store: &Store) {
    let gate = store.gate(alternatives("script"), patient(), manual());
    for line in ALTERNATIVES.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (asked, expected) = line.split_once("->").unwrap();
        assert_eq!(told(&ask(store, &gate, asked)), expected.trim(), "{:?}: {line}", store.kind);
    }
    let gate = store.gate(alternatives("random"), patient(), manual());
    let model = Gate::with_clock(Policy::new(alternatives("random")).unwrap(), manual());
    let seed = number("TIDEGATE_SEED", 1);
    let (mut random, mut now, mut passed) = (Random(seed), Micros::from_secs(T), 0);
    for step in 0..150 {
        now = now.saturating_add(Micros::new(random.below(8_000_000)).unwrap());
        gate.clock().set(now);
        model.clock().set(now);
        let part = |random: &mut Random| {
            let limiter = ["one", "two", "all"][random.index(3)];
            format!("{limiter}/k{} {} {}", random.below(2), ["hit", "hit", "peek"][random.index(3)], random.below(4))
        };
        let asked = (0..1 + random.below(4)).map(|_| part(&mut random)).collect::<Vec<_>>().join(" & ");
        let (said, expected) = (ask(store, &gate, &asked), ask(store, &model, &asked));
        assert_eq!(told(&said), told(&expected), "{:?} step {step}, TIDEGATE_SEED={seed}: {asked}", store.kind);
        passed += usize::from(Answer::all_pass(&said) && said.iter().any(|answer| !answer.allowed));
    }
    assert!(passed > 5, "{passed} of 150 passed by one alternative where another denied: is anything tried?");
}

fn manual() -> Clock {
    Clock::manual(Micros::from_secs(T))
}

fn is_as_embedded(store: &Store, algorithm: Algorithm) {
    let run = format!("{algorithm:?}").to_lowercase();
    let gate = store.gate(limiters(algorithm, &run), patient(), manual());
    let model = Gate::with_clock(Policy::new(limiters(algorithm, &run)).unwrap(), manual());
    let seed = number("TIDEGATE_SEED", 1);
    let (mut random, mut now) = (Random(seed), Micros::from_secs(T));
    let mut allowed = 0;
    for step in 0..150 {
        now = now.saturating_add(Micros::new(random.below(8_000_000)).unwrap());
        gate.clock().set(now);
        model.clock().set(now);
        let part = |random: &mut Random| {
            let limiter = ["small", "large"][random.index(2)];
            let intent = ["hit", "hit", "peek"][random.index(3)];
            format!("{limiter}/k{} {intent} {}", random.below(3), random.below(6))
        };
        let parts: Vec<String> = (0..1 + random.below(4)).map(|_| part(&mut random)).collect();
        let asked = parts.join(" & ");
        let (said, expected) = (ask(store, &gate, &asked), ask(store, &model, &asked));
        assert_eq!(
            told(&said),
            told(&expected),
            "{:?} {algorithm:?} step {step}, TIDEGATE_SEED={seed}: {asked}",
            store.kind
        );
        allowed += usize::from(said.iter().all(|answer| answer.allowed));
    }
    assert!((20..150).contains(&allowed), "{algorithm:?}: {allowed} of 150 allowed: is anything tried?");
    let (counted, expected) = (counts(&gate), counts(&model));
    assert_eq!(counted, expected, "{:?} {algorithm:?}, TIDEGATE_SEED={seed}: allowed, denied, peeked", store.kind);
    assert!(expected[1].iter().all(|count| *count > 0), "{expected:?}: was the candidate asked?");
}

/// How decisions of the limiters went: of the first, of its candidate, of the second.
fn counts(gate: &Gate) -> [[u64; 3]; 3] {
    let limiters = gate.limiters();
    let of = |counts: Counts| [counts.allowed, counts.denied, counts.peeked];
    [of(limiters[0].counts), of(limiters[0].candidate.unwrap()), of(limiters[1].counts)]
}

/// No script of Redis counts limiters in Pause's layout and others: who asks for them together is told so, and callers that take an error for a yes get the answer of a store
/// that is away.
#[test]
fn what_redis_cannot_decide_in_one_step_is_answered_by_on_failure() {
    let redis = tidegate_testkit::servers::Server::redis(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(120)).unwrap();
    let limits = ["5 per minute".parse().unwrap()];
    let paused = LimiterSpec::new("paused", Rules::buckets(grid, &limits).unwrap()).in_pause_layout();
    let own = LimiterSpec::new("own", Rules::new(Algorithm::FixedWindow, &limits).unwrap());
    for (on_failure, allowed) in [(OnFailure::Allow, true), (OnFailure::Deny, false)] {
        let settings = StoreSettings { on_failure, ..StoreSettings::default() };
        let url = format!("redis://127.0.0.1:{}", redis.port).parse().unwrap();
        let policy = Policy::new(vec![paused.clone(), own.clone()]).unwrap();
        let gate = runtime.block_on(Gate::connect(&policy, url, settings, Clock::process()));
        let requests = [Request::hit("paused", b"k"), Request::hit("own", b"k")];
        let within = Duration::from_secs(5);
        let refused = runtime.block_on(gate.ask_together(&requests, within));
        assert!(matches!(refused, Err(AskError::Store(StoreError::Unsupported(_)))), "{refused:?}");
        let answers = runtime.block_on(gate.answer_together(&requests, within)).unwrap();
        assert_eq!(answers.iter().map(|answer| answer.allowed).collect::<Vec<_>>(), [allowed; 2], "{on_failure:?}");
        let alone = runtime.block_on(gate.answer_together(&requests[1..], within)).unwrap();
        assert_eq!(alone[0].reason, Reason::Ok, "what it can decide it decides");
    }
}
