//! M6: what one attacker can take, and what is left for decisions: a table, printed. The long mode, as in docs/track-record.md:
//! `TIDEGATE_ATTACKERS=10200 cargo nextest run --release -p tidegate-cli --test attacks --no-capture`.
//!
//! Each attack is by one address; decisions are asked for from another, before and beside it, in the same run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_testkit::http::{exchange, response};
use tidegate_testkit::number;
use tidegate_testkit::stomp::Client;

const POLICY: &str = "[doors]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"1000000000 per hour\"]\n\
                      [[limiter]]\nname = \"listed\"\nlimits = [\"5 per hour\"]\n\
                      [[limiter]]\nname = \"called\"\ndomain = \"d\"\nby = [\"u\"]\nlimits = [\"1000000000 per hour\"]\n\
                      [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\nmax_events = 20000\n";

/// How long decisions are counted.
const COUNTED: Duration = Duration::from_secs(3);
/// Clients that ask for decisions, each on a connection of its own.
const ASKING: usize = 4;

struct Site {
    _folder: Folder,
    server: Server,
    address: SocketAddr,
}

impl Site {
    fn new() -> Site {
        let folder = Folder::new();
        let server = Server::start(&folder, Some(&folder.write("tidegate.toml", POLICY)));
        let address = server.url.strip_prefix("http://").unwrap().parse().unwrap();
        Site { _folder: folder, server, address }
    }

    /// Decisions in a second, asked for from another address than the attacker's, and the processor time of the server in that time.
    fn decisions(&self) -> Decisions {
        let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (start, cpu) = (Instant::now(), self.server.cpu());
        std::thread::scope(|scope| {
            for _ in 0..ASKING {
                scope.spawn(|| {
                    let mut wire = connect_from_elsewhere(self.address);
                    while !stop.load(Relaxed) {
                        let (status, _) = exchange(&mut wire, "POST /v1/hit", r#"{"limiter":"api","key":"u1"}"#);
                        assert_eq!(status, 200, "a decision failed");
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
            std::thread::sleep(COUNTED);
            stop.store(true, Relaxed);
        });
        let (count, seconds) = (count.load(Relaxed) as f64, start.elapsed().as_secs_f64());
        Decisions { a_second: count / seconds, processors: (self.server.cpu() - cpu).as_secs_f64() / seconds }
    }

    fn submit(&self, events: usize) {
        let mut wire = TcpStream::connect(self.address).unwrap();
        for event in 0..events {
            let body = format!("{event:06} {}", "x".repeat(990));
            assert_eq!(exchange(&mut wire, "POST /v1/streams/orders/events", &body).0, 201);
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let page = tidegate_testkit::http::get(self.address, "/metrics", "").unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {page}"));
        line.trim().parse().unwrap()
    }

    fn taken(&self, what: &str) -> u64 {
        self.metric(&format!("tidegate_limits_taken{{what=\"{what}\"}}"))
    }
}

/// Decisions, and the processors that the server had meanwhile, for whatever it did.
struct Decisions {
    a_second: f64,
    processors: f64,
}

fn connect_from_elsewhere(address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let wire = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    wire.set_nonblocking(false).unwrap();
    wire.set_nodelay(true).unwrap();
    wire.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    wire
}

/// One row: what the attacker took while it attacked, in memory, and what was left. `attack` gives what holds the attack up, and what
/// to tell of it.
#[track_caller]
fn row<Attack>(name: &str, memory_max: usize, site: &Site, attack: impl FnOnce(&Site) -> (Attack, String)) {
    row_of(Attacker::Holding, name, memory_max, site, attack);
}

/// What the attacker does with the machine's processors, which it shares with the server and its clients.
enum Attacker {
    /// It holds what it has.
    Holding,
    /// It sends as fast as it can, and takes what a client that asks that fast would get.
    Sending,
}

impl Attacker {
    /// Decisions of others, beside it: locked out they would have none.
    fn ratio_min(&self) -> f64 {
        match self {
            Attacker::Holding => 0.2,
            Attacker::Sending => 0.05,
        }
    }
}

fn row_of<Attack>(
    attacker: Attacker,
    name: &str,
    memory_max: usize,
    site: &Site,
    attack: impl FnOnce(&Site) -> (Attack, String),
) {
    let (before, idle) = (site.decisions(), site.server.memory("VmRSS"));
    let (attack, told) = attack(site);
    let beside = site.decisions();
    let most = site.server.memory("VmHWM").max(idle);
    drop(attack);
    // Both sides of it, as other things run on the machine, too.
    let after = site.decisions();
    let without = (before.a_second + after.a_second) / 2.0;
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let (ratio, grown) = (beside.a_second / without, most - idle);
    let (idle, most, beside) = (mib(idle), mib(most), (beside.a_second, beside.processors));
    println!(
        "| {name} | {told} | {idle:.0} to {most:.0} MiB | {without:.0} to {:.0} ({ratio:.2}×) | {:.2} to {:.2} |",
        beside.0,
        (before.processors + after.processors) / 2.0,
        beside.1
    );
    assert!(grown <= memory_max, "{name}: {grown} bytes, more than {memory_max}");
    assert!(ratio > attacker.ratio_min(), "{name}: {without} decisions in a second, {} beside it", beside.0);
}

fn attackers() -> usize {
    number("TIDEGATE_ATTACKERS", 400)
}

/// Opens sessions that say CONNECT and nothing more. Past the budget they are refused.
#[test]
fn m6_silent_sessions() {
    let (site, count) = (Site::new(), attackers() * 10_000 / 10_200);
    row("silent sessions", 128 << 20, &site, |site| {
        let mut held = Vec::new();
        for _ in 0..count {
            let Ok(mut client) = Client::open_with(site.address, "") else { continue };
            client.send("CONNECT\naccept-version:1.2\n\n\0");
            held.push(client);
        }
        let open = site.taken("feeds_and_sessions");
        assert!(open <= 1_000, "{open} sessions");
        (held, format!("{count} tried, {open} open"))
    });
}

/// Each session has a hundred subscriptions and reads nothing, while events go on.
#[test]
fn m6_unread_subscriptions() {
    let (site, sessions) = (Site::new(), attackers() * 300 / 10_200);
    site.submit(attackers().min(5_000));
    row("sessions × 100 unread subscriptions", 512 << 20, &site, |site| {
        let mut held = Vec::new();
        for _ in 0..sessions.max(8) {
            let Ok(mut client) = Client::open_with(site.address, "") else { break };
            client.send("CONNECT\naccept-version:1.2\n\n\0");
            for id in 0..100 {
                client.send(&format!("SUBSCRIBE\nid:{id}\ndestination:/topic/orders\n\n\0"));
            }
            held.push(client);
        }
        let open = site.taken("subscriptions");
        (held, format!("{} × 100, {open} open, {} KiB unread", sessions.max(8), site.taken("unread_bytes") >> 10))
    });
}

#[test]
fn m6_unread_snapshots() {
    let site = Site::new();
    site.submit(attackers().min(10_000));
    row("unread snapshots", 300 << 20, &site, |site| {
        let held: Vec<TcpStream> = (0..20)
            .map(|_| {
                let mut wire = TcpStream::connect(site.address).unwrap();
                wire.write_all(b"GET /v1/streams/orders HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
                let mut first = [0; 12];
                wire.read_exact(&mut first).unwrap();
                wire
            })
            .collect();
        let unread = site.taken("unread_bytes");
        (held, format!("20, {} KiB unread", unread >> 10))
    });
}

/// Connections that ask once and stay, as many as it gets.
#[test]
fn m6_one_peer_with_all_the_connections() {
    let (site, count) = (Site::new(), attackers());
    row("connections of one peer", 256 << 20, &site, |site| {
        let mut held = Vec::new();
        for _ in 0..count {
            let mut wire = TcpStream::connect(site.address).unwrap();
            // Past the cap it is answered 503 and closed.
            let _ = wire.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n");
            held.push(wire);
        }
        let answered = held.iter_mut().map(|wire| usize::from(response(wire).0 == 200)).sum::<usize>();
        (held, format!("{count} tried, {answered} answered, {} open", site.taken("connections")))
    });
}

/// Heads of which the last byte never comes, as long as they may be.
#[test]
fn m6_heads_without_an_end() {
    let (site, count) = (Site::new(), attackers());
    row("heads of 60 KiB without an end", 1 << 30, &site, |site| {
        let head = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}", "x".repeat(60 << 10));
        let mut held = Vec::new();
        for _ in 0..count {
            let mut wire = TcpStream::connect(site.address).unwrap();
            let _ = wire.write_all(head.as_bytes());
            held.push(wire);
        }
        (held, format!("{count} tried, {} open", site.taken("connections")))
    });
}

/// Clients of the RESP door that ask for long answers, far ahead, and read none.
#[test]
fn m6_pipelines_that_nobody_reads() {
    let (site, count) = (Site::new(), attackers() / 4);
    row("RESP connections that send and do not read", 384 << 20, &site, |site| {
        let (address, commands) = (site.server.resp(), b"COMMAND\r\n".repeat(15_000));
        let mut held = Vec::new();
        for _ in 0..count {
            let mut wire = TcpStream::connect(address).unwrap();
            wire.set_nonblocking(true).unwrap();
            // As much as it gets rid of.
            let _ = wire.write_all(&commands);
            held.push(wire);
        }
        let (open, large) = (site.metric("tidegate_resp_connections "), site.metric("tidegate_resp_buffers "));
        (held, format!("{count} tried, {open} open, {large} with large buffers"))
    });
}

/// Connections of the gRPC door on which nobody calls.
#[test]
fn m6_idle_grpc_connections() {
    let (site, count) = (Site::new(), attackers());
    row("gRPC connections without a call", 512 << 20, &site, |site| {
        let mut held = Vec::new();
        for _ in 0..count {
            let mut wire = TcpStream::connect(site.server.grpc()).unwrap();
            let _ = wire.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            held.push(wire);
        }
        (held, format!("{count} tried, {} open", site.metric("tidegate_grpc_connections ")))
    });
}

/// Eight clients that list blocked keys of a large table, of which there are none.
#[test]
fn m6_pagers() {
    let (site, keys) = (Site::new(), attackers() * 100);
    let mut wire = TcpStream::connect(site.address).unwrap();
    wire.set_nodelay(true).unwrap();
    // A thousand at a time: one by one, a million took longer than everything else here together.
    for first in (0..keys).step_by(1_000) {
        let hit = |key| format!(r#"{{"limiter":"listed","key":"key {key}"}}"#);
        let hits: Vec<String> = (first..keys.min(first + 1_000)).map(hit).collect();
        let (status, answers) =
            exchange(&mut wire, "POST /v1/hits", &format!(r#"{{"requests":[{}]}}"#, hits.join(",")));
        assert_eq!((status, answers.contains("\"allowed\":false")), (200, false));
    }
    row("clients that list blocked keys", 64 << 20, &site, |site| {
        let (address, stop) = (site.address, std::sync::Arc::new(AtomicBool::new(false)));
        for _ in 0..8 {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut wire = TcpStream::connect(address).unwrap();
                while !stop.load(Relaxed) {
                    let (status, body) = exchange(&mut wire, "GET /v1/limiters/listed/keys?state=blocked", "");
                    // 0: the server has ended with the test.
                    assert!(status == 0 || body == "{\"keys\":[],\"next\":null}", "{status} {body}");
                }
            });
        }
        (StopOnDrop(stop), format!("8, of {keys} keys"))
    });
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// The head of a call: POST, http, its path, an authority and its content type, none of them kept in a table.
fn call(stream: u32) -> Vec<u8> {
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let len = u8::try_from(path.len()).unwrap();
    let rest = b"\x01\x01x\x0f\x10\x10application/grpc";
    frame(1, 4, stream, &[&[0x83, 0x86, 0x04, len], &path[..], rest].concat())
}

/// When a client of [`flood`] leaves.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    /// When it is cut.
    WhenCut,
    /// After its first hundred streams, when they are answered; and it comes back after a pause, as on few processors answering a hundred at
    /// once is most of what the server does.
    WhenAnswered,
}

/// Two clients of the gRPC door that each send what `bytes` makes of the streams' numbers, 100 streams at a time, read what comes, and come back when they have left.
fn flood(site: &Site, leaves: Leaves, bytes: fn(u32) -> Vec<u8>) -> (StopOnDrop, String) {
    let (address, stop) = (site.server.grpc().to_owned(), std::sync::Arc::new(AtomicBool::new(false)));
    let sent = std::sync::Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let (address, stop, sent) = (address.clone(), std::sync::Arc::clone(&stop), std::sync::Arc::clone(&sent));
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                let Ok(mut wire) = TcpStream::connect(&address) else { return };
                wire.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                let mut answers = wire.try_clone().unwrap();
                let heard = std::sync::Arc::new(AtomicU64::new(0));
                let hearing = std::sync::Arc::clone(&heard);
                std::thread::spawn(move || {
                    while let Ok(read @ 1..) = answers.read(&mut [0; 65_536]) {
                        hearing.fetch_add(read as u64, Relaxed);
                    }
                });
                let mut next = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
                for number in (1..).step_by(2) {
                    next.extend(bytes(number));
                    if number % 200 == 199 {
                        if stop.load(Relaxed) || wire.write_all(&next).is_err() {
                            break;
                        }
                        sent.fetch_add(100, Relaxed);
                        next.clear();
                        if leaves == Leaves::WhenAnswered {
                            let begun = Instant::now();
                            // A head of nine bytes at least, and a reset of thirteen, for each.
                            while heard.load(Relaxed) < 100 * 22 && begun.elapsed() < Duration::from_secs(1) {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            std::thread::sleep(Duration::from_millis(50));
                            break;
                        }
                    }
                }
                let _ = wire.shutdown(std::net::Shutdown::Both);
            }
        });
    }
    eventually("it has begun", || sent.load(Relaxed) >= 100);
    (StopOnDrop(stop), "2 clients".to_owned())
}

/// Calls that are taken back before they are answered.
#[test]
fn m6_grpc_calls_taken_back() {
    let site = Site::new();
    let taken_back =
        |stream: u32| [call(stream), data(stream, 1, REQUEST), frame(3, 0, stream, &[0, 0, 0, 8])].concat();
    row_of(Attacker::Sending, "gRPC calls that are taken back", 64 << 20, &site, |site| {
        flood(site, Leaves::WhenCut, taken_back)
    });
}

fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(0, flags, stream, bytes)
}

/// A request of the domain `d` with the descriptor `u=x`, behind its prefix.
const REQUEST: &[u8] = b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01u\x12\x01x";

/// Whole calls, far more at once than a connection may have. Each is a decision.
#[test]
fn m6_grpc_calls_without_end() {
    let site = Site::new();
    let message = |stream: u32| [call(stream), data(stream, 1, REQUEST)].concat();
    row_of(Attacker::Sending, "gRPC calls without end", 64 << 20, &site, |site| flood(site, Leaves::WhenCut, message));
    let allowed = r#"tidegate_decisions_total{limiter="called",role="enforced",verdict="allowed",door="grpc"} "#;
    assert!(site.metric(allowed) > 0, "calls were decided");
}

/// Messages that say that they have 4 MiB, of which as much is sent as a connection's first window lets, 64 KiB for a hundred: they are refused by their first bytes.
#[test]
fn m6_grpc_messages_of_4_mib() {
    let site = Site::new();
    let message = |stream: u32| {
        let begun = [&[0, 0, 64, 0, 0][..], &[0; 600]].concat();
        [call(stream), data(stream, 0, &begun)].concat()
    };
    row_of(Attacker::Sending, "gRPC messages of 4 MiB", 64 << 20, &site, |site| {
        flood(site, Leaves::WhenAnswered, message)
    });
    // Over the limit, which is an answer.
    let answered =
        r#"tidegate_grpc_calls_total{method="envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",code="OK"} "#;
    assert!(site.metric(answered) > 0, "they were answered by their length");
}

/// A hundred messages on each connection, of which the rest never comes.
#[test]
fn m6_grpc_half_messages() {
    let (site, count) = (Site::new(), attackers() / 10);
    // A connection with a hundred calls under way takes up to 256 KiB, nearly all of it HTTP/2's own, whether the calls have a place or are refused one.
    row("gRPC messages of which half comes", (64 << 20) + count * (256 << 10), &site, |site| {
        let half = |stream: u32| [call(stream), data(stream, 0, &REQUEST[..10])].concat();
        let calls: Vec<u8> = (0..100).flat_map(|number| half(2 * number + 1)).collect();
        let mut held = Vec::new();
        for _ in 0..count {
            let mut wire = TcpStream::connect(site.server.grpc()).unwrap();
            let _ = wire.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            let _ = wire.write_all(&calls);
            held.push(wire);
        }
        (held, format!("{count} connections of 100"))
    });
}

struct StopOnDrop(std::sync::Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A reload is no way around: the budget is that of the start, and says so.
#[test]
fn m6_the_budget_is_read_from_the_file_and_changes_at_the_next_start() {
    let folder = Folder::new();
    let limits = |connections: u32| format!("[limits]\nconnections = {connections}\nunread = \"8MiB\"\n{POLICY}");
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &limits(50))));
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let page = || tidegate_testkit::http::get(address, "/metrics", "").unwrap();
    for (what, most) in [("connections", 50), ("feeds_and_sessions", 45), ("unread_bytes", 8 << 20)] {
        assert!(page().contains(&format!("tidegate_limits_max{{what=\"{what}\"}} {most}\n")), "{}", page());
    }
    folder.write("tidegate.toml", &limits(60));
    server.wait_for_log("[limits] has changed; it takes effect at the next start");
    eventually("it stays", || page().contains("tidegate_limits_max{what=\"connections\"} 50\n"));
}
