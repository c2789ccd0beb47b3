//! Texts in JSON (RFC 8259, section 7), for the places that write JSON by hand because it is on a hot path.

use std::fmt::Write as _;

/// Appends a text with its quotes.
///
/// ```
/// let mut out = String::from("{\"event\":");
/// tidegate_wire::json::push_string(&mut out, "a \"b\"\n");
/// assert_eq!(out, "{\"event\":\"a \\\"b\\\"\\n\"");
/// ```
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(needs_escape) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            byte @ (b'"' | b'\\') => out.extend(['\\', char::from(byte)]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            byte => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
        // What was escaped is one byte: the rest begins at a character.
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

const fn needs_escape(byte: u8) -> bool {
    byte < b' ' || matches!(byte, b'"' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let mut out = String::new();
        push_string(&mut out, text);
        assert_eq!(out, expected);
    }

    #[test]
    fn texts() {
        check("", r#""""#);
        check("plain", r#""plain""#);
        check("\"a\\b\"", r#""\"a\\b\"""#);
        check("a\n\r\t\u{0}\u{1f}z", r#""a\n\r\t\u0000\u001fz""#);
        check("gr\u{fc}\u{df}e \u{1f30a}\u{7f}\u{2028}", "\"gr\u{fc}\u{df}e \u{1f30a}\u{7f}\u{2028}\"");
    }
}
