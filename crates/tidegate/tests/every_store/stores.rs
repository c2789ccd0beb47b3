//! The one list of stores, and how each is started, stopped and killed.

use std::process::Command;
use std::time::Duration;
use tidegate::{Capabilities, Clock, Gate, LimiterSpec, Policy, StoreSettings, StoreUrl};
use tidegate_testkit::eventually;
use tidegate_testkit::servers::Server;
use tidegate_testkit::servers::cluster::Cluster;
use tidegate_testkit::servers::etcd::Etcd;
use tidegate_testkit::servers::sentinel::Watched;
use tokio::runtime::{Builder, Runtime};

/// Every store that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Embedded,
    Redis,
    Valkey,
    Sentinel,
    Cluster,
    Twemproxy,
    Etcd,
    MemoryServer,
}

/// A store whose servers run until this is dropped.
pub(crate) struct Store {
    pub(crate) kind: Kind,
    url: Option<String>,
    servers: Servers,
    runtime: Runtime,
}

enum Servers {
    Single(Vec<Server>),
    Sentinel(Watched),
    Cluster(Cluster),
    Etcd(Etcd),
}

impl Kind {
    pub(crate) fn start(self) -> Store {
        let servers = match self {
            Kind::Embedded => Servers::Single(Vec::new()),
            Kind::Redis => Servers::Single(vec![Server::redis(&[])]),
            Kind::Valkey => Servers::Single(vec![Server::valkey()]),
            Kind::Sentinel => Servers::Sentinel(Watched::start()),
            Kind::Cluster => Servers::Cluster(cluster()),
            Kind::Twemproxy => {
                let shards = [Server::redis(&[]), Server::redis(&[])];
                let proxy = Server::twemproxy(&[&shards[0], &shards[1]]);
                Servers::Single(shards.into_iter().chain([proxy]).collect())
            }
            Kind::Etcd => Servers::Etcd(Etcd::start()),
            Kind::MemoryServer => Servers::Single(vec![Server::program(|port, _| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_memory-server"));
                command.arg(port.to_string());
                command
            })]),
        };
        let url = servers.url(self);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Store { kind: self, url, servers, runtime }
    }
}

impl Store {
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match &self.url {
            Some(url) => url.parse::<StoreUrl>().unwrap().capabilities(),
            None => Gate::embedded(Policy::new(Vec::new()).unwrap()).store().capabilities(),
        }
    }

    /// A gate on this store. Those of a store that is shared count together.
    pub(crate) fn gate(&self, limiters: Vec<LimiterSpec>, settings: StoreSettings, clock: Clock) -> Gate {
        let policy = Policy::new(limiters).unwrap();
        let Some(url) = &self.url else { return Gate::with_clock(policy, clock) };
        let gate = self.wait(Gate::connect(&policy, url.parse().unwrap(), settings, clock));
        assert_eq!(gate.store().down(), None, "{:?}", self.kind);
        gate
    }

    /// All of its processes stand still (`STOP`) or go on (`CONT`).
    pub(crate) fn signal(&self, name: &str) {
        self.servers.all().for_each(|server| server.signal(name));
    }

    /// Ends all of its processes at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.servers.all_mut().for_each(Server::kill);
    }

    /// Starts them again on their ports.
    pub(crate) fn start_again(&mut self) {
        self.servers.all_mut().for_each(|server| server.start_again(&[]));
    }

    /// By its own word the store serves: nodes of a cluster have found each other, sentinels name a master.
    pub(crate) fn wait_until_back(&mut self) {
        match &mut self.servers {
            Servers::Single(_) => {}
            Servers::Sentinel(watched) => {
                let master = |watched: &Watched| watched.master().command(&["ROLE"]).contains("master");
                eventually("sentinels name a master", || master(watched));
            }
            Servers::Cluster(cluster) => cluster.wait_until_settled(),
            Servers::Etcd(etcd) => assert!(etcd.is_ready()),
        }
    }

    /// What Redis was told to keep expires, but for what may not, and what etcd was told to keep has a lease.
    pub(crate) fn check_expiries(&self) {
        let may = |key: &String| {
            key.starts_with("b:|")
                || key.ends_with(":disabled")
                || key.starts_with("tg:disabled")
                || key.starts_with("tg:overrides:")
        };
        for server in self.servers.all().filter(|server| server.is_redis) {
            let eternal = server.keys_without_expiry();
            assert!(eternal.iter().all(may), "A9, {:?}: {eternal:?}", self.kind);
        }
        if let Servers::Etcd(etcd) = &self.servers {
            assert_eq!(etcd.keys_without_lease(), [""; 0], "A9");
        }
    }
}

impl Servers {
    fn url(&self, kind: Kind) -> Option<String> {
        Some(match self {
            Servers::Single(servers) => {
                let port = servers.last()?.port;
                match kind {
                    Kind::Twemproxy => format!("twemproxy://127.0.0.1:{port}"),
                    Kind::MemoryServer => format!("memory://127.0.0.1:{port}"),
                    _ => format!("redis://127.0.0.1:{port}"),
                }
            }
            Servers::Sentinel(watched) => watched.url(),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Etcd(etcd) => etcd.endpoints(),
        })
    }

    fn all(&self) -> impl Iterator<Item = &Server> {
        let (first, second): (&[Server], &[Server]) = match self {
            Servers::Single(servers) => (servers, &[]),
            Servers::Sentinel(watched) => (&watched.servers, &watched.sentinels),
            Servers::Cluster(cluster) => (&cluster.nodes, &[]),
            Servers::Etcd(etcd) => (&etcd.members, &[]),
        };
        first.iter().chain(second)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Server> {
        let (first, second): (&mut [Server], &mut [Server]) = match self {
            Servers::Single(servers) => (servers, &mut []),
            Servers::Sentinel(watched) => (&mut watched.servers, &mut watched.sentinels),
            Servers::Cluster(cluster) => (&mut cluster.nodes, &mut []),
            Servers::Etcd(etcd) => (&mut etcd.members, &mut []),
        };
        first.iter_mut().chain(second)
    }
}

/// A replica does not tell of its keys; they are its master's.
fn cluster() -> Cluster {
    let mut cluster = Cluster::start();
    let masters: Vec<u16> = cluster.masters().iter().map(|node| node.port).collect();
    cluster.nodes.iter_mut().for_each(|node| node.is_redis = masters.contains(&node.port));
    cluster
}

/// Long enough for a busy machine.
pub(crate) fn patient() -> StoreSettings {
    StoreSettings { deadline: Duration::from_secs(5), ..StoreSettings::default() }
}
