//! The client's address, when proxies stand in between.
//!
//! A client can write anything into X-Forwarded-For; only what one's own proxies appended is true.
//! So entries are counted from the right, one for each trusted hop, and never taken from the left.
//! An IPv6 client owns a /64 at least, so its key is the network.

use crate::Ipv6Prefix;
use http::HeaderMap;
use std::net::{IpAddr, SocketAddr};

/// The client's address behind `trusted_hops` proxies, each of which appends the address that it
/// saw to X-Forwarded-For.
///
/// 0: the peer itself; the header is not looked at. Otherwise the entry that the outermost trusted
/// proxy wrote: the `trusted_hops`-th from the right over all header lines, or the leftmost if there
/// are fewer (then all of them are from trusted hops). An entry that is no address gives the peer.
#[must_use]
pub fn client_address(headers: &HeaderMap, peer: Option<IpAddr>, trusted_hops: usize) -> Option<IpAddr> {
    // As bytes: leaving out a line that is no text would move the count into the client's own lines.
    let lines = headers.get_all("x-forwarded-for").iter().map(|line| line.as_bytes());
    let entries: Vec<&[u8]> = lines.flat_map(|line| line.split(|byte| *byte == b',')).collect();
    let trusted = &entries[entries.len().saturating_sub(trusted_hops)..];
    trusted.first().and_then(|entry| parse(entry)).or(peer)
}

/// An address with or without a port, with or without brackets.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?.trim();
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    bare.parse().ok().or_else(|| entry.parse().ok().map(|address: SocketAddr| address.ip()))
}

/// The key of a client: an IPv4 address as it is, an IPv6 address as its /64.
///
/// ```
/// use tidegate::layer::key_of_address;
/// assert_eq!(key_of_address("192.0.2.1".parse()?), "192.0.2.1");
/// assert_eq!(key_of_address("2001:db8:1:2:aaaa::1".parse()?), "2001:db8:1:2::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn key_of_address(address: IpAddr) -> String {
    Ipv6Prefix::default().key_of(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[track_caller]
    fn check(lines: &[&str], trusted_hops: usize, expected: &str) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-forwarded-for", HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        let peer = Some("10.0.0.9".parse().unwrap());
        let found = client_address(&headers, peer, trusted_hops).map(key_of_address);
        assert_eq!(found.as_deref(), Some(expected), "{lines:?} behind {trusted_hops}");
    }

    #[test]
    fn counts_from_the_right_past_trusted_hops() {
        check(&["6.6.6.6, 192.0.2.1"], 0, "10.0.0.9");
        check(&["6.6.6.6, 192.0.2.1"], 1, "192.0.2.1");
        check(&["6.6.6.6, 192.0.2.1,10.0.0.1"], 2, "192.0.2.1");
        check(&["6.6.6.6", "192.0.2.1", "10.0.0.1"], 2, "192.0.2.1");
        check(&["192.0.2.1"], 2, "192.0.2.1");
        check(&[], 1, "10.0.0.9");
    }

    #[test]
    fn entries_may_carry_ports_and_be_nonsense() {
        check(&["192.0.2.1:4711"], 1, "192.0.2.1");
        check(&["[2001:db8:1:2::9]:4711"], 1, "2001:db8:1:2::/64");
        check(&["[2001:db8:1:2::9]"], 1, "2001:db8:1:2::/64");
        check(&["2001:db8:1:2:3:4:5:6"], 1, "2001:db8:1:2::/64");
        check(&["::ffff:192.0.2.1"], 1, "192.0.2.1");
        check(&["unknown"], 1, "10.0.0.9");
        check(&["192.0.2.1, "], 1, "10.0.0.9");
        check(&["6.6.6.6", "\u{e9}, 192.0.2.1"], 1, "192.0.2.1");
    }
}
