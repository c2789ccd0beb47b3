//! The address that a datagram was sent to, which its reply leaves from (IP_PKTINFO, IPV6_PKTINFO).
//!
//! The kernel tells it for sockets that are bound to the wildcard address, and takes it back with a
//! reply. Without it the reply would leave from the address that the way back prefers: another one where
//! the host has several, and a connected client never sees it.

use nix::libc;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, setsockopt, sockopt};
use socket2::Socket;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};

/// One of the host's addresses, in the kernel's own form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    V4(libc::in_pktinfo),
    /// Of an IPv4 client that asked an IPv6 socket, too: its address is a mapped one then.
    V6(libc::in6_pktinfo),
}

impl Source {
    /// Has the kernel tell it with each datagram that comes to a socket of this address's family.
    pub(super) fn ask_for(socket: &Socket, address: SocketAddr) -> io::Result<()> {
        match address {
            SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
        Ok(())
    }

    /// Room for the control message of one datagram.
    pub(super) fn room() -> Vec<u8> {
        nix::cmsg_space!(libc::in6_pktinfo)
    }

    /// The address in a control message. `None`: another message, or an address that cannot be sent from.
    pub(super) fn of(told: &ControlMessageOwned) -> Option<Source> {
        match told {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                // Of a broadcast, too, this is the address of the host's own that it came to.
                Some(Source::V4(libc::in_pktinfo { ipi_ifindex: 0, ..*info }))
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                // The same link-local address may be at two interfaces.
                let interface = if address.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                let source = libc::in6_pktinfo { ipi6_addr: info.ipi6_addr, ipi6_ifindex: interface };
                (!address.is_multicast()).then_some(Source::V6(source))
            }
            _ => None,
        }
    }

    /// The control message that goes to the kernel with a reply.
    pub(super) fn message(&self) -> ControlMessage<'_> {
        match self {
            Source::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Source::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}
