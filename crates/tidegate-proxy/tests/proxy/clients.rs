//! One client among others: what it may take, and what it gets when it closes early.

use crate::support::{Origin, WAIT_TIME_MAX, eventually, proxy, request, runtime, send, status, text, var};
use hyper::Response;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_proxy::{Policy, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// An upstream whose `/slow` paths wait for the semaphore.
fn slow_origin() -> (Origin, Arc<Semaphore>) {
    let goes_on = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&goes_on);
    let origin = Origin::with(move |request| {
        let waits = Arc::clone(&waits);
        async move {
            if request.uri().path().starts_with("/slow") {
                waits.acquire().await.unwrap().forget();
            }
            Response::new(text("ok"))
        }
    });
    (origin, goes_on)
}

/// GET as a client behind one trusted hop.
fn get_as(address: SocketAddr, client: &str, path: &str) -> JoinHandle<String> {
    let text = format!("GET {path} HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n");
    tokio::spawn(send(address, text.into_bytes().leak()))
}

/// A client took every slot that there was, and every place in line.
#[test]
fn p6_one_client_leaves_slots_and_places_in_line_to_others() {
    let (origin, goes_on) = slow_origin();
    let caps = Policy {
        trusted_hops: 1,
        max_upstream: 5,
        max_in_flight_per_client: Some(3),
        max_waiting: 4,
        max_waiting_per_client: Some(2),
        ..origin.policy("100 per day")
    };
    let proxy = proxy(caps);
    runtime().block_on(async {
        let taken: Vec<_> = (0..5).map(|n| get_as(proxy.address(), "192.0.2.1", &format!("/slow/{n}"))).collect();
        eventually("three are under way", async || origin.count() == 3).await;
        let refused = eventually_refused(proxy.address()).await;
        assert!(refused.contains("client_line_full"), "{refused}");
        assert_eq!(var(&proxy, "in_flight").await, 3, "one that waits for its own to end holds no slot");
        let other = timeout(WAIT_TIME_MAX, get_as(proxy.address(), "192.0.2.2", "/quick")).await.unwrap().unwrap();
        assert_eq!(status(&other), 200, "{other}");
        goes_on.add_permits(5);
        for answer in taken {
            assert_eq!(status(&answer.await.unwrap()), 200);
        }
        assert_eq!(var(&proxy, "in_flight").await + var(&proxy, "waiting").await, 0);
    });
}

/// The sixth of a client's requests, as soon as the fourth and the fifth wait.
async fn eventually_refused(address: SocketAddr) -> String {
    loop {
        let asked = get_as(address, "192.0.2.1", "/slow/6");
        match timeout(Duration::from_millis(300), asked).await {
            Ok(answer) => return answer.unwrap(),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// By default one address, such as a load balancer's, has all but a tenth or 64, and what is over it waits.
#[test]
fn p6_a_load_balancer_waits_for_its_own_requests_and_loses_none() {
    let (origin, goes_on) = slow_origin();
    let proxy = proxy(Policy { max_upstream: 20, ..origin.policy("100 per day") });
    runtime().block_on(async {
        let asked: Vec<_> = (0..40).map(|n| get_as(proxy.address(), "x", &format!("/slow/{n}"))).collect();
        eventually("eighteen are under way", async || origin.count() == 18).await;
        goes_on.add_permits(40);
        for answer in asked {
            assert_eq!(status(&answer.await.unwrap()), 200);
        }
    });
}

/// Some clients close their side behind their last request. They got nothing.
#[test]
fn a_client_that_half_closes_gets_its_answer() {
    let (origin, goes_on) = slow_origin();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let get = "GET /slow HTTP/1.1\r\nHost: t\r\n\r\n";
        let post = "POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
        for (asked, request) in (1..).zip([get, post]) {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            eventually("it is under way", async || origin.count() == asked).await;
            tokio::time::sleep(Duration::from_millis(700)).await;
            goes_on.add_permits(1);
            let mut answer = String::new();
            timeout(WAIT_TIME_MAX, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
            assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
        }
    });
}

/// In line the end was taken for a client that left. A closed socket answers an interim answer with a reset, and so the two can be told
/// apart. They wait for longer than the 10 s for which an end is withheld when nothing else is known.
#[test]
fn p1_a_client_that_half_closes_in_line_gets_its_answer() {
    let (origin, goes_on) = slow_origin();
    let proxy = proxy(Policy { in_flight: 1, ..origin.policy("100 per day") });
    runtime().block_on(async {
        let first = tokio::spawn(send(proxy.address(), b"GET /slow HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
        eventually("one is under way", async || origin.count() == 1).await;
        let get = "GET /slow HTTP/1.1\r\nHost: t\r\n\r\n";
        let post = "POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
        let requests = [(get.to_owned(), 1), (post.to_owned(), 1), (get.repeat(2), 2)];
        let mut halves = Vec::new();
        for (request, answers) in &requests {
            halves.push((half_closed(&proxy, request).await, *answers));
        }
        // Two close their sides, and their sockets later: one in line, one when its turn has come.
        let (mut in_line, mut at_its_turn) = (half_closed(&proxy, get).await, half_closed(&proxy, get).await);
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        old.write_all(b"GET /slow HTTP/1.0\r\n\r\n").await.unwrap();
        eventually("six wait", async || var(&proxy, "waiting").await == 6).await;
        old.shutdown().await.unwrap();
        eventually("it cannot be found out in HTTP/1.0", async || var(&proxy, "left").await == 1).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(var(&proxy, "waiting").await, 5, "they are known to read");
        for client in [&mut in_line, &mut at_its_turn] {
            // A socket that is closed on unread bytes would tell.
            let mut interim = [0; 25];
            client.read_exact(&mut interim).await.unwrap();
            assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        drop(in_line);
        eventually("it is asked again", async || var(&proxy, "left").await == 2).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(var(&proxy, "waiting").await, 4);
        drop(at_its_turn);
        goes_on.add_permits(5);
        assert_eq!(status(&first.await.unwrap()), 200);
        for (mut stream, answers) in halves {
            let mut text = String::new();
            timeout(WAIT_TIME_MAX, stream.read_to_string(&mut text)).await.unwrap().unwrap();
            assert_eq!(text.matches("HTTP/1.1 200 OK").count(), answers, "{text}");
            assert!(text.starts_with("HTTP/1.1 ") && text.ends_with("ok"), "{text}");
        }
        assert_eq!((var(&proxy, "left").await, origin.count()), (3, 5), "who left takes no slot");
    });
}

/// A client that has asked and closed its side.
async fn half_closed(proxy: &Proxy, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    stream
}

/// The end in the middle of a message is the client's end.
#[test]
fn p1_a_client_that_leaves_in_the_middle_of_its_body_frees_its_slot_at_once() {
    let (origin, _) = slow_origin();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 500\r\n\r\nhello").await.unwrap();
        eventually("it is under way", async || var(&proxy, "in_flight").await == 1).await;
        drop(stream);
        let since = std::time::Instant::now();
        eventually("its slot is free", async || var(&proxy, "in_flight").await == 0).await;
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    });
}

/// Clients that leave while they wait were counted nowhere.
#[test]
fn p1_waiters_who_leave_are_counted() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("1 per day"));
    runtime().block_on(async {
        assert_eq!(status(&send(proxy.address(), &request("/a")).await), 200);
        let mut leaving = Vec::new();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            stream.write_all(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
            leaving.push(stream);
        }
        eventually("three wait", async || var(&proxy, "waiting").await == 3).await;
        drop(leaving);
        eventually("three have left", async || var(&proxy, "left").await == 3).await;
    });
}

/// A zero in its place was an extension like any other to hyper, which went on reading.
#[test]
fn p8_a_bare_lf_in_a_chunk_extension_is_refused_at_once() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let head = "POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}5;a\nhello").as_bytes()).await.unwrap();
        let mut start = [0; 12];
        timeout(Duration::from_secs(5), stream.read_exact(&mut start)).await.expect("an answer at once").unwrap();
        assert_eq!(&start, b"HTTP/1.1 400");
    });
}
