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

const POLICY: &str = "[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"1000000000 per hour\"]\n\
                      [[limiter]]\nname = \"listed\"\nlimits = [\"5 per hour\"]\n\
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

    /// Decisions in a second, asked for from another address than the attacker's.
    fn decisions(&self) -> f64 {
        let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let start = Instant::now();
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
        count.load(Relaxed) as f64 / start.elapsed().as_secs_f64()
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
    let (before, idle) = (site.decisions(), site.server.memory("VmRSS"));
    let (attack, told) = attack(site);
    let beside = site.decisions();
    let most = site.server.memory("VmHWM").max(idle);
    drop(attack);
    // Both sides of it, as other things run on the machine, too.
    let without = (before + site.decisions()) / 2.0;
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let (ratio, grown) = (beside / without, most - idle);
    let (idle, most) = (mib(idle), mib(most));
    println!("| {name} | {told} | {idle:.0} to {most:.0} MiB | {without:.0} to {beside:.0} ({ratio:.2}×) |");
    assert!(grown <= memory_max, "{name}: {grown} bytes, more than {memory_max}");
    // They share the machine with the attacker, and with whatever else runs; locked out they would have none.
    assert!(ratio > 0.2, "{name}: {without} decisions in a second, {beside} beside it");
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
            let Ok(mut client) = Client::open_with(site.address, "") else { break };
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

/// Eight clients that list blocked keys of a large table, of which there are none.
#[test]
fn m6_pagers() {
    let (site, keys) = (Site::new(), attackers() * 100);
    let mut wire = TcpStream::connect(site.address).unwrap();
    wire.set_nodelay(true).unwrap();
    for key in 0..keys {
        let (status, _) = exchange(&mut wire, "POST /v1/hit", &format!(r#"{{"limiter":"listed","key":"key {key}"}}"#));
        assert_eq!(status, 200);
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
