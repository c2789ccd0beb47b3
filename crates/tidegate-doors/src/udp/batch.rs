//! Many datagrams with one system call: recvmmsg and sendmmsg, through safe wrappers.
//!
//! A packet's way through the kernel is nearly all of its cost; a decision is a few percent. So replies
//! of one length to one client, which come in runs when it has many requests under way, go that way
//! together. Invariant: a reply leaves from the address that its request was sent to; a client that is
//! connected to that address gets no other.
//!
//! On a wildcard address a reply that is in no run is a system call of its own, as no safe wrapper sends several
//! datagrams with a source address each and tells how many went out:
//! - rustix's `sendmmsg` counts, but its control messages (`SendAncillaryMessage`, 1.1) are descriptors, credentials and times
//!   of sending, and what would push another is private;
//! - nix's (0.31) sends the same control messages with all, which would do for replies from one address. Its result has the
//!   count in a private field, and its iterator, the only way to count, takes the addresses of `MultiHeaders` to be
//!   initialised, which `sendmmsg` does not write, and looks at their family: a read of uninitialised memory. Without the count a client
//!   in the middle that is out of reach would take those behind it with it, and nobody would know;
//! - a second socket, bound to the address that was asked and used for sending alone, would be asked in place of the wildcard's,
//!   as it is the closer match; connecting it elsewhere ends that, but loses what comes in between.

use super::source::Source;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg, sendmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd as _;
use tidegate_wire::udp::DATAGRAM_LEN_MAX;

/// Most datagrams of a batch.
pub(super) const BATCH: usize = 64;
/// More than the longest datagram, so that a longer one is seen to be longer; whole cache lines. Not a power of two: the first lines
/// of all buffers, which are all that most datagrams take, would share the same few places of the processor's cache.
const BUFFER_LEN: usize = DATAGRAM_LEN_MAX + 64;
const _: () = assert!(BUFFER_LEN.is_multiple_of(64) && !BUFFER_LEN.is_power_of_two());

/// Room for a batch.
pub(super) struct Incoming {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Box<[[u8; BUFFER_LEN]; BATCH]>,
    arrived: Vec<Arrival>,
    asked: Asked,
}

/// How the address that a datagram was sent to is known: the kernel tells it for a socket that is bound to
/// the wildcard address; a socket with an address of its own sends from that one anyway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Told,
    TheSockets,
}

struct Arrival {
    len: usize,
    /// `None`: the sender cannot be answered.
    peer: Option<Peer>,
}

/// Where a reply goes, and what it leaves from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    client: SocketAddr,
    /// The address that was asked; `None`: the socket's own.
    source: Option<Source>,
}

impl Incoming {
    pub(super) fn new(asked: Asked) -> Incoming {
        Incoming {
            headers: headers(asked),
            buffers: vec![[0; BUFFER_LEN]; BATCH].try_into().expect("as many as a batch has"),
            arrived: Vec::with_capacity(BATCH),
            asked,
        }
    }

    /// Waits for a datagram, and takes what else is there.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.arrived.clear();
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let messages = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None)?;
        if self.asked == Asked::TheSockets {
            // Control messages, which there are none of, are not even looked for.
            self.arrived.extend(messages.map(|message| Arrival { len: message.bytes, peer: client(message.address) }));
            return Ok(());
        }
        self.arrived.extend(messages.map(|message| Arrival { len: message.bytes, peer: peer(&message) }));
        // The kernel leaves the room for the asked address as long as what it wrote there; nothing
        // written would be no room from then on.
        if self.peers().any(|peer| peer.is_some_and(|peer| peer.source.is_none())) {
            self.headers = headers(self.asked);
        }
        Ok(())
    }

    /// Keeps the datagrams of these senders; how many were of others, and are empty now, which is no request. A sender that
    /// cannot be answered may not ask either.
    pub(super) fn keep(&mut self, allowed: impl Fn(IpAddr) -> bool) -> u64 {
        let mut refused = 0;
        for arrival in &mut self.arrived {
            if !arrival.peer.is_some_and(|peer| allowed(peer.client.ip())) {
                *arrival = Arrival { len: 0, peer: None };
                refused += 1;
            }
        }
        refused
    }

    /// The datagrams, in the order in which they came.
    pub(super) fn datagrams(&self) -> Vec<&[u8]> {
        self.buffers.iter().zip(&self.arrived).map(|(buffer, it)| &buffer[..it.len.min(BUFFER_LEN)]).collect()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = Option<&Peer>> {
        self.arrived.iter().map(|arrival| arrival.peer.as_ref())
    }
}

fn headers(asked: Asked) -> MultiHeaders<SockaddrStorage> {
    MultiHeaders::preallocate(BATCH, (asked == Asked::Told).then(Source::room))
}

fn peer(message: &RecvMsg<'_, '_, SockaddrStorage>) -> Option<Peer> {
    let source = message.cmsgs().ok()?.find_map(|told| Source::of(&told));
    Some(Peer { source, ..client(message.address)? })
}

/// A client that is answered from the socket's own address.
fn client(address: Option<SockaddrStorage>) -> Option<Peer> {
    Some(Peer { client: sender(address?)?, source: None })
}

fn sender(address: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}

/// Sends replies in their order; how many could not be sent. One that fails does not take the others
/// with it.
pub(super) fn send<'r>(socket: &UdpSocket, replies: impl Iterator<Item = (&'r Peer, &'r [u8])>) -> u64 {
    let mut to: Vec<&Peer> = Vec::with_capacity(BATCH);
    let mut texts: Vec<IoSlice<'_>> = Vec::with_capacity(BATCH);
    for (peer, text) in replies {
        to.push(peer);
        texts.push(IoSlice::new(text));
    }
    // Replies before `sent` are sent; those from there to `at` are in no run.
    let (mut sent, mut at, mut failed) = (0, 0, 0);
    while at < texts.len() {
        let run = run_len(&to[at..], &texts[at..]);
        if run < RUN_MIN {
            at += run;
            continue;
        }
        failed += send_each(socket, &to[sent..at], &texts[sent..at]);
        failed += send_run(socket, &to[at..at + run], &texts[at..at + run]);
        at += run;
        sent = at;
    }
    failed + send_each(socket, &to[sent..], &texts[sent..])
}

/// Shortest run that is worth a system call of its own.
const RUN_MIN: usize = 3;
/// Most bytes of a run; the kernel takes it as one datagram of at most 64 KiB, until it cuts it up.
const RUN_BYTES_MAX: usize = 60_000;

/// How many replies from the first on go to the same client from the same address and are as long as
/// the first; the last of them may be shorter.
fn run_len(to: &[&Peer], texts: &[IoSlice<'_>]) -> usize {
    let len = texts[0].len();
    let most = to.len().min(RUN_BYTES_MAX / len.max(1));
    let mut run = 1;
    while run < most && to[run] == to[0] && texts[run].len() <= len {
        run += 1;
        if texts[run - 1].len() < len {
            break;
        }
    }
    run
}

/// Sends a run as one: the kernel routes it once and cuts it into datagrams at the end (UDP_SEGMENT).
/// This is most of what a reply costs, and a busy client that asks from one socket gets such runs.
fn send_run(socket: &UdpSocket, to: &[&Peer], texts: &[IoSlice<'_>]) -> u64 {
    let Ok(len) = u16::try_from(texts[0].len()) else { return send_each(socket, to, texts) };
    match send_one(socket, to[0], texts, Some(&len)) {
        Ok(()) => 0,
        // The send buffer had no room in time, and would have none for each reply by itself.
        Err(Errno::EAGAIN) => texts.len() as u64,
        // The kernel or the network card cannot cut datagrams, packets of the path are small, or the client
        // cannot be reached.
        Err(_) => send_each(socket, to, texts),
    }
}

fn send_each(socket: &UdpSocket, to: &[&Peer], texts: &[IoSlice<'_>]) -> u64 {
    if to.iter().any(|peer| peer.source.is_some()) {
        // The wrapper of sendmmsg cannot send a source address, and nix's does not tell how many were sent.
        let failed = |(peer, text): &(&&Peer, &[IoSlice<'_>])| send_one(socket, peer, text, None).is_err();
        return to.iter().zip(texts.chunks(1)).filter(failed).count() as u64;
    }
    send_together(socket, to, texts)
}

/// One system call: a datagram, or several of `segment` bytes each.
fn send_one(socket: &UdpSocket, to: &Peer, texts: &[IoSlice<'_>], segment: Option<&u16>) -> nix::Result<()> {
    let address = SockaddrStorage::from(to.client);
    let source = to.source.as_ref().map(Source::message);
    let control: &[ControlMessage<'_>] = match (segment.map(ControlMessage::UdpGsoSegments), source) {
        (Some(segment), Some(source)) => &[segment, source],
        (Some(one), None) | (None, Some(one)) => &[one],
        (None, None) => &[],
    };
    loop {
        match sendmsg(socket.as_raw_fd(), texts, control, MsgFlags::empty(), Some(&address)) {
            Err(Errno::EINTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// One system call for all, from the socket's own address.
fn send_together(socket: &UdpSocket, to: &[&Peer], texts: &[IoSlice<'_>]) -> u64 {
    if to.is_empty() {
        return 0;
    }
    let mut addresses: Vec<SocketAddrAny> = Vec::with_capacity(to.len());
    addresses.extend(to.iter().map(|peer| peer.client.as_any()));
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::with_capacity(to.len());
    controls.extend(to.iter().map(|_| SendAncillaryBuffer::default()));
    let parts = addresses.iter().zip(texts.chunks(1)).zip(&mut controls);
    let mut messages: Vec<MMsgHdr<'_>> =
        parts.map(|((address, text), control)| MMsgHdr::new_with_addr(address, text, control)).collect();
    let (mut at, mut failed) = (0, 0);
    while at < messages.len() {
        match sendmmsg(socket, &mut messages[at..], SendFlags::empty()) {
            Ok(sent) => at += sent.max(1),
            Err(rustix::io::Errno::INTR) => {}
            // The first client of the rest cannot be reached, such as one at port 0.
            Err(_) => {
                failed += 1;
                at += 1;
            }
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends these texts, each to the client of this number, the one at port 0 being out of reach;
    /// what could not be sent, and what the others got.
    #[track_caller]
    fn check(replies: &[(usize, &str)], failed: u64, runs: &[usize]) {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (server, clients) = (bind(), [bind(), bind()]);
        let mut to: Vec<SocketAddr> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        to.push("127.0.0.1:0".parse().unwrap());
        let peer = |client: usize| Peer { client: to[client], source: None };
        let replies: Vec<(Peer, &[u8])> =
            replies.iter().map(|(client, text)| (peer(*client), text.as_bytes())).collect();
        assert_eq!(send(&server, replies.iter().map(|(peer, text)| (peer, *text))), failed);
        for (client, address) in clients.iter().zip(&to) {
            client.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            for (_, text) in replies.iter().filter(|(to, _)| to.client == *address) {
                let mut buffer = [0; 2_000];
                let len = client.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..len], *text);
            }
            client.set_nonblocking(true).unwrap();
            assert!(client.recv(&mut [0; 9]).is_err(), "more than was sent");
        }
        let (mut addresses, mut texts): (Vec<&Peer>, Vec<IoSlice<'_>>) =
            replies.iter().map(|(peer, text)| (peer, IoSlice::new(text))).unzip();
        let mut found = Vec::new();
        while !texts.is_empty() {
            let run = run_len(&addresses, &texts);
            found.push(run);
            addresses.drain(..run);
            texts.drain(..run);
        }
        assert_eq!(found, runs);
    }

    #[test]
    fn replies_arrive_whole_and_in_order_whether_alone_or_in_runs() {
        check(&[], 0, &[]);
        check(&[(0, "a")], 0, &[1]);
        check(&[(0, "aa"), (0, "bb"), (0, "cc"), (0, "dd")], 0, &[4]);
        check(&[(0, "aa"), (0, "bb"), (0, "cc"), (0, "d"), (0, "e"), (0, "ff")], 0, &[4, 1, 1]);
        check(&[(0, "a"), (0, "bb"), (1, "cc"), (1, "dd"), (1, "ee"), (0, "ff"), (0, "gg")], 0, &[1, 1, 3, 2]);
        let long = "x".repeat(1_100);
        check(&[(0, long.as_str()); 64], 0, &[54, 10]);
    }

    #[test]
    fn a_client_out_of_reach_does_not_take_the_others_with_it() {
        check(&[(0, "aa"), (2, "bb"), (0, "cc")], 1, &[1, 1, 1]);
        check(&[(0, "aa"), (2, "bb"), (2, "cc"), (2, "dd"), (1, "ee")], 3, &[1, 3, 1]);
    }
}
