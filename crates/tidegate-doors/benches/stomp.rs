//! Many subscribers over real WebSockets: does each get every message in order, and how late?
//!
//! `cargo bench -p tidegate-doors --bench stomp`; `-- --quick` for a short run. Server and subscribers share the
//! machine. Beside those who read stands one who does not; when it was cut is printed, too. Lateness is from
//! t + D to the moment at which a subscriber has read the PUBLISHED_EVENT.
#![allow(clippy::unwrap_used, reason = "a bench that fails should say so")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, Policy, Settings};
use tidegate_doors::http::{HttpSettings, serve};
use tidegate_events::{Mode, Now, Opening, Outcome, Stream, StreamSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let seconds = if quick { 5 } else { 30 };
    let first = run(Case { subscribers: 1_000, rate: 50, seconds });
    let second = run(Case { subscribers: 10, rate: 5_000, seconds });
    for late_ms in [first, second] {
        assert!(late_ms <= 50.0, "published late by {late_ms:.1} ms at p99.9, more than 50");
    }
}

#[derive(Clone, Copy)]
struct Case {
    subscribers: usize,
    rate: u64,
    seconds: u64,
}

const DURATION_MS: u64 = 2_000;

/// Gives the lateness at p99.9, in milliseconds.
fn run(case: Case) -> f64 {
    let gate = Gate::open(Policy::default(), &Settings::default(), Clock::process()).unwrap();
    let time = gate.clone();
    let now: Now = Arc::new(move || time.now());
    let mut spec = StreamSpec::new("bench", Mode::StrictlyOnce);
    (spec.rules.duration_ms, spec.rules.max_events) = (DURATION_MS, 100_000);
    spec.rules.snapshot_every_ms = DURATION_MS;
    let streams = Arc::new(Opening::read(vec![spec], None).unwrap().start(&now).unwrap());
    let stream = Arc::clone(streams.get("bench").unwrap());
    let (server, clients) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let settings = HttpSettings { streams, ..HttpSettings::default() };
    server.spawn(serve(listener, gate, settings, std::future::pending()));
    let late = clients.block_on(load(case, address, stream, now));
    let (subscribers, rate) = (case.subscribers, case.rate);
    let at = |permille: usize| late[(late.len() - 1) * permille / 1_000] as f64 / 1e3;
    println!(
        "{subscribers} subscribers at {rate} events/s for {} s: {} publications read, all in order; late by p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, at most {:.1} ms",
        case.seconds,
        late.len(),
        at(500),
        at(990),
        at(999),
        at(1_000)
    );
    server.shutdown_background();
    at(999)
}

async fn load(case: Case, address: SocketAddr, stream: Arc<Stream>, now: Now) -> Vec<u64> {
    let total = case.rate * case.seconds;
    let mut readers = Vec::new();
    for _ in 0..case.subscribers {
        let subscriber = subscribe(address).await;
        readers.push(tokio::spawn(read(subscriber, total, Arc::clone(&now))));
    }
    let stalled = tokio::spawn(stall(subscribe(address).await));
    submit(case, &stream).await;
    let mut late = Vec::new();
    for reader in readers {
        late.extend(reader.await.unwrap());
    }
    late.sort_unstable();
    let told = match stalled.is_finished() {
        true => stalled.await.unwrap(),
        // What it has not read still lies in the sockets' buffers.
        false => "is not far behind yet".to_owned(),
    };
    println!("one who does not read: {told}");
    late
}

/// At a steady rate, in small lots.
async fn submit(case: Case, stream: &Stream) {
    let lot = (case.rate / 200).max(1);
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 * lot / case.rate));
    for i in 0..case.rate * case.seconds {
        if i % lot == 0 {
            ticks.tick().await;
        }
        let outcome = stream.submit(format!("event {i}").as_bytes()).await.unwrap();
        assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
    }
}

async fn subscribe(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let hello = format!(
        "GET /ws HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(hello.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    for text in ["CONNECT\naccept-version:1.2\n\n\0", "SUBSCRIBE\nid:1\ndestination:/topic/bench\n\n\0"] {
        let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
        frame.extend_from_slice(text.as_bytes());
        stream.write_all(&frame).await.unwrap();
    }
    stream
}

/// Reads until all events are published; every clock value must follow the one before.
async fn read(mut stream: TcpStream, total: u64, now: Now) -> Vec<u64> {
    let (mut bytes, mut late, mut last) = (Vec::with_capacity(256 << 10), Vec::new(), None);
    while (late.len() as u64) < total {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "the connection ended");
        let mut used = 0;
        while let Some((payload, len)) = frame(&bytes[used..]) {
            take(payload, &mut late, &mut last, &now);
            used += len;
        }
        bytes.drain(..used);
    }
    late
}

fn frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, head) = match *bytes.get(1)? {
        126 => (usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])), 4),
        127 => (bytes.get(2..10)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), 10),
        short => (usize::from(short), 2),
    };
    Some((bytes.get(head..head + len)?, head + len))
}

fn take(payload: &[u8], late: &mut Vec<u64>, last: &mut Option<u64>, now: &Now) {
    let text = std::str::from_utf8(payload).unwrap();
    let Some(after) = text.strip_prefix("MESSAGE\nsubscription:1\nmessage-id:") else {
        assert!(text.starts_with("CONNECTED"), "{text}");
        return;
    };
    let clock: u64 = after.split('\n').next().unwrap().parse().unwrap();
    assert!(last.is_none_or(|last| clock == last + 1), "{clock} after {last:?}");
    *last = Some(clock);
    if text.ends_with("\"PUBLISHED_EVENT\"}\0") {
        let time: u64 = text.rsplit("\"time\":").next().unwrap().split('}').next().unwrap().parse().unwrap();
        late.push(now().get().saturating_sub((time + DURATION_MS) * 1_000));
    }
}

/// Does not read for so long that it is cut, then reads what is left for it.
async fn stall(mut stream: TcpStream) -> String {
    tokio::time::sleep(Duration::from_secs(16)).await;
    let (start, mut text) = (Instant::now(), Vec::new());
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    let error = text.rfind("ERROR\n").map_or("no ERROR", |at| text[at..].split('\0').next().unwrap_or(""));
    let (bytes, ms) = (text.len(), start.elapsed().as_millis());
    format!("cut; {bytes} bytes were left, read in {ms} ms, the last: {}", error.replace('\n', " "))
}
