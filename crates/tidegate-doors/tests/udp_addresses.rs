//! A door on the wildcard address of a host with several addresses answers from the one that was asked:
//! a connected client gets no datagram from any other.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tidegate::{Gate, Policy};
use tidegate_doors::udp::{Counters, Responder, Routing, Sockets, serve};

/// Clients that ask a door on `bound` at each of these addresses, in turns and with many requests under
/// way, get every reply in order.
fn check(bound: &str, asked: &[IpAddr]) {
    let responder = Responder::new(Gate::embedded(Policy::new(Vec::new()).unwrap()), &Routing::default()).unwrap();
    let sockets = Sockets::bind(bound.parse().unwrap(), 2).unwrap();
    let (port, counters, stop) =
        (sockets.address().port(), Counters::new(&sockets, &responder), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let door = scope.spawn(|| serve(&sockets, &responder, &counters, &stop));
        let failed = std::panic::catch_unwind(|| ask(port, asked));
        stop.store(true, SeqCst);
        failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        door.join().unwrap().unwrap();
    });
}

fn ask(port: u16, asked: &[IpAddr]) {
    // Each client's own address is the one that the kernel would prefer for a reply to it.
    let clients: Vec<UdpSocket> = asked.iter().map(|address| client((*address, port).into())).collect();
    // Alone, in runs of one length, and in lengths of which no two in a row are the same.
    let (alone, runs) = (["1 ping".to_owned()], (100..250).map(|id| format!("{id} ping")));
    let unlike = (0..150).map(|id| format!("{} ping", "7".repeat(1 + id % 5)));
    for requests in [alone.to_vec(), runs.collect(), unlike.collect()] {
        for request in &requests {
            clients.iter().for_each(|client| assert_eq!(client.send(request.as_bytes()).unwrap(), request.len()));
        }
        for (client, address) in clients.iter().zip(asked) {
            for request in &requests {
                let mut buffer = [0; 100];
                let len = client.recv(&mut buffer).unwrap_or_else(|error| panic!("{address}, {request}: {error}"));
                assert_eq!(&buffer[..len], request.replace("ping", "pong").as_bytes());
            }
        }
    }
}

fn client(server: SocketAddr) -> UdpSocket {
    let own: SocketAddr = if server.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }.parse().unwrap();
    let socket = UdpSocket::bind(own).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

const IPV4: [&str; 4] = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.1.2.3"];

#[test]
fn a_wildcard_door_answers_from_the_ipv4_address_that_was_asked() {
    // The door by itself: a server asks for [udp] allow, or "udp" in [access] open, before it opens one like this.
    check("0.0.0.0:0", &IPV4.map(|address| address.parse().unwrap()));
}

/// An IPv6 socket serves IPv4 clients, too, by mapped addresses.
#[test]
fn a_wildcard_door_answers_from_the_ipv6_address_that_was_asked() {
    let mut asked: Vec<IpAddr> = IPV4.iter().map(|address| address.parse().unwrap()).collect();
    asked.extend(own_ipv6().into_iter().map(IpAddr::V6));
    println!("asked: {asked:?}");
    check("[::]:0", &asked);
}

#[test]
fn a_door_on_one_address_answers_from_it() {
    for address in ["127.0.0.1", "127.0.0.2"] {
        check(&format!("{address}:0"), &[address.parse().unwrap()]);
    }
    check("[::1]:0", &["::1".parse().unwrap()]);
}

/// This host's IPv6 addresses that need no interface beside them, from the kernel's table.
fn own_ipv6() -> Vec<Ipv6Addr> {
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let digits = table.lines().filter_map(|line| line.split_whitespace().next());
    let all = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok()).map(Ipv6Addr::from);
    all.filter(|address| !address.is_unicast_link_local()).collect()
}
