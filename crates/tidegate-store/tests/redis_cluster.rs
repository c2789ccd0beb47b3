//! Redis Cluster: exact while slots move, and what a failover costs (A6, F2, F3).
//!
//! `TIDEGATE_ROUNDS=200 TIDEGATE_FAILOVERS=10 cargo nextest run --release -p tidegate-store --test redis_cluster --no-capture`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod load;

use load::{BACK_TIME_MAX, Load};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Micros, Rules};
use tidegate_store::redis::Redis;
use tidegate_store::{Asked, Layout, PageOf, Question, When, Which};
use tidegate_testkit::number;
use tidegate_testkit::servers::cluster::Cluster;

/// What a key may have in a round.
const LIMIT: usize = 10;
const CALLERS: usize = 64;
/// Moves of a slot in a round: once to each master. See [`Cluster::move_slot`].
const MOVES_MAX: usize = 3;

fn asked() -> Asked {
    let by = tokio::time::Instant::now() + Duration::from_secs(10);
    Asked { now: None, cost: 1, intent: Intent::Hit, explain: false, by }
}

fn question<'a>(limiter: &'a str, rules: &'a Rules, key: &'a [u8]) -> Question<'a> {
    Question { limiter, rules, names: true, key, layout: Layout::Native, role: Default::default(), own: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_exactly_the_limit_is_admitted_while_slots_move() {
    let cluster = Arc::new(Cluster::start());
    let url = cluster.url();
    let stores = Arc::new([Redis::open(url.parse().unwrap()).await, Redis::open(url.parse().unwrap()).await]);
    assert_eq!(stores[0].down(), None);
    let rounds = number("TIDEGATE_ROUNDS", 3);
    let moves = Arc::new(AtomicU64::new(0));
    for algorithm in Algorithm::ALL {
        for round in 0..rounds {
            exactly_ten(&cluster, &stores, algorithm, round, &moves).await;
        }
    }
    println!("{} slots moved during {rounds} rounds of {} algorithms", moves.load(Relaxed), Algorithm::ALL.len());
}

async fn exactly_ten(
    cluster: &Arc<Cluster>,
    stores: &Arc<[Redis; 2]>,
    algorithm: Algorithm,
    round: u64,
    moves: &Arc<AtomicU64>,
) {
    let rules = rules_of(algorithm);
    let (limiter, key) = (format!("{algorithm:?}"), format!("round {round}"));
    // The first hit makes the key, so that there is something to move.
    let first = stores[0].decide(&[question(&limiter, &rules, key.as_bytes())], &asked()).await.unwrap();
    assert!(first.1[0].ruling.is_allowed());
    let slot = cluster.slot_of(&limiter, &key).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mover = tokio::task::spawn_blocking({
        let (cluster, done, moves) = (Arc::clone(cluster), Arc::clone(&done), Arc::clone(moves));
        move || {
            for _ in 0..MOVES_MAX {
                if done.load(Relaxed) {
                    return;
                }
                cluster.move_slot(slot, Duration::from_millis(1));
                moves.fetch_add(1, Relaxed);
            }
        }
    });
    let callers = (0..CALLERS).map(|caller| {
        let (stores, rules, limiter, key) = (Arc::clone(stores), rules.clone(), limiter.clone(), key.clone());
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..5 {
                let question = question(&limiter, &rules, key.as_bytes());
                let (_, answers) = stores[caller % 2].decide(&[question], &asked()).await.unwrap();
                admitted += usize::from(answers[0].ruling.is_allowed());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            admitted
        })
    });
    let mut admitted = 1;
    for caller in callers.collect::<Vec<_>>() {
        admitted += caller.await.unwrap();
    }
    done.store(true, Relaxed);
    mover.await.unwrap();
    assert!(expected_of(algorithm).contains(&admitted), "{algorithm:?}, round {round}: {admitted} were admitted");
}

/// So long that nothing comes back within a round.
fn rules_of(algorithm: Algorithm) -> Rules {
    Rules::new(algorithm, &[format!("{LIMIT} per day").parse().unwrap()]).unwrap()
}

/// An average is a float: its first request counts nothing, and whether the last is below the limit by a hair
/// or not depends on the microseconds between requests.
fn expected_of(algorithm: Algorithm) -> std::ops::RangeInclusive<usize> {
    match algorithm {
        Algorithm::StrictAverage | Algorithm::LeakyAverage => LIMIT..=LIMIT + 1,
        _ => LIMIT..=LIMIT,
    }
}

/// A slot that was moved to and fro within milliseconds had a key at both nodes: a request was sent on (ASK), its
/// thread stood still for 22 ms, and when it came the slot had been moved back and was on its way again. Here the word
/// of the old owner comes late; it is asked again, and the other node never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_a_redirection_that_is_old_is_not_followed() {
    let other = Node::start(|_| "-ERR it was followed\r\n".to_owned());
    let there = other.port;
    let owner = Node::start(move |turn| {
        if turn > 0 {
            return "-ERR it was asked again\r\n".to_owned();
        }
        std::thread::sleep(Duration::from_millis(1_100));
        format!("-ASK 0 127.0.0.1:{there}\r\n")
    });
    let redis = Redis::open(format!("redis-cluster://127.0.0.1:{}", owner.port).parse().unwrap()).await;
    let rules = rules_of(Algorithm::FixedWindow);
    let answer = redis.decide(&[question("late", &rules, b"x")], &asked()).await;
    assert!(answer.unwrap_err().to_string().contains("it was asked again"));
    assert_eq!((owner.asked.load(Relaxed), other.asked.load(Relaxed)), (2, 0));
}

/// A node of a cluster that has all slots, and answers scripts with what the test wants.
struct Node {
    port: u16,
    /// Scripts that it was asked to run.
    asked: Arc<AtomicU64>,
}

impl Node {
    fn start(answer: impl Fn(u64) -> String + Clone + Send + 'static) -> Node {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(AtomicU64::new(0));
        let node = Node { port, asked: Arc::clone(&asked) };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (asked, answer) = (Arc::clone(&asked), answer.clone());
                std::thread::spawn(move || converse(stream, port, &asked, &answer));
            }
        });
        node
    }
}

/// One command at a time, as this test sends them.
fn converse(mut stream: std::net::TcpStream, port: u16, asked: &AtomicU64, answer: &impl Fn(u64) -> String) {
    let mut bytes = [0; 65_536];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        let command = String::from_utf8_lossy(&bytes[..n]);
        let said = if command.contains("PING") {
            "+PONG\r\n".to_owned()
        } else if command.contains("SLOTS") {
            format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
        } else {
            let ahead = if command.contains("ASKING") { "+OK\r\n" } else { "" };
            ahead.to_owned() + &answer(asked.fetch_add(1, Relaxed))
        };
        stream.write_all(said.as_bytes()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_failovers_admit_at_most_one_more_limit_each_and_service_is_back_within_two_seconds() {
    let cluster = Cluster::start();
    let load = Load::start(cluster.url().parse().unwrap(), 2, 16).await;
    for round in 0..number("TIDEGATE_FAILOVERS", 1) {
        let name = format!("failover {round}");
        cluster.wait_until_settled();
        load.begin(&name).await;
        let old = cluster.owner(cluster.slot_of("load", &format!("{name} key {}", round % 12)).unwrap());
        let slots = format!("127.0.0.1:{}@", old.port);
        old.signal("STOP");
        // The switch: another node says that the old master failed and that all slots are served.
        let other = cluster.nodes.iter().find(|node| node.port != old.port).unwrap();
        let since = Instant::now();
        loop {
            let nodes = other.command(&["CLUSTER", "NODES"]);
            let line = nodes.lines().find(|line| line.contains(&slots)).unwrap_or("").to_owned();
            let has_slots = line.split_whitespace().count() > 8;
            if !line.is_empty() && !has_slots && other.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "no failover: {nodes}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let back = load.back_after_switch(Instant::now()).await;
        assert!(back <= BACK_TIME_MAX, "{name}: back after {back:?}");
        load.end(&name, back).await;
        old.signal("CONT");
    }
    load.report("cluster");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn names_are_listed_over_all_nodes() {
    let cluster = Cluster::start();
    let redis = Redis::open(cluster.url().parse().unwrap()).await;
    let rules = Rules::new(Algorithm::SlidingLog, &["2 per hour block 1h".parse().unwrap()]).unwrap();
    let names: Vec<Vec<u8>> = (10..40).map(|number| format!("user-{number}").into_bytes()).collect();
    for name in &names {
        for _ in 0..if name.ends_with(b"7") { 3 } else { 1 } {
            redis.decide(&[question("list", &rules, name)], &asked()).await.unwrap();
        }
    }
    let any = question("list", &rules, b"");
    let list =
        async |which| redis.list(&any, PageOf { which, after: None, most: usize::MAX }, now()).await.unwrap().keys;
    assert_eq!(list(Which::Tracked).await, names);
    assert_eq!(list(Which::Blocked).await, [&names[7], &names[17], &names[27]].map(Clone::clone));
    assert!(redis.unblock(&question("list", &rules, &names[7]), now()).await.unwrap());
    assert_eq!(list(Which::Blocked).await.len(), 2);
    assert_eq!(redis.unblock_all(&any, now()).await.unwrap(), 2);
    assert_eq!(list(Which::Tracked).await.len(), names.len() - 3);
    let until = redis.block(&question("list", &rules, b"new"), Micros::from_secs(60), now()).await.unwrap().unwrap();
    assert!(until > Micros::ZERO && list(Which::Tracked).await.contains(&b"new".to_vec()));
    assert_eq!(redis.evicts().await, None);
    let eternal: Vec<String> = cluster.masters().iter().flat_map(|node| node.keys_without_expiry()).collect();
    assert_eq!(eternal, Vec::<String>::new(), "A9");
}

fn now() -> When {
    When { now: None, by: tokio::time::Instant::now() + Duration::from_secs(10) }
}
