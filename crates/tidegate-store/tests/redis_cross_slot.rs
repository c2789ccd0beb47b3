//! Keys of one request on different nodes or shards: all of them are charged, or none (A5).
//!
//! `TIDEGATE_ROUNDS=100 cargo nextest run -p tidegate-store --all-features --test redis_cross_slot slots_move --no-capture`
//! for the long run.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::sync::Arc;
use std::time::Duration;
use tidegate_core::all_or_nothing::{Intent, Reason};
use tidegate_core::{Algorithm, Rules};
use tidegate_store::redis::Redis;
use tidegate_store::{Asked, Layout, Question};
use tidegate_testkit::number;
use tidegate_testkit::servers::Server;
use tidegate_testkit::servers::cluster::Cluster;

const USER_LIMIT: u32 = 10;
const IP_LIMIT: u32 = 7;
const CALLERS: usize = 64;
/// Buckets block all the same, for their period.
const NO_BLOCKS: [&str; 2] = ["", ""];

/// A request with a user and an address: what it may, and who it is.
#[derive(Clone)]
struct Pair {
    user: Rules,
    ip: Rules,
    name: String,
}

impl Pair {
    /// The limits of user and address end with these words.
    fn new(algorithm: Algorithm, blocks: [&str; 2], name: &str) -> Pair {
        let rules = |count: u32, block: &str| {
            Rules::new(algorithm, &[format!("{count} per day{block}").parse().unwrap()]).unwrap()
        };
        let name = format!("{algorithm:?} {name}");
        Pair { user: rules(USER_LIMIT, blocks[0]), ip: rules(IP_LIMIT, blocks[1]), name }
    }

    async fn ask(&self, redis: &Redis, intent: Intent, cost: u32) -> [(bool, u32, Reason); 2] {
        let question = |limiter, rules| {
            let key = self.name.as_bytes();
            Question { limiter, rules, names: true, key, layout: Layout::Native, role: Default::default(), own: None }
        };
        let questions = [question("user", &self.user), question("ip", &self.ip)];
        let by = tokio::time::Instant::now() + Duration::from_secs(10);
        let asked = Asked { now: None, cost, intent, explain: false, by };
        let (_, answers) = redis.decide(&questions, &asked).await.unwrap();
        [0, 1].map(|place: usize| {
            let ruling = answers[place].ruling;
            (ruling.is_allowed(), ruling.decision.remaining, ruling.reason)
        })
    }

    /// What is left of both.
    async fn left(&self, redis: &Redis) -> [u32; 2] {
        self.ask(redis, Intent::Peek, 0).await.map(|(_, left, _)| left)
    }
}

fn counting() -> impl Iterator<Item = Algorithm> {
    let averages = [Algorithm::StrictAverage, Algorithm::LeakyAverage];
    Algorithm::ALL.into_iter().filter(move |algorithm| !averages.contains(algorithm))
}

async fn check(url: &str) {
    let redis = Arc::new(Redis::open(url.parse().unwrap()).await);
    assert_eq!(redis.down(), None);
    for algorithm in counting() {
        denials_leave_both_as_they_were(&redis, &Pair::new(algorithm, NO_BLOCKS, "in turn")).await;
        races_admit_no_more_and_are_refunded(&redis, &Pair::new(algorithm, NO_BLOCKS, "at once")).await;
        // A charge that is about to be refunded starts no block at the user's, by nobody's denial.
        races_admit_no_more_and_are_refunded(&redis, &Pair::new(algorithm, [" block 1h"; 2], "both block")).await;
    }
    denials_start_the_block_of_the_one_that_denies(&redis).await;
}

async fn denials_leave_both_as_they_were(redis: &Redis, pair: &Pair) {
    for turn in 1..=IP_LIMIT {
        let [user, ip] = pair.ask(redis, Intent::Hit, 1).await;
        assert_eq!([user.1, ip.1], [USER_LIMIT - turn, IP_LIMIT - turn], "{}", pair.name);
        assert!(user.0 && ip.0);
    }
    // Buckets block for their period unless told otherwise, and say so.
    let left = [USER_LIMIT - IP_LIMIT, 0];
    for _ in 0..5 {
        let [user, ip] = pair.ask(redis, Intent::Hit, 1).await;
        assert!(user.0 && !ip.0, "{}", pair.name);
        assert_eq!(pair.left(redis).await, left, "{}: a denial charges nothing", pair.name);
    }
}

async fn races_admit_no_more_and_are_refunded(redis: &Arc<Redis>, pair: &Pair) {
    let callers = (0..CALLERS).map(|_| {
        let (redis, pair) = (Arc::clone(redis), pair.clone());
        tokio::spawn(async move { pair.ask(&redis, Intent::Hit, 1).await.iter().all(|(allowed, ..)| *allowed) })
    });
    let mut admitted = 0;
    for caller in callers.collect::<Vec<_>>() {
        admitted += u32::from(caller.await.unwrap());
    }
    assert!((1..=IP_LIMIT).contains(&admitted), "{}: {admitted}", pair.name);
    let (left, told) = ([USER_LIMIT - admitted, IP_LIMIT - admitted], pair.left(redis).await);
    assert_eq!(told, left, "{}: {admitted} were admitted, the others refunded", pair.name);
}

async fn denials_start_the_block_of_the_one_that_denies(redis: &Redis) {
    let pair = Pair::new(Algorithm::SlidingLog, ["", " block 1h"], "blocks");
    for _ in 0..IP_LIMIT {
        pair.ask(redis, Intent::Hit, 1).await;
    }
    assert_eq!(pair.ask(redis, Intent::Peek, 1).await[1].2, Reason::Limited, "a peek starts none");
    assert_eq!(pair.ask(redis, Intent::Hit, 1).await[1].2, Reason::Limited);
    let [user, ip] = pair.ask(redis, Intent::Hit, 1).await;
    assert_eq!((user.2, ip.2), (Reason::Ok, Reason::Blocked));
    assert_eq!(user.1, USER_LIMIT - IP_LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_keys_in_different_slots_are_charged_together_or_not_at_all() {
    let cluster = Cluster::start();
    check(&cluster.url()).await;
}

/// User and address, both of whose slots move meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_keys_in_different_slots_stay_together_while_slots_move() {
    let cluster = Arc::new(Cluster::start());
    let stores = [0, 1].map(|_| Redis::open(cluster.url().parse().unwrap()));
    let stores = futures_util::future::join_all(stores).await.into_iter().map(Arc::new).collect::<Vec<_>>();
    let rounds: u64 = number("TIDEGATE_ROUNDS", 2);
    let mut moves = 0;
    for algorithm in Algorithm::ALL {
        for round in 0..rounds {
            let pair = Pair::new(algorithm, NO_BLOCKS, &format!("round {round}"));
            moves += together_while_slots_move(&cluster, &stores, &pair).await;
        }
    }
    println!("{moves} slots moved during {rounds} rounds of {} algorithms", Algorithm::ALL.len());
}

/// Returns how many slots were moved.
async fn together_while_slots_move(cluster: &Arc<Cluster>, stores: &[Arc<Redis>], pair: &Pair) -> u64 {
    // The first hit makes the keys, so that there is something to move.
    assert!(pair.ask(&stores[0], Intent::Hit, 1).await.iter().all(|(allowed, ..)| *allowed));
    let mover = tokio::task::spawn_blocking({
        let (cluster, name) = (Arc::clone(cluster), pair.name.clone());
        move || {
            let slots = ["user", "ip"].map(|limiter| cluster.slot_of(limiter, &name).unwrap());
            assert_ne!(slots[0], slots[1]);
            for slot in slots {
                cluster.move_slot(slot, Duration::from_millis(1));
            }
            slots.len() as u64
        }
    });
    let mut admitted = 1;
    let mut moves = None;
    let mut moving = std::pin::pin!(mover);
    while moves.is_none() {
        let callers = (0..CALLERS).map(|caller| {
            let (redis, pair) = (Arc::clone(&stores[caller % stores.len()]), pair.clone());
            tokio::spawn(async move { pair.ask(&redis, Intent::Hit, 1).await.iter().all(|(allowed, ..)| *allowed) })
        });
        for caller in callers.collect::<Vec<_>>() {
            admitted += u32::from(caller.await.unwrap());
        }
        moves = tokio::time::timeout(Duration::from_millis(1), &mut moving).await.ok().map(Result::unwrap);
    }
    let is_average = pair.name.contains("Average");
    // An average fades from one microsecond to the next, and a refund of it may stay counted.
    let most = if is_average { IP_LIMIT + 1 } else { IP_LIMIT };
    assert!((1..=most).contains(&admitted), "{}: {admitted}", pair.name);
    let left = [USER_LIMIT - admitted, IP_LIMIT.saturating_sub(admitted)];
    if is_average {
        return moves.unwrap();
    }
    assert_eq!(pair.left(&stores[0]).await, left, "{}: {admitted} were admitted, the others refunded", pair.name);
    assert!(!pair.ask(&stores[1], Intent::Hit, 1).await.iter().all(|(allowed, ..)| *allowed), "{}", pair.name);
    assert_eq!(pair.left(&stores[0]).await, left, "{}: a denial charges nothing", pair.name);
    moves.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_keys_on_different_shards_are_charged_together_or_not_at_all() {
    let shards = [Server::redis(&[]), Server::redis(&[])];
    let proxy = Server::twemproxy(&[&shards[0], &shards[1]]);
    check(&format!("twemproxy://127.0.0.1:{}", proxy.port)).await;
}
