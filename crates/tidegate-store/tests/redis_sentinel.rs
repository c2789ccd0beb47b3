//! Redis behind Sentinel: who is the master, and what a failover costs (A6, F2).
//!
//! `TIDEGATE_FAILOVERS=10 cargo nextest run --release -p tidegate-store --test redis_sentinel --no-capture`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod load;
mod servers;

use load::{BACK_TIME_MAX, Load, setting};
use servers::{MASTER, Server};
use std::time::{Duration, Instant};
use tidegate_store::redis::{Redis, Url};

/// A master, two replicas, three sentinels.
struct Watched {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Watched {
    fn start() -> Watched {
        let arguments = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "local"];
        let master = Server::redis(&arguments);
        let port = master.port.to_string();
        let arguments = [&["--replicaof", "127.0.0.1", &port], &arguments[..]].concat();
        let replicas = [Server::redis(&arguments), Server::redis(&arguments)];
        let sentinels = (0..3).map(|_| Server::sentinel(master.port)).collect();
        let watched = Watched { servers: [master].into_iter().chain(replicas).collect(), sentinels };
        watched.wait_until("sentinels know each other and the replicas", || watched.is_settled());
        watched
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(40), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All sentinels see one another, two replicas and the same healthy master, whose replicas are in step.
    fn is_settled(&self) -> bool {
        let fields = ["num-slaves\r\n$1\r\n2", "num-other-sentinels\r\n$1\r\n2", "flags\r\n$6\r\nmaster\r\n"];
        let knows = |sentinel: &Server| {
            let told = sentinel.command(&["SENTINEL", "MASTER", MASTER]);
            fields.iter().all(|field| told.contains(field))
        };
        self.sentinels.iter().all(knows)
            && self.sentinels.iter().all(|sentinel| master_by(sentinel) == self.master().port)
            && self.master().command(&["INFO", "replication"]).matches("state=online").count() == 2
    }

    fn master(&self) -> &Server {
        let port = master_by(&self.sentinels[0]);
        self.servers.iter().find(|server| server.port == port).unwrap()
    }

    fn url(&self) -> Url {
        let addresses: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{}/{MASTER}", addresses.join(",")).parse().unwrap()
    }
}

fn master_by(sentinel: &Server) -> u16 {
    let told = sentinel.command(&["SENTINEL", "get-master-addr-by-name", MASTER]);
    told.lines().nth(4).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_failovers_admit_at_most_one_more_limit_each_and_service_is_back_within_two_seconds() {
    let watched = Watched::start();
    let load = Load::start(watched.url(), 2, 16).await;
    let failovers = setting("TIDEGATE_FAILOVERS").unwrap_or(1);
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
    let url = watched.url();
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
    let url = |sentinel, master| Url { sentinel: (None, some(sentinel)), password: some(master), ..watched.url() };
    assert_eq!(Redis::open(url("hush-sentinel", "hush-master")).await.down(), None);
    for wrong in [url("hush-sentinel", "hush-wrong"), url("hush-wrong", "hush-master")] {
        let error = Redis::open(wrong).await.down().unwrap().to_string();
        assert!(error.contains("WRONGPASS") && !error.contains("hush"), "{error}");
    }
}
