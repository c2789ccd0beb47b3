//! What is bounded, and what is refused: each with its status, its header fields and its remedy.

use crate::support::{Origin, eventually, get, proxy, proxy_on, proxy_with, request, runtime, send, status, text, var};
use hyper::Response;
use std::time::{Duration, Instant};
use tidegate_proxy::{Policy, Settings, Upstream, WhenLimited};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends bytes to a proxy with this policy, after `/used` has used its one slot up.
#[track_caller]
fn check(change: impl Fn(Policy) -> Policy, bytes: &[u8], expected: u16, parts: &[&str]) -> String {
    let origin = Origin::start();
    let proxy = proxy(change(origin.policy("1 per day")));
    runtime().block_on(async {
        let _ = send(proxy.address(), b"GET /used HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
        let used = origin.count();
        let answer = send(proxy.address(), bytes).await;
        let request = String::from_utf8_lossy(bytes);
        assert_eq!(status(&answer), expected, "{request}{answer}");
        for part in parts {
            assert!(answer.contains(part), "{request}\n\n{answer}\n\nlacks {part}");
        }
        assert!(expected == 200 || origin.count() == used, "it was forwarded: {:?}", origin.seen());
        answer
    })
}

fn same(policy: Policy) -> Policy {
    policy
}

#[test]
fn a_denial_says_when_to_come_again() {
    let reject = |policy| Policy { when_limited: WhenLimited::Reject, ..policy };
    let answer = check(
        reject,
        &request("/used"),
        429,
        &[
            "ratelimit-policy: \"proxy\";q=1;w=86400",
            "ratelimit: \"proxy\";r=0;t=",
            "retry-after: ",
            "#quota-exceeded",
            "\"violated-policies\":[\"proxy\"]",
            "\"reason\":\"limited\"",
        ],
    );
    let seconds = |name: &str| answer.split_once(name).unwrap().1.split("\r\n").next().unwrap().to_owned();
    assert_eq!(seconds("retry-after: "), seconds("r=0;t="), "{answer}");
    check(reject, &request("/other"), 200, &["ok"]);
}

#[test]
fn p6_past_the_line_503_at_once() {
    let line = |policy| Policy { max_waiting: 0, ..policy };
    check(line, &request("/used"), 503, &["retry-after: 1", "line_full", "#temporary-reduced-capacity"]);
    let bytes = |policy| Policy { max_waiting_bytes: 10, ..policy };
    check(bytes, &request("/used"), 503, &["retry-after: 1", "line_full"]);
    // The query waits as well.
    let (short, wait) = (request("/used?q"), Some(Duration::from_millis(300)));
    let bytes = |policy| Policy { max_waiting_bytes: 100, max_wait: wait, ..policy };
    check(bytes, &short, 429, &[]);
    check(bytes, &request(&format!("/used?{}", "q".repeat(100))), 503, &["line_full"]);
}

#[test]
fn a_wait_that_is_too_long_ends_with_429() {
    let wait = |policy| Policy { max_wait: Some(Duration::from_millis(300)), ..policy };
    check(wait, &request("/used"), 429, &["#quota-exceeded"]);
}

async fn on_store(limit: &str, url: tidegate::StoreUrl) -> tidegate::Gate {
    let rules = tidegate::Rules::new(tidegate::Algorithm::AlignedWindow, &[limit.parse().unwrap()]).unwrap();
    let policy = tidegate::Policy::new(vec![tidegate::LimiterSpec::new("proxy", rules)]).unwrap();
    tidegate::Gate::connect(&policy, url, tidegate::StoreSettings::default(), tidegate::Clock::process()).await
}

/// A store that is down was once counted as if clients had asked for too much.
#[test]
fn only_the_limits_refusals_count_as_denied() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = format!("redis://{nobody}").parse().unwrap();
    let (origin, runtime_of_store) = (Origin::start(), runtime());
    let settings = Settings { store_outage: Duration::from_millis(300), ..Settings::default() };
    let gate = runtime_of_store.block_on(on_store("1 per day", store));
    let policy = Policy { limiter: gate.limiter("proxy").unwrap(), ..origin.policy("1 per day") };
    let proxy = proxy_on(gate, policy, settings);
    runtime().block_on(async {
        let answer = get(proxy.address(), "/a").await;
        assert!(status(&answer) == 503 && answer.contains("store_down"), "{answer}");
        assert_eq!(var(&proxy, "denied").await, 0);
    });
    let (origin, reject) = (Origin::start(), WhenLimited::Reject);
    let proxy = proxy_with(Policy { when_limited: reject, ..origin.policy("1 per day") }, Settings::default());
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        assert_eq!(status(&get(proxy.address(), "/a").await), 429);
        assert_eq!(var(&proxy, "denied").await, 1);
    });
}

#[test]
fn ambiguous_paths_are_refused_and_others_forwarded_in_their_normal_form() {
    for path in ["/a%2Fb", "/a%5Cb", "/a%00", "/%", "/../etc", "/a/%2e%2e/%2E%2E/b", "/a\\b"] {
        check(same, &request(path), 400, &["\"code\":\"target\""]);
    }
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        for path in ["//a/./b/../%63?q=%2f//..", "/caf%c3%a9", "http://other/x?y", "/plain;v=1/@"] {
            assert_eq!(status(&get(proxy.address(), path).await), 200, "{path}");
        }
    });
    let lines: Vec<String> = origin.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /a/c?q=%2f//..", "GET /caf%C3%A9", "GET /x?y", "GET /plain;v=1/@"]);
    assert_eq!(origin.seen()[2].field("host"), Some("other"));
}

#[test]
fn a_host_is_there_once() {
    check(same, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400, &["\"code\":\"host\""]);
    check(same, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n", 400, &["\"code\":\"host\""]);
    check(same, b"GET / HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n", 400, &["\"code\":\"host\""]);
    check(same, b"GET / HTTP/1.1\r\nHost: a/b\r\nConnection: close\r\n\r\n", 400, &["\"code\":\"host\""]);
    check(same, b"GET / HTTP/1.0\r\n\r\n", 200, &["ok"]);
    check(same, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nConnection: close\r\n\r\n", 405, &[]);
}

#[test]
fn heads_are_bounded() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", "a".repeat(17 << 10));
    check(same, long.as_bytes(), 431, &[]);
    let many = format!("GET / HTTP/1.1\r\nHost: t\r\n{}Connection: close\r\n\r\n", "A: b\r\n".repeat(101));
    check(same, many.as_bytes(), 431, &[]);
}

#[test]
fn upstreams_that_fail_are_told_apart() {
    let to = |port: u16| {
        move |policy| Policy { upstream: Upstream::new(&format!("http://127.0.0.1:{port}"), None).unwrap(), ..policy }
    };
    let down = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() };
    check(to(down), &request("/"), 502, &["upstream_down"]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = |policy| Policy {
        upstream_timeout: Duration::from_millis(600),
        ..to(silent.local_addr().unwrap().port())(policy)
    };
    check(slow, &request("/"), 504, &["upstream_silent"]);
    for nonsense in ["SSH-2.0-x\r\n\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"] {
        let odd = answering(nonsense);
        check(to(odd), &request("/"), 502, &["upstream_broke_off"]);
    }
    // The guide says 502 to a line without CR, and it was forwarded.
    let bare = answering("HTTP/1.1 200 OK\nContent-Length: 2\n\nok");
    check(to(bare), &request("/"), 502, &["upstream_broke_off"]);
    // What servers of gRPC say first: an empty SETTINGS.
    let grpc = answering("\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0");
    check(to(grpc), &request("/"), 502, &["upstream_http2", "speaks HTTP/2 only"]);
}

/// Two fields were a new key each time that the second was another one.
#[test]
fn a_field_of_the_key_that_is_sent_twice_is_refused() {
    let by_field = |policy| Policy { key: vec!["header.x-key".parse().unwrap()], ..policy };
    let twice = b"GET / HTTP/1.1\r\nHost: t\r\nX-Key: 1\r\nX-Key: 2\r\nConnection: close\r\n\r\n";
    check(by_field, twice, 400, &["\"code\":\"key\"", "the field x-key is there twice"]);
}

/// An upstream that reads a request and answers with these bytes, whatever it was asked.
fn answering(bytes: &'static str) -> u16 {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes.as_bytes());
        }
    });
    port
}

/// A start that could not be used, as the upstream was down, counts for nothing.
#[test]
fn p4_what_was_not_forwarded_counts_for_nothing() {
    let origin = Origin::start();
    let down = Policy { upstream: Upstream::new("http://127.0.0.1:1", None).unwrap(), ..origin.policy("1 per day") };
    let proxy = proxy(down);
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/a").await), 502);
        proxy.reload(origin.policy("1 per day"));
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
    });
}

#[test]
fn in_flight_is_bounded_by_key_and_in_all() {
    static MOST: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    static NOW: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    use std::sync::atomic::Ordering::SeqCst;
    let origin = Origin::with(|_| async {
        MOST.fetch_max(NOW.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        NOW.fetch_sub(1, SeqCst);
        Response::new(text("ok"))
    });
    let proxy = proxy(Policy { in_flight: 3, max_upstream: 5, ..origin.policy("1000 per day") });
    let ask = |paths: usize| {
        MOST.store(0, SeqCst);
        runtime().block_on(async {
            let clients = (0..60).map(|number| {
                let (address, path) = (proxy.address(), format!("/{}", number % paths));
                tokio::spawn(async move { get(address, &path).await })
            });
            for client in clients.collect::<Vec<_>>() {
                assert_eq!(status(&client.await.unwrap()), 200);
            }
        });
        MOST.load(SeqCst)
    };
    assert_eq!(ask(1), 3);
    assert_eq!(ask(4), 5);
}

#[test]
fn p6_connections_are_bounded() {
    let origin = Origin::start();
    let settings = Settings { max_connections: 5, workers: 1, ..Settings::default() };
    let proxy = proxy_with(origin.policy("100 per day"), settings);
    runtime().block_on(async {
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(TcpStream::connect(proxy.address()).await.unwrap());
        }
        eventually("all are taken", async || var(&proxy, "connections").await == 5).await;
        let answer = get(proxy.address(), "/").await;
        assert!(status(&answer) == 503 && answer.contains("retry-after: 1"), "{answer}");
        open.pop();
        eventually("one is free", async || var(&proxy, "connections").await == 4).await;
        assert_eq!(status(&get(proxy.address(), "/").await), 200);
    });
}

#[test]
fn m6_one_address_does_not_take_all_connections() {
    let origin = Origin::start();
    let settings = Settings { max_connections_per_address: Some(2), workers: 2, ..Settings::default() };
    let proxy = proxy_with(origin.policy("100 per day"), settings);
    runtime().block_on(async {
        let open =
            [TcpStream::connect(proxy.address()).await.unwrap(), TcpStream::connect(proxy.address()).await.unwrap()];
        eventually("both are in", async || var(&proxy, "connections").await == 2).await;
        let answer = get(proxy.address(), "/").await;
        assert!(status(&answer) == 503 && answer.contains("your address"), "{answer}");
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut other = socket.connect(proxy.address()).await.unwrap();
        other.write_all(&request("/")).await.unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).await.unwrap();
        assert_eq!(status(&answer), 200, "another address has its own");
        drop(open);
        eventually("a place", async || status(&get(proxy.address(), "/").await) == 200).await;
    });
}

/// A connection that had sent the beginning of HTTP/2's preface was looked at every 5 ms for the rest: two thousand took half
/// a processor, and others waited for it.
#[test]
fn p6_part_of_a_preface_costs_nothing() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let mut open = Vec::new();
        for _ in 0..300 {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            stream.write_all(b"P").await.unwrap();
            open.push(stream);
        }
        eventually("all are in", async || var(&proxy, "connections").await == 300).await;
        let before = cpu_time();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let took = cpu_time() - before;
        assert!(took < Duration::from_millis(30), "{took:?} of a second for connections that do nothing");
    });
}

/// Time that this process, the proxy's threads included, had a processor.
fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let times = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).ok());
    let nanos = times.map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap());
    Duration::from_nanos(nanos.sum())
}

#[test]
fn a_preface_in_pieces_is_http2_all_the_same() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        for piece in [&b"P"[..], b"RI * HT", b"TP/2.0\r\n\r", b"\nSM\r\n\r\n", &settings] {
            stream.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[3], 4, "SETTINGS are answered with SETTINGS");
        // And what only looks like one is read from its first byte on.
        let answer = send(proxy.address(), b"PRI * HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
        assert_eq!(status(&answer), 400, "{answer}");
    });
}

/// Slow heads, idle connections and bodies that stop are cut.
#[test]
fn p6_slow_clients_are_cut() {
    let origin = Origin::with(|request| async {
        use http_body_util::BodyExt as _;
        let _ = request.into_body().collect().await;
        Response::new(text("ok"))
    });
    let short = Duration::from_millis(500);
    let settings = Settings { head_timeout: short, idle_timeout: short, client_timeout: short, ..Settings::default() };
    let proxy = proxy_with(origin.policy("100 per day"), settings);
    runtime().block_on(async {
        for (bytes, expected) in [
            (&b""[..], ""),
            (b"GET / HTTP/1.1\r\nHos", ""),
            (b"GET / HTTP/1.1\r\nHost: t\r\n\r\n", "HTTP/1.1 200"),
            (b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\nhello", "HTTP/1.1 400"),
            (b"PRI * HT", ""),
        ] {
            let start = Instant::now();
            let answer = send(proxy.address(), bytes).await;
            assert!(answer.starts_with(expected) && answer.is_empty() == expected.is_empty(), "{answer}");
            assert!(start.elapsed() < Duration::from_secs(4), "{:?} for {bytes:?}", start.elapsed());
        }
    });
}

/// A byte a second was enough to hold a slot for ever.
#[test]
fn p6_uploads_that_make_next_to_no_progress_are_cut() {
    let origin = Origin::with(|request| async {
        use http_body_util::BodyExt as _;
        let _ = request.into_body().collect().await;
        Response::new(text("ok"))
    });
    let settings = Settings { client_timeout: Duration::from_secs(1), ..Settings::default() };
    let proxy = proxy_with(origin.policy("100 per day"), settings);
    // Bytes at once, and whether they are enough.
    for (piece, expected) in [(1, "HTTP/1.1 400"), (600, "HTTP/1.1 200")] {
        runtime().block_on(async {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            let head =
                format!("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", 20 * piece);
            stream.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(250)).await;
                // A client that is cut may find out here.
                let _ = stream.write_all(&vec![b'x'; piece]).await;
            }
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), expected, "pieces of {piece} bytes");
        });
    }
}

/// A connection once forgot that a head in two pieces had ended: the next one's time then ran from the last answer,
/// and a kept connection was cut in the middle of a head that had just begun.
#[test]
fn p6_the_time_for_a_head_begins_with_it() {
    let origin = Origin::start();
    let settings = Settings { head_timeout: Duration::from_millis(1500), ..Settings::default() };
    let proxy = proxy_with(origin.policy("100 per day"), settings);
    runtime().block_on(async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        for idle in [Duration::ZERO, Duration::from_secs(3)] {
            tokio::time::sleep(idle).await;
            stream.write_all(b"GET / HTTP/1.1\r\nHos").await.unwrap();
            tokio::time::sleep(Duration::from_millis(800)).await;
            stream.write_all(b"t: t\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok") {
                let count = stream.read_buf(&mut answer).await.unwrap_or(0);
                assert!(count > 0, "cut after {idle:?}: {:?}", String::from_utf8_lossy(&answer));
            }
        }
    });
}

/// An early answer: the rest of the body is drained or the connection closed, and never taken for a request.
#[test]
fn p8_an_early_answer_ends_with_the_body_or_the_connection() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    runtime().block_on(async {
        let body = "GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n".repeat(100_000);
        let head = format!("POST /early HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let _ = stream.write_all(head.as_bytes()).await;
        let mut start = [0; 12];
        let _ = stream.write_all(&body.as_bytes()[..10_000]).await;
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        let _ = stream.write_all(&body.as_bytes()[10_000..]).await;
        let _ = stream.write_all(&request("/next")).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
        assert!(origin.seen().iter().all(|seen| !seen.line.contains("hidden")), "{:?}", origin.seen());
    });
}
