//! Two shards behind twemproxy, of which one is dead.

use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, OnFailure, Policy, Request, Rules, StoreSettings};
use tidegate_testkit::eventually;
use tidegate_testkit::servers::Server;
use tokio::runtime::{Builder, Runtime};

struct Shards {
    shards: [Server; 2],
    proxy: Server,
    runtime: Runtime,
}

impl Shards {
    fn start() -> Shards {
        let shards = [Server::redis(&[]), Server::redis(&[])];
        let proxy = Server::twemproxy(&[&shards[0], &shards[1]]);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Shards { shards, proxy, runtime }
    }

    fn gate(&self) -> Gate {
        let rules = Rules::new(Algorithm::FixedWindow, &["1000000 per hour".parse().unwrap()]).unwrap();
        let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
        let url = format!("twemproxy://127.0.0.1:{}", self.proxy.port).parse().unwrap();
        let deadline = Duration::from_secs(5);
        let settings = StoreSettings { on_failure: OnFailure::Deny, deadline, ..StoreSettings::default() };
        self.runtime.block_on(Gate::connect(&policy, url, settings, Clock::process()))
    }

    /// Did the store decide a hit?
    fn decides(&self, gate: &Gate, key: &str) -> bool {
        self.runtime.block_on(gate.ask(&Request::hit("api", key.as_bytes()))).unwrap().degraded.is_none()
    }

    /// A key on each shard.
    fn keys(&self, gate: &Gate) -> [String; 2] {
        let keys: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
        keys.iter().for_each(|key| assert!(self.decides(gate, key)));
        let is_on = |shard: &Server, key: &str| !shard.command(&["KEYS", &format!("*:s:{key}")]).starts_with("*0");
        [0, 1].map(|shard| keys.iter().find(|key| is_on(&self.shards[shard], key)).unwrap().clone())
    }
}

/// Any answer cleared a refusal, so that the log and `/readyz` flipped several times a minute.
#[test]
fn f6_a_dead_shard_is_told_of_steadily_until_it_is_back() {
    let mut world = Shards::start();
    let gate = world.gate();
    let [dead, alive] = world.keys(&gate);
    let error = || gate.store_health().unwrap().error;
    assert_eq!(error(), None);
    world.shards[0].kill();
    assert!(!world.decides(&gate, &dead));
    let told = error().unwrap();
    assert_eq!(told.label(), "sharddown", "{told}");
    // Requests for it become few, and those for the other shard are answered.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(7) {
        assert!(world.decides(&gate, &alive));
        assert_eq!(error().map(|error| error.label()), Some("sharddown"), "after {:?}", since.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    world.shards[0].start_again(&[]);
    eventually("the shard decides", || world.decides(&gate, &dead));
    assert_eq!(error(), None);
}

/// One refusal in all was remembered: of two dead shards the first that came back hid the other, and the log flipped.
#[test]
fn f6_of_two_dead_shards_the_one_that_comes_back_does_not_hide_the_other() {
    let mut world = Shards::start();
    let gate = world.gate();
    let [rare, often] = world.keys(&gate);
    let error = || gate.store_health().unwrap().error.map(|error| error.label());
    world.shards.iter_mut().for_each(Server::kill);
    assert!(!world.decides(&gate, &rare) && !world.decides(&gate, &often));
    assert_eq!(error(), Some("sharddown"));
    world.shards[1].start_again(&[]);
    eventually("the shard decides", || world.decides(&gate, &often));
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(7) {
        assert!(world.decides(&gate, &often));
        assert_eq!(error(), Some("sharddown"), "after {:?}", since.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    world.shards[0].start_again(&[]);
    eventually("the shard decides", || world.decides(&gate, &rare));
    assert_eq!(error(), None);
}

/// Connecting asked for one key, and failed for all when the shard of that key was dead.
#[test]
fn f6_with_one_dead_shard_keys_of_the_other_are_decided_by_a_new_process() {
    let mut world = Shards::start();
    let keys = world.keys(&world.gate());
    for (dead, alive) in [(0, 1), (1, 0)] {
        world.shards[dead].kill();
        let gate = world.gate();
        assert_eq!(gate.store().down(), None);
        assert!(world.decides(&gate, &keys[alive]));
        assert!(!world.decides(&gate, &keys[dead]));
        world.shards[dead].start_again(&[]);
    }
}
