//! A master with replicas, and sentinels that watch them.

use super::{MASTER, Server};
use std::time::{Duration, Instant};

/// A master, two replicas, three sentinels.
pub struct Watched {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
}

impl Watched {
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

    pub fn master(&self) -> &Server {
        let port = master_by(&self.sentinels[0]);
        self.servers.iter().find(|server| server.port == port).unwrap()
    }

    pub fn url(&self) -> String {
        let addresses: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{}/{MASTER}", addresses.join(","))
    }
}

pub fn master_by(sentinel: &Server) -> u16 {
    let told = sentinel.command(&["SENTINEL", "get-master-addr-by-name", MASTER]);
    told.lines().nth(4).unwrap().parse().unwrap()
}
