//! Upstreams that close when they like, and answers that do not come to their end.

use crate::support::{eventually, get, policy, proxy, runtime, send, status, var};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tidegate_proxy::{Policy, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An upstream that serves each connection with `serve`, in a thread of its own.
fn upstream(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, serve) = (listener.local_addr().unwrap(), Arc::new(serve));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

fn policy_for(address: SocketAddr, limit: &str) -> Policy {
    policy(Upstream::new(&format!("http://{address}"), None).unwrap(), limit)
}

/// Reads a head; false: there is none.
fn read_head(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    true
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers one request on each connection, and closes it when the next one comes: as if it had closed an idle connection at
/// that moment. Every other GET was answered 502.
#[test]
fn a_get_on_a_connection_that_the_upstream_just_closed_is_sent_again() {
    let seen = Arc::new(AtomicUsize::new(0));
    let served = Arc::clone(&seen);
    let address = upstream(move |mut stream| {
        if read_head(&mut stream) {
            served.fetch_add(1, SeqCst);
            stream.write_all(OK).unwrap();
            read_head(&mut stream);
        }
    });
    let proxy = proxy(policy_for(address, "100 per day"));
    runtime().block_on(async {
        for _ in 0..20 {
            assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        }
        assert_eq!(seen.load(SeqCst), 20, "none was served twice");
        assert!(var(&proxy, "resent").await > 0);
        assert_eq!(var(&proxy, "forwarded").await, 20, "what is sent again is one start");
        // What may change something is sent once.
        let post = b"POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(status(&send(proxy.address(), post).await));
        }
        assert!(statuses.contains(&502), "{statuses:?}");
    });
}

/// The connection was closed on the rest of the body, which resets it: the client saw a reset instead of the 413.
#[test]
fn an_early_413_arrives_while_the_client_still_sends() {
    let address = upstream(|mut stream| {
        if read_head(&mut stream) {
            let answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
            stream.write_all(answer).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
    });
    let proxy = proxy(policy_for(address, "100 per day"));
    runtime().block_on(async {
        for _ in 0..5 {
            let mut stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
            let head = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", 32 << 20);
            stream.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..32 {
                stream.write_all(&piece).await.expect("what is sent is read to the end");
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(status(&answer) == 413 && answer.ends_with("big"), "{answer}");
        }
    });
}

/// An answer that ends too early is the upstream's fault, and was counted nowhere.
#[test]
fn truncated_answers_are_counted() {
    let address = upstream(|mut stream| {
        if read_head(&mut stream) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").unwrap();
            // The client has the beginning before the end is missed.
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    });
    let proxy = proxy(policy_for(address, "100 per day"));
    runtime().block_on(async {
        let answer = get(proxy.address(), "/a").await;
        assert!(answer.ends_with("abc"), "{answer}");
        eventually("it is counted", async || var(&proxy, "truncated").await == 1).await;
    });
}

/// A request on a connection that stays open.
async fn ask_again(stream: &mut tokio::net::TcpStream) {
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// A WebSocket's connection was not counted, so that others could have its place, too; and two that connected at the same time, in one
/// thread while another had the idle one, both found the last place free.
#[test]
fn p6_the_connection_of_a_websocket_counts_among_those_to_the_upstream() {
    let address = upstream(|mut stream| {
        let mut head = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut head) {
            let is_websocket = head[..length].windows(9).any(|word| word == b"websocket");
            let switching: &[u8] =
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            // Requests that are sent together are under way together.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let _ = stream.write_all(if is_websocket { switching } else { OK });
        }
    });
    let proxy = proxy(Policy { max_upstream: 3, ..policy_for(address, "1000 per day") });
    runtime().block_on(async {
        let mut tunnel = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        let ask = "GET /ws HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        tunnel.write_all(ask.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        tunnel.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 101");
        assert_eq!(var(&proxy, "upstream_connections").await, 1);
        // The two threads have idle connections of their own, of which there may be two. Of four clients in turns two are in the same thread,
        // and need new ones at the same time while the other thread has the idle ones.
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(tokio::net::TcpStream::connect(proxy.address()).await.unwrap());
        }
        for round in 0..10 {
            for (one, other) in [(0, 2), (1, 3), (0, 1), (2, 3), (0, 3), (1, 2)] {
                let [one, other] = clients.get_disjoint_mut([one, other]).unwrap();
                tokio::join!(ask_again(one), ask_again(other));
                let open = var(&proxy, "upstream_connections").await;
                assert!(open <= 3, "{open} in round {round}");
            }
        }
    });
}
