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
    fn new(files: &[&str]) -> Script {
        let source = files.concat();
        let digest = sha1_smol::Sha1::from(&source).digest().bytes();
        let sha = digest.iter().fold(String::new(), |mut sha, byte| {
            let _ = write!(sha, "{byte:02x}");
            sha
        });
        Script { source, sha }
    }
}

/// What a script does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Decides requests of one or more keys.
    Decide,
    /// Lists names.
    List,
    /// Blocks a key.
    Block,
    /// Forgets a key.
    Unblock,
}

const PURPOSES: usize = 4;
/// Sets of algorithms, a bit each; fixed windows share one file, and so do averages.
const SETS: usize = 1 << FILES.len();

const HEAD: &str = include_str!("lua/head.lua");
const ENTRY: &str = include_str!("lua/entry.lua");
const LIMITS: &str = include_str!("lua/limits.lua");
const FILES: [&str; 5] = [
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/average.lua"),
];

/// Which of `FILES` holds an algorithm, and its letter in scripts and in stored entries.
pub(crate) const fn place(algorithm: Algorithm) -> (usize, u8) {
    match algorithm {
        Algorithm::TokenBucket => (0, b'T'),
        Algorithm::FixedWindow => (1, b'F'),
        Algorithm::AlignedWindow => (1, b'A'),
        Algorithm::SlidingLog => (2, b'G'),
        Algorithm::SlidingWindow => (3, b'W'),
        Algorithm::StrictAverage => (4, b'S'),
        Algorithm::LeakyAverage => (4, b'L'),
    }
}

/// The script for a purpose that knows these algorithms.
pub(crate) fn script(purpose: Purpose, algorithms: impl IntoIterator<Item = Algorithm>) -> &'static Script {
    static MADE: [[OnceLock<Script>; SETS]; PURPOSES] = [const { [const { OnceLock::new() }; SETS] }; PURPOSES];
    let set = algorithms.into_iter().fold(0, |set, algorithm| set | 1 << place(algorithm).0);
    MADE[purpose as usize][set].get_or_init(|| {
        let mut files = vec![HEAD];
        files.extend((0..FILES.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| FILES[bit]));
        files.push(ENTRY);
        files.extend(match purpose {
            Purpose::Decide => [LIMITS, include_str!("lua/decide.lua")],
            Purpose::List => [LIMITS, include_str!("lua/list.lua")],
            Purpose::Block => ["", include_str!("lua/block.lua")],
            Purpose::Unblock => ["", include_str!("lua/unblock.lua")],
        });
        Script::new(&files)
    })
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
