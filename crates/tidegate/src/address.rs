//! Addresses as keys. A client of IPv6 has a network, a /64 at least, and can choose any address inside: counted one by one,
//! its addresses would be as many keys as it likes. So an IPv6 address counts as its network, an IPv4 address as it is.
//!
//! A pure function of texts; which address is the client's, the caller finds out. Invariant: the key of a key is the key itself.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::ops::Range;

/// The attributes whose values are addresses: ours, and those of Envoy's actions `remote_address` and `masked_remote_address`.
const ADDRESSES: [&str; 3] = ["ip", "remote_address", "masked_remote_address"];

/// Are the values of this attribute addresses?
///
/// ```
/// assert!(tidegate::is_address("ip") && tidegate::is_address("remote_address") && !tidegate::is_address("user"));
/// ```
#[must_use]
pub fn is_address(attribute: &str) -> bool {
    ADDRESSES.contains(&attribute)
}

/// How many bits of an IPv6 address count: 1 to 128, 64 by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Prefix(u8);

impl Default for Ipv6Prefix {
    fn default() -> Ipv6Prefix {
        Ipv6Prefix(64)
    }
}

impl Ipv6Prefix {
    /// That many bits; `None`: 0 or more than 128.
    ///
    /// ```
    /// use tidegate::Ipv6Prefix;
    /// let address = "2001:db8:1:2:aaaa::1".parse()?;
    /// assert_eq!(Ipv6Prefix::default().key_of(address), "2001:db8:1:2::/64");
    /// assert_eq!(Ipv6Prefix::new(48).unwrap().key_of(address), "2001:db8:1::/48");
    /// assert_eq!(Ipv6Prefix::new(128).unwrap().key_of(address), "2001:db8:1:2:aaaa::1");
    /// assert_eq!(Ipv6Prefix::default().key_of("192.0.2.1".parse()?), "192.0.2.1");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub const fn new(bits: u8) -> Option<Ipv6Prefix> {
        if matches!(bits, 1..=128) { Some(Ipv6Prefix(bits)) } else { None }
    }

    /// How many.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The key of a client with this address. An IPv4 address inside IPv6 (`::ffff:192.0.2.1`) is an IPv4 address.
    #[must_use]
    pub fn key_of(self, address: IpAddr) -> String {
        match (address.to_canonical(), self.0) {
            (IpAddr::V4(address), _) => address.to_string(),
            (IpAddr::V6(address), 128) => address.to_string(),
            (IpAddr::V6(address), bits) => {
                let mask = u128::MAX << (128 - bits);
                format!("{}/{bits}", Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        }
    }

    /// The key that an address as text stands for. Anything but an IPv6 address, with or without brackets and a port, or a network
    /// that is finer than what counts, is its own key.
    pub(crate) fn key_of_text(self, text: &[u8]) -> Cow<'_, [u8]> {
        match ipv6(text).or_else(|| ipv6_network(text, self.0)) {
            Some(address) => Cow::Owned(self.key_of(IpAddr::V6(address)).into_bytes()),
            None => Cow::Borrowed(text),
        }
    }

    /// The key of `name=value` parts, joined by commas, with the addresses among them as their keys.
    pub(crate) fn key_of_parts(self, key: &[u8]) -> Cow<'_, [u8]> {
        let address = |part: Range<usize>| {
            let name_len = key[part.clone()].iter().position(|byte| *byte == b'=')?;
            let name = std::str::from_utf8(&key[part.start..part.start + name_len]).ok()?;
            is_address(name).then_some(part.start + name_len + 1..part.end)
        };
        let mut made = Cow::Borrowed(key);
        // From the last, so that the places of those before stay what they are.
        for value in parts(key).filter_map(address).collect::<Vec<_>>().into_iter().rev() {
            if let Cow::Owned(replaced) = self.replaced(&made, value) {
                made = Cow::Owned(replaced);
            }
        }
        made
    }

    /// A text with the first IPv6 address in it as its key: for keys of which an address is a part, such as `ws ip=2001:db8::1`.
    #[must_use]
    pub fn key_within(self, text: &[u8]) -> Cow<'_, [u8]> {
        let is_inside = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        let mut at = 0;
        while let Some(start) = text[at..].iter().position(is_inside).map(|found| at + found) {
            let end = text[start..].iter().position(|byte| !is_inside(byte)).map_or(text.len(), |found| start + found);
            // Behind a network's address there is a slash.
            let stands_alone =
                |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'/');
            let before = start.checked_sub(1).and_then(|before| text.get(before));
            if stands_alone(before) && stands_alone(text.get(end)) && ipv6(&text[start..end]).is_some() {
                return self.replaced(text, start..end);
            }
            at = end;
        }
        Cow::Borrowed(text)
    }

    fn replaced(self, text: &[u8], address: Range<usize>) -> Cow<'_, [u8]> {
        match self.key_of_text(&text[address.clone()]) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(key) => Cow::Owned([&text[..address.start], &key, &text[address.end..]].concat()),
        }
    }
}

/// The longest text of an address in brackets with a scope and a port is shorter.
const TEXT_LEN_MAX: usize = 64;

fn ipv6(text: &[u8]) -> Option<Ipv6Addr> {
    if text.len() > TEXT_LEN_MAX || !text.contains(&b':') {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse().ok().map(|address: SocketAddrV6| *address.ip()))
}

/// The address of an IPv6 network of more bits than these.
fn ipv6_network(text: &[u8], bits: u8) -> Option<Ipv6Addr> {
    if text.len() > TEXT_LEN_MAX {
        return None;
    }
    let (address, prefix) = std::str::from_utf8(text).ok()?.split_once('/')?;
    prefix.parse().ok().filter(|prefix: &u8| (bits + 1..=128).contains(prefix))?;
    address.parse().ok()
}

/// The address that a value stands for: as it came, or as the key that it makes, which may be a network.
pub(crate) fn address(value: &[u8]) -> Option<IpAddr> {
    if let Some(address) = ipv6(value) {
        return Some(IpAddr::V6(address).to_canonical());
    }
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= TEXT_LEN_MAX)?;
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address.parse().ok()
}

/// The value of one part of a joined key.
pub(crate) fn part_of<'k>(key: &'k [u8], name: &str) -> Option<Cow<'k, [u8]>> {
    let value_of = |part: Range<usize>| key[part].strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    let value = parts(key).find_map(value_of)?;
    if !value.contains(&b'\\') {
        return Some(Cow::Borrowed(value));
    }
    let mut plain = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        plain.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    Some(Cow::Owned(plain))
}

/// Where the parts of a joined key stand: a comma behind a backslash ends none.
fn parts(key: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let from = start?;
        let mut escaped = false;
        let end = key[from..].iter().position(|byte| {
            let ends = *byte == b',' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        });
        start = end.map(|end| from + end + 1);
        Some(from..end.map_or(key.len(), |end| from + end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(of: impl Fn(Ipv6Prefix, &[u8]) -> Cow<'_, [u8]>, bits: u8, text: &str, key: &str) {
        let prefix = Ipv6Prefix::new(bits).unwrap();
        let made = of(prefix, text.as_bytes()).into_owned();
        assert_eq!(String::from_utf8_lossy(&made), key, "{text} /{bits}");
        assert_eq!(of(prefix, &made).into_owned(), made, "the key of a key");
    }

    #[test]
    fn a_text_that_is_an_ipv6_address_counts_as_its_network() {
        let text = |text: &str, key: &str| check(Ipv6Prefix::key_of_text, 64, text, key);
        text("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
        text("2001:DB8:1:2::", "2001:db8:1:2::/64");
        text("[2001:db8:1:2::9]", "2001:db8:1:2::/64");
        text("[2001:db8:1:2::9]:4711", "2001:db8:1:2::/64");
        text("::ffff:192.0.2.1", "192.0.2.1");
        for other in ["192.0.2.1", "192.0.2.1:80", "2001:db8::/64", "2001:db8:::1", "", ":", "unix:", "\u{e9}:"] {
            text(other, other);
        }
        // Envoy masks with as many bits as it is told, 128 unless it is.
        text("2001:db8:1:2:3:4:5:6/128", "2001:db8:1:2::/64");
        text("2001:db8:1:2::/80", "2001:db8:1:2::/64");
        for other in ["2001:db8:1::/48", "2001:db8::1/129", "2001:db8::1/x", "192.0.2.0/24"] {
            text(other, other);
        }
        let long = format!("{}:", "a".repeat(100_000));
        text(&long, &long);
        check(Ipv6Prefix::key_of_text, 56, "2001:db8:1:2ff::1", "2001:db8:1:200::/56");
        check(Ipv6Prefix::key_of_text, 128, "2001:db8:0:0::1", "2001:db8::1");
        check(Ipv6Prefix::key_of_text, 1, "ffff::1", "8000::/1");
        assert_eq!((Ipv6Prefix::new(0), Ipv6Prefix::new(129)), (None, None));
    }

    #[test]
    fn a_joined_key_has_the_network_in_its_place() {
        let parts = |text: &str, key: &str| check(Ipv6Prefix::key_of_parts, 64, text, key);
        parts("user=a,ip=2001:db8::1", "user=a,ip=2001:db8::/64");
        parts("ip=2001:db8::1,user=a", "ip=2001:db8::/64,user=a");
        parts("user=a\\,ip=2001:db8::1,ip=192.0.2.1", "user=a\\,ip=2001:db8::1,ip=192.0.2.1");
        parts("user=a\\\\,ip=2001:db8::1", "user=a\\\\,ip=2001:db8::/64");
        parts("user=a,ipx=2001:db8::1", "user=a,ipx=2001:db8::1");
        parts("remote_address=2001:db8::1,path=/", "remote_address=2001:db8::/64,path=/");
        parts(
            "ip=2001:db8::1,user=a,remote_address=2001:db8:1::1",
            "ip=2001:db8::/64,user=a,remote_address=2001:db8:1::/64",
        );
        parts("nonsense", "nonsense");
    }

    #[test]
    fn the_first_address_in_a_text_is_found() {
        let within = |text: &str, key: &str| check(Ipv6Prefix::key_within, 64, text, key);
        within("ws ip=2001:db8::1", "ws ip=2001:db8::/64");
        within("ws ip=2001:db8::1 ua=x", "ws ip=2001:db8::/64 ua=x");
        within("ws ip=[2001:db8::1]", "ws ip=[2001:db8::/64]");
        within("ws ip=::ffff:192.0.2.1", "ws ip=192.0.2.1");
        for other in ["ws ip=192.0.2.1", "ws", "", "at 12:30:59 dead.beef", "wsdb8::1", "db8::1z", ":", "a:b"] {
            within(other, other);
        }
    }
}
