//! Replicas on one Redis while clocks are wrong, and what `/readyz` says when their store does not answer.

use crate::support::{Origin, eventually, get, proxy_on, runtime, status};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, LimiterSpec, Micros, PROXY_LIMITER, Replicas, Request, Rules, StoreSettings, Which};
use tidegate_proxy::{Policy, Proxy, Settings, WhenLimited};
use tidegate_testkit::servers::Server;
use tokio::runtime::Runtime;

const LIMIT: &str = "3 per 1s";

/// Replicas of one limit on one Redis, and the runtime that their stores live on.
struct Scene {
    redis: Server,
    origin: Origin,
    replicas: Vec<(Gate, Proxy)>,
    runtime: Runtime,
}

fn start(replicas: usize) -> Scene {
    start_with(replicas, LIMIT, Replicas::Exact)
}

fn start_with(replicas: usize, limit: &str, kept: Replicas) -> Scene {
    let (redis, origin, runtime) = (Server::redis(&[]), Origin::start(), runtime());
    let replica = |_| {
        let gate = runtime.block_on(connect(&redis.url(), limit, kept));
        let limiter = gate.limiter(PROXY_LIMITER).unwrap();
        let policy = Policy { limiter, when_limited: WhenLimited::Reject, ..origin.policy(limit) };
        let settings = Settings { workers: 1, store_outage: Duration::from_secs(2), ..Settings::default() };
        let proxy = proxy_on(gate.clone(), policy, settings);
        (gate, proxy)
    };
    let replicas = (0..replicas).map(replica).collect();
    Scene { redis, origin, replicas, runtime }
}

async fn connect(url: &str, limit: &str, replicas: Replicas) -> Gate {
    let rules = Rules::new(tidegate::Algorithm::AlignedWindow, &[limit.parse().unwrap()]).unwrap();
    let limiter = LimiterSpec { replicas, ..LimiterSpec::new(PROXY_LIMITER, rules) };
    let policy = tidegate::Policy::new(vec![limiter]).unwrap();
    Gate::connect(&policy, url.parse().unwrap(), StoreSettings::default(), Clock::process()).await
}

impl Scene {
    /// Asks all replicas in turn for so long; returns the statuses.
    async fn ask_for(&self, time: Duration) -> BTreeMap<u16, usize> {
        let (since, mut statuses) = (Instant::now(), BTreeMap::new());
        while since.elapsed() < time {
            for (_, proxy) in &self.replicas {
                *statuses.entry(status(&get(proxy.address(), "/a").await)).or_default() += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        statuses
    }

    /// The most starts in a window of the true clock. One within 50 ms of a boundary may belong to either window (P4).
    fn most_in_a_window(&self) -> usize {
        let mut windows = BTreeMap::<u128, usize>::new();
        for at in self.origin.seen().iter().map(|seen| seen.at.as_millis()) {
            if (50..950).contains(&(at % 1_000)) {
                *windows.entry(at / 1_000).or_default() += 1;
            }
        }
        windows.values().copied().max().unwrap_or(0)
    }
}

/// A process's clock that was once ahead stays ahead, and every request was answered 503 (`store_down`) until the restart.
#[test]
fn t1_p4_a_clock_that_was_ahead_once_heals_by_itself() {
    let scene = start(2);
    scene.runtime.block_on(async {
        scene.ask_for(Duration::from_millis(1_200)).await;
        for (gate, _) in &scene.replicas {
            gate.clock().not_before(gate.now().saturating_add(Micros::from_secs(5)));
        }
        let statuses = scene.ask_for(Duration::from_secs(4)).await;
        // Two windows to heal in, and two that are whole.
        assert!(statuses.get(&200).is_some_and(|served| *served >= 6), "{statuses:?}");
        assert_eq!(statuses.get(&503), None, "{statuses:?}");
    });
    assert!(scene.most_in_a_window() <= 3, "{} in a window", scene.most_in_a_window());
}

/// Redis' clock was ahead: the path's hash was left with a window that comes in an hour, and until then nothing started.
#[test]
fn t1_p4_a_window_that_redis_counted_while_its_clock_was_ahead_heals_by_itself() {
    let scene = start(1);
    scene.runtime.block_on(async {
        assert_eq!(status(&get(scene.replicas[0].1.address(), "/a").await), 200);
        let keys = scene.redis.command(&["KEYS", "tidegate:exact:*"]);
        let hours = 3_600 + scene.replicas[0].0.now().get() / 1_000_000;
        for key in keys.split_whitespace() {
            scene.redis.command(&["HSET", key, "w", &hours.to_string(), "n", "3"]);
            scene.redis.command(&["PEXPIRE", key, "7200000"]);
        }
        let statuses = scene.ask_for(Duration::from_secs(4)).await;
        assert!(statuses.get(&200).is_some_and(|served| *served >= 6), "{statuses:?}");
    });
    assert!(scene.most_in_a_window() <= 3, "{} in a window", scene.most_in_a_window());
}

/// Replicas that count together ask the store for starts alone: a block was accepted, and held at no replica.
#[test]
fn a_block_by_hand_holds_for_all_replicas_that_count_together() {
    let scene = start(2);
    let [(gate, one), (_, two)] = &scene.replicas[..] else { unreachable!("two replicas") };
    scene.runtime.block_on(async {
        gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(60)).await.unwrap();
        for (proxy, who) in [(one, "that blocked"), (two, "that looks it up")] {
            let is_blocked = || async {
                let answer = get(proxy.address(), "/a").await;
                let waits = (40..=60).any(|left| answer.contains(&format!("retry-after: {left}\r\n")));
                status(&answer) == 429 && answer.contains("\"reason\":\"blocked\"") && waits
            };
            eventually(who, is_blocked).await;
            assert_eq!(status(&get(proxy.address(), "/b").await), 200, "another key, at the replica {who}");
        }
        assert!(gate.unblock(PROXY_LIMITER, b"/a").await.unwrap());
        for (proxy, who) in [(one, "that unblocked"), (two, "that looks it up")] {
            eventually(who, || async { status(&get(proxy.address(), "/a").await) == 200 }).await;
        }
    });
}

/// The store's count of starts is one of its own, as the guide says: other doors see what they counted, and no start.
#[test]
fn a_peek_where_replicas_count_together_sees_no_start() {
    let scene = start(1);
    let (gate, proxy) = &scene.replicas[0];
    scene.runtime.block_on(async {
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        let peeked = gate.ask(&Request::hit(PROXY_LIMITER, b"/a").peek()).await.unwrap();
        assert_eq!((peeked.allowed, peeked.remaining), (true, Some(3)));
        assert_eq!(gate.keys(PROXY_LIMITER, Which::Tracked, None, 10).await.unwrap().keys, [b""; 0]);
    });
}

/// A blocked key whose starts were used up was answered `limited`; and a disabled limiter, which limits nothing, refused a blocked key.
#[test]
fn a_blocked_key_is_told_so_though_no_start_is_left_unless_the_limiter_is_disabled() {
    for kept in [Replicas::Exact, Replicas::Share(Some((0, 1)))] {
        let scene = start_with(1, "1 per day", kept);
        let (gate, proxy) = &scene.replicas[0];
        scene.runtime.block_on(async {
            let ask = || get(proxy.address(), "/a");
            assert_eq!(status(&ask().await), 200, "{kept:?}");
            gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(3_000_000)).await.unwrap();
            let denied = ask().await;
            assert!(status(&denied) == 429 && denied.contains("\"reason\":\"blocked\""), "{kept:?}: {denied}");
            gate.set_enabled(PROXY_LIMITER, false).await.unwrap();
            eventually("disabled", || async { status(&ask().await) == 200 }).await;
        });
    }
}

/// Every request was answered 503 while `/readyz` answered a load balancer 200.
#[test]
fn readyz_is_503_while_the_store_is_away_and_200_when_it_is_back_though_nobody_asks() {
    let mut scene = start(1);
    let admin = scene.replicas[0].1.admin().unwrap();
    let is = |wanted: u16| async move { status(&get(admin, "/readyz").await) == wanted };
    scene.runtime.block_on(async {
        eventually("ready", || is(200)).await;
        assert_eq!(status(&get(scene.replicas[0].1.address(), "/a").await), 200);
    });
    scene.redis.kill();
    scene.runtime.block_on(async {
        eventually("not ready, without a request", || is(503)).await;
        let why = get(admin, "/readyz").await;
        assert!(why.contains("the store at 127.0.0.1:"), "{why}");
        assert_eq!(status(&get(scene.replicas[0].1.address(), "/a").await), 503);
    });
    scene.redis.start_again(&[]);
    scene.runtime.block_on(eventually("ready again, without a request", || is(200)));
}
