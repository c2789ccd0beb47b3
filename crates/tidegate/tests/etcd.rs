//! A gate on a real etcd: the same answers as the embedded gate's, and what it decides when etcd does not answer.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod stores;

use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, OnFailure, Policy, Reason, Request, Rules, StoreSettings};
use tidegate_testkit::servers::etcd::Etcd;

const DEADLINE: Duration = Duration::from_millis(50);

fn spec(name: &str, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    LimiterSpec::new(name, Rules::new(Algorithm::AlignedWindow, &limits).unwrap())
}

async fn gate(etcd: &Etcd, limiters: Vec<LimiterSpec>, on_failure: OnFailure, deadline: Duration) -> Gate {
    let settings = StoreSettings { on_failure, deadline, ..StoreSettings::default() };
    let (url, clock) = (etcd.endpoints().parse().unwrap(), Clock::manual(Micros::from_secs(600)));
    let gate = Gate::connect(&Policy::new(limiters).unwrap(), url, settings, clock).await;
    assert_eq!(gate.store().down(), None);
    gate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_are_those_of_the_embedded_gate() {
    let etcd = Etcd::start();
    let limiters = || vec![spec("a", &["2 per minute", "3 per hour block 2h"]), spec("b", &["5 per minute"])];
    let there = gate(&etcd, limiters(), OnFailure::Deny, Duration::from_secs(5)).await;
    let here = Gate::with_clock(Policy::new(limiters()).unwrap(), Clock::manual(Micros::from_secs(600)));
    for (seconds, limiter, cost, peek) in [
        (600, "a", 1, false),
        (601, "a", 1, true),
        (601, "a", 2, false),
        (602, "a", 1, false),
        (602, "a", 1, false),
        (650, "b", 6, false),
        (660, "a", 1, false),
        (660, "a", 1, false),
        (720, "a", 1, true),
        (720, "a", 0, false),
        (9_000, "a", 1, false),
    ] {
        let at = Micros::from_secs(seconds);
        there.clock().set(at);
        here.clock().set(at);
        let mut request = Request::hit(limiter, b"k").cost(cost).explained();
        if peek {
            request = request.peek();
        }
        let (told, expected) = (there.ask(&request).await.unwrap(), here.ask(&request).await.unwrap());
        assert_eq!(format!("{told:?}"), format!("{expected:?}"), "at {seconds}: {limiter} {cost}");
    }
}

/// A stopped etcd: every decision within its deadline by `on_failure`; exact service again within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_f2_without_an_answer_on_failure_decides_and_exact_service_resumes() {
    for (on_failure, reason, most) in [
        (OnFailure::Deny, Reason::Degraded, 0),
        (OnFailure::Allow, Reason::Degraded, u32::MAX),
        (OnFailure::Local, Reason::Limited, 10),
    ] {
        let etcd = Etcd::start();
        let gate = gate(&etcd, vec![spec("a", &["10 per day"])], on_failure, DEADLINE).await;
        assert_eq!(gate.ask(&Request::hit("a", b"k")).await.unwrap().remaining, Some(9));
        etcd.members[0].signal("STOP");
        let mut passed = 0;
        for _ in 0..50 {
            let started = Instant::now();
            let answer = gate.ask(&Request::hit("a", b"k")).await.unwrap();
            assert!(started.elapsed() < DEADLINE * 2, "{on_failure:?}: {:?}", started.elapsed());
            assert_eq!(answer.degraded, Some(on_failure));
            passed += u32::from(answer.allowed);
            assert!(answer.allowed || answer.reason == reason, "{answer:?}");
        }
        assert_eq!(passed, most.min(50), "{on_failure:?}");
        etcd.members[0].signal("CONT");
        let back = Instant::now();
        while gate.ask(&Request::hit("a", b"k")).await.unwrap().degraded.is_some() {
            assert!(back.elapsed() < Duration::from_secs(1), "F2, {on_failure:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(gate.store_health().unwrap().degraded >= 50);
    }
}
