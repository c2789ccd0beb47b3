//! M6: `[limits]`, the one budget of what clients can make grow. Sessions of STOMP have theirs in `tests/stomp/limits.rs`.

use crate::server::{Client, Server, check_response, limited};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_events::{Mode, StreamSpec};
use tidegate_testkit::{eventually, slowness};

const HIT: &str = r#"POST /v1/hit {"limiter":"burst","key":"u1"}"#;
const FEED: &str = "GET /v1/streams/orders/feed";

fn streaming(limits: Limits) -> Server {
    Server::with_streams_and(vec![StreamSpec::new("orders", Mode::OnlyOnce)], limited(limits))
}

/// What `/metrics` tells of a thing: taken, the most, and how often it was refused.
fn told(server: &Server, what: &str) -> [u64; 3] {
    let page = server.ask("GET /metrics").body;
    ["taken", "max", "refused_total"].map(|kind| {
        let name = format!("tidegate_limits_{kind}{{what=\"{what}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("{name}")).parse().unwrap()
    })
}

/// Sends it, and reads the status.
fn status(client: &mut Client, request: &str, headers: &str) -> String {
    client.send(request, headers);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.stream, &mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()[9..12].to_owned()
}

/// Ten thousand sessions that said nothing took every connection, and decisions had none.
#[test]
fn m6_feeds_leave_connections_to_decisions() {
    let server = streaming(Limits { connections: 10, reserved_connections: Some(4), ..Limits::default() });
    let mut feeds: Vec<Client> = (0..6).map(|_| server.connect()).collect();
    let taken: Vec<String> = feeds.iter_mut().map(|client| status(client, FEED, "")).collect();
    assert_eq!(taken, ["200", "200", "200", "200", "200", "200"]);
    let refused = server.ask(FEED);
    check_response("the seventh", &refused, "503 too_many_sessions & 4 connections are for requests & retry-after: 1");
    assert_eq!(server.ask(HIT).status, 200);
    assert_eq!(told(&server, "feeds_and_sessions"), [6, 6, 1]);
    assert_eq!(told(&server, "subscriptions")[0], 6);
    drop(feeds);
    eventually("places are given back", || told(&server, "feeds_and_sessions")[0] == 0);
    assert_eq!(told(&server, "subscriptions")[0], 0);
}

#[test]
fn m6_subscriptions_are_capped_in_all() {
    let server = streaming(Limits { subscriptions: 2, ..Limits::default() });
    let mut feeds: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    feeds.iter_mut().for_each(|client| assert_eq!(status(client, FEED, ""), "200"));
    check_response("the third", &server.ask(FEED), "503 too_many_subscriptions & (2 in all)");
    assert_eq!(told(&server, "feeds_and_sessions")[0], 2, "what was refused holds no place");
}

/// While connections are scarce, those that wait for a request make room; feeds and requests under way stay.
#[test]
fn m6_idle_connections_make_room_when_they_are_scarce() {
    let server = streaming(Limits { connections: 20, reserved_connections: Some(10), ..Limits::default() });
    let mut feed = server.connect();
    assert_eq!(status(&mut feed, FEED, ""), "200");
    // Those that have asked, and those that never do. On a slow machine they are not all idle at once, and no more are cut than room needs.
    for has_asked in [true, false] {
        let mut idle: Vec<Client> = (0..12).map(|_| server.connect()).collect();
        let asking = idle.iter_mut().filter(|_| has_asked);
        asking.for_each(|client| assert_eq!(status(client, "GET /livez", ""), "200"));
        // The feed and the one that asks are told, too.
        eventually("half of the connections are free", || told(&server, "connections")[0] <= 11);
    }
    assert_eq!(told(&server, "feeds_and_sessions")[0], 1, "the feed goes on");
    // Where there is room, they stay.
    let mut calm = server.connect();
    calm.send(HIT, "");
    assert_eq!(calm.response().unwrap().status, 200);
    std::thread::sleep(Duration::from_secs(2));
    calm.send(HIT, "");
    assert_eq!(calm.response().unwrap().status, 200);
}

#[test]
fn m6_one_token_does_not_take_all_connections() {
    let token = |name: &str| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: [Scope::Check].into_iter().collect(), ..Grant::default() },
        expires: None,
    };
    let rules = || Rules {
        tokens: Some(Tokens::new(vec![token("greedy"), token("other")], Vec::new()).unwrap()),
        ..Rules::default()
    };
    let access = Arc::new(Access::new(rules()));
    let limits = Limits { connections_per_token: Some(3), ..Limits::default() };
    let server = Server::with(HttpSettings { access: Arc::clone(&access), ..limited(limits) });
    let ask = |client: &mut Client, name: &str| {
        client.send(HIT, &format!("authorization: Bearer tg_{name}\r\n"));
        client.response().unwrap()
    };
    let mut open: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    open.iter_mut().for_each(|client| assert_eq!(ask(client, "greedy").status, 200));
    let refused = ask(&mut server.connect(), "greedy");
    check_response("the fourth", &refused, "503 too_many_connections & your token has as many & connection: close");
    assert_eq!(ask(&mut server.connect(), "other").status, 200);
    // The same token, read again: it counts once.
    access.replace(rules());
    open.iter_mut().for_each(|client| assert_eq!(ask(client, "greedy").status, 200));
    // A connection counts for the token that it showed last.
    assert_eq!(ask(&mut open[0], "other").status, 200);
    assert_eq!(ask(&mut server.connect(), "greedy").status, 200);
    drop(open);
    eventually("places are given back", || ask(&mut server.connect(), "greedy").status == 200);
}

const PEEK: &str = r#"POST /v1/hit {"limiter":"burst","key":"u1","peek":true}"#;
const HITS: &str = r#"POST /v1/hits {"requests":[{"limiter":"burst","key":"u1","peek":true}]}"#;
const JSON: &str = r#"POST /json {"domain":"none","descriptors":[{"entries":[{"key":"user","value":"u1"}]}]}"#;

/// Eight clients that paged through blocked keys raised the time of a hit to 29 ms: each page walked over the whole table in one go.
#[test]
fn m6_listings_hold_up_no_decision() {
    let server = Server::with_memory(HttpSettings::default(), 256 << 20);
    for key in 0..400_000 {
        let _ = server.gate.hit("ten", format!("key {key}")).unwrap();
    }
    let median = |server: &Server, request: &str| {
        let mut client = server.connect();
        let mut took: Vec<Duration> = (0..200)
            .map(|_| {
                let start = Instant::now();
                client.send(request, "");
                assert_eq!(client.response().unwrap().status, 200);
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        took[took.len() / 2]
    };
    let alone = median(&server, PEEK);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (beside, pages) = std::thread::scope(|scope| {
        let pagers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut pages) = (server.connect(), 0);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        client.send("GET /v1/limiters/ten/keys?state=blocked", "");
                        assert_eq!(client.response().unwrap().body, "{\"keys\":[],\"next\":null}");
                        pages += 1;
                    }
                    pages
                })
            })
            .collect();
        let beside = [PEEK, HITS, JSON].map(|decision| median(&server, decision));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        (beside, pagers.into_iter().map(|pager| pager.join().unwrap()).sum::<u32>())
    });
    println!("a hit takes {alone:?} alone, beside {pages} pages one, a batch and one of Envoy's {beside:?}");
    let longest = beside.into_iter().max().unwrap();
    assert!(longest < Duration::from_millis(10) * slowness(), "{beside:?} beside pagers, {alone:?} alone");
}
