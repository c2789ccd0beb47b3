//! The UDP door beside echo servers of the same run: answers for each second of the server thread's
//! processor time. `cargo bench -p tidegate-doors --bench udp`
//!
//! One server thread, one client thread on another processor, a million live keys. The client keeps so
//! many requests under way that no server ever waits for one, and all servers have the same buffers. The
//! echo servers do nothing but send back what came: recvmmsg/sendmmsg in batches, and tokio, one datagram
//! at a time, as its own example does it. Ids are numbers of 16 bits in no order, as clients send them.
//! The door sends replies of one length to one client in runs; "no runs" is the door when no two
//! replies in a row have one length, which costs what replies to many clients cost. "32 lines a datagram" counts decisions: a datagram
//! with 32 requests has 32. Servers take turns, in many
//! short rounds; what is told is the median of the rounds' ratios, so that a busy moment of the machine
//! touches few of them.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that panics has failed")]
#![allow(clippy::cast_possible_truncation, reason = "below the number of keys")]

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
use tidegate_doors::udp::{Counters, Responder, Route, Routing, Scratch, Slot, Sockets, serve};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A door here is told the address that each datagram asked, and sends its reply from there.
const WILDCARD: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const KEYS: u32 = 1_000_000;
const ROUNDS: usize = 25;
const WARM_UP: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_millis(400);
/// Datagrams of one system call: the door's own number.
const BATCH: usize = 64;
/// Requests of one datagram, where there are several.
const LINES: usize = 32;
/// How long the client lets answers gather. It spins meanwhile: a client that slept would have to be
/// woken, at the cost of a server that is slow enough to let it.
const PAUSE: Duration = Duration::from_micros(60);
/// Requests under way: sixteen batches.
const WINDOW: usize = 1_024;
/// Buffers of every socket; a small datagram takes less than a KiB of it.
const BUFFER_BYTES: usize = 4 << 20;

fn main() {
    let (one, hundred) = (responder(1), responder(100));
    let mut alike = Client::new(|i| (u64::from(i) * 40_503 % 65_536).to_string());
    let mut unlike = Client::new(|i| "7".repeat(1 + i as usize % 5));
    let mut lines = Client::new(|i| (u64::from(i) * 40_503 % 65_536).to_string()).joined(LINES);
    let names = [
        "tidegate",
        "tidegate, 100 routes",
        "recvmmsg echo",
        "tokio echo",
        "tidegate, no runs",
        "wildcard",
        "wildcard, no runs",
        "32 lines a datagram",
    ];
    let mut rounds: Vec<[f64; 8]> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([
            measure("udp", &mut alike, |stop, tell| door(&one, LOOPBACK, stop, tell)),
            measure("udp", &mut alike, |stop, tell| door(&hundred, LOOPBACK, stop, tell)),
            measure("echo", &mut alike, batch_echo),
            measure("echo", &mut alike, tokio_echo),
            measure("udp", &mut unlike, |stop, tell| door(&one, LOOPBACK, stop, tell)),
            measure("udp", &mut alike, |stop, tell| door(&one, WILDCARD, stop, tell)),
            measure("udp", &mut unlike, |stop, tell| door(&one, WILDCARD, stop, tell)),
            measure("udp", &mut lines, |stop, tell| door(&one, LOOPBACK, stop, tell)) * LINES as f64,
        ]);
    }
    let median = |of: &dyn Fn(&[f64; 8]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!("answers per second of the server's processor time, median of {ROUNDS} rounds, {KEYS} live keys:");
    for (index, name) in names.iter().enumerate() {
        println!("  {name:22} {:>10.0}", median(&|round| round[index]));
    }
    let ratio = |name: &str, over: usize, under: usize| {
        println!("{name:34} {:.3}", median(&|round| round[over] / round[under]));
    };
    ratio("tidegate / recvmmsg echo", 0, 2);
    ratio("tidegate / tokio echo", 0, 3);
    ratio("tidegate, no runs / recvmmsg echo", 4, 2);
    ratio("tidegate, no runs / tokio echo", 4, 3);
    ratio("recvmmsg echo / tokio echo", 2, 3);
    ratio("cost of 100 routes / cost of 1", 0, 1);
    ratio("wildcard / tidegate", 5, 0);
    ratio("wildcard, no runs / no runs", 6, 4);
    ratio("32 lines a datagram / one", 7, 0);
    ratio("32 lines a datagram / one, no runs", 7, 4);
}

/// A million keys in the table; all routes but the last match nothing.
fn responder(routes: usize) -> Responder {
    let rules = Rules::new(Algorithm::StrictAverage, &["22 per 20s".parse().unwrap()]).unwrap();
    let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("ip", rules)]).unwrap());
    let others = (1..routes).map(|i| format!(r"^service{i} ip=\d+\.\d+\.\d+\.\d+$"));
    let patterns = others.chain([r"^ws ip=\d+\.\d+\.\d+\.\d+$".to_owned()]);
    let routes = patterns.map(|pattern| Route { pattern, limiter: "ip".to_owned(), ipv6_prefix: None }).collect();
    let responder = Responder::new(gate, &Routing { routes, ..Routing::default() }).unwrap();
    let (mut scratch, mut slots) = (Scratch::default(), [Slot::default()]);
    for key in 0..KEYS {
        responder.answer(&mut scratch, &[request("1", key).as_bytes()], responder.gate().now(), &mut slots);
    }
    responder
}

fn request(id: &str, key: u32) -> String {
    let [a, b, c, d] = key.to_be_bytes();
    format!("{id} over_limit ws ip={a}.{b}.{c}.{d}")
}

/// Runs a server while a client asks it; answers by the processor time of the thread of this name.
fn measure(thread: &str, client: &mut Client, server: impl FnOnce(&AtomicBool, Sender<SocketAddr>) + Send) -> f64 {
    let stop = AtomicBool::new(false);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        let work = move || {
            stay_on(0);
            server(stop, tell);
        };
        std::thread::Builder::new().name("echo".to_owned()).spawn_scoped(scope, work).unwrap();
        stay_on(1);
        client.connect(told.recv().unwrap());
        client.ask(WARM_UP);
        let before = busy_ns(thread);
        let answers = client.ask(TIME);
        let busy = busy_ns(thread) - before;
        stop.store(true, Relaxed);
        answers as f64 / (busy as f64 / 1e9)
    })
}

/// Keeps this thread, and those that it starts, on one processor; where there is but one, so be it.
fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = sched_setaffinity(None, &set);
}

/// Processor time of all our threads of this name, from the scheduler's own account.
fn busy_ns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name));
    let spent = |task: std::path::PathBuf| {
        std::fs::read_to_string(task.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    named.filter_map(spent).sum()
}

fn door(responder: &Responder, address: IpAddr, stop: &AtomicBool, tell: Sender<SocketAddr>) {
    let sockets = Sockets::bind((address, 0).into(), 1).unwrap();
    tell.send((LOOPBACK, sockets.address().port()).into()).unwrap();
    serve(&sockets, responder, &Counters::new(&sockets, responder), stop).unwrap();
}

fn batch_echo(stop: &AtomicBool, tell: Sender<SocketAddr>) {
    let socket = socket();
    tell.send(socket.local_addr().unwrap()).unwrap();
    let mut batch = Batch::new();
    while !stop.load(Relaxed) {
        let arrived = batch.receive(&socket, MsgFlags::MSG_WAITFORONE);
        let replies = arrived.iter().enumerate();
        send(&socket, replies.map(|(i, (len, from))| (*from, &batch.buffers[i][..*len])));
    }
}

/// The loop of tokio's `examples/echo-udp.rs`.
fn tokio_echo(stop: &AtomicBool, tell: Sender<SocketAddr>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = socket();
    socket.set_nonblocking(true).unwrap();
    runtime.block_on(async {
        let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
        tell.send(socket.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 1_001];
        let echo = async {
            loop {
                let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
                socket.send_to(&buffer[..len], from).await.unwrap();
            }
        };
        let stopped = async {
            while !stop.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! { () = echo => (), () = stopped => () }
    });
}

/// A socket with large buffers that does not wait for ever.
fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reference = socket2::SockRef::from(&socket);
    reference.set_recv_buffer_size(BUFFER_BYTES).unwrap();
    reference.set_send_buffer_size(BUFFER_BYTES).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket
}

/// Asks for every key in turn, in an order that no cache foresees.
struct Client {
    requests: Vec<String>,
    next: usize,
    socket: UdpSocket,
    server: SocketAddr,
    batch: Batch,
}

impl Client {
    /// `id` gives the id of the request of this number.
    fn new(id: impl Fn(u32) -> String) -> Client {
        let key = |i: u32| (u64::from(i) * 611_953 % u64::from(KEYS)) as u32;
        let requests = (0..KEYS).map(|i| request(&id(i), key(i))).collect();
        let socket = socket();
        let server = socket.local_addr().unwrap();
        Client { requests, next: 0, socket, server, batch: Batch::new() }
    }

    /// The same requests, so many in each datagram.
    fn joined(self, lines: usize) -> Client {
        let requests = self.requests.chunks(lines).map(|lines| lines.join("\n")).collect();
        Client { requests, ..self }
    }

    fn connect(&mut self, server: SocketAddr) {
        self.socket = socket();
        self.server = server;
    }

    /// Keeps a window of requests under way; how many were answered.
    fn ask(&mut self, time: Duration) -> u64 {
        let (start, mut under_way, mut answers) = (Instant::now(), 0, 0);
        while start.elapsed() < time {
            while under_way + BATCH <= WINDOW {
                let chunk =
                    (0..BATCH).map(|i| (self.server, self.requests[(self.next + i) % self.requests.len()].as_bytes()));
                send(&self.socket, chunk);
                self.next += BATCH;
                under_way += BATCH;
            }
            let arrived = self.batch.receive(&self.socket, MsgFlags::MSG_DONTWAIT).len();
            under_way -= arrived.min(under_way);
            answers += arrived as u64;
            if arrived < BATCH {
                spin(PAUSE);
            }
        }
        answers
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

struct Batch {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; 2_001]>,
}

impl Batch {
    fn new() -> Batch {
        Batch { headers: MultiHeaders::preallocate(BATCH, None), buffers: vec![[0; 2_001]; BATCH] }
    }

    fn receive(&mut self, socket: &UdpSocket, flags: MsgFlags) -> Vec<(usize, SocketAddr)> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> = self.buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
        let Ok(messages) = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None) else {
            return Vec::new();
        };
        let from = |address: SockaddrStorage| SocketAddrV4::from(*address.as_sockaddr_in().unwrap()).into();
        messages.map(|message| (message.bytes, from(message.address.unwrap()))).collect()
    }
}

fn send<'r>(socket: &UdpSocket, replies: impl Iterator<Item = (SocketAddr, &'r [u8])>) {
    let (addresses, texts): (Vec<SocketAddrAny>, Vec<[IoSlice<'_>; 1]>) =
        replies.map(|(address, text)| (address.as_any(), [IoSlice::new(text)])).unzip();
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> = addresses.iter().map(|_| Default::default()).collect();
    let parts = addresses.iter().zip(&texts).zip(&mut controls);
    let mut messages: Vec<MMsgHdr<'_>> = parts.map(|((a, t), c)| MMsgHdr::new_with_addr(a, t, c)).collect();
    let mut at = 0;
    while at < messages.len() {
        at += sendmmsg(socket, &mut messages[at..], SendFlags::empty()).unwrap_or(1);
    }
}
