//! F5: a server that strangers filled with distinct keys starts again on what it saved, after kill -9 and after SIGTERM,
//! under the same `max_memory` and under a smaller one. Once it said "the limiters and their keys need 264.2 MiB, more
//! than max_memory = 256.0 MiB", for ever.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

/// Datagrams under way at once: fewer than a socket's buffer holds.
const WINDOW: u32 = 64;

enum End {
    Kill,
    Stop,
}

fn config(folder: &Folder, max_memory: &str) -> PathBuf {
    let path = folder.path("data");
    let text = format!(
        "[store]\nmax_memory = \"{max_memory}\"\npath = {path:?}\nsnapshot_every = \"200ms\"\n\
         [doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n\
         [[limiter]]\nname = \"api\"\nalgorithm = \"fixed-window\"\nlimits = [\"3 per hour\"]\n\
         [[udp.route]]\nmatch = '^u'\nlimiter = \"api\"\n"
    );
    folder.write(&format!("{max_memory}.toml"), &text)
}

fn socket(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.udp()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Hits each key once, and waits for the replies.
fn flood(server: &Server, keys: u32) {
    let (socket, mut reply) = (socket(server), [0; 128]);
    for start in (0..keys).step_by(WINDOW as usize) {
        let end = (start + WINDOW).min(keys);
        for key in start..end {
            socket.send(format!("{key} over_limit u{key}").as_bytes()).unwrap();
        }
        for _ in start..end {
            socket.recv(&mut reply).unwrap();
        }
    }
}

/// How many of five hits pass.
fn passes(server: &Server, key: &str) -> usize {
    let (socket, mut reply) = (socket(server), [0; 128]);
    let mut pass = || {
        socket.send(format!("1 over_limit {key}").as_bytes()).unwrap();
        let len = socket.recv(&mut reply).unwrap();
        reply[..len].starts_with(b"1 ok N")
    };
    (0..5).filter(|_| pass()).count()
}

#[track_caller]
fn check(max_memory: &str, keys: u32, end: End, then: &str) {
    let folder = Folder::new();
    let mut server = Server::start(&folder, Some(&config(&folder, max_memory)));
    // The first keys have used all they may.
    let first = ["u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7"];
    first.iter().for_each(|key| assert_eq!(passes(&server, key), 3));
    flood(&server, keys);
    match end {
        End::Stop => server.stop(),
        End::Kill => {
            let saved = || fs::metadata(folder.path("data").join("snapshot")).and_then(|file| file.modified()).ok();
            let before = saved();
            eventually("all is saved", || saved() > before);
            let before = saved();
            eventually("all is saved once more", || saved() > before);
            server.kill();
        }
    }
    let server = Server::start(&folder, Some(&config(&folder, then)));
    first.iter().for_each(|key| assert_eq!(passes(&server, key), 0, "{key} from {max_memory} to {then}"));
    let displaced = server.log().contains("saved keys found no place in max_memory");
    assert_eq!(displaced, max_memory != then, "{}", server.log());
}

#[test]
fn f5_a_full_server_starts_again_after_kill_9() {
    check("2MiB", 60_000, End::Kill, "2MiB");
}

#[test]
fn f5_a_full_server_starts_again_after_sigterm() {
    check("4MiB", 110_000, End::Stop, "4MiB");
}

#[test]
fn f5_a_full_server_starts_again_with_less_memory() {
    check("4MiB", 110_000, End::Stop, "1MiB");
}
