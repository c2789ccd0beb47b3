//! The UDP door on real sockets.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
use tidegate_doors::udp::{Counters, Responder, Route, Routing, Sockets, serve};
use tidegate_testkit::{Stopwatch, number, slowness};

fn policy(limit: &str) -> Policy {
    // Not an average, which fades while a test runs.
    let rules = Rules::new(Algorithm::FixedWindow, &[limit.parse().unwrap()]).unwrap();
    Policy::new(vec![LimiterSpec::new("ip", rules).with_stats()]).unwrap()
}

fn routing(pattern: &str) -> Routing {
    let routes = vec![Route { pattern: pattern.to_owned(), limiter: "ip".to_owned(), ipv6_prefix: None }];
    Routing { routes, ..Routing::default() }
}

/// Runs a door while `ask` talks to it.
fn with_door(address: &str, ask: impl FnOnce(SocketAddr, &Responder)) {
    let responder = Responder::new(Gate::embedded(policy("3 per hour")), &routing("^ws ip=")).unwrap();
    let sockets = Sockets::bind(address.parse().unwrap(), 2).unwrap();
    let (address, counters, stop) = (sockets.address(), Counters::new(&sockets, &responder), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let door = scope.spawn(|| serve(&sockets, &responder, &counters, &stop));
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(address, &responder)));
        stop.store(true, SeqCst);
        failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let told = Instant::now();
        door.join().unwrap().unwrap();
        assert!(told.elapsed() < Duration::from_secs(1), "a door that is told to stop does so");
    });
}

struct Client(UdpSocket);

impl Client {
    fn to(address: SocketAddr) -> Client {
        let any = if address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Client(socket)
    }

    fn send(&self, datagram: &[u8]) {
        self.0.send(datagram).unwrap();
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 2_000];
        let len = self.0.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    fn ask(&self, datagram: &str) -> String {
        self.send(datagram.as_bytes());
        self.receive()
    }
}

fn check_conversation(address: &str) {
    with_door(address, |address, _| {
        let client = Client::to(address);
        for reply in ["ok N 1.0 3.0 3600", "ok N 2.0 3.0 3600", "ok N 3.0 3.0 3600", "ok Y 3.0 3.0 3600"] {
            assert_eq!(client.ask("78 over_limit ws ip=2001:db8::1"), format!("78 {reply}"));
        }
        assert_eq!(client.ask("get_stats ws ip=2001:db8::1"), "n_req=4 n_over=1 last_max_rate=0 key=ws ip=2001:db8::1");
        assert!(client.ask("1 get_size").starts_with("1 size=1/"));
        // Silence for each of these; the ping behind them is the next that is answered.
        for silent in [&b"PING"[..], b"", b"ping\n", b"a\nb", b"\n\n\n", b"check_limit {]"] {
            client.send(silent);
        }
        assert_eq!(client.ask("000867465 ping"), "000867465 pong");
    });
}

#[test]
fn s3_several_lines_are_answered_line_by_line_in_one_datagram() {
    with_door("127.0.0.1:0", |address, _| {
        let client = Client::to(address);
        assert_eq!(
            client.ask(
                "1 over_limit ws ip=a\n2 over_limit ws ip=a\nnonsense\n3 over_limit ws ip=b\n\nping\nover_limit x"
            ),
            "1 ok N 1.0 3.0 3600\n2 ok N 2.0 3.0 3600\n\n3 ok N 1.0 3.0 3600\n\npong\nok N 0.0 1.0 1"
        );
        // A newline at the end is no line, and what comes after the lines of a datagram sees them.
        assert_eq!(client.ask("over_limit ws ip=a\nover_limit ws ip=a\n"), "ok N 3.0 3.0 3600\nok Y 3.0 3.0 3600");
        assert_eq!(client.ask("over_limit ws ip=a\n"), "ok Y 3.0 3.0 3600");
        assert_eq!(client.ask("get_stats ws ip=a\nget_stats ws ip=b").lines().count(), 2);
        // A line is cut at 1,000 bytes as a datagram of its own is, and a datagram at 8 KiB.
        let long = format!("over_limit ws ip={}", "x".repeat(1_500));
        assert_eq!(client.ask(&format!("ping\n{long}\n{long}y")), "pong\nok N 1.0 3.0 3600\nok N 2.0 3.0 3600");
        let many: Vec<String> = (0..600).map(|id| format!("{id} over_limit ws ip=many-{id}")).collect();
        let many = many.join("\n");
        assert!(many.len() > 8_192);
        client.send(many.as_bytes());
        let mut buffer = vec![0; 60_000];
        let len = client.0.recv(&mut buffer).unwrap();
        let reply = std::str::from_utf8(&buffer[..len]).unwrap();
        let lines = many[..8_192].split('\n').count();
        assert_eq!(reply.split('\n').count(), lines, "what is behind 8 KiB is cut off");
        assert!(len + 28 <= 3 * (8_192 + 28), "{len} bytes");
        for (id, line) in reply.split('\n').take(lines - 1).enumerate() {
            assert_eq!(line, format!("{id} ok N 1.0 3.0 3600"));
        }
        // check_limit among others.
        let told = client.ask("1 check_limit {\"origin\":\"ws\",\"ip\":\"c\"}\nping");
        assert!(told.starts_with("1 ok N") && told.ends_with("\npong"), "{told}");
    });
}

/// Silence would admit a client that sends long keys, after its whole timeout.
#[test]
fn a_request_over_1000_bytes_counts_by_its_first_1000_and_is_answered_at_once() {
    with_door("127.0.0.1:0", |address, _| {
        let client = Client::to(address);
        let long = |tail: &str| format!("5 over_limit ws ip={}{tail}", "x".repeat(982));
        assert_eq!(long("").len(), 1_001);
        assert_eq!(client.ask(&long("")), "5 ok N 1.0 3.0 3600");
        assert_eq!(client.ask(&long("another tail")), "5 ok N 2.0 3.0 3600");
        assert_eq!(client.ask(&long(&"y".repeat(8_000))), "5 ok N 3.0 3.0 3600");
        assert_eq!(client.ask(&long("")[..1_000]), "5 ok Y 3.0 3.0 3600");
    });
}

#[test]
fn it_answers_over_ipv4() {
    check_conversation("127.0.0.1:0");
}

#[test]
fn it_answers_over_ipv6() {
    check_conversation("[::1]:0");
}

#[test]
fn many_clients_get_their_own_replies() {
    with_door("127.0.0.1:0", |address, _| {
        let clients: Vec<Client> = (0..50).map(|_| Client::to(address)).collect();
        for round in 0..20 {
            for (number, client) in clients.iter().enumerate() {
                client.send(format!("{number}000{round} over_limit ws ip={number}").as_bytes());
            }
            for (number, client) in clients.iter().enumerate() {
                let (over, rate) = if round < 3 { ("N", round + 1) } else { ("Y", 3) };
                assert_eq!(client.receive(), format!("{number}000{round} ok {over} {rate}.0 3.0 3600"));
            }
        }
    });
}

/// One socket is served by one thread, in order; replies of one length to it go out together.
#[test]
fn a_client_with_many_requests_under_way_gets_every_reply() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        with_door(address, |address, _| {
            let client = Client::to(address);
            for round in 0..5 {
                let ids = round * 150..(round + 1) * 150;
                for id in ids.clone() {
                    client.send(format!("{id} over_limit ws ip={}", id / 4).as_bytes());
                }
                for id in ids {
                    let (over, rate) = if id % 4 == 3 { ("Y", 3) } else { ("N", id % 4 + 1) };
                    assert_eq!(client.receive(), format!("{id} ok {over} {rate}.0 3.0 3600"));
                }
            }
        });
    }
}

#[test]
fn routes_and_limits_are_replaced_under_way() {
    with_door("127.0.0.1:0", |address, responder| {
        let client = Client::to(address);
        assert_eq!(client.ask("over_limit ws ip=1"), "ok N 1.0 3.0 3600");
        responder.gate().reload(&policy("9 per minute")).unwrap();
        responder.reload(&routing("^(ws|search) ip=")).unwrap();
        assert_eq!(client.ask("over_limit ws ip=1"), "ok N 2.0 9.0 60");
        assert_eq!(client.ask("over_limit search ip=1"), "ok N 1.0 9.0 60");
        assert!(responder.reload(&routing("(")).is_err());
        assert_eq!(client.ask("over_limit search ip=1"), "ok N 2.0 9.0 60");
    });
}

#[test]
fn an_address_is_not_shared_with_another_process() {
    let first = Sockets::bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
    let second = Sockets::bind(first.address(), 2).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
}

/// S1: garbage at full speed, then a ping is answered at once. `TIDEGATE_GARBAGE_SECONDS=60` for the long run.
#[test]
fn s1_garbage_neither_stops_nor_slows_it() {
    let seconds = number("TIDEGATE_GARBAGE_SECONDS", 1);
    with_door("127.0.0.1:0", |address, responder| {
        let (start, mut seed, mut sent) = (Instant::now(), 1_u64, 0_u64);
        let noise = Client::to(address);
        let (mut bytes, mut settled) = ([0; 600], None);
        while start.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..100 {
                for chunk in bytes.chunks_mut(8) {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    chunk.copy_from_slice(&seed.to_le_bytes());
                }
                let len = usize::try_from(seed >> 40).unwrap() % 600;
                let words: [&[u8]; 4] = [b"over_limit ws ip=", b"1 get_stats ", b"get_size", b""];
                let word = words[usize::try_from(seed >> 60).unwrap() % 4];
                let _ = noise.0.send(&[word, &bytes[..len]].concat());
                sent += 1;
            }
            // The table fills within its budget; after that memory stands still.
            if settled.is_none() && start.elapsed() > Duration::from_secs(seconds) / 2 {
                settled = Some(resident_kib());
            }
        }
        let client = Client::to(address);
        client.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let asked = Stopwatch::start();
        // The kernel may drop a ping while the last of the garbage is in the buffer.
        while client.0.send(b"1 ping").is_err() || client.0.recv(&mut [0; 9]).is_err() {
            assert!(asked.elapsed() < Duration::from_secs(20), "no answer");
        }
        let took = asked.elapsed();
        let grown = resident_kib().saturating_sub(settled.unwrap_or(0));
        println!("{sent} datagrams of garbage; ping in {took:?}; {grown} KiB more in the second half");
        assert!(took < Duration::from_millis(100) * slowness(), "{took:?}");
        // In a short run the table may still be filling.
        assert!(seconds < 30 || grown < 4 << 10, "{grown} KiB more in the second half");
        assert!(responder.gate().usage().bytes <= responder.gate().usage().max_bytes);
    });
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
