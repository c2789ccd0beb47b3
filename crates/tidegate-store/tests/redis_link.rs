//! The way to a Redis that fails: through a proxy that cuts, delays, resets and swallows.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use futures_util::future::join_all;
use std::time::Duration;
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Rules};
use tidegate_store::redis::Redis;
use tidegate_store::{Asked, Layout, Question, StoreError};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers;
use tidegate_testkit::servers::Server;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);
/// F2: exact service is back within this.
const BACK_WITHIN: Duration = Duration::from_secs(1);

/// A server, the proxy before it, and the store that knows the proxy only.
struct Bench {
    server: Server,
    proxy: Proxy,
    redis: Redis,
    rules: Rules,
}

impl Bench {
    async fn new(arguments: &[&str]) -> Bench {
        let server = Server::redis(arguments);
        let proxy = Proxy::before(server.port);
        let redis = Redis::open(format!("redis://127.0.0.1:{}", proxy.port).parse().unwrap()).await;
        let rules = Rules::new(Algorithm::FixedWindow, &["5 per hour".parse().unwrap()]).unwrap();
        let bench = Bench { server, proxy, redis, rules };
        // From here on the server knows the script.
        bench.hit("first", 1_000 * MS).await.unwrap();
        bench
    }

    async fn hit(&self, key: &str, patience: Duration) -> Result<bool, StoreError> {
        ask(&self.redis, &self.rules, key, Intent::Hit, patience).await.map(|(allowed, _)| allowed)
    }

    /// How much of a key's limit is used, asked past the proxy.
    async fn used(&self, directly: &Redis, key: &str) -> u32 {
        let (_, remaining) = ask(directly, &self.rules, key, Intent::Peek, 2_000 * MS).await.unwrap();
        5 - remaining
    }

    /// Waits until the store is asked again.
    async fn back(&self) -> Duration {
        let since = Instant::now();
        while !self.redis.answers() {
            tokio::time::sleep(MS).await;
            assert!(since.elapsed() < 5 * BACK_WITHIN, "it is not asked any more: {:?}", self.redis.down());
        }
        since.elapsed()
    }
}

async fn ask(
    redis: &Redis,
    rules: &Rules,
    key: &str,
    intent: Intent,
    patience: Duration,
) -> Result<(bool, u32), StoreError> {
    let question = [Question {
        limiter: "t",
        rules,
        names: true,
        key: key.as_bytes(),
        layout: Layout::Native,
        role: Default::default(),
        own: None,
    }];
    let asked = Asked { now: None, cost: 1, intent, explain: false, by: Instant::now() + patience };
    let (_, answers) = redis.decide(&question, &asked).await?;
    Ok((answers[0].ruling.is_allowed(), answers[0].ruling.decision.remaining))
}

/// Requests with a key each, while the connection fails at every point of their replies: what was admitted is
/// charged once, what cannot have been sent or was refused is not charged, and the rest at most once.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a7_nothing_is_charged_twice_and_what_was_not_sent_not_at_all() {
    let bench = Bench::new(&[]).await;
    let directly = Redis::open(bench.server.url().parse().unwrap()).await;
    let faults = (0..30).map(|at| Fault::Cut(at * 71)).chain([Fault::Reset; 6]).chain([Fault::Cut(1); 4]);
    let (mut admitted, mut lost, mut unsent) = (0, 0, 0);
    for (round, fault) in faults.enumerate() {
        bench.back().await;
        bench.proxy.strike(fault);
        let keys: Vec<String> = (0..64).map(|number| format!("{round}-{number}")).collect();
        let answers = join_all(keys.iter().map(|key| bench.hit(key, 200 * MS))).await;
        for (key, answer) in keys.iter().zip(answers) {
            let used = bench.used(&directly, key).await;
            let expected = match &answer {
                Ok(allowed) => {
                    assert!(allowed);
                    admitted += 1;
                    1..=1
                }
                Err(error) if error.is_ambiguous() => {
                    lost += 1;
                    0..=1
                }
                Err(_) => {
                    unsent += 1;
                    0..=0
                }
            };
            assert!(expected.contains(&used), "{fault:?}, key {key}: {answer:?}, and the store holds {used}");
        }
        bench.proxy.set(Fault::None);
    }
    println!("{admitted} admitted, {lost} lost, {unsent} not sent or refused");
    assert!(admitted > 200 && lost > 200, "the faults struck too rarely or too often");
}

/// Replies that all come, and all too late: a caller must not wait for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f1_a_server_that_is_always_too_late_is_not_asked() {
    let bench = Bench::new(&[]).await;
    bench.proxy.set(Fault::Delay(100 * MS));
    // Callers come all the time, so that late replies come all the time, too.
    let since = Instant::now();
    while bench.redis.answers() {
        let keys: Vec<String> = (0..4).map(|number| number.to_string()).collect();
        let answers = join_all(keys.iter().map(|key| bench.hit(key, 40 * MS))).await;
        assert!(answers.iter().all(Result::is_err));
        assert!(since.elapsed() < 200 * MS, "it is still asked");
    }
    // Probes are late, too: of the next second callers wait for a small part only.
    let (since, mut asked) = (Instant::now(), Duration::ZERO);
    while since.elapsed() < 1_000 * MS {
        let began = Instant::now();
        assert!(bench.hit("x", 40 * MS).await.is_err());
        asked += if began.elapsed() > 20 * MS { began.elapsed() } else { Duration::ZERO };
        tokio::time::sleep(MS).await;
    }
    println!("of a second, callers waited for {asked:?}");
    assert!(asked < 400 * MS, "{asked:?}");
    bench.proxy.set(Fault::None);
    assert!(bench.back().await < BACK_WITHIN);
}

/// A caller that comes when its time is over, as after a redirection, is no reason not to ask for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f1_a_caller_without_time_does_not_silence_a_server() {
    let bench = Bench::new(&[]).await;
    bench.proxy.set(Fault::Delay(500 * MS));
    let mut unanswered = 0;
    for _ in 0..100 {
        // A reply that is there is given, even if the caller comes late to look for it.
        unanswered += u32::from(bench.hit("x", Duration::ZERO).await.is_err());
        assert!(bench.redis.answers(), "{:?}", bench.redis.down());
    }
    assert!(unanswered > 0);
}

/// A caller with little time found a server silent that is merely far away: it is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_is_far_away_is_not_given_up_for_good() {
    let bench = Bench::new(&[]).await;
    bench.proxy.set(Fault::Delay(200 * MS));
    assert!(bench.hit("x", 5 * MS).await.is_err());
    assert!(!bench.redis.answers());
    let took = bench.back().await;
    println!("asked again after {took:?}");
    assert!(bench.hit("y", 1_000 * MS).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f2_a_half_open_connection_is_replaced() {
    let bench = Bench::new(&[]).await;
    bench.proxy.set(Fault::Silence);
    let error = bench.hit("x", 40 * MS).await.unwrap_err();
    assert!(error.is_ambiguous() && error.to_string().contains("may have been counted"), "{error}");
    let since = Instant::now();
    while bench.redis.down().is_none_or(|down| down.to_string().contains("is silent")) {
        tokio::time::sleep(10 * MS).await;
        assert!(since.elapsed() < 4_000 * MS, "the old connection is kept");
    }
    bench.proxy.set(Fault::None);
    assert!(bench.back().await < BACK_WITHIN);
    assert!(bench.hit("x", 1_000 * MS).await.unwrap());
}

/// Connecting had half a second, always: over a way that takes longer, a connection that was lost once never came back,
/// though decisions with more time were answered until then. All replicas of a proxy stood still.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f2_a_connection_over_a_slow_way_is_made_again() {
    let bench = Bench::new(&[]).await;
    bench.proxy.set(Fault::Delay(700 * MS));
    assert!(bench.hit("x", 2_000 * MS).await.unwrap(), "over the connection that stands");
    bench.server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(bench.hit("x", 2_000 * MS).await.is_err());
    let since = Instant::now();
    while bench.hit("x", 2_000 * MS).await.is_err() {
        tokio::time::sleep(10 * MS).await;
        assert!(since.elapsed() < 20_000 * MS, "never connected again: {:?}", bench.redis.down());
    }
}

/// A replica takes connections and refuses every write: it is not called a hundred times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_is_of_no_use_is_called_a_few_times_a_second() {
    let bench = Bench::new(&[]).await;
    bench.server.command(&["REPLICAOF", "127.0.0.1", &servers::free_port().to_string()]);
    let (since, before) = (Instant::now(), bench.proxy.connections());
    while since.elapsed() < 2_000 * MS {
        assert!(bench.hit("x", 40 * MS).await.is_err());
        tokio::time::sleep(MS).await;
    }
    let calls = bench.proxy.connections() - before;
    println!("{calls} connections in 2 s");
    assert!((4..=25).contains(&calls), "{calls}");
    bench.server.command(&["REPLICAOF", "NO", "ONE"]);
    let since = Instant::now();
    while bench.hit("x", 40 * MS).await.is_err() {
        tokio::time::sleep(MS).await;
        assert!(since.elapsed() < BACK_WITHIN);
    }
}

/// A server that stood still for so long that its queue of connections is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn f2_back_within_a_second_of_a_long_stop() {
    let server = Server::redis(&["--tcp-backlog", "1"]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let rules = Rules::new(Algorithm::FixedWindow, &["5 per hour".parse().unwrap()]).unwrap();
    server.signal("STOP");
    assert!(ask(&redis, &rules, "x", Intent::Hit, 40 * MS).await.is_err());
    tokio::time::sleep(Duration::from_secs(6)).await;
    server.signal("CONT");
    let since = Instant::now();
    while ask(&redis, &rules, "x", Intent::Hit, 40 * MS).await.is_err() {
        tokio::time::sleep(MS).await;
        assert!(since.elapsed() < BACK_WITHIN, "{:?}", redis.down());
    }
    println!("back after {:?}", since.elapsed());
}
