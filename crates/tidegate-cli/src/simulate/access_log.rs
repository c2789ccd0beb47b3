//! Access logs: Common and Combined Log Format.
//!
//! `HOST IDENT USER [10/Oct/2000:13:55:36 -0700] "GET /path?query HTTP/1.0" STATUS BYTES …`
//!
//! What a limiter may look at is `ip` (the host field), `user` (`-` means there is none) and `path`
//! (without the query; a request line that is none has none). Nothing behind the request is read.

use super::when;
use memchr::{memchr, memchr2, memmem};
use std::borrow::Cow;
use std::fmt;
use tidegate::Micros;

/// One request of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Logged<'a> {
    pub(super) at: Micros,
    /// By [`Attribute`], in its order.
    pub(super) values: [Option<Cow<'a, [u8]>>; 3],
}

/// What a log says of the client of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Attribute {
    /// The host field: the client's address.
    Ip,
    /// The name of a user who was authenticated.
    User,
    /// The path asked for, without its query.
    Path,
}

impl Attribute {
    pub(super) const ALL: [Attribute; 3] = [Attribute::Ip, Attribute::User, Attribute::Path];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Attribute::Ip => "ip",
            Attribute::User => "user",
            Attribute::Path => "path",
        }
    }
}

/// Which part of a line cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogError {
    Host,
    Time,
    Request,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self {
            LogError::Host => "it does not begin with host, ident and user",
            LogError::Time => "it has no time such as [10/Oct/2000:13:55:36 -0700] after the user",
            LogError::Request => "it has no request in quotes after the time",
        };
        write!(f, "this is not Common or Combined Log Format: {part}; correct the line, or add --skip-bad-lines")
    }
}

/// Reads one line; its bytes need not be UTF-8.
pub(super) fn read(line: &[u8]) -> Result<Logged<'_>, LogError> {
    let (host, rest) = word(line).filter(|(host, _)| !host.is_empty()).ok_or(LogError::Host)?;
    let (_ident, rest) = word(rest).ok_or(LogError::Host)?;
    // Servers write a user's name as it came, spaces included.
    let bracket = match rest {
        [b'-', b' ', b'[', ..] => 1,
        _ => memmem::find(rest, b" [").filter(|at| *at > 0).ok_or(LogError::Time)?,
    };
    let (user, rest) = (&rest[..bracket], &rest[bracket + 2..]);
    let end = memchr(b']', rest).ok_or(LogError::Time)?;
    let at = when::clf(&rest[..end]).ok_or(LogError::Time)?;
    let request = rest[end + 1..].strip_prefix(b" \"").and_then(quoted).ok_or(LogError::Request)?;
    let given = |field: &'_ [u8]| field != b"-";
    let value = |field, given: bool| given.then_some(Cow::Borrowed(field));
    let values = [value(host, given(host)), value(user, given(user)), path(request).map(Cow::Borrowed)];
    Ok(Logged { at, values })
}

fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr(b' ', bytes)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Up to the closing quote; a backslash lets the next byte through.
fn quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', &bytes[at..])?;
        if bytes[at] == b'"' {
            return Some(&bytes[..at]);
        }
        at = (at + 2).min(bytes.len());
    }
}

/// The path of `GET /path?query HTTP/1.0`.
pub(super) fn path(request: &[u8]) -> Option<&[u8]> {
    let (_method, rest) = word(request)?;
    path_of_target(word(rest).map_or(rest, |(target, _)| target))
}

/// A target without its query.
pub(super) fn path_of_target(target: &[u8]) -> Option<&[u8]> {
    let path = &target[..memchr(b'?', target).unwrap_or(target.len())];
    (!path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes<'a>(logged: &'a Logged<'_>) -> Vec<(&'static str, &'a [u8])> {
        let pairs = Attribute::ALL.iter().zip(&logged.values);
        pairs.filter_map(|(attribute, value)| Some((attribute.name(), value.as_deref()?))).collect()
    }

    #[track_caller]
    fn check(line: &str, at: u64, expected: &[(&str, &str)]) {
        let logged = read(line.as_bytes()).unwrap();
        assert_eq!(logged.at.get() / 1_000_000, at, "{line}");
        let expected: Vec<(&str, &[u8])> = expected.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        assert_eq!(attributes(&logged), expected, "{line}");
    }

    #[test]
    fn common_and_combined_lines_are_read() {
        check(
            r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326"#,
            971_211_336,
            &[("ip", "127.0.0.1"), ("user", "frank"), ("path", "/apache_pb.gif")],
        );
        check(
            r#"::1 - - [29/Feb/2024:23:59:60 +0000] "POST /a?b=c HTTP/1.1" 200 - "http://x/" "curl \"8\"""#,
            1_709_251_200,
            &[("ip", "::1"), ("path", "/a")],
        );
        check(r#"h - John Doe [01/Jan/1970:00:00:00 +0000] "-" 408 0"#, 0, &[("ip", "h"), ("user", "John Doe")]);
        check(r#"h - - x [01/Jan/1970:00:00:00 +0000] "-" 408 0"#, 0, &[("ip", "h"), ("user", "- x")]);
        check(
            r#"h - - [01/Jan/1970:01:00:05 +0100] "GET /say\"hi\"" 200 1"#,
            5,
            &[("ip", "h"), ("path", r#"/say\"hi\""#)],
        );
    }

    #[test]
    fn other_lines_say_what_is_missing() {
        for (line, error) in [
            ("", LogError::Host),
            ("127.0.0.1", LogError::Host),
            ("127.0.0.1 - - no time", LogError::Time),
            (r#"h -  [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [10/Okt/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [10/Oct/2000 13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [32/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [01/Jan/1969:00:00:00 +0000] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            ("h - - [10/Oct/2000:13:55:36 -0700] GET /", LogError::Request),
            ("h - - [10/Oct/2000:13:55:36 -0700] \"GET /", LogError::Request),
            ("h - - [10/Oct/2000:13:55:36 -0700] \"GET /\\", LogError::Request),
        ] {
            assert_eq!(read(line.as_bytes()), Err(error), "{line}");
        }
    }

    #[test]
    fn bytes_need_not_be_text() {
        let logged = read(b"\xff - - [10/Oct/2000:13:55:36 -0700] \"\xfe \xfd\" 400 0").unwrap();
        assert_eq!(attributes(&logged), [("ip", &b"\xff"[..]), ("path", &b"\xfd"[..])]);
    }
}
