//! A trace's times: seconds in decimal, read exactly.
//!
//! The text decides, not a float of it: `1700000000.0000005` is half a microsecond past a second
//! and rounds up, which a double could not tell. Ties round away from zero. For that, one digit
//! after the last microsecond is enough to look at.

use std::fmt;
use tidegate::Micros;

/// Why a time was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtError {
    NotANumber,
    Negative,
    TooLate,
}

impl fmt::Display for AtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtError::NotANumber => "is not a number; write seconds, such as 0.5",
            AtError::Negative => "is before 0; count from an earlier origin",
            AtError::TooLate => "is past 4503599627 seconds, the most; write seconds, not milliseconds",
        })
    }
}

/// Most digits a time in microseconds can have and still fit.
const DIGITS_MAX: i64 = 16;

/// Reads the text of a JSON number as seconds, to the nearest microsecond.
pub(super) fn parse(text: &str) -> Result<Micros, AtError> {
    let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes()).skip_while(|digit| *digit == b'0');
    if whole.is_empty() || !digits().all(|byte| byte.is_ascii_digit()) {
        return Err(AtError::NotANumber);
    }
    let significant = i64::try_from(digits().count()).unwrap_or(i64::MAX);
    if significant == 0 {
        return Ok(Micros::ZERO);
    }
    if negative {
        return Err(AtError::Negative);
    }
    let behind_point = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    // How many digits stand before the microsecond's point; zeros are added where there are fewer.
    let kept = power(exponent).saturating_sub(behind_point).saturating_add(6).saturating_add(significant);
    match kept {
        ..0 => Ok(Micros::ZERO),
        0..=DIGITS_MAX => Micros::new(rounded(digits(), kept)).ok_or(AtError::TooLate),
        _ => Err(AtError::TooLate),
    }
}

/// The first `kept` digits as a number, plus one if the next is 5 or more.
fn rounded(digits: impl Iterator<Item = u8>, kept: i64) -> u64 {
    let mut digits = digits.map(|byte| u64::from(byte - b'0')).chain(std::iter::repeat(0));
    let value = (0..kept).fold(0, |value, _| value * 10 + digits.next().unwrap_or(0));
    value + u64::from(digits.next().unwrap_or(0) >= 5)
}

/// An exponent; one with more digits than fit is as good as endless.
fn power(text: &str) -> i64 {
    let endless = if text.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 };
    text.parse::<i64>().map_or(endless, |n| n.clamp(i64::MIN / 2, i64::MAX / 2))
}

/// Seconds in decimal, without needless zeros: `14401`, `0.5`.
pub(super) struct Seconds(pub(super) Micros);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0.get() / 1_000_000, self.0.get() % 1_000_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{rest:06}").trim_end_matches('0'))
    }
}

/// [`Seconds`] as text, without an allocation: every line of a log has one.
pub(super) struct Text {
    bytes: [u8; 24],
    len: usize,
}

impl Text {
    pub(super) fn of(at: Micros) -> Text {
        let (mut bytes, mut len) = ([0; 24], 0);
        let mut push = |byte: u8| {
            bytes[len] = byte;
            len += 1;
        };
        let (whole, mut rest) = (at.get() / 1_000_000, at.get() % 1_000_000);
        // Below 2^52 microseconds there are at most ten digits before the point.
        let mut unit = 1_000_000_000;
        while unit > 1 && whole < unit {
            unit /= 10;
        }
        while unit > 0 {
            push(b'0' + u8::try_from(whole / unit % 10).unwrap_or(0));
            unit /= 10;
        }
        if rest > 0 {
            push(b'.');
        }
        while rest > 0 {
            push(b'0' + u8::try_from(rest / 100_000).unwrap_or(0));
            rest = rest % 100_000 * 10;
        }
        Text { bytes, len }
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<u64, AtError>) {
        assert_eq!(parse(text).map(Micros::get), expected, "{text}");
    }

    #[test]
    fn times_are_read_exactly() {
        for (text, us) in [
            ("0", 0),
            ("-0", 0),
            ("-0.000", 0),
            ("0.5", 500_000),
            ("59.999", 59_999_000),
            ("1700000000.123456", 1_700_000_000_123_456),
            ("1700000000.0000005", 1_700_000_000_000_001),
            ("1700000000.00000049999999999999999999", 1_700_000_000_000_000),
            ("0.0000005", 1),
            ("0.00000049", 0),
            ("0.0000004999", 0),
            ("0.1e1", 1_000_000),
            ("1e3", 1_000_000_000),
            ("5E-7", 1),
            ("4.9e-7", 0),
            ("5e-8", 0),
            ("1e-99999999999999999999", 0),
            ("0e99999999999999999999", 0),
            ("4503599627.370495", (1 << 52) - 1),
        ] {
            check(text, Ok(us));
        }
        check(&format!("1.{}", "0".repeat(100_000)), Ok(1_000_000));
    }

    #[test]
    fn times_that_do_not_fit_are_refused() {
        check("-1", Err(AtError::Negative));
        check("-0.0000001", Err(AtError::Negative));
        check("4503599627.3704955", Err(AtError::TooLate));
        check("1700000000000", Err(AtError::TooLate));
        check("1e99999999999999999999", Err(AtError::TooLate));
        check("\"1\"", Err(AtError::NotANumber));
        check("null", Err(AtError::NotANumber));
        check("[1]", Err(AtError::NotANumber));
        check("true", Err(AtError::NotANumber));
    }

    #[test]
    fn seconds_have_no_needless_zeros() {
        for (us, text) in [
            (0, "0"),
            (14_401_000_000, "14401"),
            (500_000, "0.5"),
            (1_000_001, "1.000001"),
            (10_100_000, "10.1"),
            ((1 << 52) - 1, "4503599627.370495"),
        ] {
            assert_eq!(Seconds(Micros::saturating(us)).to_string(), text);
            assert_eq!(Text::of(Micros::saturating(us)).as_str(), text);
        }
    }
}
