//! Clients that do not read: what they were answered is bounded, and they are cut.
//!
//! An SSE client once stayed for minutes without reading, 43 MB behind, and twenty unread snapshots took 1.3 GB.

use crate::server::{Client, Server, limited};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_events::{Mode, StreamSpec};

const EVENTS: usize = 4_000;
/// About what a snapshot of all events has.
const SNAPSHOT_BYTES: usize = EVENTS * 1_000;

/// A door whose stream has a snapshot of 4 MB.
fn server(settings: HttpSettings) -> Server {
    let mut orders = StreamSpec::new("orders", Mode::StrictlyOnce);
    orders.rules.max_events = 10_000;
    (orders.rules.duration_ms, orders.rules.snapshot_every_ms) = (3_600_000, 3_600_000);
    let server = Server::with_streams_and(vec![orders], settings);
    let mut client = server.connect();
    for hundred in 0..EVENTS / 100 {
        let events = (0..100).map(|event| format!("{:0>1000}", hundred * 100 + event));
        events.for_each(|event| client.send(&format!("POST /v1/streams/orders/events {event}"), ""));
        (0..100).for_each(|_| assert_eq!(client.response().unwrap().status, 201));
    }
    server
}

/// Asks, and reads nothing but the status.
fn ask(server: &Server, path: &str) -> (Client, String) {
    ask_from(server, "127.0.0.1", path, "")
}

/// The same from this address, with these header fields.
fn ask_from(server: &Server, from: &str, path: &str, fields: &str) -> (Client, String) {
    let mut client = server.connect_from(from);
    socket2::SockRef::from(&client.stream).set_recv_buffer_size(32 << 10).unwrap();
    client.stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut status = [0; 12];
    client.stream.read_exact(&mut status).unwrap();
    (client, String::from_utf8_lossy(&status[9..]).into_owned())
}

fn metric(server: &Server, name: &str) -> usize {
    let page = server.ask("GET /metrics").body;
    let line = page.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[track_caller]
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not happen within 20 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn m6_whoever_reads_nothing_is_cut() {
    let server = server(HttpSettings { write_timeout: Duration::from_millis(500), ..HttpSettings::default() });
    let unread: Vec<_> = ["/v1/streams/orders", "/v1/streams/orders/feed"].map(|path| ask(&server, path)).into();
    assert!(unread.iter().all(|(_, status)| status == "200"));
    assert_ne!(metric(&server, "tidegate_http_unread_bytes"), 0);
    eventually("both are cut", || metric(&server, "tidegate_http_connections_cut_total") == 2);
    eventually("nothing is held", || metric(&server, "tidegate_http_unread_bytes") == 0);
    assert_eq!(metric(&server, "tidegate_stream_cut_total{stream=\"orders\"}"), 1, "the feed is a subscriber");
    for (mut client, _) in unread {
        let mut rest = Vec::new();
        // However it ends, it ends early.
        let _ = client.stream.read_to_end(&mut rest);
        assert!(rest.len() < SNAPSHOT_BYTES, "{} bytes", rest.len());
    }
}

#[test]
fn m6_whoever_reads_slowly_is_not() {
    let server = server(HttpSettings { write_timeout: Duration::from_secs(1), ..HttpSettings::default() });
    let (mut client, _) = ask(&server, "/v1/streams/orders");
    let (start, mut read, mut chunk) = (Instant::now(), 0, vec![0; 64 << 10]);
    while read < SNAPSHOT_BYTES {
        let count = client.stream.read(&mut chunk).unwrap();
        assert_ne!(count, 0, "cut after {read} bytes and {:?}", start.elapsed());
        read += count;
        // About 400 KB a second at first, until it has taken longer than the limit.
        if start.elapsed() < Duration::from_secs(4) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn m6_unread_answers_are_bounded() {
    let server = server(limited(Limits { unread_bytes: 3 * SNAPSHOT_BYTES, ..Limits::default() }));
    let unread: Vec<_> = (0..8).map(|_| ask(&server, "/v1/streams/orders")).collect();
    let taken = unread.iter().filter(|(_, status)| status == "200").count();
    assert!((1..=3).contains(&taken), "{taken} of 8 snapshots were taken");
    assert!(unread.iter().all(|(_, status)| status == "200" || status == "503"));
    assert!(metric(&server, "tidegate_http_unread_bytes") <= 3 * SNAPSHOT_BYTES);
    assert_eq!(metric(&server, "tidegate_http_unread_refused_total"), 8 - taken);
    let refused = server.ask("GET /v1/streams/orders");
    assert!(refused.status == 503 && refused.body.contains("too_much_unread"), "{}", refused.body);
    // Small answers are given all the same.
    assert_eq!(server.ask("GET /v1/limiters").status, 200);
    drop(unread);
    eventually("there is room again", || server.ask("GET /v1/streams/orders").status == 200);
}

#[test]
fn m6_many_feeds_share_what_they_have_not_read() {
    let server = server(limited(Limits { unread_bytes: 3 * SNAPSHOT_BYTES, ..Limits::default() }));
    let unread: Vec<_> = (0..50).map(|_| ask(&server, "/v1/streams/orders/feed")).collect();
    assert!(unread.iter().all(|(_, status)| status == "200"));
    let bytes = metric(&server, "tidegate_http_unread_bytes");
    assert!((SNAPSHOT_BYTES..=2 * SNAPSHOT_BYTES).contains(&bytes), "{bytes} bytes for one snapshot");
}

/// Many addresses with one token had what each of them may.
#[test]
fn m6_one_token_leaves_room_for_what_others_have_not_read() {
    let token = |name: &str| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: [Scope::Read].into_iter().collect(), ..Grant::default() },
        expires: None,
    };
    let access = Arc::new(Access::default());
    // Room for ten snapshots of 4.0 to 4.4 MB; nine tenths of it are for nine of them.
    let limits = Limits { unread_bytes: 44_200_000, ..Limits::default() };
    let server = server(HttpSettings { access: Arc::clone(&access), ..limited(limits) });
    let tokens = Tokens::new(vec![token("greedy"), token("other")], Vec::new()).unwrap();
    access.replace(Rules { tokens: Some(tokens), ..Rules::default() });
    let ask = |from: &str, name: &str| {
        let field = format!("authorization: Bearer tg_{name}\r\n");
        ask_from(&server, from, "/v1/streams/orders", &field)
    };
    let greedy: Vec<_> =
        (0..10).map(|number| ask(if number < 5 { "127.0.0.1" } else { "127.0.0.2" }, "greedy")).collect();
    let statuses: Vec<&str> = greedy.iter().map(|(_, status)| status.as_str()).collect();
    assert_eq!(statuses, [["200"; 9].as_slice(), &["503"]].concat());
    assert_eq!(ask("127.0.0.2", "other").1, "200");
}
