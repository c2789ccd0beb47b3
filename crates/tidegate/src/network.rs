//! Networks of addresses: who may ask a door whose protocol has no credentials, and limits by address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network such as `10.0.0.0/8` or `2001:db8::/32`, or one address.
///
/// Addresses are compared as IPv6's 128 bits, IPv4 ones as those that are mapped (`::ffff:a.b.c.d`), which is how a socket of
/// both families tells them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    bits: u128,
    mask: u128,
    /// As it was written.
    written: (IpAddr, u8),
}

impl Network {
    /// Is the address inside?
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(address) & self.mask == self.bits
    }

    /// The bits of a network of IPv6.
    pub(crate) const fn ipv6_bits(&self) -> Option<u8> {
        if self.written.0.is_ipv6() { Some(self.written.1) } else { None }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        const REMEDY: &str =
            "write an address and the bits of its network, such as \"10.0.0.0/8\" or \"2001:db8::/32\"";
        let shown = text.escape_debug();
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| format!("\"{shown}\" is no network; {REMEDY}"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(digits) => {
                let number = digits
                    .parse::<u8>()
                    .ok()
                    .filter(|bits| *bits <= most && digits.bytes().all(|byte| byte.is_ascii_digit()));
                number.ok_or_else(|| format!("\"{shown}\" has no prefix from 0 to {most}; {REMEDY}"))?
            }
        };
        // Bits of the 128: an IPv4 address is behind 96 that are all the same.
        let ones = u32::from(prefix) + u32::from(128 - most);
        let mask = u128::MAX.checked_shl(128 - ones).unwrap_or(0);
        if bits(address) & !mask != 0 {
            return Err(format!(
                "\"{shown}\" is an address inside a network of {prefix} bits and not the network; set the other bits to 0, or write the address alone"
            ));
        }
        Ok(Network { bits: bits(address), mask, written: (address, prefix) })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.written.0, self.written.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_networks_contain_their_addresses_however_a_socket_tells_them() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", &["10.0.0.0", "10.255.1.2", "::ffff:10.1.2.3"][..], &["11.0.0.0", "::a00:1", "::1"][..]),
            ("192.0.2.7", &["192.0.2.7", "::ffff:192.0.2.7"], &["192.0.2.6"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.1.2.3"], &["::1", "2001:db8::1"]),
            ("2001:db8::/32", &["2001:db8::1", "2001:db8:ffff::"], &["2001:db9::", "10.0.0.1"]),
            ("::1", &["::1"], &["::2", "127.0.0.1"]),
            ("::/0", &["::1", "10.0.0.1"], &[]),
        ] {
            let parsed: Network = network.parse().unwrap();
            inside.iter().for_each(|one| assert!(parsed.contains(one.parse().unwrap()), "{network} {one}"));
            outside.iter().for_each(|one| assert!(!parsed.contains(one.parse().unwrap()), "{network} {one}"));
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn a_network_that_is_none_is_refused_with_the_way_to_write_one() {
        for (text, part) in [
            ("", "is no network"),
            ("10.0.0.0/33", "has no prefix from 0 to 32"),
            ("10.0.0.0/+8", "has no prefix"),
            ("2001:db8::/129", "from 0 to 128"),
            ("10.0.0.1/8", "set the other bits to 0"),
            ("localhost", "is no network"),
        ] {
            assert!(text.parse::<Network>().unwrap_err().contains(part), "{text}");
        }
    }
}
