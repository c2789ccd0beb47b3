//! Percent-encoded pieces of paths and queries, and the refusal of those that are not.

use super::bounds::SHOWN_VALUE_MAX;
use super::problem::Problem;
use std::borrow::Cow;
use tidegate_wire::percent;

pub(crate) use tidegate_wire::percent::encode;

/// Is a plus sign a plus sign (paths) or a space (queries, as forms send them)?
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Plus {
    Plus,
    Space,
}

/// The bytes that a piece of a path or query stands for.
pub(crate) fn decode<'a>(piece: &'a str, plus: Plus, field: &'static str) -> Result<Cow<'a, [u8]>, Problem> {
    let refused = || bad_encoding(piece, field);
    if plus == Plus::Space && piece.contains('+') {
        let spaced = piece.replace('+', " ");
        return percent::decode(&spaced).map(|bytes| Cow::Owned(bytes.into_owned())).ok_or_else(refused);
    }
    percent::decode(piece).ok_or_else(refused)
}

fn bad_encoding(piece: &str, field: &'static str) -> Problem {
    let detail = "a percent sign must be followed by two hexadecimal digits; write the sign itself as %25";
    Problem::new(400, "bad_percent_encoding", detail).field(field).value(super::json::shorten(piece))
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
        assert_eq!(decode(piece, plus, "key").ok().as_deref(), expected, "{piece}");
    }

    #[test]
    fn s1_a_plus_is_a_space_in_queries_alone() {
        check("a+b%2B", Plus::Plus, Some(b"a+b+"));
        check("a+b%2B", Plus::Space, Some(b"a b+"));
        for broken in ["%", "%g0", "%+1", "+%2"] {
            check(broken, Plus::Plus, None);
            check(broken, Plus::Space, None);
        }
    }
}
