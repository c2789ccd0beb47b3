//! Streams over HTTP: events in, snapshots and feeds out.

use super::server::{Client, Server, check};
use std::io::Read as _;
use tidegate::Micros;
use tidegate_events::{Mode, StreamSpec};

fn server() -> Server {
    let mut orders = StreamSpec::new("orders", Mode::StrictlyOnce);
    orders.rules.max_events = 3;
    (orders.rules.duration_ms, orders.rules.snapshot_every_ms) = (3_000, 3_600_000);
    let mut first = StreamSpec::new("first", Mode::OnlyOnce);
    first.rules.snapshot_every_ms = 3_600_000;
    Server::with_streams(vec![orders, first])
}

#[test]
fn events_are_submitted_conflict_and_fill_up() {
    let long = "x".repeat(1_025);
    check(
        &server(),
        &format!(
            r#"
        POST /v1/streams/orders/events taco -> 201 {{"stream":"orders","status":"submitted","clock":2}}
        at 1001
        POST /v1/streams/orders/events taco -> 409 "code":"conflict" & "retry_after_ms":3000 & retry-after: 3
        POST /v1/streams/orders/events a -> 201 "clock":4
        POST /v1/streams/orders/events b -> 201 "clock":5
        POST /v1/streams/orders/events c -> 507 "code":"full" & remembers 3 events
        POST /v1/streams/orders/events a -> 409 conflict
        POST /only-once-event taco -> 201 "stream":"first"
        POST /only-once-event taco -> 409 less than 10s ago
        POST /strictly-once-event taco -> 409 "retry_after_ms":3000
        GET /v1/streams/orders -> 200 {{"clock":6,"snapshot":[{{"event":"taco","time":1000000,"status":"Invalid"}},{{"event":"a","time":1001000,"status":"Invalid"}},{{"event":"b","time":1001000,"status":"Valid"}}],"epoch":" & "messageType":"KEY_FRAME"}}
        GET /v1/streams -> 200 {{"streams":[{{"name":"orders","mode":"strictly-once","duration_ms":3000,"snapshot_every_ms":3600000,"max_events":3,"events":3,"subscribers":0,"failing":false}},{{"name":"first","mode":"only-once" & "events":1
        POST /v1/streams -> 405 allow: GET
        POST /v1/streams/orders/events -> 400 "code":"bad_event" & empty
        POST /v1/streams/orders/events {long} -> 400 1025 bytes, more than 1024
        POST /v1/streams/other/events x -> 404 "code":"unknown_stream" & there are: orders, first
        GET /v1/streams/orders/events -> 405 allow: POST
        GET /v1/streams/orders/feed?from=7 -> 400 unknown_field
        GET /v1/streams/orders/feed?from_clock=x -> 400 "code":"bad_clock"
        GET /v1/streams/orders/feed?from_clock=1&epoch=x -> 400 "code":"bad_epoch" & 13 of 0-9 a-f
        GET /metrics -> 200 tidegate_stream_submissions_total{{stream="orders",outcome="conflict"}} 3 & tidegate_stream_events{{stream="orders"}} 3 & !taco
        POST /time-sync -> 200 {{"frames":20,"apart_ms":50}}
        "#
        ),
    );
    check(&Server::with_streams(Vec::new()), "POST /only-once-event taco -> 404 no stream has the mode only-once");
}

#[test]
fn no_web_page_of_another_host_submits() {
    let server = server();
    for path in ["/v1/streams/orders/events", "/only-once-event", "/time-sync"] {
        let response = server.ask_with(&format!("POST {path} taco"), "origin: http://evil.example\r\n");
        assert_eq!(response.status, 403, "{path}");
    }
}

/// Reads the feed until all these are there, in order.
fn hear(client: &mut Client, expected: &[&str]) -> String {
    loop {
        let text = String::from_utf8_lossy(&client.buffer).into_owned();
        let mut rest = text.as_str();
        let all = expected.iter().all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        });
        if all {
            return text;
        }
        let mut chunk = [0; 4_096];
        let read = client.stream.read(&mut chunk).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(read > 0, "the feed ended: {text}");
        client.buffer.extend_from_slice(&chunk[..read]);
    }
}

#[test]
fn c2_a_feed_begins_with_a_snapshot_and_resumes_by_last_event_id() {
    let mut server = server();
    server.ask("POST /v1/streams/orders/events taco");
    let mut feed = server.connect();
    feed.send("GET /v1/streams/orders/feed", "");
    hear(
        &mut feed,
        &[
            "200 OK",
            "content-type: text/event-stream",
            "x-accel-buffering: no",
            "id: 2-",
            "\ndata: {\"clock\":2,\"snapshot\":[{",
        ],
    );
    server.ask("POST /v1/streams/orders/events taco");
    hear(&mut feed, &["id: 3-", "\ndata: {\"clock\":3,\"eventTime\":{\"event\":\"taco\"", "INVALIDATED_EVENT"]);
    server.gate.clock().set(Micros::from_secs(1_001));
    server.ask("POST /v1/streams/orders/events nacho");
    server.gate.clock().set(Micros::from_secs(1_004));
    hear(&mut feed, &["id: 4-", "SUBMITTED", "id: 5-", "PUBLISHED_EVENT"]);
    let heard = hear(&mut feed, &["id: 5-"]);
    let epoch = &heard.rsplit("id: 5-").next().unwrap()[..13];
    // With the epoch, and as servers before there were epochs gave ids.
    for (path, field) in [
        ("", format!("last-event-id: 3-{epoch}\r\n")),
        ("", "last-event-id: 3\r\n".to_owned()),
        ("?from_clock=3", String::new()),
        (&format!("?from_clock=3&epoch={epoch}"), String::new()),
    ] {
        let mut resumed = server.connect();
        resumed.send(&format!("GET /v1/streams/orders/feed{path}"), &field);
        let heard = hear(&mut resumed, &["id: 4-", "id: 5-"]);
        assert!(!heard.contains("KEY_FRAME"), "{heard}");
    }
    // C5: of another history.
    for (path, field) in [("", "last-event-id: 3-00000000a1b2c\r\n"), ("?from_clock=3&epoch=00000000a1b2c", "")] {
        let mut resumed = server.connect();
        resumed.send(&format!("GET /v1/streams/orders/feed{path}"), field);
        hear(&mut resumed, &[&format!("id: 5-{epoch}\n"), "KEY_FRAME"]);
    }
    server.stop();
    server.ended();
}
