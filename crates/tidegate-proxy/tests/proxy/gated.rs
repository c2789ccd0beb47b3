//! The proxy's limit is a limiter of the gate: what people and other doors do with it, the proxy knows, and the other
//! way round.

use crate::support::{Origin, WAIT_TIME_MAX, gate, get, proxy_on, runtime, status};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Gate, Limit, LimiterSpec, Micros, PROXY_LIMITER, Rules, Weekday, Which};
use tidegate_proxy::{Policy, Proxy, Settings, WhenLimited};
use tidegate_testkit::Stopwatch;

/// A proxy that rejects, on a gate that the test has, too.
fn start(origin: &Origin, limit: &str) -> (Gate, Proxy) {
    start_on(gate(limit), origin, limit)
}

fn start_on(gate: Gate, origin: &Origin, limit: &str) -> (Gate, Proxy) {
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

/// The proxy began weeks on another day than its limiter, and answered with another end of them.
#[test]
fn weeks_begin_on_the_day_of_the_limiter() {
    let origin = Origin::start();
    for day in Weekday::ALL {
        let limit = "1 per week".parse::<Limit>().unwrap().with_weeks_from(day);
        let rules = Rules::new(Algorithm::AlignedWindow, &[limit]).unwrap();
        let limiters = tidegate::Policy::new(vec![LimiterSpec::new(PROXY_LIMITER, rules)]).unwrap();
        let (gate, proxy) = start_on(Gate::embedded(limiters), &origin, "1 per week");
        let answers = runtime().block_on(async {
            (get(proxy.address(), "/a").await, get(proxy.address(), "/a").await, gate.now().get() / 1_000_000)
        });
        assert_eq!((status(&answers.0), status(&answers.1)), (200, 429), "{day:?}");
        let wait =
            answers.1.split_once("retry-after: ").unwrap().1.split("\r\n").next().unwrap().parse::<u64>().unwrap();
        // A second is rounded up, and another may have passed.
        let into = (answers.2 + wait + limit.lead().get() / 1_000_000) % (7 * 86_400);
        assert!(into <= 2, "{day:?}: {into} s into the next week");
    }
}

#[test]
fn a_key_that_is_blocked_by_hand_does_not_start() {
    let origin = Origin::start();
    let (gate, proxy) = start(&origin, "3 per day");
    gate.at_once(gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(3600))).unwrap();
    runtime().block_on(async {
        let denied = get(proxy.address(), "/a").await;
        assert!(status(&denied) == 429 && denied.contains("\"reason\":\"blocked\""), "{denied}");
        assert!(denied.contains("retry-after: 3600\r\n"), "the end of the block, not of the window: {denied}");
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
        assert!(since.elapsed() < WAIT_TIME_MAX, "never {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A block may last for days: no request waits for its end.
#[test]
fn a_key_that_is_blocked_by_hand_does_not_wait() {
    let (origin, gate) = (Origin::start(), gate("3 per day"));
    let policy = Policy { limiter: gate.limiter(PROXY_LIMITER).unwrap(), ..origin.policy("3 per day") };
    let proxy = proxy_on(gate.clone(), policy, Settings { workers: 1, ..Settings::default() });
    gate.at_once(gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(3600))).unwrap();
    let denied = runtime().block_on(get(proxy.address(), "/a"));
    assert!(status(&denied) == 429 && denied.contains("\"reason\":\"blocked\""), "{denied}");
}

/// The turnstile came first: where the window was used up, a request on a blocked key was answered `limited` until the window's end, or stood in line.
#[test]
fn a_key_that_is_blocked_by_hand_is_told_so_though_its_window_is_used_up() {
    for when_limited in [WhenLimited::Reject, WhenLimited::Wait] {
        let (origin, gate) = (Origin::start(), gate("1 per day"));
        let limiter = gate.limiter(PROXY_LIMITER).unwrap();
        let policy = Policy { limiter, when_limited, ..origin.policy("1 per day") };
        let proxy = proxy_on(gate.clone(), policy, Settings { workers: 1, ..Settings::default() });
        runtime().block_on(async {
            assert_eq!(status(&get(proxy.address(), "/a").await), 200);
            gate.block(PROXY_LIMITER, b"/a", Micros::from_secs(3_000_000)).await.unwrap();
            let denied = get(proxy.address(), "/a").await;
            assert!(status(&denied) == 429 && denied.contains("\"reason\":\"blocked\""), "{when_limited:?}: {denied}");
            let is_the_blocks = denied.contains("retry-after: 3000000\r\n") || denied.contains("retry-after: 2999");
            assert!(is_the_blocks, "the end of the block, not of the window: {denied}");
        });
        let counts = gate.limiter_info(PROXY_LIMITER).unwrap().counts;
        assert_eq!((counts.allowed, counts.denied), (1, 0), "looking for a block charges and counts nothing");
    }
}

/// `max_wait` began anew each time that a request had to wait again, here because others use each window up.
#[test]
fn p6_max_wait_counts_from_the_arrival() {
    let (origin, gate) = (Origin::start(), gate("1 per 500ms"));
    let limiter = gate.limiter(PROXY_LIMITER).unwrap();
    let policy = Policy { limiter, max_wait: Some(Duration::from_millis(1_200)), ..origin.policy("1 per 500ms") };
    let proxy = proxy_on(gate.clone(), policy, Settings { workers: 1, ..Settings::default() });
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = gate.hit(PROXY_LIMITER, "/a");
            }
        });
        let (since, watch) = (Instant::now(), Stopwatch::start());
        let answer = runtime().block_on(get(proxy.address(), "/a"));
        let (waited, within) = (since.elapsed(), watch.elapsed());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        // It may have been faster than the others once.
        let is_denied_in_time = status(&answer) == 429 && waited >= Duration::from_millis(1_199);
        assert!(status(&answer) == 200 || is_denied_in_time, "{waited:?}: {answer}");
        assert!(within < Duration::from_millis(1_500), "{within:?}: {answer}");
    });
}

/// A request goes on waiting while other doors have used the window up, and starts in the next.
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
