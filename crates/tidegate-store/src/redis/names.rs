//! What things are called in Redis.
//!
//! A key's state is `tg:{LIMITER/HH}:s:KEY`. `HH` is a hash of the key: all keys with the same one lie
//! in one slot of a cluster, together with the indexes of their names, `tg:{LIMITER/HH}:t` (tracked)
//! and `:b` (blocked), so that one script can keep all three. A limiter's keys thus spread over
//! [`GROUPS`] slots. Names of limiters have no braces, so that no key can leave its slot.
//! Invariant: these names are shared by all processes and versions; changing them forgets all counts.

/// Groups of keys that share their indexes.
pub(crate) const GROUPS: u32 = 256;

/// The group of a key: FNV-1a, folded to a byte. Not for secrecy: an attacker who fills one group
/// fills one slot, which hash tags would allow anyway.
pub(crate) fn group(key: &[u8]) -> u32 {
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash >> 24 ^ hash >> 16 ^ hash >> 8 ^ hash) % GROUPS
}

/// What the keys of a group start with.
pub(crate) fn prefix(limiter: &str, group: u32) -> String {
    format!("tg:{{{limiter}/{group:02x}}}:s:")
}

/// The names of a key's state and of its indexes.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) state: Vec<u8>,
    pub(crate) tracked: String,
    pub(crate) blocked: String,
}

impl Names {
    pub(crate) fn of(limiter: &str, key: &[u8]) -> Names {
        let group = group(key);
        let mut state = prefix(limiter, group).into_bytes();
        state.extend_from_slice(key);
        Names { state, tracked: tracked(limiter, group), blocked: blocked(limiter, group) }
    }

    /// The index of tracked names; where names are not kept the key stands in for it, which scripts
    /// understand, as a name of another slot would not do in a cluster.
    pub(crate) fn tracked_if(&self, names: bool) -> &[u8] {
        if names { self.tracked.as_bytes() } else { &self.state }
    }
}

/// The index of a group's tracked names.
pub(crate) fn tracked(limiter: &str, group: u32) -> String {
    format!("tg:{{{limiter}/{group:02x}}}:t")
}

/// The index of a group's blocked names.
pub(crate) fn blocked(limiter: &str, group: u32) -> String {
    format!("tg:{{{limiter}/{group:02x}}}:b")
}

/// The flag of a disabled limiter. It has no expiry.
pub(crate) fn disabled(limiter: &str) -> String {
    format!("tg:disabled:{limiter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fixed_for_ever() {
        let names = Names::of("api", b"user-1");
        assert_eq!(String::from_utf8_lossy(&names.state), format!("tg:{{api/{:02x}}}:s:user-1", group(b"user-1")));
        assert_eq!((group(b""), group(b"user-1"), group(b"192.0.2.1")), (0xc5, 0xab, 0x8c));
    }

    #[test]
    fn keys_spread_over_all_groups() {
        let mut counts = [0; GROUPS as usize];
        for key in 0..25_600 {
            counts[group(format!("user-{key}").as_bytes()) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (40..200).contains(count)), "{counts:?}");
    }
}
