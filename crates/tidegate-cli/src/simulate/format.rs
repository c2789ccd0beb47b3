//! How an input is written: as it was asked for, or as its first line tells.

use super::{access_log, json_log, udp_log};

/// How an input is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// A trace: one JSON object with "at" on each line
    Ndjson,
    /// Common or Combined Log Format
    Clf,
    /// One JSON object on each line, with the names of nginx's variables
    NginxJson,
    /// Requests of the UDP door, each after its time
    Udp,
}

impl Format {
    /// The format of a file that begins with this line.
    pub(super) fn of(line: &[u8]) -> Format {
        if access_log::read(line).is_ok() {
            return Format::Clf;
        }
        if udp_log::is_one(line) {
            return Format::Udp;
        }
        // A trace has "at", which no log of nginx has; a line that is neither is told of as a trace's.
        let at = serde_json::from_slice::<serde_json::Value>(line).is_ok_and(|value| value.get("at").is_some());
        if !at && json_log::read(line).is_ok() { Format::NginxJson } else { Format::Ndjson }
    }

    /// The word for it on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Format::Ndjson => "ndjson",
            Format::Clf => "clf",
            Format::NginxJson => "nginx-json",
            Format::Udp => "udp",
        }
    }

    /// What it is, in a sentence.
    pub(super) const fn what(self) -> &'static str {
        match self {
            Format::Ndjson => "a trace",
            Format::Clf => "an access log",
            Format::NginxJson => "an access log in JSON",
            Format::Udp => "a request log of the UDP door",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_tells() {
        for (line, format) in [
            (r#"127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, Format::Clf),
            (r#"{"at":1,"limiter":"api","key":"u"}"#, Format::Ndjson),
            (r#"{"at":1,"ip":"h","msec":1}"#, Format::Ndjson),
            (r#"{"msec":1,"remote_addr":"h"}"#, Format::NginxJson),
            ("1763200000.5 78 over_limit k", Format::Udp),
            ("2026-11-15T10:00:00Z ping", Format::Udp),
            ("127.0.0.1 said something", Format::Ndjson),
            ("127", Format::Ndjson),
            ("", Format::Ndjson),
        ] {
            assert_eq!(Format::of(line.as_bytes()), format, "{line}");
        }
    }
}
