//! Shares as people write them: `0.1%`.

/// A share of 0 to 100 %, to four places, in millionths.
///
/// ```text
/// 1% is 10,000 and 0.0001% is 1
/// ```
pub(crate) fn millionths(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 4 {
        return None;
    }
    format!("{whole}{fraction:0<4}").parse().ok().filter(|millionths| *millionths <= 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_exactly() {
        for (text, expected) in
            [("1%", 10_000), ("0.1%", 1_000), ("0.0001 %", 1), ("0%", 0), ("99.9999%", 999_999), ("100%", 1_000_000)]
        {
            assert_eq!(millionths(text), Some(expected), "{text}");
        }
        for wrong in ["1", "%", "100.0001%", "-1%", "1.00001%", "x%", "1e2%", ".5%", "99999999999%", ""] {
            assert_eq!(millionths(wrong), None, "{wrong}");
        }
    }
}
