//! `[doors]`: which protocols listen, and where.

use super::access::Listening;
use super::section::{Known, Section};
use super::source::Place;
use std::net::{Ipv4Addr, SocketAddr};

/// Which doors are open. With no `[doors]` table, all that exist, on loopback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Doors {
    /// The HTTP door's address, if it is open.
    pub(crate) http: Option<SocketAddr>,
    /// The UDP door's address, if it is open.
    pub(crate) udp: Option<SocketAddr>,
    /// The gRPC door's address, if it is open.
    pub(crate) grpc: Option<SocketAddr>,
    /// The RESP door's address, if it is open.
    pub(crate) resp: Option<SocketAddr>,
}

impl Default for Doors {
    fn default() -> Doors {
        let loopback = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Doors { http: loopback(7400), udp: loopback(7401), grpc: loopback(7402), resp: loopback(7403) }
    }
}

impl Doors {
    /// These addresses, with the proxy's admin address: all that may face a network.
    pub(crate) fn facing(&self, admin: Option<SocketAddr>) -> Listening {
        Listening { http: self.http, udp: self.udp, grpc: self.grpc, resp: self.resp, admin }
    }
}

pub(super) const KNOWN: Known = Known { here: &["http", "udp", "grpc", "resp"], later: &[] };

/// Reads the table, which stands at `place`.
pub(super) fn read(section: &mut Section<'_>, place: Place) -> Doors {
    if section.is_empty() {
        section.problem(
            place,
            "it names no door, so nothing would listen; add http = \"127.0.0.1:7400\" or leave the table out"
                .to_owned(),
        );
    }
    Doors {
        http: section.parsed("http", "127.0.0.1:7400", address),
        udp: section.parsed("udp", "127.0.0.1:7401", address),
        grpc: section.parsed("grpc", "127.0.0.1:7402", address),
        resp: section.parsed("resp", "127.0.0.1:7403", address),
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let shown = text.escape_debug();
        let remedy = "write an IP address and a port from 0 to 65535, such as \"127.0.0.1:7400\" or \"[::1]:7400\"";
        format!("\"{shown}\" is no address; {remedy}")
    })
}
