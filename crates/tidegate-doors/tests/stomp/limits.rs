//! M6: what sessions may take of `[limits]`.

use super::Door;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_testkit::eventually;
use tidegate_testkit::http::get;
use tidegate_testkit::stomp::{Client, Heard};

fn door(limits: Limits) -> Door {
    Door::with(3_600_000, HttpSettings { limits, ..HttpSettings::default() })
}

fn taken(door: &Door, what: &str) -> u64 {
    let page = get(door.address, "/metrics", "").unwrap();
    let name = format!("tidegate_limits_taken{{what=\"{what}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().trim().parse().unwrap()
}

fn subscribe(client: &mut Client, id: u32) {
    client.send(&format!("SUBSCRIBE\nid:{id}\ndestination:/topic/orders\n\n\0"));
}

/// Whether the next frame is a message.
fn hears(client: &mut Client) -> bool {
    matches!(client.hear(), Heard::Frame(command, ..) if command == "MESSAGE")
}

#[test]
fn m6_sessions_without_a_subscription_are_capped() {
    let door = door(Limits { idle_sessions: 2, ..Limits::default() });
    let mut first = Client::connected(door.address);
    let second = Client::connected(door.address);
    let refused = Client::open_with(door.address, "").err().unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    // One that subscribes leaves its place to the next.
    subscribe(&mut first, 1);
    assert!(hears(&mut first));
    assert_eq!(taken(&door, "idle_sessions"), 1);
    let third = Client::connected(door.address);
    // And cannot come back while others have them all.
    first.send("UNSUBSCRIBE\nid:1\n\n\0");
    assert!(first.hear().error().contains("sessions without a subscription: all are taken (2 in all)"));
    drop((second, third));
    eventually("places are given back", || taken(&door, "idle_sessions") == 0);
    assert_eq!((taken(&door, "feeds_and_sessions"), taken(&door, "subscriptions")), (0, 0));
}

#[test]
fn m6_a_session_that_is_silent_ends_unless_it_has_a_subscription() {
    let idle_timeout = Duration::from_millis(500);
    let door = Door::with(3_600_000, HttpSettings { idle_timeout, ..HttpSettings::default() });
    let mut follower = Client::connected(door.address);
    subscribe(&mut follower, 1);
    assert!(hears(&mut follower));
    let mut silent = Client::connected(door.address);
    assert!(silent.hear().error().contains("there is no subscription, and nothing came for 0.5 s"));
    eventually("its place is given back", || taken(&door, "feeds_and_sessions") == 1);
    let _ = door.submit("taco");
    assert!(hears(&mut follower), "the other one is followed on");
}

#[test]
fn m6_subscriptions_are_capped_for_a_session_and_in_all() {
    let door = door(Limits { subscriptions: 4, subscriptions_per_session: 3, ..Limits::default() });
    let mut one = Client::connected(door.address);
    (1..=3).for_each(|id| subscribe(&mut one, id));
    assert!((1..=3).all(|_| hears(&mut one)));
    let mut two = Client::connected(door.address);
    subscribe(&mut two, 1);
    assert!(hears(&mut two));
    subscribe(&mut two, 2);
    assert!(two.hear().error().contains("all are taken (4 in all)"));
    subscribe(&mut one, 4);
    assert!(one.hear().error().contains("a client has at most 3"));
    eventually("places are given back", || taken(&door, "subscriptions") == 0);
}

/// A client whose subscriptions all had something to write kept a text for each of them: 300 clients took 2.2 GB.
#[test]
fn m6_a_client_that_does_not_read_keeps_one_text_for_all_its_subscriptions() {
    // Long enough for a slow machine to look at it before it is cut.
    let write_timeout = Duration::from_secs(300);
    let door = Door::with(3_600_000, HttpSettings { write_timeout, ..HttpSettings::default() });
    // Each subscription begins with all of them, a text of 48 KB: all hundred have something to write, and ten find room in the socket.
    for event in 0..60 {
        let _ = door.submit(&format!("{event} {}", "x".repeat(800)));
    }
    let mut client = Client::connected(door.address);
    (0..100).for_each(|id| subscribe(&mut client, id));
    eventually("it subscribes", || taken(&door, "subscriptions") == 100);
    eventually("what it was sent lies unread", || taken(&door, "unread_bytes") > 0);
    let unread = taken(&door, "unread_bytes");
    assert!(unread <= 128 << 10, "{unread} bytes for 100 subscriptions");
}

/// Two addresses that show one token in CONNECT had as many sessions as two may.
#[test]
fn m6_one_token_that_comes_by_passcode_does_not_take_all_sessions() {
    let token = |name: &str| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: [Scope::Subscribe].into_iter().collect(), ..Grant::default() },
        expires: None,
    };
    for (limits, refused) in [
        (
            Limits { connections: 40, reserved_connections: Some(30), ..Limits::default() },
            "feeds and sessions: your token has as many as one token may, 9",
        ),
        (
            Limits { idle_sessions: 10, ..Limits::default() },
            "sessions without a subscription: your token has as many as one token may, 9",
        ),
    ] {
        let tokens = Tokens::new(vec![token("greedy"), token("other")], Vec::new()).unwrap();
        let access = Arc::new(Access::new(Rules { tokens: Some(tokens), ..Rules::default() }));
        let door = Door::with(3_600_000, HttpSettings { limits, access, ..HttpSettings::default() });
        let session = |from: u8, name: &str| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 0, from], 0)).into()).unwrap();
            socket.connect(&door.address.into()).unwrap();
            let mut client = Client::open_over(socket.into(), "")?;
            client.send(&format!("CONNECT\naccept-version:1.2\npasscode:tg_{name}\n\n\0"));
            let heard = client.hear();
            Ok::<_, String>((client, heard))
        };
        let is_connected = |heard: &Heard| matches!(heard, Heard::Frame(command, ..) if command == "CONNECTED");
        let greedy: Vec<_> = (0..9).map(|number| session(1 + number / 5, "greedy").unwrap()).collect();
        greedy.iter().for_each(|(_, heard)| assert!(is_connected(heard), "{heard:?}"));
        let (_, heard) = session(2, "greedy").unwrap();
        let error = heard.error();
        assert!(error.contains(refused), "{error}");
        // The session that was refused has its place until its connection has ended.
        eventually("others have the rest", || session(2, "other").is_ok_and(|(_, heard)| is_connected(&heard)));
    }
}
