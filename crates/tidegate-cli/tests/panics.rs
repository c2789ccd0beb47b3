//! F4: a panic in any task or thread of the real binary ends the process in order: the doors stop, the state is saved, and the exit
//! code says so. Once a runtime swallowed it, or a thread was gone, and the process lived on half dead.
//!
//! The binary panics where a test asks it to, in debug builds only (`tidegate_store::panic_point`).
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_testkit::servers::free_port;

const PANICKED: Option<i32> = Some(101);

/// What has the point reached, once the test wants it to be.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Trigger {
    /// It comes by itself.
    Time,
    Http,
    Udp,
    Grpc,
    Resp,
    Proxy,
}

fn config(folder: &Folder, proxy: u16) -> PathBuf {
    let text = "[store]\npath = \"data\"\nsnapshot_every = \"1s\"\n[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n\
         [[limiter]]\nname = \"api\"\nlimits = [\"5 per day\"]\nalgorithm = \"fixed-window\"\n\
         [[udp.route]]\nmatch = '^ip'\nlimiter = \"api\"\n\
         [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n\
         [proxy]\nupstream = \"http://127.0.0.1:9\"\n";
    folder.write("tidegate.toml", &format!("{text}listen = \"127.0.0.1:{proxy}\"\n"))
}

/// A server that panics at this point when the file is there.
fn start(folder: &Folder, point: &str, proxy: u16) -> (Server, PathBuf) {
    let file = folder.path("now");
    let at = format!("{point}={}", file.display());
    (Server::start_with(folder, Some(&config(folder, proxy)), &[("TIDEGATE_PANIC_AT", &at)]), file)
}

/// Sends what has the point reached; whatever is answered.
fn trigger(server: &Server, trigger: Trigger, proxy: u16) {
    let send = |address: &str, bytes: &[u8]| {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(bytes);
            while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
        }
    };
    let poke = |address: &str| send(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    match trigger {
        Trigger::Time => {}
        Trigger::Http => poke(server.url.strip_prefix("http://").unwrap()),
        Trigger::Proxy => poke(&format!("127.0.0.1:{proxy}")),
        Trigger::Resp => send(server.resp(), b"PING\r\n"),
        // `:method: POST`, `:scheme: http`, `:path: /`, by HTTP/2's static table.
        Trigger::Grpc => send(
            server.grpc(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x83\x86\x84",
        ),
        Trigger::Udp => {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"1 over_limit ip=192.0.2.1", server.udp()).unwrap();
        }
    }
}

fn remaining(server: &Server) -> u64 {
    server.json(&["hit", "api", "u1"]).1["remaining"].as_u64().unwrap()
}

#[track_caller]
fn check(point: &str, by: Trigger) {
    let (folder, proxy) = (Folder::new(), free_port());
    let (mut server, now) = start(&folder, point, proxy);
    assert_eq!(remaining(&server), 4, "{point}");
    fs::write(now, "").unwrap();
    trigger(&server, by, proxy);
    assert_eq!(server.wait().code(), PANICKED, "{point}: {}", server.log());
    let log = server.log();
    let panic = format!("a test asked for a panic at {point}; the process stops in order");
    assert!(log.contains("panic in thread ") && log.contains(&panic), "{point}: {log}");
    assert!(log.contains("stopped; state saved in ") && log.contains("error: a part of the server panicked"), "{log}");
    assert_eq!(
        remaining(&Server::start(&folder, Some(&config(&folder, free_port())))),
        3,
        "{point}: the state was saved"
    );
}

#[test]
fn f4_a_panic_anywhere_ends_the_process_in_order() {
    check("http", Trigger::Http);
    check("udp", Trigger::Udp);
    check("grpc", Trigger::Grpc);
    check("resp", Trigger::Resp);
    check("tend", Trigger::Time);
    check("reload", Trigger::Time);
    check("stream", Trigger::Time);
    check("snapshot", Trigger::Time);
    check("proxy-accept", Trigger::Time);
    check("proxy-worker", Trigger::Time);
    check("proxy-connection", Trigger::Proxy);
}

fn wait_for_snapshot(server: &Server) {
    let saved = |page: &str| {
        let count = page.lines().find_map(|line| line.strip_prefix("tidegate_snapshots_total{outcome=\"done\"} "));
        count.and_then(|count| count.parse::<u64>().ok())
    };
    let page = || ureq::get(format!("{}/metrics", server.url)).call().unwrap().body_mut().read_to_string().unwrap();
    let before = saved(&page());
    eventually("two snapshots", || saved(&page()) > before.map(|count| count + 1));
}

/// What a panic left half changed was saved over what was whole.
#[test]
fn f4_keys_that_a_panic_left_half_changed_are_not_saved() {
    let folder = Folder::new();
    let (mut server, now) = start(&folder, "shard", free_port());
    assert_eq!(remaining(&server), 4);
    wait_for_snapshot(&server);
    fs::write(now, "").unwrap();
    // It is not answered: the key's shard is locked when it panics.
    let _ = server.ask(&["hit", "api", "u1"]);
    assert_eq!(server.wait().code(), PANICKED, "{}", server.log());
    let log = server.log();
    assert!(log.contains("left keys of limiter api half changed, so the snapshot before it stays"), "{log}");
    assert_eq!(remaining(&Server::start(&folder, Some(&config(&folder, free_port())))), 3, "as the snapshot before");
}

/// `tidegate proxy` has no state to save, and ends in order, too.
#[test]
fn f4_a_panic_ends_the_proxy_in_order() {
    let folder = Folder::new();
    let now = folder.path("now");
    let run = |config: &Path| {
        let mut command = Command::new(TIDEGATE);
        command.args(["proxy", "--listen", "127.0.0.1:0", "http://127.0.0.1:9"]).current_dir(config);
        command.env("TIDEGATE_PANIC_AT", format!("proxy-worker={}", now.display()));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
    };
    fs::write(&now, "").unwrap();
    let output = run(&folder.path(""));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), PANICKED, "{log}");
    assert!(log.contains("panic in thread proxy-") && log.contains("stopped"), "{log}");
}
