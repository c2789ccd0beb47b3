//! The UDP door beside echo servers of the same run: answers for each second of the server thread's
//! processor time. `cargo bench -p tidegate-doors --bench udp`
//!
//! One server thread, one client thread that keeps some hundred requests under way, a million live
//! keys. The echo servers do nothing but send back what came: recvmmsg/sendmmsg in batches, the
//! ceiling of any server, and tokio, one datagram at a time.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that panics has failed")]
#![allow(clippy::cast_possible_truncation, reason = "below the number of keys")]

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg};
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
use tidegate_doors::udp::{Counters, Desk, Route, Routing, Slot, Sockets, serve};

const KEYS: u32 = 1_000_000;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(2);
const BATCH: usize = 64;
/// Requests under way; the default receive buffer holds about this many.
const WINDOW: usize = 128;

fn main() {
    let one = desk(1);
    let hundred = desk(100);
    let servers: [(&str, &dyn Fn() -> f64); 4] = [
        ("tidegate, 1 route", &|| measure("udp", |stop, tell| door(&one, stop, tell))),
        ("tidegate, 100 routes", &|| measure("udp", |stop, tell| door(&hundred, stop, tell))),
        ("recvmmsg echo", &|| measure("echo", batch_echo)),
        ("tokio echo", &|| measure("echo", tokio_echo)),
    ];
    let mut rates = vec![Vec::new(); servers.len()];
    for _ in 0..ROUNDS {
        for ((_, run), rates) in servers.iter().zip(&mut rates) {
            rates.push(run());
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let medians: Vec<f64> = rates.iter_mut().map(median).collect();
    println!("answers per second of the server's processor time, median of {ROUNDS}, {KEYS} live keys:");
    for ((name, _), rate) in servers.iter().zip(&medians) {
        println!("  {name:22} {rate:>10.0}");
    }
    println!("tidegate / recvmmsg echo: {:.2}", medians[0] / medians[2]);
    println!("tidegate / tokio echo:    {:.2}", medians[0] / medians[3]);
    println!("cost of 100 routes / 1:   {:.2}", medians[0] / medians[1]);
}

/// A million keys in the table; all routes but the last match nothing.
fn desk(routes: usize) -> Desk {
    let rules = Rules::new(Algorithm::StrictAverage, &["22 per 20s".parse().unwrap()]).unwrap();
    let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("ip", rules)]).unwrap());
    let others = (1..routes).map(|i| format!(r"^service{i} ip=\d+\.\d+\.\d+\.\d+$"));
    let patterns = others.chain([r"^ws ip=\d+\.\d+\.\d+\.\d+$".to_owned()]);
    let routes = patterns.map(|pattern| Route { pattern, limiter: "ip".to_owned() }).collect();
    let desk = Desk::new(gate, &Routing { rewrites: Vec::new(), routes }).unwrap();
    let mut slots = vec![Slot::default(); 1];
    for key in 0..KEYS {
        desk.answer(&[request(key).as_bytes()], desk.gate().now(), &mut slots);
    }
    desk
}

fn request(key: u32) -> String {
    let [a, b, c, d] = key.to_be_bytes();
    format!("{} over_limit ws ip={a}.{b}.{c}.{d}", key % 65_536)
}

/// Runs a server while a client asks it; answers by the processor time of the thread of this name.
fn measure(thread: &str, server: impl FnOnce(&AtomicBool, std::sync::mpsc::Sender<SocketAddr>) + Send) -> f64 {
    let stop = AtomicBool::new(false);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let stop = &stop;
        std::thread::Builder::new().name("echo".to_owned()).spawn_scoped(scope, move || server(stop, tell)).unwrap();
        let address = told.recv().unwrap();
        client(address, Duration::from_millis(200));
        let before = busy_ns(thread);
        let answers = client(address, TIME);
        let busy = busy_ns(thread) - before;
        stop.store(true, Relaxed);
        answers as f64 / (busy as f64 / 1e9)
    })
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

fn door(desk: &Desk, stop: &AtomicBool, tell: std::sync::mpsc::Sender<SocketAddr>) {
    let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    tell.send(sockets.address()).unwrap();
    serve(&sockets, desk, &Counters::new(&sockets), stop).unwrap();
}

fn batch_echo(stop: &AtomicBool, tell: std::sync::mpsc::Sender<SocketAddr>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    tell.send(socket.local_addr().unwrap()).unwrap();
    let mut batch = Batch::new();
    while !stop.load(Relaxed) {
        let arrived = batch.receive(&socket, MsgFlags::MSG_WAITFORONE);
        let replies = arrived.iter().enumerate();
        send(&socket, replies.map(|(i, (len, from))| (*from, &batch.buffers[i][..*len])));
    }
}

fn tokio_echo(stop: &AtomicBool, tell: std::sync::mpsc::Sender<SocketAddr>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        tell.send(socket.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 1_001];
        while !stop.load(Relaxed) {
            let wait = tokio::time::timeout(Duration::from_millis(100), socket.readable());
            if wait.await.is_err() {
                continue;
            }
            while let Ok((len, from)) = socket.try_recv_from(&mut buffer) {
                socket.send_to(&buffer[..len], from).await.unwrap();
            }
        }
    });
}

/// Keeps a window of requests under way; how many were answered.
fn client(server: SocketAddr, time: Duration) -> u64 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // Every key in turn, in an order that no cache foresees.
    let requests: Vec<String> = (0..KEYS).map(|i| request((u64::from(i) * 611_953 % u64::from(KEYS)) as u32)).collect();
    let mut batch = Batch::new();
    let (start, mut next, mut under_way, mut answers) = (Instant::now(), 0, 0, 0);
    while start.elapsed() < time {
        while under_way + BATCH <= WINDOW {
            let chunk = (0..BATCH).map(|i| (server, requests[(next + i) % requests.len()].as_bytes()));
            send(&socket, chunk);
            next += BATCH;
            under_way += BATCH;
        }
        match batch.receive(&socket, MsgFlags::MSG_WAITFORONE).len() {
            // What was dropped does not come back.
            0 => under_way = 0,
            arrived => {
                under_way = under_way.saturating_sub(arrived);
                answers += arrived as u64;
            }
        }
    }
    answers
}

struct Batch {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; 1_001]>,
}

impl Batch {
    fn new() -> Batch {
        Batch { headers: MultiHeaders::preallocate(BATCH, None), buffers: vec![[0; 1_001]; BATCH] }
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
