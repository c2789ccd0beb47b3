//! Clients that leave while they wait: they take no slot, and leave nothing behind.

use crate::support::{
    Origin, TooSlow, WAIT_TIME_MAX, eventually, get, in_a_window, next_window, proxy, request, runtime, send, status,
    var, window_of, within,
};
use std::time::Duration;
use tidegate_proxy::{Policy, Upstream, WhenLimited};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

const POST: &[u8] = b"POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
/// A body that is not all there yet.
const UPLOAD: &[u8] = b"POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 500\r\n\r\nhello";
/// Another request stands behind the first.
const PIPELINE: &[u8] = b"GET /a HTTP/1.1\r\nHost: t\r\n\r\nGET /a HTTP/1.1\r\nHost: t\r\n\r\n";

/// Three slots are used up; three wait and leave, three wait and stay: the next window is theirs. `left` wait once the proxy has heard
/// of it.
#[track_caller]
fn check(leavers: &'static [u8], stayers: &'static [u8], left: u64) {
    in_a_window(|period| runtime().block_on(leave(leavers, stayers, left, period)));
}

/// The test once took its window to be long enough to line up in. On a busy machine it was not: the first waiters were
/// served before the last had come, and six never waited at once.
async fn leave(leavers: &'static [u8], stayers: &'static [u8], left: u64, period: Duration) -> Result<(), TooSlow> {
    let origin = Origin::start();
    let proxy = proxy(origin.policy(&format!("3 per {}s", period.as_secs())));
    let window = next_window(period).await;
    for _ in 0..3 {
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
    }
    let mut leaving = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(leavers).await.unwrap();
        leaving.push(stream);
    }
    within(window, period, async || var(&proxy, "waiting").await == 3).await?;
    let staying: Vec<_> = (0..3).map(|_| tokio::spawn(send(proxy.address(), stayers))).collect();
    within(window, period, async || var(&proxy, "waiting").await == 6).await?;
    drop(leaving);
    // On a busy machine the proxy may hear of it when the next window has begun, and that window is not the stayers' alone.
    within(window, period, async || var(&proxy, "waiting").await == left).await?;
    for answer in staying {
        assert_eq!(status(&answer.await.unwrap()), 200);
    }
    let seen = origin.seen();
    assert_eq!(seen.len(), 6, "the leavers' requests were forwarded");
    let late = seen.iter().filter(|seen| window_of(seen.at, period) > window + 1).count();
    assert_eq!(late, 0, "stayers had to wait for a second window");
    eventually("nothing is left", async || var(&proxy, "waiting").await + var(&proxy, "in_flight").await == 0).await;
    Ok(())
}

#[test]
fn p1_who_leaves_takes_no_slot() {
    check(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 3);
}

#[test]
fn p1_who_leaves_with_a_body_unread_takes_no_slot() {
    check(UPLOAD, POST, 3);
}

#[test]
fn p1_who_leaves_with_a_request_behind_takes_no_slot() {
    // The end of the connection lies behind the second request: it is heard of when it is their turn, which goes to the next in line.
    check(PIPELINE, POST, 6);
}

#[test]
fn p2_after_quiet_nothing_is_left() {
    let origin = Origin::with(|_| async {
        tokio::time::sleep(Duration::from_millis(3)).await;
        hyper::Response::new(crate::support::text("ok"))
    });
    let proxy = proxy(Policy { in_flight: 3, max_upstream: 20, ..origin.policy("25 per 500ms") });
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/warm").await), 200);
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        eventually("idle connections are closed", async || var(&proxy, "upstream_connections").await == 0).await;
        let baseline = files();
        let clients: Vec<_> = (0..300_u64).map(|number| tokio::spawn(impatient(proxy.address(), number))).collect();
        for client in clients {
            client.await.unwrap();
        }
        eventually("all is given back", async || {
            var(&proxy, "waiting").await + var(&proxy, "in_flight").await + var(&proxy, "upstream_connections").await
                == 0
        })
        .await;
        // The monitor's own connection may be open while it counts.
        eventually("files are at the baseline", async || files() <= baseline + 1).await;
        assert_eq!(status(&get(proxy.address(), "/0").await), 200);
    });
}

/// A client that left while the upstream was being connected to once took the start with it, though nothing was
/// forwarded: the slot's drop could not tell a request under way from one that never began. Here an upstream
/// whose queue is full keeps the connection from being made.
#[test]
fn p4_who_leaves_while_connecting_takes_no_start() {
    let origin = Origin::start();
    runtime().block_on(async {
        let full = tokio::net::TcpSocket::new_v4().unwrap();
        full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = full.listen(1).unwrap();
        let address = full.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        let one = Policy { when_limited: WhenLimited::Reject, ..origin.policy("1 per day") };
        let upstream = Upstream::new(&format!("http://{address}"), None).unwrap();
        let proxy = proxy(Policy { upstream, connect_timeout: WAIT_TIME_MAX, ..one.clone() });
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(&request("/a")).await.unwrap();
        eventually("it is being connected", async || var(&proxy, "in_flight").await == 1).await;
        drop(client);
        eventually("it has left", async || var(&proxy, "in_flight").await == 0).await;
        proxy.reload(one);
        assert_eq!(status(&get(proxy.address(), "/a").await), 200, "its start was lost");
        assert_eq!(status(&get(proxy.address(), "/a").await), 429, "there is one");
    });
}

/// Asks and leaves, at a time of its own: in line, under way, or with the answer half read.
async fn impatient(address: std::net::SocketAddr, number: u64) {
    for round in 0..5 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&request(&format!("/{}", number % 4))).await.unwrap();
        tokio::time::sleep(Duration::from_micros((number * 7919 + round * 104_729) % 40_000)).await;
        drop(stream);
    }
}
