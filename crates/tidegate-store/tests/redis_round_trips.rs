//! How often a server is asked.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::time::Duration;
use tidegate_core::all_or_nothing::{Intent, Reason};
use tidegate_core::{Algorithm, Micros, Rules, Verdict};
use tidegate_store::redis::Redis;
use tidegate_store::{Asked, Layout, PageOf, Question, When, Which};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers::Server;
use tokio::time::Instant;

const HITS: u64 = 20;

fn rules(algorithm: Algorithm, limit: &str) -> Rules {
    Rules::new(algorithm, &[limit.parse().unwrap()]).unwrap()
}

fn soon() -> When {
    When { now: None, by: Instant::now() + Duration::from_secs(5) }
}

fn hit(within: Duration) -> Asked {
    Asked { now: None, cost: 1, intent: Intent::Hit, explain: false, by: Instant::now() + within }
}

/// How often scripts were called so far.
fn calls(server: &Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    of("evalsha").unwrap_or(0) + of("eval").unwrap_or(0)
}

/// The short script of token buckets did not know blocks: a key that was blocked by hand took two round trips a hit.
#[tokio::test]
async fn a_blocked_key_takes_one_round_trip() {
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    for (name, rules) in [
        ("by hand", rules(Algorithm::TokenBucket, "3 per hour")),
        ("by its limit", rules(Algorithm::TokenBucket, "3 per hour block 2h")),
        ("a sliding log", rules(Algorithm::SlidingLog, "3 per hour")),
    ] {
        let question = Question {
            limiter: name,
            rules: &rules,
            names: true,
            key: b"k",
            layout: Layout::Native,
            role: Default::default(),
            own: None,
        };
        redis.decide(&[question], &hit(Duration::from_secs(5))).await.unwrap();
        let until = redis.block(&question, Micros::from_secs(600), soon()).await.unwrap().unwrap();
        // A server that sees a script for the first time wants it whole.
        redis.decide(&[question], &hit(Duration::from_secs(5))).await.unwrap();
        let before = calls(&server);
        for _ in 0..HITS {
            let (at, answers) = redis.decide(&[question], &hit(Duration::from_secs(5))).await.unwrap();
            let (ruling, blocked_until) = (answers[0].ruling, answers[0].blocked_until);
            assert_eq!(
                (ruling.reason, ruling.decision.remaining, blocked_until),
                (Reason::Blocked, 0, until),
                "{name}"
            );
            let retry_after = Some(until.saturating_sub(at));
            assert_eq!(ruling.decision.verdict, Verdict::Deny { retry_after }, "{name}");
        }
        assert_eq!(calls(&server) - before, HITS, "{name}");
    }
}

/// Decisions with little time find a slow server silent. A listing has two seconds, and got an error at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keys_are_listed_though_decisions_time_out() {
    let server = Server::redis(&[]);
    let proxy = Proxy::before(server.port);
    let redis = Redis::open(format!("redis://127.0.0.1:{}", proxy.port).parse().unwrap()).await;
    let rules = rules(Algorithm::TokenBucket, "3 per hour");
    let question = Question {
        limiter: "api",
        rules: &rules,
        names: true,
        key: b"k",
        layout: Layout::Native,
        role: Default::default(),
        own: None,
    };
    redis.decide(&[question], &hit(Duration::from_secs(5))).await.unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(150)));
    for _ in 0..3 {
        assert!(redis.decide(&[question], &hit(Duration::from_millis(20))).await.is_err());
        assert!(!redis.answers(), "decisions do not go there any more");
        let listed = redis.list(&question, PageOf { which: Which::Tracked, after: None, most: 10 }, soon()).await;
        assert_eq!(listed.map(|listing| listing.keys), Ok(vec![b"k".to_vec()]));
    }
}
