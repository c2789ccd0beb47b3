//! Access logs: Common and Combined Log Format.
//!
//! `HOST IDENT USER [10/Oct/2000:13:55:36 -0700] "GET /path?query HTTP/1.0" STATUS BYTES …`
//!
//! What a limiter may look at is `ip` (the host field), `user` (`-` means there is none) and `path`
//! (without the query; a request line that is none has none). Nothing behind the request is read.

use std::fmt;
use tidegate::Micros;

/// One request of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) at: Micros,
    values: [Option<Vec<u8>>; 3],
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

impl Entry {
    /// The attributes that the line has.
    pub(super) fn attributes(&self) -> Vec<(&'static str, &[u8])> {
        let pairs = Attribute::ALL.iter().zip(&self.values);
        pairs.filter_map(|(attribute, value)| Some((attribute.name(), value.as_deref()?))).collect()
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
pub(super) fn read(line: &[u8]) -> Result<Entry, LogError> {
    let (host, rest) = split(line, b" ").filter(|(host, _)| !host.is_empty()).ok_or(LogError::Host)?;
    let (_ident, rest) = split(rest, b" ").ok_or(LogError::Host)?;
    // Servers write a user's name as it came, spaces included.
    let (user, rest) = split(rest, b" [").filter(|(user, _)| !user.is_empty()).ok_or(LogError::Time)?;
    let (time, rest) = split(rest, b"]").ok_or(LogError::Time)?;
    let at = epoch_seconds(time).ok_or(LogError::Time)?;
    let request = rest.strip_prefix(b" \"").and_then(quoted).ok_or(LogError::Request)?;
    let given = |field: &[u8]| (field != b"-").then(|| field.to_vec());
    Ok(Entry { at, values: [given(host), given(user), path(request).map(<[u8]>::to_vec)] })
}

fn split<'a>(bytes: &'a [u8], by: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(by.len()).position(|window| window == by)?;
    Some((&bytes[..at], &bytes[at + by.len()..]))
}

/// Up to the closing quote; a backslash lets the next byte through.
fn quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut escaped = false;
    let end = bytes.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })?;
    Some(&bytes[..end])
}

fn path(request: &[u8]) -> Option<&[u8]> {
    let (_method, rest) = split(request, b" ")?;
    let target = split(rest, b" ").map_or(rest, |(target, _)| target);
    let path = target.split(|byte| *byte == b'?').next()?;
    (!path.is_empty()).then_some(path)
}

/// `10/Oct/2000:13:55:36 -0700`.
fn epoch_seconds(text: &[u8]) -> Option<Micros> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let shape = text.len() == 26 && [2, 6].iter().all(|at| text[*at] == b'/') && text[20] == b' ';
    if !shape || [11, 14, 17].iter().any(|at| text[*at] != b':') {
        return None;
    }
    let month = MONTHS.iter().position(|month| *month == &text[3..6])?;
    let (day, year) = (digits(&text[0..2])?, digits(&text[7..11])?);
    let (hour, minute, second) = (digits(&text[12..14])?, digits(&text[15..17])?, digits(&text[18..20])?);
    let offset = digits(&text[22..24])? * 3600 + digits(&text[24..26])? * 60;
    let offset = match text[21] {
        b'+' => offset,
        b'-' => -offset,
        _ => return None,
    };
    if !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = crate::calendar::days_from_date(year, i64::try_from(month).ok()? + 1, day);
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    u64::try_from(seconds).ok().map(Micros::from_secs)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |n, byte| byte.is_ascii_digit().then(|| n * 10 + i64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, at: u64, attributes: &[(&str, &str)]) {
        let entry = read(line.as_bytes()).unwrap();
        assert_eq!(entry.at.get() / 1_000_000, at, "{line}");
        let attributes: Vec<(&str, &[u8])> = attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        assert_eq!(entry.attributes(), attributes, "{line}");
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
            (r#"h - - [10/Okt/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [10/Oct/2000 13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [32/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            (r#"h - - [01/Jan/1969:00:00:00 +0000] "GET / HTTP/1.0" 200 1"#, LogError::Time),
            ("h - - [10/Oct/2000:13:55:36 -0700] GET /", LogError::Request),
            ("h - - [10/Oct/2000:13:55:36 -0700] \"GET /", LogError::Request),
        ] {
            assert_eq!(read(line.as_bytes()), Err(error), "{line}");
        }
    }

    #[test]
    fn bytes_need_not_be_text() {
        let entry = read(b"\xff - - [10/Oct/2000:13:55:36 -0700] \"\xfe \xfd\" 400 0").unwrap();
        assert_eq!(entry.attributes(), [("ip", &b"\xff"[..]), ("path", &b"\xfd"[..])]);
    }
}
