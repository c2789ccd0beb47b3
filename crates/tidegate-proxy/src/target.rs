//! What is asked for, in one spelling: the same text is limited by and forwarded.
//!
//! Two spellings of one path must not have two limits, and a path that servers read differently must
//! not be forwarded at all. So a path is brought into its normal form (RFC 3986, 6.2.2): escapes of
//! letters, digits and `-._~` are decoded, the hex digits of others are upper case, `.` and `..` segments
//! are resolved, slashes in a row become one. Refused are escapes of `/`, `\` and control characters, a
//! backslash, a broken escape, and `..` above the root. The query is forwarded as it is.

use http::uri::Authority;
use http::{Method, Uri};
use percent_encoding::percent_encode_byte;
use std::borrow::Cow;
use std::fmt;

/// Why a target is refused. The text is for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetError {
    /// `%2F`, `%5C`, or a backslash: some servers take it for a slash.
    HiddenSlash,
    /// `%00` to `%1F`, or `%7F`.
    Control,
    /// A `%` without two hex digits.
    BrokenEscape,
    /// More `..` than there are segments.
    AboveRoot,
    /// Neither a path nor a URL of http.
    Form,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetError::HiddenSlash => "the path has an escaped slash or a backslash, which servers read differently",
            TargetError::Control => "the path has an escaped control character",
            TargetError::BrokenEscape => "the path has a % without two hex digits behind it; write %25 for a %",
            TargetError::AboveRoot => "the path has more .. segments than it can go up",
            TargetError::Form => "the request's target is no path; ask for /… or http://HOST/…",
        })
    }
}

/// A target in its normal form.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Target<'a> {
    /// The path in its normal form, or `*`. Borrowed: it came so, and has no escapes.
    pub(crate) path: Cow<'a, str>,
    pub(crate) query: Option<&'a str>,
    /// The authority that the target itself names: it goes before the Host field.
    pub(crate) authority: Option<&'a Authority>,
}

impl Target<'_> {
    /// Bytes of path and query.
    pub(crate) fn length(&self) -> usize {
        self.path.len() + self.query.map_or(0, str::len)
    }

    /// Writes what the request line says: path and query. A path in its normal form and a query that was
    /// read as one have no character that could end them.
    pub(crate) fn push_line(&self, line: &mut Vec<u8>) {
        line.extend_from_slice(self.path.as_bytes());
        if let Some(query) = self.query {
            line.push(b'?');
            line.extend_from_slice(query.as_bytes());
        }
    }
}

/// Reads a request's target.
///
/// # Errors
/// When it is ambiguous.
pub(crate) fn read<'a>(method: &Method, uri: &'a Uri) -> Result<Target<'a>, TargetError> {
    let (query, authority) = (uri.query(), uri.authority());
    let path = match uri.path() {
        "*" if *method == Method::OPTIONS && query.is_none() => Cow::Borrowed("*"),
        path if path.starts_with('/') => normal(path)?,
        // `http://host` without a path.
        "" if authority.is_some() && uri.scheme().is_some() => Cow::Borrowed("/"),
        _ => return Err(TargetError::Form),
    };
    Ok(Target { path, query, authority })
}

/// The normal form of a path that begins with a slash.
///
/// # Errors
/// When it is ambiguous.
pub(crate) fn normal(path: &str) -> Result<Cow<'_, str>, TargetError> {
    if is_normal(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let mut out = Vec::with_capacity(path.len());
    for segment in path.as_bytes()[1..].split(|byte| *byte == b'/') {
        let start = out.len();
        out.push(b'/');
        push_segment(&mut out, segment)?;
        match &out[start + 1..] {
            // In a row, or `.`: the slash that follows takes this one's place.
            b"" | b"." => out.truncate(start),
            b".." => {
                out.truncate(start);
                let parent = out.iter().rposition(|byte| *byte == b'/').ok_or(TargetError::AboveRoot)?;
                out.truncate(parent);
            }
            _ => {}
        }
    }
    // `/a/`, `/a/.` and `/a/b/..` name a folder: its slash stays.
    if ends_in_folder(path) {
        out.push(b'/');
    }
    // Every byte above ASCII was escaped.
    String::from_utf8(out).map(Cow::Owned).map_err(|_| TargetError::BrokenEscape)
}

fn ends_in_folder(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let dots = last.to_ascii_lowercase().replace("%2e", ".");
    dots.is_empty() || dots == "." || dots == ".."
}

/// Nothing to change and nothing to refuse: almost every path.
fn is_normal(path: &[u8]) -> bool {
    let mut last = b'a';
    for byte in path {
        // A dot after a slash may be a dot segment.
        let suspect = last == b'/' && matches!(byte, b'/' | b'.');
        if suspect || !PLAIN_OR_SLASH.has(*byte) {
            return false;
        }
        last = *byte;
    }
    true
}

/// Characters that may stand in a segment as they are (RFC 3986, pchar).
static PLAIN: Characters = Characters::unreserved_and(b"!$&'()*+,;=:@");
static PLAIN_OR_SLASH: Characters = Characters::unreserved_and(b"!$&'()*+,;=:@/");
static UNRESERVED: Characters = Characters::unreserved_and(b"");

/// A set of ASCII characters. Every byte of a path is looked up, so it is a table.
pub(crate) struct Characters([bool; 256]);

impl Characters {
    /// Letters, digits, `-._~` and these.
    pub(crate) const fn unreserved_and(others: &[u8]) -> Characters {
        let mut table = [false; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
            byte += 1;
        }
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        Characters(table)
    }

    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }
}

fn push_segment(out: &mut Vec<u8>, segment: &[u8]) -> Result<(), TargetError> {
    let mut at = 0;
    while at < segment.len() {
        let byte = segment[at];
        at += 1;
        match byte {
            b'%' => {
                let decoded = segment.get(at..at + 2).and_then(hex).ok_or(TargetError::BrokenEscape)?;
                at += 2;
                match decoded {
                    b'/' | b'\\' => return Err(TargetError::HiddenSlash),
                    0..b' ' | 0x7f => return Err(TargetError::Control),
                    decoded if UNRESERVED.has(decoded) => out.push(decoded),
                    decoded => push_escape(out, decoded),
                }
            }
            b'\\' => return Err(TargetError::HiddenSlash),
            byte if PLAIN.has(byte) => out.push(byte),
            // Not allowed as it is; some clients send it all the same.
            byte => push_escape(out, byte),
        }
    }
    Ok(())
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(&digits[0])? << 4 | digit(&digits[1])?)
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(percent_encode_byte(byte).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Result<&str, TargetError>) {
        let got = normal(path);
        assert_eq!(got.as_deref(), expected.as_deref(), "{path}");
        if let Ok(once) = got {
            assert_eq!(normal(&once).as_deref(), Ok(&*once), "{path}: once more changes it");
        }
    }

    #[test]
    fn one_spelling_for_each_path() {
        for plain in ["/", "/a", "/a/", "/a/b.c", "/a/b~c-d_e", "/a;v=1", "/@me:x", "/a/.b", "/a/..b", "/a...", "/%20"]
        {
            check(plain, Ok(plain));
        }
        check("/%41%7e%2D", Ok("/A~-"));
        check("/a%3ab%c3%A9", Ok("/a%3Ab%C3%A9"));
        check("/caf\u{e9}", Ok("/caf%C3%A9"));
        check("/a\"b<c>`{}|^", Ok("/a%22b%3Cc%3E%60%7B%7D%7C%5E"));
        check("//a///b//", Ok("/a/b/"));
        check("//", Ok("/"));
        check("/a/./b/.", Ok("/a/b/"));
        check("/a/b/../c", Ok("/a/c"));
        check("/a/b/..", Ok("/a/"));
        check("/a/../", Ok("/"));
        check("/a/%2e%2E/b", Ok("/b"));
        check("/a/.%2e", Ok("/"));
        check("/./a", Ok("/a"));
        check("/a//../b", Ok("/b"));
        check("/%25%32%66", Ok("/%252f"));
        check("/a%3Fb", Ok("/a%3Fb"));
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        check("/a%2fb", Err(TargetError::HiddenSlash));
        check("/a%2Fb", Err(TargetError::HiddenSlash));
        check("/a%5cb", Err(TargetError::HiddenSlash));
        check("/a\\b", Err(TargetError::HiddenSlash));
        check("/a%00", Err(TargetError::Control));
        check("/a%0d%0aX: y", Err(TargetError::Control));
        check("/%7f", Err(TargetError::Control));
        check("/a%", Err(TargetError::BrokenEscape));
        check("/a%4", Err(TargetError::BrokenEscape));
        check("/a%zz", Err(TargetError::BrokenEscape));
        check("/a%4/1", Err(TargetError::BrokenEscape));
        check("/a%+1", Err(TargetError::BrokenEscape));
        check("/..", Err(TargetError::AboveRoot));
        check("/a/../../b", Err(TargetError::AboveRoot));
        check("/%2e%2e/etc", Err(TargetError::AboveRoot));
    }

    #[test]
    fn targets_of_every_form() {
        let read = |method: Method, target: &str| {
            let uri: Uri = target.parse().unwrap();
            let mut line = Vec::new();
            read(&method, &uri).map(|target| target.push_line(&mut line)).map(|()| String::from_utf8(line).unwrap())
        };
        assert_eq!(read(Method::GET, "/a//b?c=//d%2f"), Ok("/a/b?c=//d%2f".to_owned()));
        assert_eq!(read(Method::GET, "http://h/a?"), Ok("/a?".to_owned()));
        assert_eq!(read(Method::GET, "http://h"), Ok("/".to_owned()));
        assert_eq!(read(Method::OPTIONS, "*"), Ok("*".to_owned()));
        assert_eq!(read(Method::GET, "*"), Err(TargetError::Form));
        assert_eq!(read(Method::CONNECT, "h:443"), Err(TargetError::Form));
    }
}
