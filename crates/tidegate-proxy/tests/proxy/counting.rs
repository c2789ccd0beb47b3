//! Counted at the upstream: how many started in which window.

use crate::support::{Origin, get, next_window, proxy, runtime, status, window_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_proxy::{Policy, Proxy};
use tidegate_testkit::number;
use tokio::task::JoinSet;

const PERIOD: Duration = Duration::from_secs(2);

/// The original lost 44 of these 90 waiters for a whole further window.
#[test]
fn p4_p5_thirty_paths_of_six_requests_take_two_windows() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("3 per 2s"));
    runtime().block_on(async {
        let first = next_window(PERIOD).await;
        let mut clients = JoinSet::new();
        for number in 0..180 {
            let (address, path) = (proxy.address(), format!("/path-{}", number % 30));
            clients.spawn(async move { status(&get(address, &path).await) });
        }
        assert!(clients.join_all().await.iter().all(|status| *status == 200));
        let mut by_window = BTreeMap::<u64, usize>::new();
        origin.seen().iter().for_each(|seen| *by_window.entry(window_of(seen.at, PERIOD)).or_default() += 1);
        assert_eq!(by_window, BTreeMap::from([(first, 90), (first + 1, 90)]));
    });
}

/// How many windows; more with the variable WINDOWS.
const WINDOWS: u32 = 3;
const CLIENTS: usize = 300;
const PATHS: usize = 10;
const LIMIT: usize = 40;
/// A start within this time after a boundary may belong to either window (P4).
const TOLERANCE: Duration = Duration::from_millis(50);

#[test]
fn p4_never_more_than_the_limit_and_all_of_it_when_there_is_demand() {
    let windows = number("TIDEGATE_WINDOWS", WINDOWS);
    let origin = Origin::start();
    let proxy = Arc::new(proxy(Policy { in_flight: 7, ..origin.policy("40 per 2s") }));
    let first = runtime().block_on(async {
        let first = next_window(PERIOD).await;
        let end = Instant::now() + PERIOD * windows;
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (proxy, path) = (Arc::clone(&proxy), format!("/path-{}", number % PATHS));
            clients.spawn(ask_until(end, proxy, path));
        }
        clients.join_all().await;
        first
    });
    let mut starts = BTreeMap::<(String, u64), (usize, usize)>::new();
    for seen in origin.seen() {
        let window = window_of(seen.at, PERIOD);
        let either = window_of(seen.at - TOLERANCE, PERIOD) != window;
        let (sure, maybe) = starts.entry((seen.line, window)).or_default();
        *(if either { maybe } else { sure }) += 1;
    }
    for ((path, window), (sure, maybe)) in &starts {
        assert!(*sure <= LIMIT, "{path}: {sure} in window {window}");
        let full = (first..first + u64::from(windows)).contains(window);
        assert!(!full || sure + maybe >= LIMIT, "{path}: only {sure} + {maybe} in window {window} of {first}");
    }
    assert!(starts.len() >= PATHS * windows as usize, "{starts:?}");
}

async fn ask_until(end: Instant, proxy: Arc<Proxy>, path: String) {
    while Instant::now() < end {
        let asked = tokio::time::timeout_at(end.into(), get(proxy.address(), &path)).await;
        assert!(asked.is_err() || asked.is_ok_and(|answer| status(&answer) == 200));
    }
}
