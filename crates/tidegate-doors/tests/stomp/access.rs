//! Every command of STOMP against every kind of caller, as one table.

use super::Door;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_doors::http::HttpSettings;
use tidegate_testkit::stomp::{Client, Heard};
use tidegate_wire::stomp::COMMANDS;

/// A frame with a receipt, the scope that it needs, whether a token for other streams may send it, and what comes of it: a receipt, or the message of an
/// ERROR. A new command fails [`s5_every_command_is_a_row_of_the_table`] until it has a row.
const ROWS: [(&str, Option<Scope>, bool, &str); 14] = [
    ("SUBSCRIBE\nid:1\ndestination:/topic/orders\nreceipt:r\n\n\0", Some(Scope::Subscribe), false, "receipt"),
    ("SUBSCRIBE\nid:1\ndestination:/topic/strictly-once\nreceipt:r\n\n\0", Some(Scope::Subscribe), false, "receipt"),
    ("SUBSCRIBE\nid:1\ndestination:/topic/time\nreceipt:r\n\n\0", Some(Scope::Subscribe), true, "receipt"),
    ("SEND\ndestination:/app/orders\nreceipt:r\n\nEVENT\0", Some(Scope::Publish), false, "receipt"),
    ("SEND\ndestination:/app/time\nreceipt:r\n\n\0", Some(Scope::Publish), true, "receipt"),
    // There is no subscription of anybody else that it could end.
    ("UNSUBSCRIBE\nid:1\nreceipt:r\n\n\0", None, true, "unknown subscription"),
    ("ACK\nid:1\nreceipt:r\n\n\0", None, true, "receipt"),
    ("NACK\nid:1\nreceipt:r\n\n\0", None, true, "receipt"),
    ("BEGIN\ntransaction:t\nreceipt:r\n\n\0", None, true, "no transactions"),
    ("COMMIT\ntransaction:t\nreceipt:r\n\n\0", None, true, "no transactions"),
    ("ABORT\ntransaction:t\nreceipt:r\n\n\0", None, true, "no transactions"),
    // Nobody becomes somebody else.
    ("CONNECT\naccept-version:1.2\npasscode:tg_publish\n\n\0", None, true, "connected already"),
    ("STOMP\naccept-version:1.2\npasscode:tg_publish\n\n\0", None, true, "connected already"),
    ("DISCONNECT\nreceipt:r\n\n\0", None, true, "receipt"),
];

#[test]
fn s5_every_command_is_a_row_of_the_table() {
    let rows: BTreeSet<&str> = ROWS.iter().map(|(frame, ..)| frame.lines().next().unwrap()).collect();
    assert_eq!(rows, COMMANDS.iter().map(|(name, _)| *name).collect());
}

fn token(name: &str, scope: Scope, streams: &[&str], expires: Option<Micros>) -> Token {
    let streams = streams.iter().map(|text| text.parse::<Pattern>().unwrap()).collect();
    let grant = Grant { scopes: [scope].into_iter().collect(), streams, ..Grant::default() };
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

fn tokens() -> Tokens {
    let mut all = vec![token("expired", Scope::Publish, &[], Some(Micros::from_secs(1)))];
    for scope in Scope::ALL {
        let name = scope.name();
        all.push(token(name, scope, &[], None));
        all.push(token(&format!("narrowed-{name}"), scope, &["ord*"], None));
        all.push(token(&format!("elsewhere-{name}"), scope, &["other"], None));
    }
    Tokens::new(all, Vec::new()).unwrap()
}

fn door() -> (Door, Arc<Access>) {
    let access = Arc::new(Access::new(Rules { tokens: Some(tokens()), ..Rules::default() }));
    (Door::with(3_600_000, HttpSettings { access: Arc::clone(&access), ..HttpSettings::default() }), access)
}

fn connect(passcode: &str) -> String {
    let passcode = if passcode.is_empty() { String::new() } else { format!("passcode:{passcode}\n") };
    format!("CONNECT\naccept-version:1.2\nlogin:anybody\n{passcode}\n\0")
}

/// `receipt`, or the message of the ERROR. Messages of subscriptions may come before.
fn heard(client: &mut Client) -> String {
    loop {
        match client.hear() {
            heard @ Heard::Frame(..)
                if heard
                    .header("receipt-id")
                    .is_some_and(|_| matches!(&heard, Heard::Frame(command, ..) if command == "RECEIPT")) =>
            {
                return "receipt".to_owned();
            }
            Heard::Frame(command, ..) if command == "MESSAGE" => {}
            other => return other.header("message").unwrap_or_else(|| panic!("{other:?}")).to_owned(),
        }
    }
}

#[test]
fn s5_every_command_refuses_whom_it_should_and_a_refusal_changes_nothing() {
    let (door, _) = door();
    for wrong in ["", "tg_nobody", "tg_expired", "tg_publish2"] {
        let mut client = Client::open(door.address);
        client.send(&connect(wrong));
        client.is_refused("unauthorized");
    }
    // Nothing is done before CONNECT, whatever is sent.
    for (frame, ..) in ROWS.into_iter().filter(|(.., outcome)| *outcome != "connected already") {
        let mut client = Client::open(door.address);
        client.send(frame);
        client.is_refused("not connected");
    }
    let stream = door.streams.get("orders").unwrap();
    let mut number = 0;
    for (frame, needs, elsewhere_may, outcome) in ROWS {
        for scope in Scope::ALL {
            for (kind, may) in [("", true), ("narrowed-", true), ("elsewhere-", elsewhere_may)] {
                number += 1;
                let who = format!("tg_{kind}{}", scope.name());
                let mut client = Client::open(door.address);
                client.send(&connect(&who));
                assert!(matches!(client.hear(), Heard::Frame(command, ..) if command == "CONNECTED"), "{who}");
                let before = stream.len();
                client.send(&frame.replace("EVENT", &format!("e{number}")));
                let is_allowed = needs.is_none_or(|needs| needs == scope) && may;
                assert_eq!(heard(&mut client), if is_allowed { outcome } else { "forbidden" }, "{frame:?} by {who}");
                if !is_allowed {
                    // No event ends within this test: an hour is the stream's duration.
                    assert_eq!(stream.len(), before, "{frame:?} by {who} was refused, and changed something");
                }
            }
        }
    }
}

#[test]
fn s5_a_session_may_show_its_token_when_it_is_opened() {
    let (door, _) = door();
    let mut client =
        Client::open_with(door.address, "authorization: Bearer tg_publish\r\n").unwrap_or_else(|head| panic!("{head}"));
    client.send("CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:/app/orders\nreceipt:r\n\nx\0");
    assert!(matches!(client.hear(), Heard::Frame(command, ..) if command == "CONNECTED"));
    assert_eq!(client.hear().header("status"), Some("submitted"));
    for (fields, status) in [
        ("authorization: Bearer tg_nobody\r\n", "401"),
        ("origin: http://evil.example\r\n", "403"),
        ("sec-fetch-site: cross-site\r\n", "403"),
    ] {
        let head = Client::open_with(door.address, fields).err().unwrap();
        assert_eq!(&head[9..12], status, "{fields}");
    }
}

#[test]
fn s5_a_subscription_ends_before_its_next_message_when_its_token_is_revoked() {
    let (door, access) = door();
    let mut client = Client::open(door.address);
    client.send(&connect("tg_subscribe"));
    client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    assert!(matches!(client.hear(), Heard::Frame(command, ..) if command == "CONNECTED"));
    assert!(client.hear().header("message-id").is_some());
    access.replace(Rules { tokens: Some(Tokens::default()), ..Rules::default() });
    let _ = door.submit("secret");
    client.is_refused("unauthorized");
}

/// Who followed the time went on hearing it with a token that was revoked.
#[test]
fn s5_a_subscription_to_the_time_ends_with_its_token_too() {
    let (door, access) = door();
    let mut client = Client::open(door.address);
    client.send(&connect("tg_subscribe"));
    client.send("SUBSCRIBE\nid:1\ndestination:/topic/time\nreceipt:r\n\n\0");
    assert!(matches!(client.hear(), Heard::Frame(command, ..) if command == "CONNECTED"));
    assert_eq!(heard(&mut client), "receipt");
    let publish = Tokens::new(vec![token("publish", Scope::Publish, &[], None)], Vec::new()).unwrap();
    access.replace(Rules { tokens: Some(publish), ..Rules::default() });
    let mut other = Client::open(door.address);
    other.send(&connect("tg_publish"));
    other.send("SEND\ndestination:/app/time\nreceipt:r\n\n\0");
    assert!(matches!(other.hear(), Heard::Frame(command, ..) if command == "CONNECTED"));
    assert_eq!(heard(&mut other), "receipt");
    client.is_refused("unauthorized");
}
