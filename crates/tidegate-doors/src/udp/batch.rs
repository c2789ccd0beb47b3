//! Many datagrams with one system call: recvmmsg and sendmmsg, through safe wrappers.
//!
//! A packet's system calls are nearly all of its cost; a decision is a few percent.

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd as _;
use tidegate_wire::udp::REQUEST_LEN_MAX;

/// Most datagrams of a batch.
pub(super) const BATCH: usize = 64;
/// More than the longest request, so that a longer one is seen to be longer; whole cache lines.
const BUFFER_LEN: usize = 1_024;
const _: () = assert!(BUFFER_LEN > REQUEST_LEN_MAX);

/// Room for a batch.
pub(super) struct Incoming {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Box<[[u8; BUFFER_LEN]; BATCH]>,
    /// Length and sender of each; no sender: one that cannot be answered.
    arrived: Vec<(usize, Option<SocketAddr>)>,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming {
            headers: MultiHeaders::preallocate(BATCH, None),
            buffers: Box::new([[0; BUFFER_LEN]; BATCH]),
            arrived: Vec::with_capacity(BATCH),
        }
    }

    /// Waits for a datagram, and takes what else is there.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.arrived.clear();
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let messages = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None)?;
        self.arrived.extend(messages.map(|message| (message.bytes, message.address.and_then(sender))));
        Ok(())
    }

    /// The datagrams, in the order in which they came.
    pub(super) fn datagrams(&self) -> Vec<&[u8]> {
        self.buffers.iter().zip(&self.arrived).map(|(buffer, (len, _))| &buffer[..(*len).min(BUFFER_LEN)]).collect()
    }

    pub(super) fn senders(&self) -> impl Iterator<Item = Option<SocketAddr>> {
        self.arrived.iter().map(|(_, sender)| *sender)
    }
}

fn sender(address: SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}

/// Sends replies; how many could not be sent. One that fails does not take the others with it.
pub(super) fn send<'r>(socket: &UdpSocket, replies: impl Iterator<Item = (SocketAddr, &'r [u8])>) -> u64 {
    let mut addresses: Vec<SocketAddrAny> = Vec::with_capacity(BATCH);
    let mut texts: Vec<[IoSlice<'_>; 1]> = Vec::with_capacity(BATCH);
    for (address, text) in replies {
        addresses.push(address.as_any());
        texts.push([IoSlice::new(text)]);
    }
    let mut controls: [SendAncillaryBuffer<'_, '_, '_>; BATCH] =
        std::array::from_fn(|_| SendAncillaryBuffer::default());
    let parts = addresses.iter().zip(&texts).zip(&mut controls);
    let mut messages: Vec<MMsgHdr<'_>> =
        parts.map(|((address, text), control)| MMsgHdr::new_with_addr(address, text, control)).collect();
    let (mut at, mut failed) = (0, 0);
    while at < messages.len() {
        match sendmmsg(socket, &mut messages[at..], SendFlags::empty()) {
            Ok(sent) => at += sent.max(1),
            Err(rustix::io::Errno::INTR) => {}
            // A sender that cannot be reached, such as port 0: the fault is the first one's.
            Err(_) => {
                failed += 1;
                at += 1;
            }
        }
    }
    failed
}
