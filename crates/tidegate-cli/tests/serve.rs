//! A real server's life: reload, stop, restart, and being killed.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, Server, eventually, stderr, tidegate};
use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use tidegate_testkit::{http, number};

const DOORS: &str = "[doors]\nhttp = \"127.0.0.1:0\"\n";

fn config(folder: &Folder, store: &str, limits: &str) -> PathBuf {
    let limiter =
        |name: &str| format!("[[limiter]]\nname = \"{name}\"\nalgorithm = \"sliding-log\"\nlimits = [{limits}]\n");
    let text = format!("[store]\n{store}\n{DOORS}{}{}", limiter("api"), limiter("other"));
    folder.write("tidegate.toml", &text)
}

fn remaining(server: &Server, limiter: &str, key: &str) -> u64 {
    server.json(&["peek", limiter, key]).1["remaining"].as_u64().unwrap()
}

#[test]
fn sighup_reloads_without_losing_state() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let server = Server::start(&folder, Some(&file));
    assert_eq!(server.json(&["hit", "api", "u", "--cost", "2"]).1["remaining"], 1);
    server.ask(&["block", "api", "b", "--for", "1h"]);
    server.ask(&["disable", "other"]);
    config(&folder, "", "\"10 per hour\"");
    server.signal("HUP");
    server.wait_for_log("reloaded");
    assert_eq!(remaining(&server, "api", "u"), 8, "the counts stay, the limit is the new one");
    assert_eq!(server.json(&["hit", "api", "b"]).1["reason"], "blocked");
    assert_eq!(server.json(&["hit", "other", "u"]).1["reason"], "disabled");
}

/// The log said "counters kept" of counters that started afresh.
#[test]
fn a_reload_names_the_limiters_whose_counters_start_afresh() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let server = Server::start(&folder, Some(&file));
    server.ask(&["hit", "api", "u"]);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("sliding-log", "token-bucket", 1)).unwrap();
    server.signal("HUP");
    server.wait_for_log("; counters kept, but for api");
    server.wait_for_log("limiter api has another algorithm: its counters start afresh, its blocks are kept");
    assert_eq!(remaining(&server, "api", "u"), 3);
}

#[test]
fn a_change_of_the_file_reloads_by_itself() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let server = Server::start(&folder, Some(&file));
    config(&folder, "max_memory = \"64MiB\"", "\"12 per hour\"");
    eventually("the new limit", || remaining(&server, "api", "u") == 12);
    server.wait_for_log("[store] max_memory has changed; it takes effect at the next start");
}

#[test]
fn a_bad_new_file_is_reported_and_the_old_policy_stays() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let server = Server::start(&folder, Some(&file));
    server.ask(&["hit", "api", "u"]);
    config(&folder, "", "\"3 per fortnight\"");
    server.signal("HUP");
    server.wait_for_log("is refused, and the policy stays as it was");
    server.wait_for_log("tidegate.toml:8:11: limiter \"api\" limits: \"3 per fortnight\"");
    server.wait_for_log("^^^^^^^^^^^^^^^^^");
    assert_eq!(remaining(&server, "api", "u"), 2);
    fs::remove_file(&file).unwrap();
    server.wait_for_log("cannot be read");
    assert_eq!(remaining(&server, "api", "u"), 2);
    config(&folder, "", "\"5 per hour\"");
    eventually("a good file is taken again", || remaining(&server, "api", "u") == 4);
}

#[test]
fn a10_a_restart_keeps_counters_blocks_and_flags() {
    let folder = Folder::new();
    let file = config(&folder, "path = \"data\"", "\"3 per hour\"");
    let mut server = Server::start(&folder, Some(&file));
    assert!(server.banner.contains("state: kept in"), "{}", server.banner);
    server.ask(&["hit", "api", "u", "--cost", "2"]);
    server.ask(&["block", "api", "b", "--for", "1h"]);
    server.ask(&["disable", "other"]);
    server.stop();
    server.wait_for_log("state saved in");
    let server = Server::start(&folder, Some(&file));
    assert_eq!(remaining(&server, "api", "u"), 1);
    assert_eq!(server.json(&["hit", "api", "b"]).1["reason"], "blocked");
    assert_eq!(server.json(&["hit", "other", "u"]).1["reason"], "disabled");
}

/// A request that is under way: its head is read, and its body is not all there yet.
fn begin_request(server: &Server) -> TcpStream {
    let mut wire = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    wire.set_read_timeout(Some(server::WAIT_TIME_MAX)).unwrap();
    wire.write_all(b"POST /v1/hit HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 27\r\n\r\n")
        .unwrap();
    assert_eq!(http::response(&mut wire).0, 100);
    wire.write_all(b"{\"limiter\":").unwrap();
    wire
}

#[test]
fn sigterm_lets_requests_end() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&folder, Some(&file));
        let mut wire = begin_request(&server);
        server.signal(signal);
        server.wait_for_log(&format!("SIG{signal}: stopping"));
        wire.write_all(b"\"api\",\"key\":\"u\"}").unwrap();
        let (status, body) = http::response(&mut wire);
        assert_eq!(status, 200, "{body}");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let mut server = Server::start(&folder, Some(&file));
    let _held = begin_request(&server);
    server.signal("TERM");
    server.wait_for_log("stopping");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn a_service_manager_is_told_and_logs_can_be_json() {
    let folder = Folder::new();
    let file = config(&folder, "", "\"3 per hour\"");
    let socket = folder.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(server::WAIT_TIME_MAX)).unwrap();
    let told = || {
        let mut text = [0; 64];
        let read = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..read]).into_owned()
    };
    let variables = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("TIDEGATE_LOG_FORMAT", "json")];
    let mut server = Server::start_with(&folder, Some(&file), &variables);
    assert_eq!(told(), "READY=1");
    server.stop();
    assert_eq!(told(), "STOPPING=1");
    let lines: Vec<serde_json::Value> = server.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["message"], "stopped");
}

#[test]
fn a_start_that_cannot_be_says_why() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let file = folder.write("taken.toml", &format!("[doors]\nhttp = \"{address}\"\n"));
    let output = tidegate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains(&format!("cannot listen on {address}")) && said.contains("choose another port"), "{said}");

    let file = folder.write("bad.toml", "[store]\nkind = \"tape\"\n");
    let output = tidegate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bad.toml:2:8: [store] kind: \"tape\""), "{}", stderr(&output));
}

#[test]
fn a_damaged_or_taken_folder_is_reported() {
    let folder = Folder::new();
    let file = config(&folder, "path = \"data\"", "\"3 per hour\"");
    let mut server = Server::start(&folder, Some(&file));
    let second = tidegate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(2));
    assert!(stderr(&second).contains("another process holds"), "{}", stderr(&second));
    server.ask(&["hit", "api", "u"]);
    server.stop();
    let snapshot = folder.path("data").join("snapshot");
    let bytes = fs::read(&snapshot).unwrap();
    for (name, damaged) in
        [("torn", bytes[..bytes.len() / 2].to_vec()), ("empty", Vec::new()), ("flipped", flip(&bytes))]
    {
        fs::write(&snapshot, damaged).unwrap();
        let output = tidegate(&["serve", "--config", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(stderr(&output).contains("is damaged"), "{name}: {}", stderr(&output));
    }
}

fn flip(bytes: &[u8]) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    flipped
}

#[test]
fn a_failing_save_is_told_and_decisions_go_on() {
    let folder = Folder::new();
    let file = config(&folder, "path = \"data\"\nsnapshot_every = \"100ms\"", "\"3 per hour\"");
    let server = Server::start(&folder, Some(&file));
    eventually("a first snapshot", || folder.path("data").join("snapshot").exists());
    // A folder in the place of the file that is written first.
    let obstacle = folder.path("data").join("snapshot.new");
    eventually("an obstacle", || fs::create_dir(&obstacle).is_ok());
    server.wait_for_log("state is not saved");
    assert_eq!(server.json(&["hit", "api", "u"]).0, 0);
    fs::remove_dir(&obstacle).unwrap();
    server.wait_for_log("state is saved again");
}

/// kill -9 while it is asked and while it saves: it starts again each time, and holds what the last
/// whole snapshot held, or more. `TIDEGATE_KILLS=50` makes it as many.
#[test]
fn a1_a10_kill_9_loses_nothing_that_a_snapshot_held() {
    let kills = number("TIDEGATE_KILLS", 8_u64);
    const LIMIT: u64 = 1_000_000;
    let folder = Folder::new();
    let file = config(&folder, "path = \"data\"\nsnapshot_every = \"100ms\"", &format!("\"{LIMIT} per day\""));
    let snapshot = folder.path("data").join("snapshot");
    let changed = || fs::metadata(&snapshot).and_then(|about| about.modified()).ok();
    let mut sent = 0;
    for kill in 0..kills {
        let server = Server::start(&folder, Some(&file));
        let mut wire = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
        let mut hit = || {
            sent += 1;
            assert_eq!(http::exchange(&mut wire, "POST /v1/hit", "{\"limiter\":\"api\",\"key\":\"u\"}").0, 200);
            sent
        };
        let block = format!("PUT /v1/limiters/api/keys/b{kill}/block");
        let mut other = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
        assert_eq!(http::exchange(&mut other, &block, "{\"for\":\"1d\"}").0, 200);
        let certain = hit();
        // The second snapshot from here on was begun after that hit, so it holds it.
        for _ in 0..2 {
            let before = changed();
            eventually("a snapshot", || {
                hit();
                changed() != before
            });
        }
        // Then at any instant of the next save.
        let more = 1 + kill * 37 % 200;
        let all = (0..more).map(|_| hit()).last().unwrap();
        server.kill();

        let server = Server::start(&folder, Some(&file));
        let kept = LIMIT - remaining(&server, "api", "u");
        assert!((certain..=all).contains(&kept), "kill {kill}: {kept} kept, {certain} certain, {all} sent");
        let (_, blocked) = server.json(&["blocked", "api"]);
        assert_eq!(blocked["keys"].as_array().unwrap().len() as u64, kill + 1, "kill {kill}");
        sent = kept;
        server.kill();
    }
}
