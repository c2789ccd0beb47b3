//! Hits that go on while servers fail: how many were admitted, and since when they are answered again.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "not every test uses all of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Rules};
use tidegate_store::redis::{Redis, Url};
use tidegate_store::{Asked, Layout, Question, StoreError};

/// How soon hits are answered again after a switch.
pub const BACK_TIME_MAX: Duration = Duration::from_secs(2);
/// What a key may have: few enough to be used up before and after.
pub const LIMIT: u64 = 100;
/// Keys of a round, so that each node of a cluster has some.
const KEYS: u64 = 12;
/// How long a hit may wait.
const DEADLINE: Duration = Duration::from_millis(40);

/// Tasks that hit, as several servers of ours would.
pub struct Load {
    shared: Arc<Shared>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    distribution: Mutex<BTreeMap<u64, u64>>,
    backs: Mutex<Vec<Duration>>,
}

struct Shared {
    stores: Vec<Redis>,
    rules: Rules,
    round: Mutex<String>,
    admitted: Mutex<BTreeMap<String, u64>>,
    errors: Mutex<BTreeMap<String, u64>>,
    /// When each key of the round was answered last.
    answered: Mutex<BTreeMap<String, Instant>>,
    pause: AtomicBool,
    at_work: AtomicU64,
}

impl Load {
    pub async fn start(url: Url, stores: usize, callers: usize) -> Load {
        let stores = futures_util::future::join_all((0..stores).map(|_| Redis::open(url.clone()))).await;
        assert!(stores.iter().all(|store| store.down().is_none()), "{:?}", stores[0].down());
        let limit = format!("{LIMIT} per hour").parse().unwrap();
        let shared = Arc::new(Shared {
            stores,
            rules: Rules::new(Algorithm::SlidingLog, &[limit]).unwrap(),
            round: Mutex::default(),
            admitted: Mutex::default(),
            errors: Mutex::default(),
            answered: Mutex::default(),
            pause: AtomicBool::new(true),
            at_work: AtomicU64::new(0),
        });
        let hit = |caller| tokio::spawn(hit_on(Arc::clone(&shared), caller));
        let tasks = (0..callers).map(hit).collect();
        Load { shared, tasks, distribution: Mutex::default(), backs: Mutex::default() }
    }

    /// New keys; returns when a third of what they may have is used, so that a failover finds something to lose.
    pub async fn begin(&self, round: &str) {
        *self.shared.round.lock().unwrap() = round.to_owned();
        self.shared.admitted.lock().unwrap().clear();
        self.shared.answered.lock().unwrap().clear();
        self.shared.pause.store(false, SeqCst);
        let since = Instant::now();
        while self.shared.admitted.lock().unwrap().values().sum::<u64>() < KEYS * LIMIT / 3 {
            assert!(since.elapsed() < Duration::from_secs(20), "no load: {:?}", self.shared.errors.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How long after `switch` every key is answered again.
    pub async fn back_after_switch(&self, switch: Instant) -> Duration {
        loop {
            let answered = self.shared.answered.lock().unwrap().clone();
            if answered.len() as u64 == KEYS && answered.values().all(|at| *at > switch) {
                return answered.values().map(|at| *at - switch).max().unwrap();
            }
            assert!(switch.elapsed() < Duration::from_secs(20), "not back: {:?}", self.shared.errors.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets the keys be used up, stops, and checks that one failover gave no key more than two limits (A6).
    pub async fn end(&self, round: &str, back: Duration) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.shared.pause.store(true, SeqCst);
        while self.shared.at_work.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let admitted = self.shared.admitted.lock().unwrap().clone();
        let mut distribution = self.distribution.lock().unwrap();
        for (key, count) in &admitted {
            assert!(*count <= 2 * LIMIT, "A6, {round}: {key} was admitted {count} times");
            *distribution.entry(*count).or_default() += 1;
        }
        self.backs.lock().unwrap().push(back);
    }

    pub fn report(&self, what: &str) {
        println!("{what}: back after {:?}", self.backs.lock().unwrap());
        println!("{what}: admitted of {LIMIT} => keys: {:?}", self.distribution.lock().unwrap());
        println!("{what}: errors {:?}", self.shared.errors.lock().unwrap());
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn hit_on(shared: Arc<Shared>, caller: usize) {
    for turn in caller as u64.. {
        if shared.pause.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        shared.at_work.fetch_add(1, SeqCst);
        let key = format!("{} key {}", shared.round.lock().unwrap(), turn % KEYS);
        let store = &shared.stores[caller % shared.stores.len()];
        match hit(store, &shared.rules, &key).await {
            Ok(allowed) => {
                shared.answered.lock().unwrap().insert(key.clone(), Instant::now());
                *shared.admitted.lock().unwrap().entry(key).or_default() += u64::from(allowed);
            }
            Err(error) => {
                *shared.errors.lock().unwrap().entry(error.label().to_owned()).or_default() += 1;
                // A degraded decision costs microseconds; a tight loop of them would only burn this machine.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        shared.at_work.fetch_sub(1, SeqCst);
        // So that a round lasts for longer than a failover.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn hit(store: &Redis, rules: &Rules, key: &str) -> Result<bool, StoreError> {
    let question = Question {
        limiter: "load",
        rules,
        names: true,
        key: key.as_bytes(),
        layout: Layout::Native,
        role: Default::default(),
        own: None,
    };
    let by = tokio::time::Instant::now() + DEADLINE;
    let asked = Asked { now: None, cost: 1, intent: Intent::Hit, explain: false, by };
    let (_, answers) = store.decide(&[question], &asked).await?;
    Ok(answers[0].ruling.is_allowed())
}
