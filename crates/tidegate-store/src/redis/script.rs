//! The scripts: put together from the files of `lua/`, known to servers by their SHA-1.
//!
//! A script holds the arithmetic of the algorithms that it is asked about and no other, as a server
//! runs all of its text with every call.

use std::fmt::Write as _;
use std::sync::OnceLock;
use tidegate_core::Algorithm;

/// A script's text and its name.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) sha: String,
}

impl Script {
    pub(crate) fn new(files: &[&str]) -> Script {
        let source = files.concat();
        let digest = sha1_smol::Sha1::from(&source).digest().bytes();
        let sha = digest.iter().fold(String::new(), |mut sha, byte| {
            let _ = write!(sha, "{byte:02x}");
            sha
        });
        Script { source, sha }
    }
}

/// What a script does; the last part of its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Decides requests of one or more keys.
    Decide,
    /// Lists names of a group.
    List,
    /// Blocks a key.
    Block,
    /// Forgets a key.
    Unblock,
    /// Counts without asking.
    Increment,
    /// Asks without counting.
    Analyze,
    /// Takes a charge back.
    Refund,
    /// Gives back what was charged, whichever request it was for.
    GiveBack,
    /// Ends a reservation.
    Settle,
}

const PURPOSES: [&str; 9] = [
    include_str!("lua/decide.lua"),
    include_str!("lua/list.lua"),
    include_str!("lua/block.lua"),
    include_str!("lua/unblock.lua"),
    include_str!("lua/increment.lua"),
    include_str!("lua/analyze.lua"),
    include_str!("lua/refund.lua"),
    include_str!("lua/give_back.lua"),
    include_str!("lua/settle.lua"),
];

const HEAD: &str = include_str!("lua/head.lua");
const ARGUMENTS: &str = include_str!("lua/arguments.lua");
const ENTRY: &str = include_str!("lua/entry.lua");
/// The algorithms' arithmetic; fixed windows share a file, and so do averages.
const METERS: [&str; 6] = [
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/average.lua"),
    include_str!("lua/buckets.lua"),
];
/// Sets of algorithms, a bit each.
const SETS: usize = 1 << METERS.len();
const BUCKETS: usize = 5;

/// Which of `METERS` holds an algorithm, and its letter in scripts and in stored entries.
pub(crate) const fn place(algorithm: Algorithm) -> (usize, u8) {
    match algorithm {
        Algorithm::TokenBucket => (0, b'T'),
        Algorithm::FixedWindow => (1, b'F'),
        Algorithm::AlignedWindow => (1, b'A'),
        Algorithm::SlidingLog => (2, b'G'),
        Algorithm::SlidingWindow => (3, b'W'),
        Algorithm::StrictAverage => (4, b'S'),
        Algorithm::LeakyAverage => (4, b'L'),
        Algorithm::Buckets => (BUCKETS, b'B'),
    }
}

/// The script for a purpose that knows these algorithms.
pub(crate) fn script(purpose: Purpose, algorithms: impl IntoIterator<Item = Algorithm>) -> &'static Script {
    static MADE: [[OnceLock<Script>; SETS]; PURPOSES.len()] =
        [const { [const { OnceLock::new() }; SETS] }; PURPOSES.len()];
    let set = algorithms.into_iter().fold(0, |set, algorithm| set | 1 << place(algorithm).0);
    MADE[purpose as usize][set].get_or_init(|| {
        let meters = (0..METERS.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| METERS[bit]);
        let parts: Vec<&str> = [HEAD].into_iter().chain(meters).chain([ARGUMENTS, ENTRY]).collect();
        Script::new(&[parts.as_slice(), &[PURPOSES[purpose as usize]]].concat())
    })
}

/// The same for buckets in Pause's layout.
pub(crate) fn pause_script(purpose: Purpose) -> &'static Script {
    static MADE: [OnceLock<Script>; PURPOSES.len()] = [const { OnceLock::new() }; PURPOSES.len()];
    MADE[purpose as usize].get_or_init(|| {
        let entry = include_str!("lua/entry_pause.lua");
        Script::new(&[HEAD, METERS[BUCKETS], ARGUMENTS, entry, PURPOSES[purpose as usize]])
    })
}

/// Names of a sorted set with a score that is later than now.
pub(crate) fn later_names() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, include_str!("lua/later.lua")]))
}

/// Enters a name into an index on another shard.
pub(crate) fn note_block() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, ENTRY, include_str!("lua/note_block.lua")]))
}

/// Remembers a reservation.
pub(crate) fn remember() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, include_str!("lua/remember.lua")]))
}

/// Takes a reservation out.
pub(crate) fn claim() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, include_str!("lua/claim.lua")]))
}

const OVERRIDES: &str = include_str!("lua/overrides.lua");

/// Gives a key other limits.
pub(crate) fn set_override() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, OVERRIDES, include_str!("lua/override_set.lua")]))
}

/// Takes them back.
pub(crate) fn clear_override() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, OVERRIDES, include_str!("lua/override_clear.lua")]))
}

/// All of a limiter.
pub(crate) fn list_overrides() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[HEAD, OVERRIDES, include_str!("lua/override_list.lua")]))
}

/// The short script for the commonest case; see its file.
pub(crate) fn plain_token_bucket() -> &'static Script {
    static MADE: OnceLock<Script> = OnceLock::new();
    MADE.get_or_init(|| Script::new(&[include_str!("lua/token_bucket_plain.lua")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_knows_what_it_is_asked_about_and_no_more() {
        let one = script(Purpose::Decide, [Algorithm::SlidingLog]);
        assert!(one.source.contains("meters.G =") && !one.source.contains("meters.T ="));
        let all = script(Purpose::Decide, Algorithm::ALL);
        for algorithm in Algorithm::ALL {
            assert!(all.source.contains(&format!("meters.{} =", char::from(place(algorithm).1))));
        }
        assert_ne!(one.sha, all.sha);
        assert!(std::ptr::eq(one, script(Purpose::Decide, [Algorithm::SlidingLog])));
    }

    #[test]
    fn names_are_what_servers_make_of_the_text() {
        // SCRIPT LOAD "return 1"
        assert_eq!(Script::new(&["return ", "1"]).sha, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
