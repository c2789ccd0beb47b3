//! Settings of tests from the environment: how long a campaign is, and the seed to replay.
//!
//! All names start with `TIDEGATE_`; CONTRIBUTING.md lists them. A name has no `__` in it: those are settings of the
//! server (`TIDEGATE_STORE__PATH`), which reads the same environment when a test starts it.

use std::str::FromStr;

/// The number that a variable has, or this one when it is not set.
#[track_caller]
pub fn number<N: FromStr>(name: &str, default: N) -> N {
    setting(name).unwrap_or(default)
}

/// The number that a variable has.
///
/// A value that is no such number fails the test: a campaign that was mistyped must not pass as a short run.
#[track_caller]
pub fn setting<N: FromStr>(name: &str) -> Option<N> {
    assert!(name.starts_with("TIDEGATE_") && !name.contains("__"), "{name}: settings of tests start with TIDEGATE_");
    let text = std::env::var(name).ok()?;
    let number = text.parse().ok();
    Some(number.unwrap_or_else(|| panic!("{name}={text} is not a whole number in range; unset it, or write one")))
}
