//! The store stands still, and it is killed: what is answered meanwhile (F1), and that decisions are exact again within a
//! second of its return (F2).

use crate::play::{Limiter, spec};
use crate::stores::{Kind, Store};
use std::time::Duration;
use tidegate::{Algorithm, Answer, Clock, Gate, OnFailure, Reason, Request, StoreSettings};
use tidegate_testkit::{Stopwatch, eventually};

const LIMIT: u32 = 10;
/// Windows that every store can count in, longer than a test.
const TEN: Limiter = ("ten", Algorithm::AlignedWindow, &["10 per day"], None);
const DEADLINE: Duration = Duration::from_millis(500);
/// F2.
const BACK_WITHIN: Duration = Duration::from_secs(1);
/// More than a limit: whoever decides alone must have come to its end.
const ASKED: u32 = 2 * LIMIT;

pub(crate) fn check(kind: Kind) {
    let mut store = kind.start();
    let ways = [OnFailure::Deny, OnFailure::Allow, OnFailure::Local];
    let gates = ways.map(|on_failure| (on_failure, gate(&store, on_failure)));
    for (fault, key) in [("stop", &b"stop"[..]), ("kill", b"kill")] {
        for (_, gate) in &gates {
            eventually("service before the fault", || hit(&store, gate, key).degraded.is_none());
        }
        match fault {
            "stop" => store.signal("STOP"),
            _ => store.kill(),
        }
        // At once: nodes of a cluster that stood still for a second would take each other for dead.
        std::thread::scope(|scope| {
            for (on_failure, gate) in &gates {
                scope.spawn(|| decides_without(&store, gate, *on_failure, key));
            }
        });
        match fault {
            "stop" => store.signal("CONT"),
            _ => store.start_again(),
        }
        store.wait_until_back();
        let back = Stopwatch::start();
        for (_, gate) in &gates {
            is_exact_soon(&store, gate, key, &back);
        }
        println!("{kind:?}, {fault}: exact again after {:?}", back.elapsed());
        counts_exactly(&store, &gates[0].1, key);
    }
}

fn gate(store: &Store, on_failure: OnFailure) -> Gate {
    let settings = StoreSettings { on_failure, deadline: DEADLINE, ..StoreSettings::default() };
    store.gate(vec![spec(&TEN)], settings, Clock::process())
}

fn hit(store: &Store, gate: &Gate, key: &[u8]) -> Answer {
    store.wait(gate.ask(&Request::hit("ten", key))).unwrap()
}

fn decides_without(store: &Store, gate: &Gate, on_failure: OnFailure, key: &[u8]) {
    let (reason, most) = match on_failure {
        OnFailure::Deny => (Reason::Degraded, 0),
        OnFailure::Allow => (Reason::Degraded, ASKED),
        OnFailure::Local => (Reason::Limited, LIMIT),
    };
    let mut passed = 0;
    for _ in 0..ASKED {
        let begun = Stopwatch::start();
        let answer = hit(store, gate, key);
        // What the machine had for others is not the gate's, nor what this process's threads waited for a processor.
        let took = begun.elapsed().min(begun.own_time());
        assert!(took < DEADLINE, "F1, {:?}, {on_failure:?}: {took:?}", store.kind);
        assert_eq!(answer.degraded, Some(on_failure), "{:?}", store.kind);
        assert!(answer.allowed || answer.reason == reason, "{:?}: {answer:?}", store.kind);
        passed += u32::from(answer.allowed);
    }
    assert_eq!(passed, most, "{:?}, {on_failure:?}", store.kind);
}

/// By the server that has the key: in a cluster each comes back by itself.
fn is_exact_soon(store: &Store, gate: &Gate, key: &[u8], back: &Stopwatch) {
    while store.wait(gate.ask(&Request::hit("ten", key).peek())).unwrap().degraded.is_some() {
        assert!(back.elapsed() < BACK_WITHIN, "F2, {:?}: {:?}", store.kind, gate.store_health().unwrap().error);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the counts are still there or went with the process: as many are admitted as are left, and no more.
fn counts_exactly(store: &Store, gate: &Gate, key: &[u8]) {
    let left = store.wait(gate.ask(&Request::hit("ten", key).peek())).unwrap().remaining.unwrap();
    let admitted = (0..ASKED).filter(|_| hit(store, gate, key).allowed).count();
    assert_eq!(admitted, left as usize, "{:?}", store.kind);
}
