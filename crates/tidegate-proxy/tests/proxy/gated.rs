//! The proxy's limit is a limiter of the gate: what people and other doors do with it, the proxy knows, and the other
//! way round.

use crate::support::{Origin, PATIENCE, gate, get, proxy_on, runtime, status};
use std::time::{Duration, Instant};
use tidegate::{Gate, Micros, PROXY_LIMITER, Which};
use tidegate_proxy::{Policy, Proxy, Settings, WhenLimited};

/// A proxy that rejects, on a gate that the test has, too.
fn start(origin: &Origin, limit: &str) -> (Gate, Proxy) {
    let gate = gate(limit);
    let limiter = gate.limiter(PROXY_LIMITER).unwrap();
    let policy = Policy { limiter, when_limited: WhenLimited::Reject, ..origin.policy(limit) };
    let proxy = proxy_on(gate.clone(), policy, Settings { workers: 1, ..Settings::default() });
    (gate, proxy)
}

#[test]
fn starts_and_hits_of_other_doors_are_one_count() {
    let origin = Origin::start();
    let (gate, proxy) = start(&origin, "3 per day");
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        assert!(gate.hit(PROXY_LIMITER, "/a").unwrap().allowed);
        assert_eq!(gate.peek(PROXY_LIMITER, "/a").unwrap().remaining, Some(1));
        assert_eq!(status(&get(proxy.address(), "/a?q").await), 200);
        assert_eq!(status(&get(proxy.address(), "/a").await), 429);
        assert_eq!(status(&get(proxy.address(), "/b").await), 200, "another key");
    });
    assert!(!gate.hit(PROXY_LIMITER, "/a").unwrap().allowed);
    let keys = gate.at_once(gate.keys(PROXY_LIMITER, Which::Tracked, None, 10)).unwrap().keys;
    assert_eq!(keys, [b"/a".to_vec(), b"/b".to_vec()]);
    assert_eq!(gate.limiter_info(PROXY_LIMITER).unwrap().counts.allowed, 4);
}

#[test]
fn a_key_that_is_blocked_by_hand_does_not_start() {
    let origin = Origin::start();
    let (gate, proxy) = start(&origin, "3 per day");
    gate.at_once(gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(3600))).unwrap();
    runtime().block_on(async {
        let denied = get(proxy.address(), "/a").await;
        assert!(status(&denied) == 429 && denied.contains("ratelimit-policy: \"proxy\";q=3"), "{denied}");
        assert_eq!(status(&get(proxy.address(), "/b").await), 200);
    });
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_limiter_that_is_disabled_limits_no_starts() {
    let origin = Origin::start();
    let (gate, proxy) = start(&origin, "1 per day");
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        assert_eq!(status(&get(proxy.address(), "/a").await), 429);
        gate.set_enabled(PROXY_LIMITER, false).await.unwrap();
        eventually(&proxy, 200).await;
        gate.set_enabled(PROXY_LIMITER, true).await.unwrap();
        eventually(&proxy, 429).await;
    });
}

/// The flag is followed within a second.
async fn eventually(proxy: &Proxy, wanted: u16) {
    let since = Instant::now();
    while status(&get(proxy.address(), "/a").await) != wanted {
        assert!(since.elapsed() < PATIENCE, "never {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One who waits goes on waiting while somebody else has used the window up, and starts in the next.
#[test]
fn p4_who_waits_does_not_start_over_what_others_used() {
    let origin = Origin::start();
    let gate = gate("2 per 1s");
    let policy = Policy { limiter: gate.limiter(PROXY_LIMITER).unwrap(), ..origin.policy("2 per 1s") };
    let proxy = proxy_on(gate.clone(), policy, Settings { workers: 1, ..Settings::default() });
    runtime().block_on(async {
        // The whole of a window.
        let used = loop {
            if gate.hit(PROXY_LIMITER, "/a").unwrap().remaining == Some(0) {
                break gate.now();
            }
        };
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        assert!(gate.now().get() / 1_000_000 > used.get() / 1_000_000, "it started in a window that was used up");
    });
}
