//! The keys of a limiter: what the attributes of a request make, and what a caller that names the limiter means.
//!
//! Invariant: no two sets of values share a key, and a key by name is the one that the attributes would have made.

use super::LimiterSpec;
use crate::address::is_address;
use std::borrow::Cow;

impl LimiterSpec {
    /// The key that these attributes make, or `None` when one is missing.
    ///
    /// One attribute is its value. Several are `name=value` joined by commas, with commas and
    /// backslashes in values escaped, so that no two sets of values share a key. An IPv6 address, in `ip` or Envoy's
    /// `remote_address`, is its network.
    #[must_use]
    pub fn key_of(&self, attributes: &[(&str, &[u8])]) -> Option<Vec<u8>> {
        let value = |name: &str| {
            let (_, value) = attributes.iter().find(|(n, _)| *n == name)?;
            Some(if is_address(name) { self.ipv6_prefix.key_of_text(value) } else { Cow::Borrowed(*value) })
        };
        if let [only] = self.by.as_slice() {
            return value(only).map(Cow::into_owned);
        }
        let mut key = Vec::new();
        for (index, name) in self.by.iter().enumerate() {
            if index > 0 {
                key.push(b',');
            }
            key.extend_from_slice(name.as_bytes());
            key.push(b'=');
            for byte in value(name)?.iter() {
                if matches!(byte, b',' | b'\\') {
                    key.push(b'\\');
                }
                key.push(*byte);
            }
        }
        (!self.by.is_empty()).then_some(key)
    }

    /// The key that a descriptor of exactly these attributes makes. One without a value counts, too: all of those together.
    pub(crate) fn key_of_descriptor(&self, entries: &[(&str, &[u8])]) -> Option<Vec<u8>> {
        let key = self.key_of(entries)?;
        Some(if key.is_empty() { no_value(&self.by[0]) } else { key })
    }

    /// The key that a caller who names this limiter means: the same that the attributes would have made.
    pub(crate) fn key_by_name<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        let key = match self.by.as_slice() {
            [only] if is_address(only) => self.ipv6_prefix.key_of_text(key),
            [] | [_] => Cow::Borrowed(key),
            _ => self.ipv6_prefix.key_of_parts(key),
        };
        self.counted_key(key, &[])
    }
}

/// What stands for the only attribute of a key when it has no value.
pub(crate) fn no_value(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"="].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Ipv6Prefix;
    use tidegate_core::{Algorithm, Rules};

    fn spec(name: &str) -> LimiterSpec {
        let rules = Rules::new(Algorithm::TokenBucket, &["5 per minute".parse().unwrap()]).unwrap();
        LimiterSpec::new(name, rules)
    }

    /// Only an attribute that was called `ip` counted so: behind Envoy a client with a /64 had 2^64 keys.
    #[test]
    fn s2_ipv6_addresses_that_envoy_sends_count_by_their_network() {
        for name in ["remote_address", "masked_remote_address"] {
            for (by, key) in [
                (vec![name], "2001:db8:1:2::/64".to_owned()),
                (vec!["path", name], format!("path=/,{name}=2001:db8:1:2::/64")),
            ] {
                let spec = spec("a").by(None, &by);
                for address in ["2001:db8:1:2::1", "2001:db8:1:2:ffff::", "2001:db8:1:2:3::/128"] {
                    let made = spec.key_of_descriptor(&[("path", b"/"), (name, address.as_bytes())]).unwrap();
                    assert_eq!(String::from_utf8_lossy(&made), key, "{address} by {by:?}");
                    let named = key.replace("2001:db8:1:2::/64", address);
                    assert_eq!(spec.key_by_name(named.as_bytes()), made, "{named}");
                }
            }
        }
    }

    /// With whole addresses, a client with a /64 has 2^64 keys.
    #[test]
    fn s2_ipv6_addresses_count_by_their_network_by_name_as_by_attributes() {
        let check = |by: &[&str], bits: u8, key: &str| {
            let spec = LimiterSpec { ipv6_prefix: Ipv6Prefix::new(bits).unwrap(), ..spec("a").by(None, by) };
            for address in ["2001:db8:1:2::1", "2001:db8:1:2:ffff::"] {
                let made = spec.key_of(&[("user", b"a,b"), ("ip", address.as_bytes())]).unwrap();
                assert_eq!(String::from_utf8_lossy(&made), key, "{address} by {by:?}");
                let named = key.replace("2001:db8:1:2::/64", address);
                assert_eq!(spec.key_by_name(named.as_bytes()), made, "{named}");
            }
        };
        check(&["ip"], 64, "2001:db8:1:2::/64");
        check(&["user", "ip"], 64, "user=a\\,b,ip=2001:db8:1:2::/64");
        check(&["user"], 64, "a,b");
        assert_eq!(spec("a").key_by_name(b"2001:db8::1"), &b"2001:db8::1"[..], "no limiter of addresses");
    }

    #[test]
    fn no_two_sets_of_attributes_share_a_key() {
        let both = spec("a").by(None, &["user", "ip"]);
        let key = |user: &[u8], ip: &[u8]| both.key_of(&[("ip", ip), ("user", user)]).unwrap();
        assert_eq!(key(b"u1", b"192.0.2.1"), b"user=u1,ip=192.0.2.1");
        assert_ne!(key(b"u,ip=x", b"y"), key(b"u", b"x,ip=y"));
        assert_ne!(key(b"u\\", b"x"), key(b"u", b"\\x"));
        assert_eq!(both.key_of(&[("user", b"u1")]), None);
        assert_eq!(spec("a").key_of(&[("user", b"u1")]), None);
        assert_eq!(spec("a").by(None, &["ip"]).key_of(&[("ip", b"192.0.2.1")]).unwrap(), b"192.0.2.1");
    }
}
