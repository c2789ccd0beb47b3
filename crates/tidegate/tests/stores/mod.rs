//! A gate on every store, for scenarios that must come out the same on each.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "not every test uses all of it")]

use std::time::Duration;
use tidegate::{Clock, Gate, LimiterSpec, Micros, Policy, StoreSettings};
use tidegate_testkit::servers::Server;
use tidegate_testkit::servers::cluster::Cluster;
use tokio::runtime::{Builder, Runtime};

/// A gate with a clock that is set by hand, and what it runs on.
pub struct Store {
    pub name: &'static str,
    pub gate: Gate,
    /// Shards cannot list what is tracked.
    pub lists_tracked: bool,
    runtime: Runtime,
    servers: Vec<Server>,
}

impl Store {
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

/// After every scenario: all keys expire, but for what may not.
impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for server in self.servers.iter().filter(|server| server.is_redis) {
            let eternal = server.keys_without_expiry();
            let may =
                |key: &String| key.starts_with("b:|") || key.ends_with(":disabled") || key.starts_with("tg:disabled");
            assert!(eternal.iter().all(may), "A9, {}: {eternal:?}", self.name);
        }
    }
}

/// Memory, Redis, Redis behind twemproxy; the latter two also in Pause's layout, if all limiters can have it.
pub fn all(limiters: &[LimiterSpec], at: Micros) -> Vec<Store> {
    let mut stores = vec![
        embedded(limiters, at),
        on_redis("redis", limiters, at),
        on_shards("twemproxy", limiters, at),
        on_cluster("cluster", limiters, at),
    ];
    if limiters.iter().all(|limiter| limiter.rules.algorithm() == tidegate::Algorithm::Buckets) {
        let limiters: Vec<_> = limiters.iter().map(|limiter| limiter.clone().in_pause_layout()).collect();
        stores.push(on_redis("redis, Pause's layout", &limiters, at));
        stores.push(on_shards("twemproxy, Pause's layout", &limiters, at));
    }
    stores
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn policy(limiters: &[LimiterSpec]) -> Policy {
    Policy::new(limiters.to_vec()).unwrap()
}

fn embedded(limiters: &[LimiterSpec], at: Micros) -> Store {
    let gate = Gate::with_clock(policy(limiters), Clock::manual(at));
    Store { name: "memory", gate, lists_tracked: true, runtime: runtime(), servers: Vec::new() }
}

fn on_redis(name: &'static str, limiters: &[LimiterSpec], at: Micros) -> Store {
    let server = Server::redis(&[]);
    connected(name, server.url(), limiters, at, vec![server])
}

fn on_shards(name: &'static str, limiters: &[LimiterSpec], at: Micros) -> Store {
    let shards = [Server::redis(&[]), Server::redis(&[])];
    let proxy = Server::twemproxy(&[&shards[0], &shards[1]]);
    let url = format!("twemproxy://127.0.0.1:{}", proxy.port);
    connected(name, url, limiters, at, [vec![proxy], shards.into()].into_iter().flatten().collect())
}

fn on_cluster(name: &'static str, limiters: &[LimiterSpec], at: Micros) -> Store {
    let mut cluster = Cluster::start();
    let masters: Vec<u16> = cluster.masters().iter().map(|node| node.port).collect();
    // A replica does not tell of its keys; they are its master's.
    cluster.nodes.iter_mut().for_each(|node| node.is_redis = masters.contains(&node.port));
    connected(name, cluster.url(), limiters, at, cluster.nodes)
}

fn connected(name: &'static str, url: String, limiters: &[LimiterSpec], at: Micros, servers: Vec<Server>) -> Store {
    let runtime = runtime();
    let lists_tracked = !url.starts_with("twemproxy");
    let settings = StoreSettings { deadline: Duration::from_secs(5), ..StoreSettings::default() };
    let gate = runtime.block_on(Gate::connect(&policy(limiters), url.parse().unwrap(), settings, Clock::manual(at)));
    assert_eq!(gate.store().down(), None, "{name}");
    Store { name, gate, lists_tracked, runtime, servers }
}
