//! One engine: whatever is asked, of whichever store, meets the same flags, bounds, deadlines and rules in force.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::time::{Duration, Instant};
use tidegate::{
    Algorithm, AskError, Clock, Gate, Grid, Hit, HitAnswer, IfBlocked, LimiterSpec, Micros, OnFailure, Policy, Reason,
    Request, Rules, Status, StoreSettings,
};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers::Server;

const DEADLINE: Duration = Duration::from_millis(50);

fn spec(name: &str, algorithm: Algorithm, limit: &str) -> LimiterSpec {
    LimiterSpec::new(name, Rules::new(algorithm, &[limit.parse().unwrap()]).unwrap())
}

fn buckets(name: &str, limit: &str) -> LimiterSpec {
    let grid = Grid::new(Micros::from_secs(60), Micros::from_secs(86_400)).unwrap();
    LimiterSpec::new(name, Rules::buckets(grid, &[limit.parse().unwrap()]).unwrap())
}

async fn gate(url: &str, limiters: Vec<LimiterSpec>, settings: StoreSettings) -> Gate {
    let policy = Policy::new(limiters).unwrap();
    Gate::connect(&policy, url.parse().unwrap(), settings, Clock::process()).await
}

/// It answered 500 once: the engine for remote stores was asked about a limiter of which this process holds a share.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_servers_share_says_that_it_does_not_count_in_buckets() {
    let server = Server::redis(&[]);
    let shared = spec("shared", Algorithm::AlignedWindow, "9 per minute").shared(Some((0, 3)));
    let gate = gate(&server.url(), vec![shared], StoreSettings::default()).await;
    let refused = gate.increment("shared", b"k", 1, None).await.unwrap_err();
    assert!(matches!(refused, AskError::NeedsBuckets { doing: "increment", .. }), "{refused}");
    assert!(matches!(gate.analyze("shared", b"k", IfBlocked::Tell).await, Err(AskError::NeedsBuckets { .. })));
}

/// Waited two seconds once, and then was an error, whatever `on_failure` said.
#[tokio::test(flavor = "multi_thread")]
async fn f1_analyze_and_increment_keep_to_the_deadline_and_to_on_failure() {
    let server = Server::redis(&[]);
    for (on_failure, status, counts) in [
        (OnFailure::Allow, Status::Ok, false),
        (OnFailure::Deny, Status::Denied, false),
        (OnFailure::Local, Status::Ok, true),
    ] {
        let proxy = Proxy::before(server.port);
        let settings = StoreSettings { on_failure, deadline: DEADLINE, ..StoreSettings::default() };
        let url = format!("redis://127.0.0.1:{}", proxy.port);
        let gate = gate(&url, vec![buckets("notify", "2 per hour block 1h")], settings).await;
        assert!(gate.increment("notify", b"k", 1, None).await.unwrap().counted);
        proxy.set(Fault::Silence);
        for _ in 0..3 {
            let begun = Instant::now();
            let analyzed = gate.analyze("notify", b"k", IfBlocked::Tell).await.unwrap();
            assert_eq!((&analyzed.status, analyzed.degraded), (&status, Some(on_failure)));
            let counted = gate.increment("notify", b"other", 1, None).await;
            match counts {
                true => assert_eq!(counted.unwrap().degraded, Some(OnFailure::Local)),
                false => assert!(matches!(counted, Err(AskError::Store(_))), "{counted:?}"),
            }
            // The debug build beside other tests; alone it takes the two deadlines, or nothing once the breaker is open.
            assert!(begun.elapsed() < 10 * DEADLINE, "{:?}", begun.elapsed());
        }
        assert!(gate.action("notify", "k").ok().await.unwrap() == (on_failure != OnFailure::Deny));
        if counts {
            // Two were counted here meanwhile: the third time the limit of two is reached.
            let analyzed = gate.analyze("notify", b"other", IfBlocked::Tell).await.unwrap();
            assert!(matches!(analyzed.status, Status::Limited(_)), "{analyzed:?}");
        }
    }
}

/// A disabled limiter was asked all the same by some ways in.
#[test]
fn every_way_in_heeds_the_disabled_flag_and_the_bound_of_keys() {
    let gate = Gate::embedded(Policy::new(vec![spec("api", Algorithm::TokenBucket, "1 per day")]).unwrap());
    let limiter = gate.limiter("api").unwrap();
    gate.at_once(gate.set_enabled("api", false)).unwrap();
    for _ in 0..3 {
        assert_eq!(gate.hit("api", "k").unwrap().reason, Reason::Disabled);
        assert_eq!(gate.hit_on(&limiter, b"k", 1).unwrap(), None);
        assert_eq!(gate.decide_many("api", &[b"k"], 1).unwrap()[0].reason, Reason::Disabled);
        let (hit, mut told) = (Hit::new(&limiter, b"k").unwrap(), Vec::new());
        gate.hit_each(&[hit], &gate.batch(gate.now()), |place, answer| told.push((place, answer)));
        assert_eq!(told, [(0, HitAnswer::Disabled)]);
    }
    gate.at_once(gate.set_enabled("api", true)).unwrap();
    assert_eq!(gate.peek("api", "k").unwrap().remaining, Some(1), "nothing was charged");
    for long in [&b""[..], &[b'k'; 513]] {
        assert!(matches!(gate.hit("api", long), Err(AskError::Key(_))));
        assert!(matches!(gate.hit_on(&limiter, long, 1), Err(AskError::Key(_))));
        assert!(matches!(gate.decide_many("api", &[long], 1), Err(AskError::Key(_))));
        assert!(Hit::new(&limiter, long).is_err());
        assert!(matches!(gate.at_once(gate.block("api", long, Micros::from_secs(1))), Err(AskError::Key(_))));
    }
}

/// An answer that was made by a part of a limit once printed the whole limit in its headers.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_the_rules_that_it_was_made_with() {
    let settings = StoreSettings { local_share: 0.5, ..StoreSettings::default() };
    let gate = gate("redis://127.0.0.1:1", vec![spec("api", Algorithm::TokenBucket, "10 per minute")], settings).await;
    let answer = gate.ask(&Request::hit("api", b"k")).await.unwrap();
    assert_eq!((answer.degraded, answer.limit, answer.remaining), (Some(OnFailure::Local), Some(5), Some(4)));
    assert_eq!(answer.limiter.unwrap().rules.limits()[0].count(), 5);
    let explained = gate.ask(&Request::hit("api", b"k").explained()).await.unwrap();
    assert_eq!(explained.explanation[0].limits[0].0.count(), 5);
    assert_eq!(gate.limiters()[0].spec.rules.limits()[0].count(), 10, "the policy is another matter");
}
