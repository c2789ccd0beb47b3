//! Many subscribers over real WebSockets: does each get every message in order, and how late?
//!
//! `cargo bench -p tidegate-doors --bench stomp`; `-- --quick` for a short run. Beside those who read stands one
//! who does not; when it was cut is printed, too. Lateness is from t + D to the moment at which a subscriber's
//! bytes with the PUBLISHED_EVENT have been read. Server and subscribers share the machine, so subscribers are
//! cheap: one thread reads for all of them. What it takes of the processors is printed, as it is part of the delay.
#![allow(clippy::unwrap_used, reason = "a bench that fails should say so")]

use rustix::event::epoll;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, Policy, Settings};
use tidegate_doors::http::{HttpSettings, serve};
use tidegate_events::{Mode, Now, Opening, Outcome, Stream, StreamSpec};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

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
    let door = format!("door {}", case.subscribers);
    let server = Builder::new_multi_thread().enable_all().thread_name(door).build().unwrap();
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let settings = HttpSettings { streams, ..HttpSettings::default() };
    server.spawn(serve(listener, gate, settings, std::future::pending()));
    let late = load(case, address, &stream, &now);
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

fn load(case: Case, address: SocketAddr, stream: &Stream, now: &Now) -> Vec<u64> {
    let subscribers: Vec<Subscriber> = (0..case.subscribers).map(|_| Subscriber::new(address)).collect();
    let stalled = subscribe(address);
    let stalled = thread::spawn(move || stall(stalled));
    let seconds = case.seconds as f64;
    let mut late = thread::scope(|scope| {
        let reader = thread::Builder::new().name("subscribers".to_owned());
        let reader = reader.spawn_scoped(scope, || read_all(subscribers, case.rate * case.seconds, now)).unwrap();
        let door = format!("door {}", case.subscribers);
        let before = at_work(&door);
        submit(case, stream);
        let (door, subscribers) = (at_work(&door) - before, at_work("subscribers"));
        println!("processors: {:.2} for the door, {:.2} for the subscribers", door / seconds, subscribers / seconds);
        reader.join().unwrap()
    });
    late.sort_unstable();
    let told = match stalled.is_finished() {
        true => stalled.join().unwrap(),
        // What it has not read still lies in the sockets' buffers.
        false => "is not far behind yet".to_owned(),
    };
    println!("one who does not read: {told}");
    late
}

/// How many seconds the threads whose names begin so were at work.
fn at_work(name: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)));
    let ns = |stat: String| stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    named.filter_map(|task| std::fs::read_to_string(task.join("schedstat")).ok().and_then(ns)).sum::<f64>() / 1e9
}

/// At a steady rate, in small lots.
fn submit(case: Case, stream: &Stream) {
    let runtime = Builder::new_current_thread().build().unwrap();
    let lot = (case.rate / 200).max(1);
    let (start, apart) = (Instant::now(), Duration::from_micros(1_000_000 / case.rate));
    for i in 0..case.rate * case.seconds {
        if i % lot == 0 {
            let due = apart * u32::try_from(i).unwrap();
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        let outcome = runtime.block_on(stream.submit(format!("event {i}").as_bytes())).unwrap();
        assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
    }
}

fn subscribe(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let hello = format!(
        "GET /ws HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(hello.as_bytes()).unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.extend_from_slice(&byte);
    }
    for text in ["CONNECT\naccept-version:1.2\n\n\0", "SUBSCRIBE\nid:1\ndestination:/topic/bench\n\n\0"] {
        let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
        frame.extend_from_slice(text.as_bytes());
        stream.write_all(&frame).unwrap();
    }
    stream
}

/// Reads for all until each has all events published. Gives how late each was, in microseconds.
fn read_all(mut subscribers: Vec<Subscriber>, total: u64, now: &Now) -> Vec<u64> {
    let ready = epoll::create(epoll::CreateFlags::empty()).unwrap();
    for (index, subscriber) in subscribers.iter().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&ready, &subscriber.stream, data, epoll::EventFlags::IN).unwrap();
    }
    let (mut late, mut buffer) = (Vec::new(), vec![0; 256 << 10]);
    let mut events = [MaybeUninit::uninit(); 256];
    while (late.len() as u64) < total * subscribers.len() as u64 {
        let (ready, _) = epoll::wait(&ready, &mut events, None).unwrap();
        for event in ready {
            let subscriber = &mut subscribers[usize::try_from(event.data.u64()).unwrap()];
            subscriber.read(&mut buffer, now, &mut late);
        }
    }
    late
}

/// One who listens.
struct Subscriber {
    stream: TcpStream,
    /// The beginning of a frame that is not all there.
    rest: Vec<u8>,
    clock: Option<u64>,
}

impl Subscriber {
    fn new(address: SocketAddr) -> Subscriber {
        Subscriber { stream: subscribe(address), rest: Vec::new(), clock: None }
    }

    fn read(&mut self, buffer: &mut [u8], now: &Now, late: &mut Vec<u64>) {
        let read = self.stream.read(buffer).unwrap();
        assert!(read > 0, "the connection ended");
        let now_us = now().get();
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(&buffer[..read]);
        let mut used = 0;
        while let Some((payload, len)) = frame(&bytes[used..]) {
            let due_us = self.take(payload);
            late.extend(due_us.map(|due_us| now_us.saturating_sub(due_us)));
            used += len;
        }
        bytes.drain(..used);
        self.rest = bytes;
    }

    /// Every clock value must follow the one before. Gives when an event was due, if it was published.
    fn take(&mut self, payload: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(payload).unwrap();
        let Some(after) = text.strip_prefix("MESSAGE\nsubscription:1\nmessage-id:") else {
            assert!(text.starts_with("CONNECTED"), "{text}");
            return None;
        };
        let clock: u64 = after.split('\n').next().unwrap().parse().unwrap();
        assert!(self.clock.is_none_or(|last| clock == last + 1), "{clock} after {:?}", self.clock);
        self.clock = Some(clock);
        if !text.ends_with("\"PUBLISHED_EVENT\"}\0") {
            return None;
        }
        let time: u64 = text.rsplit("\"time\":").next().unwrap().split('}').next().unwrap().parse().unwrap();
        Some((time + DURATION_MS) * 1_000)
    }
}

fn frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, head) = match *bytes.get(1)? {
        126 => (usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])), 4),
        127 => (bytes.get(2..10)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), 10),
        short => (usize::from(short), 2),
    };
    Some((bytes.get(head..head + len)?, head + len))
}

/// Does not read for so long that it is cut, then reads what is left for it.
fn stall(mut stream: TcpStream) -> String {
    thread::sleep(Duration::from_secs(16));
    let (start, mut text) = (Instant::now(), Vec::new());
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let error = text.rfind("ERROR\n").map_or("no ERROR", |at| text[at..].split('\0').next().unwrap_or(""));
    let (bytes, ms) = (text.len(), start.elapsed().as_millis());
    format!("cut; {bytes} bytes were left, read in {ms} ms, the last: {}", error.replace('\n', " "))
}
