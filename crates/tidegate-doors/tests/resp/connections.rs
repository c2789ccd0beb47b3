//! Connections: bad input, slow peers, caps, TLS and the end.

use crate::server::{Server, encode};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};
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
