//! Connections: bad input, slow peers, caps, TLS and the end.

use crate::server::{Server, encode};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::listener::Caps;
use tidegate_doors::resp::RespSettings;

#[test]
fn s1_what_is_no_command_is_told_why_and_closed() {
    let server = Server::start();
    for (bytes, why) in [
        (&b"*2147483647\r\n"[..], "invalid multibulk length"),
        (b"*-5\r\n", "invalid multibulk length"),
        (b"*2\r\n$999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n$4\r\nPINGPONG\r\n", "a line end is missing"),
        (&[b'x'; 2_000], "too big inline request"),
    ] {
        let mut client = server.connect();
        // What came before it is answered.
        client.send(&[&encode("TG.PEEK api k"), bytes, &encode("PING")[..]].concat());
        assert!(client.receive().starts_with("*5 :1"), "{}", bytes.escape_ascii());
        let reply = client.receive();
        assert!(reply.starts_with(&format!("-ERR Protocol error: {why}")), "{}: {reply}", bytes.escape_ascii());
        assert_eq!(client.receive(), "closed", "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_command_may_come_byte_by_byte() {
    let server = Server::start();
    let mut client = server.connect();
    for byte in encode("CL.THROTTLE user123 15 30 60") {
        client.send(&[byte]);
    }
    assert_eq!(client.receive(), "*5 :0 :16 :15 :-1 :2");
}

#[test]
fn half_a_command_then_silence_is_closed_by_its_deadline_and_holds_up_nobody() {
    let second = Duration::from_secs(1);
    let settings = RespSettings { command_timeout: second, idle_timeout: 60 * second, ..RespSettings::default() };
    let server = Server::with(settings);
    let mut idle = server.connect();
    assert_eq!(idle.ask("PING"), "+PONG");
    let mut halves: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for (number, half) in halves.iter_mut().enumerate() {
        half.send(&encode("TG.HIT api k")[..1 + 3 * number]);
    }
    let begun = Instant::now();
    let mut other = server.connect();
    while begun.elapsed() < Duration::from_millis(1_500) {
        assert!(other.ask("TG.PEEK api k").starts_with("*5 :1"));
    }
    for mut half in halves {
        assert_eq!(half.receive(), "closed");
    }
    // Two ticks of half a second, and what a busy machine takes.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(idle.ask("PING"), "+PONG", "between commands there is time");
    // One byte now and then is no way around it.
    let mut drip = server.connect();
    drip.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let closed = encode("TG.HIT api a-key-that-is-long-enough-for-this-test").iter().take(40).any(|byte| {
        let sent = drip.stream.write_all(&[*byte]);
        sent.is_err() || matches!(drip.stream.read(&mut [0; 9]), Ok(0))
    });
    assert!(closed);
}

#[test]
fn m6_connections_are_capped_and_told_so() {
    let server = Server::with(RespSettings {
        connections: Caps { all: 4, per_address: 3, per_token: 3 },
        ..RespSettings::default()
    });
    let mut open: Vec<_> = (0..3).map(|_| server.connect()).collect();
    open.iter_mut().for_each(|client| assert_eq!(client.ask("PING"), "+PONG"));
    let mut refused = server.connect();
    assert!(refused.receive().starts_with("-ERR max number of clients reached: your address"));
    assert_eq!(refused.receive(), "closed");
}

fn with_a_token() -> Arc<Access> {
    let grant = Grant { scopes: [Scope::Check].into_iter().collect(), ..Grant::default() };
    let token = Token { name: "one".to_owned(), hash: Hash::of(b"tg_one"), grant, expires: None };
    let tokens = Some(Tokens::new(vec![token], Vec::new()).unwrap());
    Arc::new(Access::new(Rules { tokens, ..Rules::default() }))
}

/// Whoever has no token would otherwise keep a connection for five minutes, and for longer by asking for what it may not.
#[test]
fn m6_a_client_that_shows_no_token_is_closed_whatever_it_sends() {
    let second = Duration::from_secs(1);
    let settings = RespSettings { access: with_a_token(), command_timeout: second, ..RespSettings::default() };
    let server = Server::with(settings);
    let mut known = server.connect();
    assert_eq!(known.ask("AUTH tg_one"), "+OK");
    let (mut silent, mut asking, mut reset) = (server.connect(), server.connect(), server.connect());
    assert_eq!((reset.ask("AUTH tg_one"), reset.ask("RESET")), ("+OK".to_owned(), "+RESET".to_owned()));
    let begun = Instant::now();
    loop {
        let reply = asking.ask_or_closed("PING");
        if reply == "closed" {
            break;
        }
        assert!(reply.starts_with("-NOAUTH"), "{reply}");
        assert!(begun.elapsed() < Duration::from_secs(15), "it still asks");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((silent.receive(), reset.receive()), ("closed".to_owned(), "closed".to_owned()));
    assert_eq!(known.ask("PING"), "+PONG", "one that has shown a token has time");
}

/// A stranger's long command is not waited for: what it could keep is little.
#[test]
fn m6_a_stranger_has_little_room() {
    let server = Server::with(RespSettings { access: with_a_token(), ..RespSettings::default() });
    let mut client = server.connect();
    let giant = encode(&format!("HELLO 3 AUTH default {}", "x".repeat(9_000)));
    let _ = client.stream.write_all(&giant);
    assert!(client.receive().starts_with("-NOAUTH the command is too long for a client that has shown no token"));
    assert_eq!(client.receive(), "closed");
    let mut known = server.connect();
    assert_eq!(known.ask("AUTH tg_one"), "+OK");
    known.send(&giant);
    assert!(known.receive().starts_with("-WRONGPASS"), "one that is known may send it");
}

/// Long pipelines are answered all the same when there is no room for large buffers.
#[test]
fn m6_without_room_for_large_buffers_small_ones_do() {
    for (buffer_bytes, has_room) in [(0, false), (256 << 20, true)] {
        let server = Server::with(RespSettings { buffer_bytes, ..RespSettings::default() });
        let mut client = server.connect();
        let mut sender = client.stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || sender.write_all(&encode("TG.PEEK api k").repeat(50_000)).unwrap());
        for _ in 0..50_000 {
            assert_eq!(client.receive(), "*5 :1 :3 :3 :-1 :0");
        }
        sending.join().unwrap();
        let long = encode(&format!("ECHO {}", "x".repeat(16 << 10)));
        client.send(&[&long[..], &encode("PING")[..]].concat());
        let reply = client.receive();
        assert_eq!(reply.starts_with("-ERR the command is too long for now"), !has_room, "{}", reply.len());
    }
}

/// Strangers with many addresses would otherwise have every place for as long as they like.
#[test]
fn m6_when_connections_are_scarce_those_that_asked_nothing_make_room() {
    let connections = Caps { all: 10, per_address: 10, per_token: 10 };
    let settings = RespSettings { connections, reserved_connections: Some(4), ..RespSettings::default() };
    let server = Server::with(settings);
    let mut pool: Vec<_> = (0..5).map(|_| server.connect()).collect();
    pool.iter_mut().for_each(|client| assert_eq!(client.ask("PING"), "+PONG"));
    let mut silent: Vec<_> = (0..5).map(|_| server.connect()).collect();
    silent.iter_mut().for_each(|client| assert_eq!(client.receive(), "closed"));
    let mut other = server.connect();
    assert_eq!(other.ask("PING"), "+PONG", "there is room again");
    pool.iter_mut().for_each(|client| assert_eq!(client.ask("PING"), "+PONG", "a pool's connections stay"));
}

/// Bytes of answers that a client gets for one read of the door, 64 KiB of this command.
const ANSWERS_OF_A_READ: u64 = 45_000;

/// A thread served a client that was ahead for as long as its next bytes were there: sixteen of them, and others waited for seconds.
#[test]
fn m6_pipelines_without_end_leave_others_their_turn() {
    let server = Server::with(RespSettings { threads: 1, ..RespSettings::default() });
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let waited = std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut reading = server.connect().stream;
            let mut writing = reading.try_clone().unwrap();
            let (answered, stop) = (&answered, &stop);
            scope.spawn(move || {
                let commands = encode("TG.PEEK api k").repeat(20_000);
                while !stop.load(Relaxed) && writing.write_all(&commands).is_ok() {}
                let _ = writing.shutdown(Shutdown::Both);
            });
            scope.spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                while let Ok(count @ 1..) = reading.read(&mut bytes) {
                    answered.fetch_add(count as u64, Relaxed);
                }
            });
        }
        let mut other = server.connect();
        let mut waited: Vec<u64> = (0..21)
            .map(|_| {
                let before = answered.load(Relaxed);
                assert!(other.ask("TG.PEEK api k").starts_with("*5 :1"));
                answered.load(Relaxed) - before
            })
            .collect();
        stop.store(true, Relaxed);
        waited.sort_unstable();
        waited
    });
    let reads = waited[10] / ANSWERS_OF_A_READ;
    assert!(reads < 4 * 12, "{reads} reads of four others stood before a command: {waited:?}");
}

#[test]
fn m6_a_client_that_reads_nothing_is_cut_and_takes_no_memory() {
    let settings = RespSettings { write_timeout: Duration::from_secs(1), ..RespSettings::default() };
    let server = Server::with(settings);
    let mut deaf = server.connect();
    deaf.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let commands = encode("COMMAND").repeat(1_000);
    let begun = Instant::now();
    // The server stops reading when its answers are not read; then it cuts the connection.
    while deaf.stream.write_all(&commands).is_ok() {}
    let cut = loop {
        match deaf.stream.write(&commands) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break true,
            Ok(_) => {}
        }
        if begun.elapsed() > Duration::from_secs(30) {
            break false;
        }
    };
    assert!(cut);
}

#[test]
fn when_the_door_stops_what_was_read_is_answered() {
    let mut server = Server::start();
    let mut client = server.connect();
    assert_eq!(client.ask("PING"), "+PONG");
    let mut half = server.connect();
    half.send(b"*1\r\n$4\r\nPI");
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!([client.receive(), half.receive()], ["closed", "closed"]);
}
