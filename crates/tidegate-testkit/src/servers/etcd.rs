//! etcd: one member, or three that elect a leader.

use super::{Server, free_port, spawn};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// An etcd that ends when it is dropped.
pub struct Etcd {
    /// All members, the leader among them.
    pub members: Vec<Server>,
    scheme: &'static str,
}

/// The password of all users of these tests.
pub const PASSWORD: &str = "hush";

impl Etcd {
    /// One member.
    pub fn start() -> Etcd {
        Etcd::of(1, "http", &[])
    }

    /// Three, of which any two are enough.
    pub fn three() -> Etcd {
        Etcd::of(3, "http", &[])
    }

    /// One member that wants to know who we are: `root` may do everything, `tidegate` what Tidegate needs, and
    /// `other` nothing of that.
    pub fn with_users() -> Etcd {
        let etcd = Etcd::start();
        for words in [
            "user add root:hush",
            "user grant-role root root",
            "role add tidegate",
            "role grant-permission --prefix tidegate readwrite tidegate/",
            "user add tidegate:hush",
            "user grant-role tidegate tidegate",
            "user add other:hush",
            "auth enable",
        ] {
            etcd.control(words);
        }
        etcd
    }

    /// One member behind TLS with these arguments.
    pub fn secret(arguments: &[&str]) -> Etcd {
        Etcd::of(1, "https", arguments)
    }

    fn of(count: usize, scheme: &'static str, arguments: &[&str]) -> Etcd {
        for _ in 0..5 {
            let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
            let mut etcd =
                Etcd { members: ports.iter().map(|own| member(*own, &ports, scheme, arguments)).collect(), scheme };
            if etcd.members.iter_mut().all(Server::listens) && etcd.is_ready() {
                return etcd;
            }
        }
        panic!("no etcd came up on five sets of free ports");
    }

    /// The URLs of all members, with commas.
    pub fn endpoints(&self) -> String {
        let url = |member: &Server| format!("{}://127.0.0.1:{}", self.scheme, member.port);
        self.members.iter().map(url).collect::<Vec<_>>().join(",")
    }

    /// Runs a command of etcdctl.
    pub fn control(&self, words: &str) -> String {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints()]).args(words.split(' '));
        let done = command.output().unwrap();
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Every key that no lease cleans up.
    pub fn keys_without_lease(&self) -> Vec<String> {
        let all = "{\"key\":\"AA==\",\"range_end\":\"AA==\"}";
        let reply = post(&self.members[self.leader()], "/v3/kv/range", all).unwrap();
        // A key's own number of the lease comes last, and is left out when there is none.
        let keys = reply.split("{\"key\":").skip(1).filter(|key| !key.contains("\"lease\":"));
        keys.map(str::to_owned).collect()
    }

    /// The member that leads, by its own word.
    pub fn leader(&self) -> usize {
        let since = Instant::now();
        loop {
            if let Some(leader) = self.members.iter().position(leads) {
                return leader;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// True once every member answers; false when one has ended.
    pub fn is_ready(&mut self) -> bool {
        let since = Instant::now();
        // Behind TLS a member cannot be asked so simply, and is ready soon after it listens.
        while self.scheme == "http"
            && !self.members.iter().all(|member| post(member, "/v3/kv/range", "{\"key\":\"AA==\"}").is_some())
        {
            if self.members.iter_mut().any(|member| member.child.try_wait().unwrap().is_some()) {
                return false;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "etcd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

fn member((port, peer): (u16, u16), all: &[(u16, u16)], scheme: &str, arguments: &[&str]) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let name = |peer: u16| format!("m{peer}");
    let client_url = format!("{scheme}://127.0.0.1:{port}");
    let peer_url = |peer: u16| format!("http://127.0.0.1:{peer}");
    let cluster: Vec<String> = all.iter().map(|(_, peer)| format!("{}={}", name(*peer), peer_url(*peer))).collect();
    let data = directory.path().join("data").display().to_string();
    let mut command = Command::new("etcd");
    command.args(["--name", &name(peer), "--data-dir", &data, "--initial-cluster", &cluster.join(",")]);
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url(peer), "--initial-advertise-peer-urls", &peer_url(peer)]);
    command.args(["--logger", "zap", "--log-outputs", "stderr"]).args(arguments);
    let child = spawn(&mut command, directory.path());
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect();
    Server { child, port, is_redis: false, words, directory }
}

fn leads(member: &Server) -> bool {
    let Some(status) = post(member, "/v3/maintenance/status", "{}") else { return false };
    let number = |name: &str| Some(status.split_once(&format!("\"{name}\":\""))?.1.split('"').next()?.to_owned());
    number("leader").is_some() && number("leader") == number("member_id")
}

/// The body of a good answer.
fn post(member: &Server, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", member.port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let len = body.len();
    let request =
        format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    reply.starts_with("HTTP/1.1 200").then(|| reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()))?
}
