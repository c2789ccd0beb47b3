//! Percent-encoding (RFC 3986, section 2.1), over bytes: a key in a path or a query may be any bytes at all.
//!
//! The crate `percent-encoding` does the work. Here is what is ours: which bytes stay as they are, and that an
//! escape which is none is refused. The crate passes it through, and two spellings would mean one key.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use std::borrow::Cow;

/// All but letters, digits and `-._~`, which mean the same everywhere in a URL.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The text that stands for these bytes anywhere in a URL.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    percent_encode(bytes, RESERVED).to_string()
}

/// The bytes that a text stands for; `None`: it has a `%` without two hexadecimal digits behind it.
#[must_use]
pub fn decode(text: &str) -> Option<Cow<'_, [u8]>> {
    let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    let whole = escapes.all(|escape| escape.get(..2).is_some_and(|digits| digits.iter().all(is_digit)));
    whole.then(|| percent_decode_str(text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&[u8]>) {
        assert_eq!(decode(text).as_deref(), expected, "{text}");
        if let Some(bytes) = expected {
            assert_eq!(decode(&encode(bytes)).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn s1_any_bytes_come_through_and_broken_escapes_do_not() {
        check("", Some(b""));
        check("plain", Some(b"plain"));
        check("a+b", Some(b"a+b"));
        check("gr\u{fc}n", Some("gr\u{fc}n".as_bytes()));
        check("%2F%00%ff%FF%25", Some(b"/\0\xff\xff%"));
        for broken in ["%", "%f", "%g0", "a%2", "%%41", "%+1", "%-1", "%4\u{fc}", "%41%"] {
            check(broken, None);
        }
    }

    #[test]
    fn what_may_stand_in_a_url_stays() {
        assert_eq!(encode(b"a-Z_0.9~"), "a-Z_0.9~");
        assert_eq!(encode(b"a/b?c d%+\xff\0"), "a%2Fb%3Fc%20d%25%2B%FF%00");
    }
}
