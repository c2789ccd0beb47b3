//! Counted at the upstream: how many started in which window.

use crate::support::{Origin, TooSlow, get, in_a_window, next_window, proxy, runtime, status, var, window_of, within};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_proxy::{Policy, Proxy};
use tidegate_testkit::{number, waited_for_processor};
use tokio::task::JoinSet;

/// The original lost 44 of these 90 waiters for a whole further window.
#[test]
fn p4_p5_thirty_paths_of_six_requests_take_two_windows() {
    in_a_window(|period| {
        let origin = Origin::start();
        let proxy = proxy(origin.policy(&format!("3 per {}s", period.as_secs())));
        let first = runtime().block_on(async {
            let first = next_window(period).await;
            let mut clients = JoinSet::new();
            for number in 0..180 {
                let (address, path) = (proxy.address(), format!("/path-{}", number % 30));
                clients.spawn(async move { status(&get(address, &path).await) });
            }
            // Half of them have started, and half stand in line, while the window lasts.
            within(first, period, async || origin.count() == 90 && var(&proxy, "waiting").await == 90).await?;
            assert!(clients.join_all().await.iter().all(|status| *status == 200));
            Ok(first)
        })?;
        let mut by_window = BTreeMap::<u64, usize>::new();
        origin.seen().iter().for_each(|seen| *by_window.entry(window_of(seen.at, period)).or_default() += 1);
        assert_eq!(by_window, BTreeMap::from([(first, 90), (first + 1, 90)]));
        Ok(())
    });
}

/// How many windows; more with the variable `TIDEGATE_WINDOWS`.
const WINDOWS: u32 = 3;
const CLIENTS: usize = 300;
const PATHS: usize = 10;
const LIMIT: usize = 40;
/// A start within this time after a boundary may belong to either window (P4).
const TOLERANCE: Duration = Duration::from_millis(50);

#[test]
fn p4_never_more_than_the_limit_and_all_of_it_when_there_is_demand() {
    in_a_window(use_every_start);
}

/// More clients than starts, for some windows: no window has more starts than the limit, and none has less, unless the machine
/// could not forward so many in that time: then it is too slow, if threads of this process were in line for a processor
/// all the while.
fn use_every_start(period: Duration) -> Result<(), TooSlow> {
    let windows = number("TIDEGATE_WINDOWS", WINDOWS);
    let origin = Origin::start();
    let proxy =
        Arc::new(proxy(Policy { in_flight: 7, ..origin.policy(&format!("{LIMIT} per {}s", period.as_secs())) }));
    let (first, in_line) = runtime().block_on(async {
        let first = next_window(period).await;
        let (end, before) = (Instant::now() + period * windows, waited_for_processor(std::process::id()));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (proxy, path) = (Arc::clone(&proxy), format!("/path-{}", number % PATHS));
            clients.spawn(ask_until(end, proxy, path));
        }
        clients.join_all().await;
        (first, waited_for_processor(std::process::id()) - before)
    });
    let starts = starts_by_window(&origin, period);
    let least = (first..first + u64::from(windows))
        .flat_map(|window| (0..PATHS).map(move |path| (format!("GET /path-{path}"), window)))
        .map(|start| starts.get(&start).map_or(0, |(sure, maybe)| sure + maybe))
        .min();
    println!(
        "the machine let threads stand in line for {in_line:?} of {:?}; {least:?} starts at least",
        period * windows
    );
    for ((path, window), (sure, _)) in &starts {
        assert!(*sure <= LIMIT, "{path}: {sure} in window {window}");
    }
    if least >= Some(LIMIT) {
        return Ok(());
    }
    assert!(in_line > period * windows, "only {least:?} of {LIMIT} started in a window from {first} on: {starts:?}");
    Err(TooSlow)
}

/// How many of each path started in a window for sure, and how many may belong to it or to the one before.
fn starts_by_window(origin: &Origin, period: Duration) -> BTreeMap<(String, u64), (usize, usize)> {
    let mut starts = BTreeMap::<(String, u64), (usize, usize)>::new();
    for seen in origin.seen() {
        let window = window_of(seen.at, period);
        let either = window_of(seen.at - TOLERANCE, period) != window;
        let (sure, maybe) = starts.entry((seen.line, window)).or_default();
        *(if either { maybe } else { sure }) += 1;
    }
    starts
}

async fn ask_until(end: Instant, proxy: Arc<Proxy>, path: String) {
    while Instant::now() < end {
        let asked = tokio::time::timeout_at(end.into(), get(proxy.address(), &path)).await;
        assert!(asked.is_err() || asked.is_ok_and(|answer| status(&answer) == 200));
    }
}
