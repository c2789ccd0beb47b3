//! A3: how often the two-counter window decides otherwise than an exact log, printed.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, Policy, Rules};

/// Ten hours of traffic with a daily curve and bursts, from a seed: 200 clients, most of them quiet.
fn traffic() -> Vec<(u64, u64)> {
    let mut random = 42_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut requests = Vec::new();
    let mut at = 0;
    while at < 36_000_000_000 {
        let hour = at / 3_600_000_000;
        let busy = 6 + 12_u64.abs_diff(hour) * 4;
        at += below(busy * 20_000);
        let client = below(200) * below(200) / 200;
        for _ in 0..if below(40) == 0 { below(30) } else { 1 } {
            at += below(30_000);
            requests.push((at, client));
        }
    }
    requests
}

#[test]
fn a3_the_share_of_wrong_decisions_is_small_and_printed() {
    let spec = |name: &str, algorithm| {
        LimiterSpec::new(name, Rules::new(algorithm, &["15 per minute".parse().unwrap()]).unwrap())
    };
    let policy =
        Policy::new(vec![spec("exact", Algorithm::SlidingLog), spec("two", Algorithm::SlidingWindow)]).unwrap();
    let gate = Gate::with_clock(policy, Clock::manual(Micros::ZERO));
    let (mut decisions, mut denied, mut wrong_allow, mut wrong_deny) = (0_u32, 0_u32, 0_u32, 0_u32);
    for (at, client) in traffic() {
        gate.clock().set(Micros::new(at).unwrap());
        let key = client.to_string();
        let exact = gate.hit("exact", &key).unwrap().allowed;
        let two = gate.hit("two", &key).unwrap().allowed;
        decisions += 1;
        denied += u32::from(!exact);
        wrong_allow += u32::from(two && !exact);
        wrong_deny += u32::from(!two && exact);
    }
    let share = |n: u32| f64::from(n) * 100.0 / f64::from(decisions);
    println!(
        "{decisions} decisions, {:.2} % denied by the log; sliding-window allowed {:.3} % and denied {:.3} % otherwise",
        share(denied),
        share(wrong_allow),
        share(wrong_deny)
    );
    assert!(denied > decisions / 50, "the traffic must reach its limits");
    assert!(share(wrong_allow) < 2.0 && share(wrong_deny) < 2.0);
}
