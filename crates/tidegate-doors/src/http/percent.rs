//! Percent-encoding, over bytes: a key in a path or query may be any bytes at all.

use super::bounds::SHOWN_VALUE_MAX;
use super::problem::Problem;
use std::borrow::Cow;

/// Is a plus sign a plus sign (paths) or a space (queries, as forms send them)?
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Plus {
    Plus,
    Space,
}

/// The bytes that a piece of a path or query stands for.
pub(crate) fn decode<'a>(piece: &'a str, plus: Plus, field: &'static str) -> Result<Cow<'a, [u8]>, Problem> {
    let bytes = piece.as_bytes();
    let is_special = |byte: &u8| *byte == b'%' || (*byte == b'+' && plus == Plus::Space);
    if !bytes.iter().any(is_special) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        decoded.push(match first {
            b'+' if plus == Plus::Space => b' ',
            b'%' => {
                let Some((byte, tail)) = tail.split_at_checked(2).and_then(|(pair, tail)| Some((hex(pair)?, tail)))
                else {
                    return Err(bad_encoding(piece, field));
                };
                rest = tail;
                byte
            }
            plain => *plain,
        });
    }
    Ok(Cow::Owned(decoded))
}

fn hex(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(pair[0])? << 4 | digit(pair[1])?)
}

fn bad_encoding(piece: &str, field: &'static str) -> Problem {
    let detail = "a percent sign must be followed by two hexadecimal digits; write the sign itself as %25";
    Problem::new(400, "bad_percent_encoding", detail).field(field).value(super::json::shorten(piece))
}

/// The bytes, percent-encoded as they may stand in a path.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Bytes as they are shown in a refusal.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => super::json::shorten(text),
        Err(_) => format!("{}… ({} bytes)", encode(&bytes[..bytes.len().min(SHOWN_VALUE_MAX / 3)]), bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(piece: &str, plus: Plus, expected: Option<&[u8]>) {
        let decoded = decode(piece, plus, "key").ok();
        assert_eq!(decoded.as_deref(), expected, "{piece}");
        if let Some(bytes) = expected {
            assert_eq!(decode(&encode(bytes), Plus::Space, "key").unwrap(), bytes);
        }
    }

    #[test]
    fn s1_any_bytes_come_through_and_broken_codes_do_not() {
        check("plain", Plus::Plus, Some(b"plain"));
        check("a+b", Plus::Plus, Some(b"a+b"));
        check("a+b", Plus::Space, Some(b"a b"));
        check("%2F%00%ff%FF%25", Plus::Plus, Some(b"/\0\xff\xff%"));
        for broken in ["%", "%f", "%g0", "a%2", "%%41", "%+1", "%-1"] {
            check(broken, Plus::Plus, None);
        }
    }
}
