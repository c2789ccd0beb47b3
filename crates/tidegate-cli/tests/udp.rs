//! The UDP door of the real binary, asked by its own client and by one that was written from the
//! protocol's text alone.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, Server, eventually, stderr, stdout, tidegate};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use tidegate_testkit::http;

const MUSICBRAINZ: &str = include_str!("../../../examples/musicbrainz.toml");

fn start(folder: &Folder, address: &str) -> Server {
    let doors = format!("[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"{address}\"\n");
    let file = folder.write("musicbrainz.toml", &(doors + MUSICBRAINZ));
    Server::start(folder, Some(&file))
}

#[test]
fn a_client_in_python_is_served() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let folder = Folder::new();
        let server = start(&folder, address);
        let (host, port) = server.udp().rsplit_once(':').unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/udp_client.py");
        let output = Command::new("python3").args([script, host.trim_matches(['[', ']']), port]).output().unwrap();
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("all well\n", ""));
    }
}

#[test]
fn the_command_asks_and_its_exit_code_tells() {
    let folder = Folder::new();
    let mut server = start(&folder, "127.0.0.1:0");
    let ask = |query: &[&str]| tidegate(&[&["udp", server.udp(), "--timeout", "5s"], query].concat());
    let check = |query: &[&str], code: i32, reply: &str| {
        let output = ask(query);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(code), reply), "{}", stderr(&output));
    };
    check(&["ping"], 0, "pong\n");
    check(&["0042", "ping"], 0, "pong\n");
    check(&["over_limit ws ua=generic-bad-ua"], 0, "ok N 0.0 100.0 10\n");
    check(&["over_limit", "nobody"], 0, "ok N 0.0 1.0 1\n");
    check(&["get_stats", "ws", "global"], 0, "n_req=0 n_over=0 last_max_rate=0 key=ws global\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..200 {
        socket.send_to(b"over_limit ws ip=192.0.2.7", server.udp()).unwrap();
    }
    // Another thread of the door may still be busy with those.
    eventually("a key that is over its limit is told so", || {
        let output = ask(&["over_limit ws ip=192.0.2.7"]);
        output.status.code() == Some(1) && stdout(&output).starts_with("ok Y ")
    });
    let output = ask(&["PING"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"PING\" is no request"), "{}", stderr(&output));
    server.stop();
}

#[test]
fn without_a_file_there_is_a_route_to_try() {
    let folder = Folder::new();
    let variables = [("TIDEGATE_DOORS__HTTP", "127.0.0.1:0"), ("TIDEGATE_DOORS__UDP", "127.0.0.1:0")];
    let mut server = Server::start_with(&folder, None, &variables);
    let output = tidegate(&["udp", server.udp(), "--timeout", "5s", "over_limit api ip=192.0.2.1"]);
    assert_eq!(stdout(&output), "ok N 1.0 5.0 60\n", "{}", stderr(&output));
    server.stop();
}

#[test]
fn silence_is_an_error_of_the_command_and_says_what_clients_make_of_it() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let asked = ["over_limit k", "check_limit {}", "ping"];
    let told = |query: &str| {
        let output = tidegate(&["udp", &address, query]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{query}");
        stderr(&output)
    };
    let [over, check, ping] = asked.map(told);
    for text in [over, check] {
        assert!(
            text.contains(&format!("no reply from {address} within 100 ms, which a client takes for not over;")),
            "{text}"
        );
    }
    assert!(ping.contains("within 100 ms; is the address right"), "{ping}");
}

#[test]
fn replies_with_another_id_are_passed_over() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        let (len, client) = server.recv_from(&mut buffer).unwrap();
        let id = String::from_utf8(buffer[..len].to_vec()).unwrap().split(' ').next().unwrap().to_owned();
        for reply in [format!("1{id} pong"), "pong".to_owned(), "x".to_owned(), format!("{id} pong")] {
            server.send_to(reply.as_bytes(), client).unwrap();
        }
    });
    let output = tidegate(&["udp", "--timeout", "5s", &address, "ping"]);
    thread.join().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "pong\n"));
}

#[test]
fn a_reload_replaces_the_routes_and_metrics_tell_of_the_door() {
    let folder = Folder::new();
    let config = |pattern: &str| {
        format!(
            "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"a\"\nlimits = [\"7 per hour\"]\n\
             [[udp.route]]\nmatch = '{pattern}'\nlimiter = \"a\"\n"
        )
    };
    let file = folder.write("t.toml", &config("^x$"));
    let server = Server::start(&folder, Some(&file));
    let ask = |key: &str| stdout(&tidegate(&["udp", "--timeout", "5s", server.udp(), "over_limit", key]));
    assert_eq!((ask("x").as_str(), ask("y").as_str()), ("ok N 1.0 7.0 3600\n", "ok N 0.0 1.0 1\n"));
    folder.write("t.toml", &config("^y$"));
    server.signal("HUP");
    server.wait_for_log("1 limiter, 1 UDP route; counters kept");
    assert_eq!((ask("x").as_str(), ask("y").as_str()), ("ok N 0.0 1.0 1\n", "ok N 1.0 7.0 3600\n"));
    let mut wire = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let mut metrics = String::new();
    // A reply is sent before it is counted.
    eventually("the door's counters", || {
        metrics = http::exchange(&mut wire, "GET /metrics", "").1;
        let lines = ["tidegate_udp_datagrams_total 4", "tidegate_udp_replies_total 4", "tidegate_udp_dropped_total 0"];
        lines.iter().all(|line| metrics.contains(line))
    });
    assert!(metrics.contains("tidegate_udp_receive_buffer_bytes "), "{metrics}");
    assert!(metrics.contains("tidegate_udp_unrouted_total 2\n"), "{metrics}");
}

/// A key without a route is never limited: an operator who forgot one must see it.
#[test]
fn keys_without_a_route_are_logged_once_a_minute_counted_and_told() {
    let folder = Folder::new();
    let server = start(&folder, "127.0.0.1:0");
    let ask = |query: &str| stdout(&tidegate(&["udp", "--timeout", "5s", server.udp(), query]));
    for key in ["stranger\u{1b}[1m", "stranger 2", "stranger 3"] {
        assert_eq!(ask(&format!("over_limit {key}")), "ok N 0.0 1.0 1\n");
    }
    assert_eq!(ask("get_stats default"), "n_req=3 n_over=0 last_max_rate=0 key=default\n");
    server.wait_for_log("over UDP had a key without a route and were not limited, such as \"stranger\\u{1b}[1m\"");
}

#[test]
fn get_size_of_an_empty_table_can_be_divided_by() {
    let folder = Folder::new();
    let server = start(&folder, "127.0.0.1:0");
    assert_eq!(stdout(&tidegate(&["udp", "--timeout", "5s", server.udp(), "get_size"])), "size=0/1 keys=0\n");
}
