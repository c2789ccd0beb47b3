//! A stream as it is configured, and what its parts may be.

use std::fmt;
use tidegate_core::timeline::{EVENT_LEN_MAX, Mode, Overdue, StreamRules};
use tidegate_core::{Micros, PERIOD_MAX};

/// Most streams of a server; each has a thread of its own.
pub const STREAMS_MAX: usize = 64;
/// Most events that a stream may be allowed to remember.
pub const MAX_EVENTS_MAX: usize = 10_000_000;
/// Longest name of a stream.
const NAME_LEN_MAX: usize = 64;

/// A stream's name and rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSpec {
    /// 1 to 64 of `A-Z a-z 0-9 _ . -`.
    pub name: String,
    /// Mode, duration and bounds.
    pub rules: StreamRules,
    /// What happens to events that came due while the server was down.
    pub overdue: Overdue,
}

/// What is wrong with a stream: the setting, and a sentence with the value, the bound and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecProblem {
    /// The setting at fault.
    pub setting: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl StreamSpec {
    /// A stream with the defaults: 10 s, 10,000 events, a snapshot every 10 s.
    #[must_use]
    pub fn new(name: &str, mode: Mode) -> StreamSpec {
        let rules = StreamRules { mode, duration_ms: 10_000, max_events: 10_000, snapshot_every_ms: 10_000 };
        StreamSpec { name: name.to_owned(), rules, overdue: Overdue::Publish }
    }

    /// Whether all parts are within their bounds.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), SpecProblem> {
        let refuse = |setting, message| Err(SpecProblem { setting, message });
        if !is_name(&self.name) {
            let shown = self.name.escape_debug();
            let message = format!("\"{shown}\" is not 1 to {NAME_LEN_MAX} of A-Z a-z 0-9 _ . -; choose another");
            return refuse("name", message);
        }
        if self.name == "time" {
            return refuse("name", "\"time\" has a meaning of its own as a topic; choose another".to_owned());
        }
        for (setting, ms) in [("duration", self.rules.duration_ms), ("snapshot_every", self.rules.snapshot_every_ms)] {
            let span = Micros::from_millis(ms);
            if span.is_zero() || span > PERIOD_MAX {
                return refuse(
                    setting,
                    format!("{span} is outside 1ms to {PERIOD_MAX}; use one inside, such as \"10s\""),
                );
            }
        }
        if !(1..=MAX_EVENTS_MAX).contains(&self.rules.max_events) {
            let message =
                format!("{} is outside 1 to {MAX_EVENTS_MAX}; use one inside, such as 10000", self.rules.max_events);
            return refuse("max_events", message);
        }
        Ok(())
    }
}

/// Names are parts of paths, topics and files.
fn is_name(name: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(ok) && !name.bytes().all(|byte| byte == b'.')
}

/// An event's text, if it may be one.
///
/// # Errors
/// A sentence with the bound and the remedy.
pub fn check_event(bytes: &[u8]) -> Result<&str, String> {
    match bytes.len() {
        0 => return Err(format!("the event is empty; send 1 to {EVENT_LEN_MAX} bytes of text")),
        1..=EVENT_LEN_MAX => {}
        len => {
            return Err(format!(
                "the event has {len} bytes, more than {EVENT_LEN_MAX}; send a shorter text, such as an id"
            ));
        }
    }
    std::str::from_utf8(bytes)
        .map_err(|error| format!("byte {} of the event is not UTF-8; send text", error.valid_up_to() + 1))
}

impl std::error::Error for SpecProblem {}

impl fmt::Display for SpecProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl Fn(&mut StreamSpec), expected: Option<&str>) {
        let mut spec = StreamSpec::new("orders", Mode::OnlyOnce);
        change(&mut spec);
        match (spec.check(), expected) {
            (Ok(()), None) => {}
            (Err(problem), Some(part)) => assert!(problem.to_string().contains(part), "{problem}"),
            (got, _) => panic!("{spec:?}: {got:?}"),
        }
    }

    #[test]
    fn refusals_name_the_setting_and_the_bound() {
        check(|_| {}, None);
        check(|spec| spec.name = "a".repeat(64), None);
        check(|spec| spec.name = "a".repeat(65), Some("1 to 64"));
        check(|spec| spec.name = "a/b".into(), Some("name: \"a/b\""));
        check(|spec| spec.name = "..".into(), Some("choose another"));
        check(|spec| spec.name = "time".into(), Some("a meaning of its own"));
        check(|spec| spec.rules.duration_ms = 0, Some("duration: 0s is outside 1ms"));
        check(|spec| spec.rules.snapshot_every_ms = 367 * 86_400_000, Some("snapshot_every: 367d is outside"));
        check(|spec| spec.rules.max_events = 0, Some("max_events: 0 is outside 1 to 10000000"));
        check(|spec| spec.rules.max_events = MAX_EVENTS_MAX + 1, Some("max_events"));
    }

    #[test]
    fn events_are_short_texts() {
        assert_eq!(check_event("🌮".as_bytes()), Ok("🌮"));
        assert_eq!(check_event(&[b'a'; 1_024]).map(str::len), Ok(1_024));
        assert!(check_event(b"").unwrap_err().contains("empty"));
        assert!(check_event(&[b'a'; 1_025]).unwrap_err().contains("1025 bytes, more than 1024"));
        assert!(check_event(b"ab\xff").unwrap_err().contains("byte 3"));
    }
}
