//! Redis behind Sentinel: who is the master, and what a failover costs (A6, F2).
//!
//! `TIDEGATE_FAILOVERS=10 cargo nextest run --release -p tidegate-store --test redis_sentinel --no-capture`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod load;

use load::{BACK_TIME_MAX, Load};
use std::time::Instant;
use tidegate_store::redis::{Redis, Url};
use tidegate_testkit::number;
use tidegate_testkit::servers::MASTER;
use tidegate_testkit::servers::sentinel::{Watched, master_by};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_failovers_admit_at_most_one_more_limit_each_and_service_is_back_within_two_seconds() {
    let watched = Watched::start();
    let load = Load::start(watched.url().parse().unwrap(), 2, 16).await;
    let failovers = number("TIDEGATE_FAILOVERS", 1);
    for round in 0..failovers {
        let round_name = format!("failover {round}");
        watched.wait_until("settled", || watched.is_settled());
        load.begin(&round_name).await;
        let old = watched.master();
        match round % 3 {
            // As an operator does it, a silent server, and one that dies.
            1 => drop(watched.sentinels[1].command(&["SENTINEL", "FAILOVER", MASTER])),
            2 => drop(old.command(&["DEBUG", "SLEEP", "3"])),
            _ => old.signal("STOP"),
        }
        watched.wait_until("a switch", || master_by(&watched.sentinels[0]) != old.port);
        let back = load.back_after_switch(Instant::now()).await;
        assert!(back <= BACK_TIME_MAX, "{round_name}: back after {back:?}");
        load.end(&round_name, back).await;
        if round % 3 == 0 {
            old.signal("CONT");
        }
    }
    load.report("sentinel");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_dead_sentinel_is_no_obstacle_and_unknown_masters_are_named() {
    let mut watched = Watched::start();
    let url: Url = watched.url().parse().unwrap();
    drop(watched.sentinels.remove(0));
    assert_eq!(Redis::open(url.clone()).await.down(), None);

    let other = Url { master: "other".to_owned(), addresses: url.addresses[1..].to_vec(), ..url };
    let error = Redis::open(other).await.down().unwrap().to_string();
    assert!(error.contains("knows no master called \"other\""), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn passwords_of_master_and_sentinels_are_used_and_never_shown() {
    let watched = Watched::start();
    for sentinel in &watched.sentinels {
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">hush-sentinel"]);
    }
    watched.servers[0].command(&["CONFIG", "SET", "requirepass", "hush-master"]);
    let some = |password: &str| Some(password.to_owned());
    let url = |sentinel, master| Url {
        sentinel: (None, some(sentinel)),
        password: some(master),
        ..watched.url().parse().unwrap()
    };
    assert_eq!(Redis::open(url("hush-sentinel", "hush-master")).await.down(), None);
    for wrong in [url("hush-sentinel", "hush-wrong"), url("hush-wrong", "hush-master")] {
        let error = Redis::open(wrong).await.down().unwrap().to_string();
        assert!(error.contains("WRONGPASS") && !error.contains("hush"), "{error}");
    }
}
