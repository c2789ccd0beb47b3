//! Stops, reloads, and what the proxy says of itself.

use crate::support::{Origin, eventually, get, next_window, proxy, request, runtime, send, status, text, var};
use hyper::Response;
use std::sync::Arc;
use std::time::Duration;
use tidegate_proxy::Policy;
use tidegate_testkit::{number, waited_for_processor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[test]
fn a_stop_answers_those_who_wait_and_lets_the_others_end() {
    let origin = Origin::with(|_| async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        Response::new(text("finished"))
    });
    let proxy = Arc::new(proxy(origin.policy("1 per day")));
    runtime().block_on(async {
        let under_way = tokio::spawn(send(proxy.address(), b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n"));
        eventually("one is under way", async || origin.count() == 1).await;
        let waiting = tokio::spawn(send(proxy.address(), b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n"));
        eventually("one waits", async || var(&proxy, "waiting").await == 1).await;
        let stopping = Arc::clone(&proxy);
        let stopped = tokio::task::spawn_blocking(move || stopping.stop());
        let answer = waiting.await.unwrap();
        assert!(status(&answer) == 503 && answer.contains("stopping"), "{answer}");
        let finished = under_way.await.unwrap();
        assert!(status(&finished) == 200 && finished.ends_with("finished"), "{finished}");
        stopped.await.unwrap();
        assert!(TcpStream::connect(proxy.address()).await.is_err(), "it still listens");
    });
}

#[test]
fn a_reload_keeps_connections_counts_and_those_who_wait() {
    let (old, new) = (Origin::start(), Origin::start());
    let proxy = proxy(old.policy("2 per day"));
    runtime().block_on(async {
        let mut kept = TcpStream::connect(proxy.address()).await.unwrap();
        for _ in 0..2 {
            ask(&mut kept).await;
        }
        let waiting = tokio::spawn(send(proxy.address(), &request("/a").leak()[..]));
        eventually("one waits", async || var(&proxy, "waiting").await == 1).await;
        proxy.reload(new.policy("4 per day"));
        assert_eq!(status(&waiting.await.unwrap()), 200, "a higher limit lets a waiting request start at once");
        ask(&mut kept).await;
        assert_eq!((old.count(), new.count()), (2, 2), "a waiting request goes to the new upstream");
        proxy.reload(Policy { max_waiting: 0, ..new.policy("4 per day") });
        assert_eq!(status(&get(proxy.address(), "/a").await), 503, "counts were kept");
    });
}

async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
    }
}

/// Deliberate waiting and the proxy's own time are measured separately.
#[test]
fn waits_and_overhead_are_measured_apart() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("1 per 1s"));
    runtime().block_on(async {
        next_window(Duration::from_secs(1)).await;
        let before = waited_for_processor(std::process::id());
        for _ in 0..3 {
            assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        }
        // What its threads stood in line for a processor is the proxy's own time, too, and the machine's doing.
        let in_line = waited_for_processor(std::process::id()).saturating_sub(before);
        let vars = get(proxy.admin().unwrap(), "/debug/vars").await;
        let part =
            |name: &str| vars.split_once(&format!("\"{name}\":{{")).unwrap().1.split('}').next().unwrap().to_owned();
        let number = |text: &str, name: &str| -> u64 {
            let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap();
            rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
        };
        let (wait, overhead) = (part("wait_us"), part("overhead_us"));
        assert_eq!((number(&wait, "count"), number(&overhead, "count")), (3, 3));
        assert!(number(&wait, "p99") > 700_000, "two waited for most of a second: {wait}");
        let own_us = u128::from(number(&overhead, "sum")).saturating_sub(in_line.as_micros());
        assert!(own_us < 200_000, "the proxy's own time is no waiting: {overhead}, in line for {in_line:?}");
        let metrics = get(proxy.admin().unwrap(), "/metrics").await;
        for line in [
            "tidegate_proxy_forwarded_total{limiter=\"proxy\"} 3",
            "tidegate_proxy_wait_seconds_count{limiter=\"proxy\"} 3",
            "tidegate_proxy_overhead_seconds_bucket{limiter=\"proxy\",le=\"+Inf\"} 3",
            "tidegate_proxy_waiting{limiter=\"proxy\"} 0",
        ] {
            assert!(metrics.contains(line), "{metrics}\n\nlacks {line}");
        }
        assert!(!metrics.contains("/a"), "paths are no labels (M3)");
        for path in ["/livez", "/readyz"] {
            assert_eq!(status(&get(proxy.admin().unwrap(), path).await), 200);
        }
    });
}

/// How many distinct paths; a million with the variable PATHS.
const PATHS: u32 = 16_000;

#[test]
fn a_million_paths_stay_in_budget_and_idle_ones_are_forgotten() {
    let paths = number("TIDEGATE_PATHS", PATHS);
    let origin = Origin::with(|_| async { Response::new(text("ok")) });
    let policy = Policy { max_keys: paths / 2, ..origin.policy("100 per 5s") };
    let proxy = proxy(policy);
    let most = runtime().block_on(async {
        let tasks: Vec<_> =
            (0..8).map(|task| tokio::spawn(many(proxy.address(), task * (paths / 8), paths / 8))).collect();
        let mut most = 0;
        for task in tasks {
            task.await.unwrap();
            most = most.max(var(&proxy, "keys").await);
        }
        eventually("idle paths are forgotten", async || var(&proxy, "keys").await == 0).await;
        most
    });
    assert!(most <= u64::from(paths / 2) + 4096, "{most} keys");
    assert_eq!(origin.count(), paths as usize / 8 * 8);
}

async fn many(address: std::net::SocketAddr, first: u32, count: u32) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    for batch in 0..count / 50 {
        let batch: String =
            (0..50).map(|n| format!("GET /path/{} HTTP/1.1\r\nHost: t\r\n\r\n", first + batch * 50 + n)).collect();
        stream.write_all(batch.as_bytes()).await.unwrap();
        answer.clear();
        while answer.windows(4).filter(|four| four == b"\r\n\r\n").count() < 50 || !answer.ends_with(b"ok") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
    }
    let rest = count % 50;
    for n in 0..rest {
        assert_eq!(status(&get(address, &format!("/path/rest-{first}-{n}")).await), 200);
    }
}
