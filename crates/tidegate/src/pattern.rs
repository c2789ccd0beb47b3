//! Names and values as patterns: `*` stands for any text, also none, anywhere; all else for itself.

use std::fmt;
use std::str::FromStr;
use tidegate_core::KEY_LEN_MAX;

/// Longest pattern, in bytes: the longest key fits.
const PATTERN_LEN_MAX: usize = KEY_LEN_MAX;

/// A pattern of names or values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern(String);

impl Pattern {
    /// Takes time in the product of both lengths at worst, which are bounded.
    #[must_use]
    pub fn matches(&self, name: impl AsRef<[u8]>) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_ref());
        let (mut p, mut n) = (0, 0);
        // Where the last star stands, and how far the name was when it took nothing: it takes one more byte each time that what
        // follows does not fit.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match (pattern.get(p), star) {
                (Some(b'*'), _) => {
                    star = Some((p, n));
                    p += 1;
                }
                (Some(byte), _) if *byte == name[n] => (p, n) = (p + 1, n + 1),
                (_, Some((at, taken))) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                (_, None) => return false,
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        match text.len() {
            0 => Err("\"\" matches nothing; write a name, or a pattern such as \"login-*\"".to_owned()),
            1..=PATTERN_LEN_MAX if !text.chars().any(char::is_control) => Ok(Pattern(text.to_owned())),
            1..=PATTERN_LEN_MAX => Err(format!("\"{}\" has a control character; leave it out", text.escape_debug())),
            len => Err(format!("a pattern of {len} bytes is longer than {PATTERN_LEN_MAX}; write a shorter one")),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, matching, others) in [
            ("api", &["api"][..], &["", "ap", "apis", "API"][..]),
            ("login-*", &["login-", "login-ip"], &["login", "xlogin-ip"]),
            ("*-ip", &["-ip", "login-ip"], &["login-ipx"]),
            ("a*b*c", &["abc", "aXbYc", "abbcc"], &["acb", "ab", "abcd"]),
            ("*", &["", "x"], &[]),
            ("**x", &["x", "yx"], &["xy"]),
            ("spiffe://mesh/*/orders", &["spiffe://mesh/prod/orders"], &["spiffe://mesh/prod/orders2"]),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            matching.iter().for_each(|name| assert!(parsed.matches(name), "{pattern} {name}"));
            others.iter().for_each(|name| assert!(!parsed.matches(name), "{pattern} {name}"));
        }
    }

    #[test]
    fn s1_a_pattern_has_bounds() {
        for (text, part) in [("", "matches nothing"), ("a\n", "control character")] {
            assert!(text.parse::<Pattern>().unwrap_err().contains(part), "{text}");
        }
        assert!("*".repeat(513).parse::<Pattern>().unwrap_err().contains("longer than 512"));
        let slow: Pattern = "*a".repeat(128).parse().unwrap();
        assert!(!slow.matches("a".repeat(127)));
    }
}
