//! A master with replicas, and sentinels that watch them.

use super::{MASTER, Server};
use std::time::{Duration, Instant};

/// A master, two replicas, three sentinels.
pub struct Watched {
    /// The master and its replicas; a failover changes which is which.
    pub servers: Vec<Server>,
    /// Two of the three must agree.
    pub sentinels: Vec<Server>,
}

impl Watched {
    /// Starts all six and waits until they know each other.
    pub fn start() -> Watched {
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

    /// Polls until it is so, for 40 s.
    pub fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(40), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All sentinels see one another, two replicas and the same healthy master, whose replicas are in step.
    pub fn is_settled(&self) -> bool {
        let fields = ["num-slaves\r\n$1\r\n2", "num-other-sentinels\r\n$1\r\n2", "flags\r\n$6\r\nmaster\r\n"];
        let knows = |sentinel: &Server| {
            let told = sentinel.command(&["SENTINEL", "MASTER", MASTER]);
            fields.iter().all(|field| told.contains(field))
        };
        self.sentinels.iter().all(knows)
            && self.sentinels.iter().all(|sentinel| master_by(sentinel) == self.master().port)
            && self.master().command(&["INFO", "replication"]).matches("state=online").count() == 2
    }

    /// The master, by the word of the first sentinel.
    pub fn master(&self) -> &Server {
        let port = master_by(&self.sentinels[0]);
        self.servers.iter().find(|server| server.port == port).unwrap()
    }

    /// The sentinels' addresses, as a store's.
    pub fn url(&self) -> String {
        let addresses: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{}/{MASTER}", addresses.join(","))
    }
}

/// The port of the master that this sentinel names.
pub fn master_by(sentinel: &Server) -> u16 {
    let told = sentinel.command(&["SENTINEL", "get-master-addr-by-name", MASTER]);
    told.lines().nth(4).unwrap().parse().unwrap()
}
