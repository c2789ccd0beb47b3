//! Many requests at once, limits that calls bring, and giving back.

use crate::play::{Limiter, T, spec};
use crate::stores::{Store, patient};
use tidegate::{Algorithm, AskError, Clock, Gate, Hit, HitAnswer, Limit, LimiterSpec, Micros, Request, Rules};

/// Windows that every store can count in.
const ONE: Limiter = ("batch-one", Algorithm::AlignedWindow, &["10 per day"], None);
const TWO: Limiter = ("batch-two", Algorithm::AlignedWindow, &["100 per day"], None);

fn gate(store: &Store) -> Gate {
    store.gate(vec![spec(&ONE), spec(&TWO)], patient(), Clock::manual(Micros::from_secs(T)))
}

/// What is left of a key of one limiter and of another.
async fn left(gate: &Gate, one: &[u8], two: &[u8]) -> [Option<u32>; 2] {
    let requests = [Request::hit("batch-one", one).peek(), Request::hit("batch-two", two).peek()];
    let told = gate.ask_many(&requests).await;
    [told[0].as_ref().unwrap().remaining, told[1].as_ref().unwrap().remaining]
}

pub(crate) fn many_are_answered_each_by_itself_in_order(store: &Store) {
    let gate = gate(store);
    store.wait(async {
        let requests: Vec<Request<'_>> =
            (0..12).map(|n| Request::hit(if n == 5 { "nobody" } else { "batch-one" }, b"m")).collect();
        let told = gate.ask_many(&requests).await;
        assert!(matches!(told[5], Err(AskError::UnknownLimiter { .. })), "{:?}", store.kind);
        let allowed: Vec<bool> =
            told.iter().filter_map(|told| told.as_ref().ok()).map(|answer| answer.allowed).collect();
        assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 10, "{:?}: {allowed:?}", store.kind);
        let keys: Vec<&[u8]> = vec![b"n1", b"n2", b"n1"];
        let answers = gate.hit_many("batch-one", &keys, 4).await.unwrap();
        assert!(answers.iter().all(|answer| answer.allowed), "{:?}", store.kind);
        assert_eq!(left(&gate, b"n1", b"x").await[0], Some(2), "{:?}", store.kind);
        assert!(matches!(gate.hit_many("batch-one", &[b"n1", b""], 1).await, Err(AskError::Key(_))));
        assert_eq!(left(&gate, b"n1", b"x").await[0], Some(2), "a bad key charges nothing: {:?}", store.kind);
        // As doors ask.
        let limiter = gate.limiter("batch-one").unwrap();
        let hits = [
            Hit::new(&limiter, b"n2").unwrap().cost(3),
            Hit::new(&limiter, b"n2").unwrap().cost(9).peek(),
            Hit::new(&limiter, b"n2").unwrap().cost(3),
        ];
        let mut allowed = [false; 3];
        let each = |place: usize, told: HitAnswer| {
            allowed[place] = matches!(told, HitAnswer::Ruled { ruling, .. } if ruling.is_allowed());
        };
        gate.ask_each(&hits, &gate.batch(gate.now()), each).await;
        assert_eq!(allowed, [true, false, true], "{:?}", store.kind);
    });
}

/// Limits of single keys and candidates count in a batch as they do in single requests.
pub(crate) fn overrides_and_candidates_count_in_batches(store: &Store) {
    let candidate = Rules::new(Algorithm::AlignedWindow, &["2 per day".parse().unwrap()]).unwrap();
    let tried = ("batch-tried", Algorithm::AlignedWindow, &["3 per day"][..], None);
    let tried = LimiterSpec { candidate_rules: Some(candidate), ..spec(&tried) };
    let gate = store.gate(vec![spec(&ONE), tried], patient(), Clock::manual(Micros::from_secs(T)));
    let overrides = store.capabilities().overrides;
    store.wait(async {
        if overrides {
            let two: Limit = "2 per day".parse().unwrap();
            gate.set_override("batch-one", b"o", &[two], None, None).await.unwrap();
        }
        let (one, tried) = (gate.limiter("batch-one").unwrap(), gate.limiter("batch-tried").unwrap());
        let mut hits = vec![Hit::new(&one, b"o").unwrap(); 3];
        hits.extend([Hit::new(&tried, b"t").unwrap(); 4]);
        hits.push(Hit::new(&tried, b"t").unwrap().peek());
        let mut allowed = vec![false; hits.len()];
        let each = |place: usize, told: HitAnswer| {
            allowed[place] = matches!(told, HitAnswer::Ruled { ruling, .. } if ruling.is_allowed());
        };
        gate.ask_each(&hits, &gate.batch(gate.now()), each).await;
        // Hits on one key are decided in their order, or all at once.
        let count = |allowed: &[bool]| allowed.iter().filter(|allowed| **allowed).count();
        assert_eq!(count(&allowed[..3]), if overrides { 2 } else { 3 }, "{:?}", store.kind);
        assert_eq!(count(&allowed[3..7]), 3, "{:?}", store.kind);
        let counts = gate.limiter_info("batch-tried").unwrap().candidate.unwrap();
        assert_eq!((counts.allowed, counts.denied), (2, 2), "{:?}", store.kind);
    });
}

pub(crate) fn each_call_brings_its_limit_and_may_give_back(store: &Store) {
    if !store.capabilities().counts(Algorithm::TokenBucket) {
        return;
    }
    let gate = store.gate(vec![LimiterSpec::throttle()], patient(), Clock::manual(Micros::from_secs(T)));
    let by_name = store.wait(gate.ask(&Request::hit("cl.throttle", b"k")));
    assert!(matches!(by_name, Err(AskError::LimitPerCall { .. })), "{by_name:?}");
    let limiter = |text: &str| gate.with_limit(&gate.limiter("cl.throttle").unwrap(), text.parse::<Limit>().unwrap());
    let (slow, fast) = (limiter("10 per 100s").unwrap(), limiter("10 per 10s").unwrap());
    let numbers = |told: HitAnswer| match told {
        HitAnswer::Ruled { ruling, .. } => {
            (ruling.is_allowed(), ruling.decision.remaining, ruling.decision.reset_after.get() / 1_000_000)
        }
        HitAnswer::Disabled | HitAnswer::Unlimited => panic!("it limits"),
    };
    store.wait(async {
        // A Redis that does not know the script yet is sent it for the first hit, which the second may overtake.
        for key in [b"k", b"j"] {
            gate.ask_each(&[Hit::new(&slow, key).unwrap().cost(0)], &gate.batch(gate.now()), |_, _| ()).await;
        }
        let hits = [
            Hit::new(&slow, b"k").unwrap().cost(5),
            Hit::new(&fast, b"k").unwrap(),
            Hit::new(&slow, b"k").unwrap().cost(0),
            Hit::new(&slow, b"j").unwrap().cost(10),
        ];
        let mut told = Vec::new();
        gate.ask_each(&hits, &gate.batch(gate.now()), |place, answer| told.push((place, numbers(answer)))).await;
        told.sort_unstable();
        let told: Vec<_> = told.into_iter().map(|(_, numbers)| numbers).collect();
        // The time until empty is kept, at most that of the limit that comes next.
        assert_eq!(told, [(true, 5, 50), (false, 0, 10), (true, 9, 10), (true, 0, 100)], "{:?}", store.kind);
        let back = gate.give_back(&slow, b"j", 4).await;
        if !store.capabilities().gives_back {
            let refused = back.unwrap_err().to_string();
            assert!(refused.starts_with("operation not supported"), "{:?}: {refused}", store.kind);
            assert!(refused.contains("does not give back what was charged; use kind"), "{:?}: {refused}", store.kind);
            return;
        }
        assert_eq!(numbers(back.unwrap()), (true, 4, 60), "{:?}", store.kind);
        assert_eq!(numbers(gate.give_back(&slow, b"j", 99).await.unwrap()), (true, 10, 0), "{:?}", store.kind);
        assert_eq!(numbers(gate.give_back(&slow, b"never-seen", 1).await.unwrap()), (true, 10, 0), "{:?}", store.kind);
        // A key whose limits were set by hand has those, whatever a call brings.
        if store.capabilities().overrides {
            let by_hand: Limit = "2 per 60s".parse().unwrap();
            gate.set_override("cl.throttle", b"vip", &[by_hand], None, None).await.unwrap();
            let hits = [Hit::new(&slow, b"vip").unwrap().cost(2), Hit::new(&fast, b"vip").unwrap()];
            let mut told = Vec::new();
            gate.ask_each(&hits, &gate.batch(gate.now()), |_, answer| told.push(numbers(answer))).await;
            assert_eq!(told, [(true, 0, 60), (false, 0, 60)], "{:?}", store.kind);
            assert_eq!(numbers(gate.give_back(&slow, b"vip", 1).await.unwrap()), (true, 1, 30), "{:?}", store.kind);
        }
    });
}

/// On every algorithm that the store counts in, the same as the core has it.
pub(crate) fn what_was_charged_is_given_back_the_latest_first(store: &Store) {
    for (index, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        if store.capabilities().counts(algorithm) {
            let limits: &[&str] = if algorithm == Algorithm::Buckets { &["150 per minute"] } else { &["150 per day"] };
            let name = format!("back-{index}");
            charge_and_give_back(store, LimiterSpec { name, ..spec(&("back", algorithm, limits, None)) });
        }
    }
}

fn charge_and_give_back(store: &Store, spec: LimiterSpec) {
    let (name, algorithm, clock) = (spec.name.clone(), spec.rules.algorithm(), Clock::manual(Micros::from_secs(T)));
    let is_average = matches!(algorithm, Algorithm::StrictAverage | Algorithm::LeakyAverage);
    let gate = store.gate(vec![spec], patient(), clock.clone());
    let limiter = gate.limiter(&name).unwrap();
    store.wait(async {
        // Each at a time of its own: a log on Redis then has an entry for each, and chunks of 64.
        for at in 0..143 {
            clock.set(Micros::saturating(T * 1_000_000 + at));
            assert!(gate.ask(&Request::hit(&name, b"k")).await.unwrap().allowed, "{:?} {algorithm:?}", store.kind);
        }
        for (cost, left) in [(41, 48), (0, 48), (90, 138), (999, 150), (1, 150)] {
            let told = match gate.give_back(&limiter, b"k", cost).await {
                Ok(HitAnswer::Ruled { ruling, .. }) => ruling.decision.remaining,
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert!(!store.capabilities().gives_back, "{:?} {algorithm:?}: {error}", store.kind);
                    return;
                }
            };
            assert_eq!(told == left, !is_average, "{:?} {algorithm:?}: {told} after {cost}", store.kind);
        }
        let all = gate.ask(&Request::hit(&name, b"k").cost(150)).await.unwrap();
        assert_eq!(all.allowed, !is_average, "{:?} {algorithm:?}: as if it had never been used", store.kind);
    });
}
