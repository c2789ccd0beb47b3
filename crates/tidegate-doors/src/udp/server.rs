//! The door's threads: receive a batch, answer it at one reading of the clock, send the replies.

use super::batch::{Asked, BATCH, Incoming, send};
use super::counters::Counters;
use super::responder::{Responder, Scratch, Slot};
use super::sockets::Sockets;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tidegate::panic_point;

/// Where the door listens by default: loopback only.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7401";

/// How long a thread waits after a receive that failed, most likely for want of memory.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Threads for each socket when the store is on another machine: while one thread waits for the answers of
/// its batch, another serves the datagrams that arrive.
const THREADS_THAT_WAIT: usize = 8;

/// Serves until `stop` is set, with a thread for each socket, or several if threads wait for a store; returns
/// when all threads have ended. Datagrams that were received by then are answered.
///
/// # Errors
/// When a thread cannot be started; the others are stopped then.
pub fn serve(sockets: &Sockets, responder: &Responder, counters: &Counters, stop: &AtomicBool) -> io::Result<()> {
    std::thread::scope(|scope| {
        let threads = if !responder.gate().is_embedded() { THREADS_THAT_WAIT } else { 1 };
        for socket in sockets.all.iter().flat_map(|socket| std::iter::repeat_n(socket, threads)) {
            let thread = std::thread::Builder::new().name("udp".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, || work(socket, sockets.asked, responder, counters, stop)) {
                stop.store(true, Relaxed);
                return Err(error);
            }
        }
        Ok(())
    })
}

fn work(socket: &UdpSocket, asked: Asked, responder: &Responder, counters: &Counters, stop: &AtomicBool) {
    let mut incoming = Incoming::new(asked);
    let (mut scratch, mut slots) = (Scratch::default(), vec![Slot::default(); BATCH]);
    while !stop.load(Relaxed) {
        match incoming.receive(socket) {
            Ok(()) => answer(socket, &mut incoming, &mut scratch, &mut slots, responder, counters),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => {
                counters.errors.fetch_add(1, Relaxed);
                std::thread::sleep(ERROR_PAUSE);
            }
        }
    }
}

fn answer(
    socket: &UdpSocket,
    incoming: &mut Incoming,
    scratch: &mut Scratch,
    slots: &mut [Slot],
    responder: &Responder,
    counters: &Counters,
) {
    panic_point("udp");
    let refused = responder.allowed().map_or(0, |allowed| incoming.keep(allowed));
    if refused > 0 {
        counters.refused.fetch_add(refused, Relaxed);
    }
    let datagrams = incoming.datagrams();
    let slots = &mut slots[..datagrams.len()];
    responder.answer(scratch, &datagrams, responder.gate().now(), slots);
    let mut replies = 0;
    let answered = incoming.peers().zip(slots.iter()).filter_map(|(peer, slot)| Some((peer?, slot.reply()?)));
    let unsent = send(socket, answered.inspect(|_| replies += 1));
    let received = datagrams.len() as u64;
    counters.received.fetch_add(received, Relaxed);
    counters.silent.fetch_add(received - replies - refused, Relaxed);
    counters.answered.fetch_add(replies - unsent, Relaxed);
    if unsent > 0 {
        counters.unsent.fetch_add(unsent, Relaxed);
    }
}
