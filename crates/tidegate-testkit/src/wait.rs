//! Waiting for what happens in its own time, with a bound that only a failure meets.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. It bounds a failure; it measures nothing.
pub const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

/// Polls until it is so.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_TIME_MAX, "not within {WAIT_TIME_MAX:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
