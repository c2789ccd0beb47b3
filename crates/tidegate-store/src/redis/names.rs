//! What things are called in Redis.
//!
//! A key's state is `tg:{LIMITER/HH}:s:KEY`. `HH` is a hash of the key: all keys with the same one lie
//! in one slot of a cluster, together with the indexes of their names, `tg:{LIMITER/HH}:t` (tracked)
//! and `:b` (blocked), so that one script can keep all three. A limiter's keys thus spread over
//! [`GROUPS`] slots. Open reservations are `tg:{LIMITER/HH}:r:KEY`. Names of limiters have no braces, so that no key can leave its slot.
//! Invariant: these names are shared by all processes and versions; changing them forgets all counts.

use crate::store::{Layout, Question};

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

/// The keys of a key's script. Of a sharded store only the first: the others may be on another shard.
pub(crate) fn keys(question: &Question<'_>, sharded: bool) -> Vec<Vec<u8>> {
    let mut keys = match question.layout {
        Layout::Native => native(question),
        Layout::Pause => vec![history(question.limiter, question.key), blocks(question.limiter).into_bytes()],
    };
    keys.truncate(if sharded { 1 } else { keys.len() });
    keys
}

/// State, tracked names, blocked names. Where names are not kept the state stands in for their index,
/// which scripts understand: a name of another slot would not do in a cluster.
fn native(question: &Question<'_>) -> Vec<Vec<u8>> {
    let group = group(question.key);
    let mut state = prefix(question.limiter, group).into_bytes();
    state.extend_from_slice(question.key);
    let tracked = if question.names { tracked(question.limiter, group).into_bytes() } else { state.clone() };
    vec![state, tracked, blocked(question.limiter, group).into_bytes()]
}

/// Pause's counts of an identifier.
pub(crate) fn history(scope: &str, identifier: &[u8]) -> Vec<u8> {
    [b"i:", scope.as_bytes(), b":|", identifier, b"|"].concat()
}

/// Pause's blocked identifiers of a scope.
pub(crate) fn blocks(scope: &str) -> String {
    format!("b:|{scope}|")
}

/// The index of a group's tracked names.
pub(crate) fn tracked(limiter: &str, group: u32) -> String {
    format!("tg:{{{limiter}/{group:02x}}}:t")
}

/// The index of a group's blocked names.
pub(crate) fn blocked(limiter: &str, group: u32) -> String {
    format!("tg:{{{limiter}/{group:02x}}}:b")
}

/// The open reservations of a key.
pub(crate) fn reservations(limiter: &str, key: &[u8]) -> Vec<u8> {
    [format!("tg:{{{limiter}/{:02x}}}:r:", group(key)).as_bytes(), key].concat()
}

/// The flag of a disabled limiter. It has no expiry.
pub(crate) fn disabled(limiter: &str, layout: Layout) -> String {
    match layout {
        Layout::Native => format!("tg:disabled:{limiter}"),
        Layout::Pause => format!("internal:|{limiter}|:disabled"),
    }
}

/// The limits of single keys of a limiter. It has no expiry.
pub(crate) fn overrides(limiter: &str) -> String {
    format!("tg:overrides:{limiter}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Rules};

    #[test]
    fn names_are_fixed_for_ever() {
        let rules = Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap()]).unwrap();
        let question = Question {
            limiter: "api",
            rules: &rules,
            names: true,
            key: b"user-1",
            layout: Layout::Native,
            role: Default::default(),
            own: None,
        };
        let all = ["tg:{api/ab}:s:user-1", "tg:{api/ab}:t", "tg:{api/ab}:b"].map(|name| name.as_bytes().to_vec());
        assert_eq!(keys(&question, false), all);
        assert_eq!(keys(&question, true), all[..1]);
        let question = Question { limiter: "notify", layout: Layout::Pause, ..question };
        assert_eq!(keys(&question, false), ["i:notify:|user-1|", "b:|notify|"].map(|name| name.as_bytes().to_vec()));
        assert_eq!(overrides("api"), "tg:overrides:api");
        assert_eq!(reservations("api", b"user-1"), b"tg:{api/ab}:r:user-1");
        assert_eq!(disabled("notify", Layout::Pause), "internal:|notify|:disabled");
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
