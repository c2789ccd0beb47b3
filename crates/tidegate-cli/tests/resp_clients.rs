//! Clients that know nothing of ours: redis-cli, redis-py, node-redis and redis-rs, in RESP2 and RESP3, one by one and pipelined.
//!
//! redis-py and node-redis are installed by their own package managers into `target/clients`, once.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use redis::{Cmd, Connection, ProtocolVersion, RedisResult, Value, cmd};
use server::{Folder, Server};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_testkit::certificates::{authority, certify, write_ca};

const POLICY: &str = "
[[limiter]]
name = \"many\"
limits = [\"1000000 per day\"]
algorithm = \"fixed-window\"
[[limiter]]
name = \"login-user\"
domain = \"login\"
by = [\"user\"]
limits = [\"5 per minute\"]
";

/// A server with the RESP door open, and that door's address.
struct Door {
    server: Server,
    address: String,
    _folder: Folder,
}

fn start(access: &str) -> Door {
    let folder = Folder::new();
    let text = format!("[doors]\nresp = \"127.0.0.1:0\"\n{access}{POLICY}");
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &text)));
    let address = server.url.strip_prefix("redis://").unwrap().to_owned();
    Door { server, address, _folder: folder }
}

impl Door {
    fn host_and_port(&self) -> (&str, &str) {
        self.address.split_once(':').unwrap()
    }
}

/// What clients need, installed beside the test's own binary.
fn clients() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_tidegate")).ancestors().nth(2).unwrap().join("redis-clients");
    std::fs::create_dir_all(&target).unwrap();
    let lock = std::fs::File::create(target.join("lock")).unwrap();
    lock.lock().unwrap();
    if !target.join("done").exists() {
        run(Command::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .arg(&target)
            .arg("redis@6"));
        run(Command::new("python3").args(["-m", "venv"]).arg(target.join("venv")));
        let pip = target.join("venv/bin/pip");
        run(Command::new(pip).args(["install", "--quiet", "--progress-bar=off", "redis==8.1.0"]));
        std::fs::write(target.join("done"), "").unwrap();
    }
    target
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn redis_cli() {
    let door = start("");
    let (host, port) = door.host_and_port();
    let cli = |arguments: &[&str]| run(Command::new("redis-cli").args(["-h", host, "-p", port]).args(arguments));
    for (protocol, key) in [(&[][..], "cli-2"), (&["-3"], "cli-3")] {
        let throttle = |rest: &[&str]| cli(&[protocol, &["CL.THROTTLE", key, "15", "30", "60"], rest].concat());
        assert_eq!(throttle(&[]), "0\n16\n15\n-1\n2\n");
        assert_eq!(throttle(&["15"]), "0\n16\n0\n-1\n32\n");
        assert!(throttle(&[]).starts_with("1\n16\n0\n"));
        assert_eq!(throttle(&["-99"]), "0\n16\n16\n-1\n0\n");
    }
    assert!(cli(&["CL.THROTTLE", "k", "2147483648", "1", "1099511627776"]).starts_with("ERR period 1099511627776"));
    // Pipelined: a thousand commands in the protocol, from stdin.
    let folder = Folder::new();
    let command = "*6\r\n$11\r\nCL.THROTTLE\r\n$4\r\npipe\r\n$4\r\n2000\r\n$1\r\n1\r\n$4\r\n3600\r\n$1\r\n1\r\n";
    let file = folder.write("commands", &command.repeat(1_000));
    let piped = run(Command::new("redis-cli")
        .args(["-h", host, "-p", port, "--pipe"])
        .stdin(std::fs::File::open(file).unwrap()));
    assert!(piped.contains("errors: 0, replies: 1000"), "{piped}");
    assert!(cli(&["CL.THROTTLE", "pipe", "2000", "1", "3600", "0"]).starts_with("0\n2001\n1001\n"));
}

#[test]
fn redis_py() {
    let (clients, door) = (clients(), start(""));
    let (host, port) = door.host_and_port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/redis_py.py");
    assert_eq!(run(Command::new(clients.join("venv/bin/python3")).args([script, host, port])), "done\n");
}

#[test]
fn node_redis() {
    let (clients, door) = (clients(), start(""));
    let (host, port) = door.host_and_port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/node_redis.mjs");
    assert_eq!(run(Command::new("node").args([script, host, port]).env("CLIENTS", clients)), "done\n");
}

/// The same with a token: clients send it as their password.
#[test]
fn s5_clients_log_in_with_a_token() {
    let (clients, folder) = (clients(), Folder::new());
    let file = folder.path("tokens.toml");
    let token = |scopes: &[&str]| {
        let mut new = Command::new(server::TIDEGATE);
        new.args(["token", "new", "--name", scopes[0], "--file"]).arg(&file);
        for scope in scopes {
            new.args(["--scope", scope]);
        }
        run(&mut new).trim().to_owned()
    };
    let (all, read) = (token(&["check", "read"]), token(&["read"]));
    let door = start(&format!("[access]\ntokens = \"{}\"\n", file.display()));
    let (host, port) = door.host_and_port();
    let script = |name: &str| format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"));
    let python = clients.join("venv/bin/python3");
    assert_eq!(run(Command::new(python).args([&script("redis_py.py"), host, port, &all])), "done\n");
    let node = run(Command::new("node").args([&script("node_redis.mjs"), host, port, &all]).env("CLIENTS", clients));
    assert_eq!(node, "done\n");
    let cli = |token: &str| {
        let mut cli = Command::new("redis-cli");
        run(cli.args(["-h", host, "-p", port, "--no-auth-warning", "-a", token, "TG.HIT", "many", "k"]))
    };
    assert!(cli(&all).starts_with("1\n1000000\n"));
    assert!(cli(&read).starts_with("NOPERM this needs the scope check"), "{}", cli(&read));
    assert!(cli("tg_wrong").contains("NOAUTH"), "{}", cli("tg_wrong"));
}

/// TLS by `[tls.resp]` alone, and a client that shows a certificate needs no token.
#[test]
fn redis_cli_over_tls() {
    let (folder, authority) = (Folder::new(), authority());
    let ca = write_ca(&folder.path(""), "ca.pem", &authority);
    certify(&folder.path(""), "door", &authority, "127.0.0.1", 2099);
    let (cert, key) = certify(&folder.path(""), "orders", &authority, "orders.example", 2099);
    let tokens = "[[certificate]]\nname = \"orders\"\nsan = \"orders.example\"\nscopes = [\"check\"]\n";
    folder.write("tokens.toml", tokens);
    let text = format!(
        "[doors]\nresp = \"127.0.0.1:0\"\n[access]\ntokens = \"tokens.toml\"\n\
         [tls.resp]\ncert = \"door.pem\"\nkey = \"door.key\"\nclient_ca = \"ca.pem\"\n{POLICY}"
    );
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &text)));
    let (host, port) = server.url.strip_prefix("rediss://").unwrap().split_once(':').unwrap();
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", host, "-p", port, "--tls", "--cacert"]).arg(ca).arg("--cert").arg(cert).arg("--key").arg(key);
    assert_eq!(run(cli.args(["CL.THROTTLE", "user123", "15", "30", "60"])), "0\n16\n15\n-1\n2\n");
    // In clear text there is no answer, and the door goes on.
    let mut clear = TcpStream::connect((host, port.parse().unwrap())).unwrap();
    clear.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    clear.write_all(b"PING\r\n").unwrap();
    let mut reply = Vec::new();
    let _ = clear.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"+PONG"), "{}", reply.escape_ascii());
    assert_eq!(run(cli.args(["0"])), "0\n16\n15\n-1\n2\n", "a quantity of 0 looks");
}

fn connect(door: &Door, protocol: ProtocolVersion) -> Connection {
    let version = if protocol == ProtocolVersion::RESP3 { "?protocol=resp3" } else { "" };
    let client = redis::Client::open(format!("redis://{}/{version}", door.address)).unwrap();
    client.get_connection().unwrap()
}

fn throttle(key: &str, terms: [u64; 3], quantity: Option<i64>) -> Cmd {
    let mut command = cmd("CL.THROTTLE");
    command.arg(key).arg(&terms);
    if let Some(quantity) = quantity {
        command.arg(quantity);
    }
    command
}

#[test]
fn redis_rs() {
    let door = start("");
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let mut connection = connect(&door, protocol);
        let key = format!("rs-{protocol:?}");
        let mut ask =
            |quantity| -> RedisResult<Vec<i64>> { throttle(&key, [15, 30, 60], quantity).query(&mut connection) };
        assert_eq!(ask(None).unwrap(), [0, 16, 15, -1, 2]);
        assert_eq!(ask(Some(15)).unwrap(), [0, 16, 0, -1, 32]);
        assert_eq!(ask(None).unwrap()[..3], [1, 16, 0]);
        assert_eq!(ask(Some(0)).unwrap()[..4], [0, 16, 0, -1]);
        assert_eq!(ask(Some(-5)).unwrap()[..4], [0, 16, 5, -1]);
        let huge = throttle(&key, [2_147_483_648, 1, 1_099_511_627_776], None).query::<Vec<i64>>(&mut connection);
        assert!(huge.unwrap_err().to_string().contains("is out of range"));
        let mut pipeline = redis::pipe();
        for _ in 0..500 {
            pipeline.cmd("TG.HIT").arg("many").arg(&key).add_command(throttle(&key, [15, 30, 60], Some(0)));
        }
        let replies: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
        assert_eq!(replies.len(), 1_000);
        for (place, reply) in replies.iter().step_by(2).enumerate() {
            assert_eq!(reply[..3], [1, 1_000_000, 999_999 - i64::try_from(place).unwrap()]);
        }
        let told: Vec<Value> = cmd("TG.ATTR").arg(&["login", "1", "user", &key]).query(&mut connection).unwrap();
        assert_eq!(told[5], Value::BulkString(b"login-user".to_vec()));
    }
}

/// A million commands on one connection, written without waiting: answered in order, and the server takes no memory for them.
#[test]
fn m6_a_million_pipelined_commands_are_answered_in_order_in_flat_memory() {
    let door = start("");
    let mut stream = TcpStream::connect(&door.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let command = b"*3\r\n$6\r\nTG.HIT\r\n$4\r\nmany\r\n$1\r\nk\r\n";
    // Warm: the server's threads and tables are there.
    stream.write_all(command).unwrap();
    assert!(stream.read(&mut [0; 999]).unwrap() > 10);
    let (mut writer, before) = (stream.try_clone().unwrap(), door.server.memory("VmRSS"));
    let writing = std::thread::spawn(move || {
        let thousand = command.repeat(1_000);
        (0..1_000).for_each(|_| writer.write_all(&thousand).unwrap());
    });
    let (mut replies, mut unread, mut most) = (0_u64, Vec::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    while replies < 1_000_000 {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "closed after {replies}");
        unread.extend_from_slice(&buffer[..len]);
        let mut at = 0;
        // `*5`, and five numbers; the third says how many are left.
        while let Some(lines) = six_lines(&unread[at..]) {
            let text = std::str::from_utf8(&unread[at..at + lines]).unwrap();
            let left: u64 = text.split("\r\n").nth(3).unwrap()[1..].parse().unwrap();
            assert_eq!(left, 999_998_u64.saturating_sub(replies), "reply {replies}: {text:?}");
            replies += 1;
            at += lines;
        }
        unread.drain(..at);
        most = most.max(door.server.memory("VmRSS"));
    }
    writing.join().unwrap();
    let grown = most.saturating_sub(before);
    assert!(grown < 2 << 20, "{before} bytes before, {most} at most");
}

/// How long the first six lines are, if they are all here.
fn six_lines(bytes: &[u8]) -> Option<usize> {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(place, _)| place + 1);
    ends.take(6).nth(5)
}

/// What declares much and sends little: an error, and no memory.
#[test]
fn s1_lengths_that_are_only_declared_take_no_memory() {
    let door = start("");
    let mut open = Vec::new();
    let mut warm = TcpStream::connect(&door.address).unwrap();
    warm.write_all(b"PING\r\n").unwrap();
    assert_eq!(warm.read(&mut [0; 9]).unwrap(), 7);
    let before = door.server.memory("VmRSS");
    for number in 0..400 {
        let mut stream = TcpStream::connect(&door.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (bytes, is_error): (&[u8], bool) = match number % 5 {
            0 => (b"*2147483647\r\n", true),
            1 => (b"*1\r\n$999999999\r\n", true),
            2 => (b"*-7\r\n", true),
            3 => (b"*1\r\n*1\r\n*1\r\n", true),
            // As much as may be declared, of which nothing comes.
            _ => (b"*128\r\n$16384\r\nx", false),
        };
        stream.write_all(bytes).unwrap();
        if is_error {
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("-ERR Protocol error"), "{reply}");
        } else {
            open.push(stream);
        }
    }
    let grown = door.server.memory("VmRSS").saturating_sub(before);
    // 80 connections wait with half a command: some kilobytes each.
    assert!(grown < 4 << 20, "{grown} bytes more");
}
