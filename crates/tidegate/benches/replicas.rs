//! What it takes replicas to count together: starts granted in a second, and round trips for each of them, with 1, 10 and
//! 100 requests of a key waiting at once.
//!
//! `cargo bench -p tidegate --all-features --bench replicas` starts a redis-server and an etcd of its own. Everything runs on this
//! machine: a turnstile with the questions of 64 keys under way, the quota client, and the store. Every request that gets its
//! start has ended before the next ones come, so that each round asks, starts and gives slots back.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run should say so")]

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate::{Clock, Limit, Micros, QuotaClient, Store, StoreUrl};
use tidegate_core::turnstile::{Bounds, Grant, KeyHash, Name, StoreTerms, Ticket, Turnstile};
use tidegate_testkit::servers;

const KEYS: usize = 64;
const ROUND: Duration = Duration::from_secs(3);

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("{:>8}  {:>7}  {:>12}  {:>21}", "store", "waiting", "starts/s", "round trips per start");
        let redis = servers::Server::redis(&[]);
        let etcd = servers::etcd::Etcd::start();
        let stores = [
            ("redis", redis.url().parse::<StoreUrl>().unwrap()),
            ("etcd", etcd.endpoints().parse::<StoreUrl>().unwrap()),
        ];
        for (name, url) in stores {
            for waiting in [1, 10, 100] {
                let store = Store::open(url.clone(), &Clock::process()).await;
                let client = QuotaClient::new(store, &format!("bench-{waiting}"));
                let (starts, trips, seconds) = measure(&client, waiting).await;
                let rate = starts as f64 / seconds;
                let each = trips as f64 / starts as f64;
                println!("{name:>8}  {waiting:>7}  {rate:>12.0}  {each:>21.3}");
                assert!(waiting < 100 || each < 0.1, "{each} round trips per start");
            }
        }
    });
}

/// Starts, round trips and seconds.
async fn measure(client: &QuotaClient, waiting: u32) -> (u64, u64, f64) {
    let limit = Limit::new(u32::MAX, Micros::from_secs(3600)).unwrap();
    let all = u32::try_from(KEYS).unwrap() * waiting;
    let bounds = Bounds { limit, in_flight: 1_000, total: all, waiting: all, waiting_weight: all.into(), keys: 1_000 };
    let (clock, mut turnstile) = (Clock::process(), Turnstile::new(bounds));
    turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(3), call_all: false });
    let mut lines: Vec<VecDeque<Ticket>> = (0..KEYS).map(|_| VecDeque::new()).collect();
    let (mut out, mut starts, began) = (FuturesUnordered::new(), 0, Instant::now());
    while began.elapsed() < ROUND {
        for (key, line) in lines.iter_mut().enumerate().filter(|(_, line)| line.is_empty()) {
            let (hash, name) = (KeyHash::new(key as u64, 1), Name((key as u128 + 1).to_be_bytes()));
            for _ in 0..waiting {
                line.push_back(turnstile.wait_as(hash, name, 1, key, clock.now()).unwrap());
            }
        }
        while let Some(pending) = turnstile.next_request(clock.now()) {
            out.push(async move {
                let grant = client.ask(&pending.request).await;
                (pending, grant)
            });
        }
        let Some((pending, grant)) = out.next().await else { continue };
        turnstile.answered(pending, grant.unwrap_or(Grant::FAILED), clock.now());
        for key in turnstile.called() {
            let ticket = lines[key].pop_front().unwrap();
            let permit = turnstile.claim(ticket).unwrap();
            turnstile.finish(permit, clock.now());
            starts += 1;
        }
    }
    (starts, client.round_trips(), began.elapsed().as_secs_f64())
}
