//! Bodies of every kind pass through: large ones in constant memory, slow ones as they come.

use crate::support::{
    Body, Origin, WAIT_TIME_MAX, eventually, get, next_window, policy, proxy, proxy_with, runtime, send, status, text,
    var,
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidegate_proxy::{Policy, Settings, Upstream};
use tidegate_testkit::number;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// MiB of the large body; 1024 with the variable MIB.
const MIB: usize = 96;
/// What client, proxy and upstream together may take while it passes.
const MEMORY_MAX_KIB: usize = 24 << 10;

#[test]
fn a_large_chunked_body_passes_both_ways_in_constant_memory() {
    let mib: usize = number("TIDEGATE_MIB", MIB);
    let origin = Origin::with(|request| async { Response::new(echo(request.into_body())) });
    let proxy = proxy(origin.policy("100 per minute"));
    runtime().block_on(async {
        assert_eq!(status(&get(proxy.address(), "/warm").await), 200);
        let before = memory_kib();
        let (mut read, mut write) = TcpStream::connect(proxy.address()).await.unwrap().into_split();
        let sending = tokio::spawn(async move {
            let chunk = [b"10000\r\n".as_slice(), &[b'x'; 65_536], b"\r\n"].concat();
            let head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
            write.write_all(head.as_bytes()).await.unwrap();
            for _ in 0..mib * 16 {
                write.write_all(&chunk).await.unwrap();
            }
            write.write_all(b"0\r\n\r\n").await.unwrap();
            write
        });
        let (mut count, mut most, mut buffer) = (0, 0, vec![0; 1 << 16]);
        loop {
            let length = timeout(WAIT_TIME_MAX, read.read(&mut buffer)).await.unwrap().unwrap();
            if length == 0 {
                break;
            }
            count += buffer[..length].iter().filter(|byte| **byte == b'x').count();
            most = most.max(memory_kib());
        }
        drop(sending.await.unwrap());
        assert_eq!(count, mib << 20);
        println!("{mib} MiB both ways: {} KiB more than before", most - before);
        assert!(most - before < MEMORY_MAX_KIB, "{} KiB more than before", most - before);
    });
}

fn memory_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Frames go out as they come in.
fn echo(mut body: Incoming) -> Body {
    let (send, mut receive) = mpsc::channel::<Frame<Bytes>>(1);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if send.send(frame).await.is_err() {
                return;
            }
        }
    });
    BodyExt::boxed(Frames(Box::new(move |cx| receive.poll_recv(cx))))
}

type PollFrame = dyn FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Frame<Bytes>>> + Send + Sync;

/// A channel as a stream of frames.
struct Frames(Box<PollFrame>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        (self.0)(cx).map(|frame| frame.map(Ok))
    }
}

#[test]
fn events_come_as_they_are_sent() {
    let origin = Origin::with(|_| async {
        let (send, mut receive) = mpsc::channel::<Frame<Bytes>>(1);
        tokio::spawn(async move {
            for number in 0..3 {
                let _ = send.send(Frame::data(Bytes::from(format!("data: {number}\n\n")))).await;
                sleep(Duration::from_millis(400)).await;
            }
        });
        let mut response = Response::new(BodyExt::boxed(Frames(Box::new(move |cx| receive.poll_recv(cx)))));
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        response
    });
    let proxy = proxy(origin.policy("100 per minute"));
    runtime().block_on(async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await.unwrap();
        let (start, mut answer, mut came) = (Instant::now(), Vec::new(), Vec::new());
        while stream.read_buf(&mut answer).await.unwrap() > 0 {
            let events = String::from_utf8_lossy(&answer).matches("data: ").count();
            came.resize(events.max(came.len()), start.elapsed());
        }
        assert_eq!(came.len(), 3);
        assert!(came[0] < Duration::from_millis(350) && came[1] < Duration::from_millis(750), "{came:?}");
    });
}

#[test]
fn p7_a_body_is_not_asked_for_before_the_slot_is_held() {
    const PERIOD: Duration = Duration::from_secs(2);
    let origin = Origin::with(|request| async { Response::new(echo(request.into_body())) });
    let proxy = proxy(origin.policy("1 per 2s"));
    runtime().block_on(async {
        next_window(PERIOD).await;
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let head =
            "POST /a HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 25];
        let early = timeout(PERIOD / 2, stream.read_exact(&mut answer)).await;
        assert!(early.is_err(), "100 Continue came before the slot: {}", String::from_utf8_lossy(&answer));
        timeout(WAIT_TIME_MAX, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hello"), "{answer}");
        assert_eq!(origin.seen()[1].field("expect"), None);
    });
}

#[test]
fn a_head_answer_keeps_its_length_and_has_no_body() {
    let origin = Origin::with(|_| async { Response::new(text("12345")) });
    let proxy = proxy(origin.policy("100 per minute"));
    let bytes = b"HEAD /a HTTP/1.1\r\nHost: t\r\n\r\nGET /a HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let answer = runtime().block_on(send(proxy.address(), bytes));
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-length: 5"), "{answer}");
    assert!(rest.starts_with("HTTP/1.1 200") && rest.ends_with("12345"), "{answer}");
}

#[test]
fn trailers_pass_both_ways() {
    let origin = Origin::with(|request: Request<Incoming>| async {
        let collected = request.into_body().collect().await.unwrap();
        let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-back", sum.unwrap_or("none".parse().unwrap()));
        let mut frames = vec![Frame::trailers(trailers), Frame::data(Bytes::from_static(b"ok"))];
        let body = Frames(Box::new(move |_| std::task::Poll::Ready(frames.pop())));
        let mut response = Response::new(BodyExt::boxed(body));
        response.headers_mut().insert("trailer", "x-back".parse().unwrap());
        response
    });
    let proxy = proxy(origin.policy("100 per minute"));
    let bytes = b"POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\nTE: trailers\r\nConnection: te, close\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 42\r\n\r\n";
    let answer = runtime().block_on(send(proxy.address(), bytes));
    assert!(answer.contains("x-back: 42"), "{answer}");
}

/// Trailers were once forwarded as they came: an upstream that merges them into the head would have taken another host,
/// another client's address or credentials from behind the body.
#[test]
fn p8_trailers_that_belong_into_a_head_end_here() {
    let origin = Origin::with(|request: Request<Incoming>| async {
        let collected = request.into_body().collect().await.unwrap();
        let mut names: Vec<String> = collected.trailers().unwrap().keys().map(ToString::to_string).collect();
        names.sort();
        Response::new(BodyExt::boxed(http_body_util::Full::new(Bytes::from(format!("got {}", names.join(" "))))))
    });
    let proxy = proxy(origin.policy("100 per minute"));
    let head = "POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let trailers = "X-Sum: 42\r\nHost: evil\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nAuthorization: x\r\n\
        Cookie: a=b\r\nConnection: x-sum\r\nTE: gzip\r\nExpect: 100-continue\r\nContent-Encoding: gzip\r\n";
    let bytes = format!("{head}2\r\nhi\r\n0\r\n{trailers}\r\n");
    let answer = runtime().block_on(send(proxy.address(), bytes.as_bytes()));
    assert!(answer.ends_with("\r\n\r\ngot x-sum"), "{answer}");
}

/// An upstream that stopped reading an upload once held the slot for as long as it liked, even after the client had
/// left: its silence was taken for the client's.
#[test]
fn an_upstream_that_does_not_read_is_silent() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let answer = upload(&deaf, LARGE, Duration::from_millis(600));
    assert_eq!(status(&answer), 504, "{answer}");
}

/// One that reads slowly is not: it takes several times `upstream_timeout` for all of it.
#[test]
fn an_upstream_that_reads_slowly_is_heard() {
    use std::io::{Read as _, Write as _};
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = slow.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut piece, mut left) = (vec![0; 64 << 10], LARGE);
        while left > 0 {
            let count = stream.read(&mut piece).unwrap();
            left = left.saturating_sub(count);
            // About ten megabytes a second.
            std::thread::sleep(Duration::from_nanos(100 * count as u64));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        let _ = stream.read_to_end(&mut piece);
    });
    let answer = upload(&slow, LARGE, Duration::from_secs(1));
    assert_eq!(status(&answer), 200, "{answer}");
    reading.join().unwrap();
}

/// More than the kernel's buffers hold on the way.
const LARGE: usize = 48 << 20;

/// Sends so much to an upstream with this idle timeout; afterwards no slot is held.
fn upload(upstream: &std::net::TcpListener, length: usize, upstream_timeout: Duration) -> String {
    let upstream = Upstream::new(&format!("http://{}", upstream.local_addr().unwrap()), None).unwrap();
    let proxy = proxy(Policy { upstream_timeout, ..policy(upstream, "100 per minute") });
    runtime().block_on(async {
        let (mut read, mut write) = TcpStream::connect(proxy.address()).await.unwrap().into_split();
        let head = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        let writing = tokio::spawn(async move {
            write.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![b'x'; 64 << 10];
            for _ in 0..length / piece.len() {
                // Refused from some point on, if the answer is early.
                if write.write_all(&piece).await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await;
        });
        let mut answer = Vec::new();
        let reading = async { while !answer.ends_with(b"ok") && read.read_buf(&mut answer).await.unwrap_or(0) > 0 {} };
        tokio::time::timeout(WAIT_TIME_MAX, reading).await.expect("an answer in time");
        writing.abort();
        eventually("the slot is given back", async || var(&proxy, "in_flight").await == 0).await;
        String::from_utf8_lossy(&answer).into_owned()
    })
}

/// The upstream's answer 101.
fn switching() -> Response<Body> {
    let mut response = Response::new(text(""));
    *response.status_mut() = hyper::StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", "x")] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// A WebSocket through the proxy, and the head of the answer.
async fn websocket(address: SocketAddr) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert_ne!(timeout(WAIT_TIME_MAX, stream.read_buf(&mut answer)).await.unwrap().unwrap(), 0);
    }
    (stream, String::from_utf8(answer).unwrap())
}

/// One side has ended and the other says nothing and stays: a half-closed WebSocket held its slot without end.
#[test]
fn p2_a_half_closed_websocket_gives_its_slot_back() {
    // What the upstream does after its 101: end at once, or never, whatever the client does.
    for upstream_ends in [true, false] {
        let origin = Origin::with(move |mut request: Request<Incoming>| async move {
            let on_upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let _io = on_upgrade.await.unwrap();
                if !upstream_ends {
                    std::future::pending::<()>().await;
                }
            });
            switching()
        });
        let settings = Settings { client_timeout: Duration::from_millis(500), ..Settings::default() };
        let proxy = proxy_with(origin.policy("100 per minute"), settings);
        runtime().block_on(async {
            let (mut stream, answer) = websocket(proxy.address()).await;
            assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
            if !upstream_ends {
                assert_eq!(var(&proxy, "in_flight").await, 1);
                stream.shutdown().await.unwrap();
            }
            eventually("the slot is free", async || var(&proxy, "in_flight").await == 0).await;
            let mut rest = Vec::new();
            timeout(WAIT_TIME_MAX, stream.read_to_end(&mut rest)).await.expect("the connection ends").unwrap();
        });
    }
}

/// A WebSocket: the handshake's fields pass, and after the upstream's 101 bytes go both ways.
#[test]
fn a_websocket_echoes_and_holds_its_slot() {
    let origin = Origin::with(|mut request: Request<Incoming>| async move {
        if !request.headers().contains_key("upgrade") {
            return Response::new(text("no socket"));
        }
        let on_upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = hyper_util::rt::TokioIo::new(on_upgrade.await.unwrap());
            let mut bytes = [0; 1024];
            while let Ok(length @ 1..) = io.read(&mut bytes).await {
                io.write_all(&bytes[..length]).await.unwrap();
            }
        });
        switching()
    });
    let proxy = proxy(origin.policy("100 per minute"));
    runtime().block_on(async {
        let (mut stream, answer) = websocket(proxy.address()).await;
        assert!(answer.starts_with("HTTP/1.1 101") && answer.contains("sec-websocket-accept: x"), "{answer}");
        assert_eq!(origin.seen()[0].field("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
        // Frames with line ends and zeros: nothing looks into them.
        for frame in [&b"\x81\x85\0\0\0\0he\nlo"[..], b"\x82\x03\r\n\0", b"GET / HTTP/1.1\n\n"] {
            stream.write_all(frame).await.unwrap();
            let mut back = vec![0; frame.len()];
            timeout(WAIT_TIME_MAX, stream.read_exact(&mut back)).await.unwrap().unwrap();
            assert_eq!(back, frame);
        }
        assert_eq!(crate::support::var(&proxy, "in_flight").await, 1);
        drop(stream);
        crate::support::eventually("the slot is free", async || crate::support::var(&proxy, "in_flight").await == 0)
            .await;
        let other = b"GET /h2c HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n";
        let answer = send(proxy.address(), other).await;
        assert!(answer.ends_with("no socket"), "only websockets are upgraded: {answer}");
    });
}
