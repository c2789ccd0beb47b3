//! Connections: keep-alive, slow clients, the cap, and stopping in order.

use crate::server::{Client, Server, check, check_response, limited};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_testkit::eventually;

const HIT: &str = r#"POST /v1/hit {"limiter":"ten","key":"u1"}"#;
const SHORT: Duration = Duration::from_millis(60);

/// Sends a head, and returns when the door waits for the body.
fn begin(client: &mut Client, body_len: usize) {
    client.send("POST /v1/hit", &format!("expect: 100-continue\r\ncontent-length: {body_len}\r\n"));
    assert_eq!(client.response().unwrap().status, 100);
}

#[test]
fn a_connection_serves_many_requests_also_pipelined() {
    let server = Server::start();
    let mut client = server.connect();
    for left in (5..10).rev() {
        client.send(HIT, "");
        assert!(client.response().unwrap().body.contains(&format!("\"remaining\":{left}")));
    }
    for _ in 0..7 {
        client.send(HIT, "");
    }
    let statuses: Vec<u16> = (0..7).map(|_| client.response().unwrap().status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
}

#[test]
fn s1_a_body_in_pieces_is_put_together() {
    let server = Server::start();
    let mut client = server.connect();
    let body = r#"{"limiter":"ten","key":"u1"}"#;
    client.send("POST /v1/hit", &format!("content-length: {}\r\n", body.len()));
    client.stream.set_nodelay(true).unwrap();
    for piece in body.as_bytes().chunks(5) {
        client.stream.write_all(piece).unwrap();
        std::thread::yield_now();
    }
    check_response("pieces", &client.response().unwrap(), "200 \"remaining\":9");
    client.send("POST /v1/hit", "transfer-encoding: chunked\r\n");
    let chunked = format!("4\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", &body[..4], body.len() - 4, &body[4..]);
    client.stream.write_all(chunked.as_bytes()).unwrap();
    check_response("chunks", &client.response().unwrap(), "200 \"remaining\":8");
}

#[test]
fn a_client_that_has_sent_all_it_will_gets_its_answer() {
    let server = Server::start();
    let mut client = server.connect();
    client.send(HIT, "");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.response().unwrap().status, 200);
    assert!(client.response().is_none());
}

#[test]
fn s1_slow_heads_and_idle_connections_are_cut() {
    let server = Server::with(HttpSettings { header_timeout: SHORT, ..HttpSettings::default() });
    let mut slow = server.connect();
    slow.stream.write_all(b"POST /v1/hit HTTP/1.1\r\nhos").unwrap();
    assert!(slow.response().is_none(), "a slow head is cut");
    let mut silent = server.connect();
    assert!(silent.response().is_none(), "a connection without any head is cut");
    check(&server, "GET /metrics -> 200 tidegate_http_connections_cut_total 2");

    let server = Server::with(HttpSettings { idle_timeout: SHORT, ..HttpSettings::default() });
    let mut idle = server.connect();
    idle.send(HIT, "");
    assert_eq!(idle.response().unwrap().status, 200);
    assert!(idle.response().is_none(), "an idle connection is closed");
}

#[test]
fn s1_a_slow_body_is_told_and_charges_nothing() {
    let server = Server::with(HttpSettings { body_timeout: SHORT, ..HttpSettings::default() });
    let mut slow = server.connect();
    slow.send("POST /v1/hit", "content-length: 40\r\n");
    slow.stream.write_all(b"{\"limiter\":").unwrap();
    check_response(
        "slow",
        &slow.response().unwrap(),
        "408 \"code\":\"body_timeout\" & within 60 ms & connection: close",
    );
    assert!(slow.response().is_none());
    check(&server, r#"GET /v1/limiters/ten/keys/u1 -> 200 "remaining":10"#);
}

#[test]
fn s1_past_the_cap_connections_are_refused_until_one_ends() {
    let server = Server::with(limited(Limits { connections: 2, ..Limits::default() }));
    let mut open: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for client in &mut open {
        client.send(HIT, "");
        assert_eq!(client.response().unwrap().status, 200);
    }
    let mut third = server.connect();
    third.send(HIT, "");
    let expected = "503 \"code\":\"too_many_connections\" & retry-after: 1 & connection: close";
    check_response("the third", &third.response().unwrap(), expected);
    open[0].send(HIT, "");
    assert_eq!(open[0].response().unwrap().status, 200, "those inside are served on");
    drop(open.pop());
    eventually("a place", || server.ask(HIT).status == 200);
}

#[test]
fn m6_one_address_does_not_take_all_connections() {
    let settings = limited(Limits { connections_per_address: Some(2), ..Limits::default() });
    let server = Server::with(settings);
    let mut open: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for client in &mut open {
        client.send(HIT, "");
        assert_eq!(client.response().unwrap().status, 200);
    }
    let mut third = server.connect();
    third.send(HIT, "");
    let expected = "503 \"code\":\"too_many_connections\" & your address & retry-after: 1 & connection: close";
    check_response("the third", &third.response().unwrap(), expected);
    let mut other = server.connect_from("127.0.0.2");
    other.send(HIT, "");
    assert_eq!(other.response().unwrap().status, 200, "another address has its own");
    drop(open);
    eventually("a place", || server.ask(HIT).status == 200);
}

#[test]
fn a_stop_lets_the_request_under_way_end() {
    let mut server = Server::start();
    let body = r#"{"limiter":"ten","key":"u1"}"#;
    let mut idle = server.connect();
    idle.send(HIT, "");
    assert_eq!(idle.response().unwrap().status, 200);
    let mut busy = server.connect();
    begin(&mut busy, body.len());
    busy.stream.write_all(&body.as_bytes()[..5]).unwrap();
    server.stop();
    assert!(idle.response().is_none(), "an idle connection is closed");
    eventually("the end of accepting", || TcpStream::connect(server.address).is_err());
    busy.stream.write_all(&body.as_bytes()[5..]).unwrap();
    check_response("under way", &busy.response().unwrap(), "200 \"remaining\":8");
    assert!(busy.response().is_none());
    server.ended();
}

#[test]
fn a_stop_waits_for_nobody_longer_than_the_drain() {
    let mut server = Server::with(HttpSettings { drain_timeout: SHORT, ..HttpSettings::default() });
    let mut stuck = server.connect();
    begin(&mut stuck, 40);
    server.stop();
    server.ended();
    assert!(stuck.response().is_none());
}
