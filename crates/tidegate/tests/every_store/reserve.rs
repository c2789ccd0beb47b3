//! Reservations (R1): made by one gate and ended by another on the same store, once; refused where a store cannot give back.

use crate::stores::{Kind, Store, patient};
use tidegate::{Algorithm, AskError, Clock, Gate, LimiterSpec, Micros, Reason, Request, Rules, StoreError};

const T: u64 = 1_000_000;
const SPAN: Micros = Micros::from_secs(30);

fn limiter(name: &str, algorithm: Algorithm) -> LimiterSpec {
    LimiterSpec::new(name, Rules::new(algorithm, &["10 per hour".parse().unwrap()]).unwrap())
}

pub(crate) fn a_reservation_is_ended_once_by_whoever_has_it(store: &Store) {
    let counts = |algorithm: &Algorithm| store.capabilities().counts(*algorithm);
    let clock = Clock::manual(Micros::from_secs(T));
    for algorithm in Algorithm::ALL.into_iter().filter(counts) {
        let name = format!("reserve-{}", algorithm.name());
        let candidate = Rules::new(algorithm, &["8 per hour".parse().unwrap()]).unwrap();
        let spec = LimiterSpec { candidate_rules: Some(candidate), ..limiter(&name, algorithm) };
        let gates = two_gates(store, spec, &clock);
        let gives_back = !matches!(algorithm, Algorithm::StrictAverage | Algorithm::LeakyAverage);
        if gives_back && !matches!(store.kind, Kind::Etcd | Kind::MemoryServer) {
            store.wait(ended_once(&gates, &name, &clock));
        } else {
            store.wait(refused(&gates[0], &name));
        }
    }
    if store.capabilities().pause_layout {
        let spec = LimiterSpec { pause_layout: true, ..limiter("reserve-pause", Algorithm::Buckets) };
        store.wait(refused(&two_gates(store, spec, &clock)[0], "reserve-pause"));
    }
}

fn two_gates(store: &Store, spec: LimiterSpec, clock: &Clock) -> [Gate; 2] {
    let gate = store.gate(vec![spec.clone()], patient(), clock.clone());
    match store.kind {
        Kind::Embedded => [gate.clone(), gate],
        _ => [gate, store.gate(vec![spec], patient(), clock.clone())],
    }
}

async fn refused(gate: &Gate, name: &str) {
    let told = gate.reserve(name, b"k", 3, SPAN).await;
    assert!(matches!(told, Err(AskError::Store(StoreError::Unsupported(_)))), "{name}: {told:?}");
    let left = gate.ask(&Request::hit(name, b"k").cost(0)).await.unwrap();
    assert_eq!(left.remaining, Some(10), "{name}: nothing was charged");
}

async fn ended_once([one, other]: &[Gate; 2], name: &str, clock: &Clock) {
    let left = async |gate: &Gate| gate.ask(&Request::hit(name, b"k").cost(0)).await.unwrap().remaining;
    let held = one.reserve(name, b"k", 6, SPAN).await.unwrap();
    assert_eq!((held.answer.remaining, held.until), (Some(4), Some(Micros::from_secs(T + 30))), "{name}");
    let reservation = held.reservation.unwrap();
    // In buckets a denial blocks.
    if !name.ends_with("buckets") {
        let denied = other.reserve(name, b"k", 5, SPAN).await.unwrap();
        assert_eq!(
            (denied.answer.allowed, denied.answer.reason, denied.reservation),
            (false, Reason::Limited, None),
            "{name}"
        );
    }
    let done = other.commit(&reservation, 2).await.unwrap();
    assert_eq!((done.given_back, done.excess, done.answer.remaining), (4, 0, Some(8)), "{name}");
    for gate in [one, other] {
        assert_eq!(gate.commit(&reservation, 0).await, Err(AskError::NotReserved), "{name}");
        assert_eq!(left(gate).await, Some(8), "{name}");
    }
    // The candidate, which has two less, was given back to as well: else a hit of 5 would be denied there.
    let before = candidate_denials(other, name);
    assert!(other.ask(&Request::hit(name, b"k").cost(5)).await.unwrap().allowed);
    assert_eq!(candidate_denials(other, name), before, "{name}");
    let held = other.reserve(name, b"k", 1, SPAN).await.unwrap();
    let done = one.commit(&held.reservation.unwrap(), 2).await.unwrap();
    assert_eq!((done.given_back, done.excess, done.answer.remaining), (0, 1, Some(1)), "{name}");
    let held = one.reserve(name, b"k", 1, SPAN).await.unwrap();
    clock.set(Micros::from_secs(T + 30));
    assert_eq!(other.cancel(&held.reservation.unwrap()).await, Err(AskError::NotReserved), "{name}: it is late");
    clock.set(Micros::from_secs(T));
    assert_eq!(left(one).await, Some(0), "{name}: the charge stays");
    let span = one.reserve(name, b"k", 1, Micros::from_secs(86_401)).await;
    assert!(matches!(span, Err(AskError::ReservationSpan(_))), "{span:?}");
    assert_eq!(one.wait(name, b"other", 10).await.unwrap(), Some(Micros::ZERO));
    assert!(one.until_ready(name, b"other", 10).await.unwrap().allowed);
    assert!(other.wait(name, b"other", 1).await.unwrap() > Some(Micros::ZERO));
    assert_eq!(other.wait(name, b"other", 11).await.unwrap(), None, "never");
}

fn candidate_denials(gate: &Gate, name: &str) -> u64 {
    gate.limiter_info(name).unwrap().candidate.map_or(0, |counts| counts.denied)
}
