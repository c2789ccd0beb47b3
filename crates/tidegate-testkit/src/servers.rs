//! Real servers for tests: each on a free port, in a directory of its own, ended by its process id.

pub mod cluster;
pub mod etcd;
pub mod sentinel;

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that ends when it is dropped.
pub struct Server {
    child: Child,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// Does it hold keys, so that their expiries can be checked?
    pub is_redis: bool,
    /// Its program and arguments, to start it again.
    words: Vec<OsString>,
    directory: tempfile::TempDir,
}

/// What sentinels call the master of these tests.
pub const MASTER: &str = "main";

/// How long a server may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(20);

impl Server {
    /// A redis-server without persistence, with these arguments added.
    pub fn redis(arguments: &[&str]) -> Server {
        Server::redis_like("redis-server", arguments)
    }

    /// A Valkey, from `TIDEGATE_VALKEY` or from where `scripts/test` puts it.
    pub fn valkey() -> Server {
        Server::redis_like(&valkey_path().display().to_string(), &[])
    }

    fn redis_like(program: &str, arguments: &[&str]) -> Server {
        start(|port, directory| {
            let mut command = Command::new(program);
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command.args(["--dir", &directory.display().to_string()]).args(arguments);
            command
        })
    }

    /// An Envoy, from `TIDEGATE_ENVOY` or from where `scripts/test` puts it, with the configuration that `config` makes for its port.
    pub fn envoy(config: impl Fn(u16) -> String) -> Server {
        start(|port, directory| {
            let file = directory.join("envoy.yaml");
            std::fs::write(&file, config(port)).unwrap();
            let mut command = Command::new(tool("TIDEGATE_ENVOY", "envoy"));
            command.arg("-c").arg(file).args(["--disable-hot-restart", "--concurrency", "1", "-l", "warning"]);
            command
        })
    }

    /// A twemproxy before these servers; a dead one is not replaced by another.
    pub fn twemproxy(shards: &[&Server]) -> Server {
        start(|port, directory| {
            let shards: String = shards.iter().map(|shard| format!("    - 127.0.0.1:{}:1\n", shard.port)).collect();
            let config = format!(
                "pool:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  hash_tag: \"||\"\n  \
                 redis: true\n  auto_eject_hosts: false\n  timeout: 2000\n  servers:\n{shards}"
            );
            let file = directory.join("nutcracker.yml");
            std::fs::write(&file, config).unwrap();
            let mut command = Command::new("nutcracker");
            command.arg("-c").arg(file).arg("-s").arg(free_port().to_string());
            command
        })
    }

    /// Any program that listens on the port that its command names.
    pub fn program(command: impl Fn(u16, &Path) -> Command) -> Server {
        start(command)
    }

    /// A node of a cluster that knows no other yet.
    pub fn cluster_node() -> Server {
        let arguments =
            ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];
        Server::redis_like("redis-server", &arguments)
    }

    /// A sentinel that watches the master on this port, as one of three of which two must agree.
    pub fn sentinel(master: u16) -> Server {
        start(|port, directory| {
            let config = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds {MASTER} 400\nsentinel failover-timeout {MASTER} 4000\n",
                directory.display()
            );
            let file = directory.join("sentinel.conf");
            std::fs::write(&file, config).unwrap();
            let mut command = Command::new("redis-sentinel");
            command.arg(file);
            command
        })
    }

    /// Its address as a store's.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its working directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port and in its directory, with these arguments added.
    pub fn start_again(&mut self, arguments: &[&str]) {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(arguments);
        self.child = spawn(&mut command, self.directory.path());
        assert!(self.listens(), "it did not come up on its port again");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command over a connection of its own and returns what comes back, as text.
    pub fn command(&self, words: &[&str]) -> String {
        self.exchange(&resp(words))
    }

    /// The same on another database than 0.
    pub fn database(&self, number: u32, words: &[&str]) -> String {
        let reply = self.exchange(&(resp(&["SELECT", &number.to_string()]) + &resp(words)));
        reply.strip_prefix("+OK\r\n").unwrap_or(&reply).to_owned()
    }

    fn exchange(&self, commands: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = commands.to_owned();
        // PING's answer marks the end.
        bytes += "*2\r\n$4\r\nPING\r\n$7\r\nthe-end\r\n";
        stream.write_all(bytes.as_bytes()).unwrap();
        let (mut text, mut buffer) = (Vec::new(), [0; 65_536]);
        while !text.ends_with(b"the-end\r\n") {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => text.extend(&buffer[..n]),
            }
        }
        String::from_utf8_lossy(&text).replace("$7\r\nthe-end\r\n", "")
    }

    /// Sends a signal to it: `STOP`, `CONT`, `KILL`.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(done.unwrap().success());
    }

    /// Every key that has no expiry.
    pub fn keys_without_expiry(&self) -> Vec<String> {
        let script = "local found, cursor = {}, '0' repeat local page = redis.call('SCAN', cursor, 'COUNT', 1000) \
                      cursor = page[1] for _, key in ipairs(page[2]) do if redis.call('PTTL', key) == -1 then \
                      found[#found + 1] = key end end until cursor == '0' return found";
        let reply = self.command(&["EVAL", script, "0"]);
        reply.lines().filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }
}

/// A command in the protocol of Redis.
fn resp(words: &[&str]) -> String {
    let words_as_bulks = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words_as_bulks.collect::<String>())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The Valkey that tests start.
pub fn valkey_path() -> PathBuf {
    tool("TIDEGATE_VALKEY", "valkey-server")
}

/// A program that a variable names, or that `scripts/test` has put into `target/tools`.
fn tool(variable: &str, name: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools").join(name),
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a server on a free port; again on another if somebody took it in between.
fn start(command: impl Fn(u16, &Path) -> Command) -> Server {
    for _ in 0..5 {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let mut command = command(port, directory.path());
        let child = spawn(&mut command, directory.path());
        let program = command.get_program().to_string_lossy().into_owned();
        let is_redis = program.ends_with("redis-server") || program.ends_with("valkey-server");
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect();
        let mut server = Server { child, port, is_redis, words, directory };
        if server.listens() {
            return server;
        }
    }
    panic!("no server came up on five free ports");
}

fn spawn(command: &mut Command, directory: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; see scripts/test"))
}

impl Server {
    /// True once the child itself listens; false when it has ended.
    fn listens(&mut self) -> bool {
        let since = Instant::now();
        while since.elapsed() < START_TIME_MAX {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if owns(self.child.id(), self.port) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        panic!("a server did not start: {log}");
    }
}

/// Does a process hold the socket that listens on this port?
fn owns(pid: u32, port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inode = tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words.get(1)?.ends_with(&format!(":{port:04X}")) && *words.get(3)? == "0A";
        listens.then(|| (*words.get(9).unwrap()).to_owned())
    });
    let Some(inode) = inode else { return false };
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .any(|link| link.to_string_lossy() == format!("socket:[{inode}]"))
}
