//! Durations as people write them: `500ms`, `20s`, `10m`, `2h`, `7d`, `1 week`.
//!
//! Only the words live here; what a duration may be used for is the caller's business.

use crate::Micros;

/// Unit names and their microseconds, largest first. Display picks the first that divides.
pub(crate) const UNITS: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
];

/// Parses a number and a unit, such as `500ms` or `2 hours`.
///
/// # Errors
/// A sentence that names the text, what was expected and the bound.
pub fn duration(text: &str) -> Result<Micros, String> {
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, name) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(format!(
            "duration \"{text}\" does not start with a number; write a number and a unit, such as 500ms, 20s, 10m, 2h or 7d"
        ));
    }
    let unit = unit(name.trim_start()).ok_or_else(|| match name {
        "" => format!("duration \"{text}\" has no unit; write {number}s, {number}m or {number}h"),
        _ => format!(
            "duration \"{text}\" has the unknown unit \"{}\"; use ms, s, m, h, d, w or second(s), minute(s), hour(s), day(s), week(s)",
            name.trim_start()
        ),
    })?;
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit.get()))
        .and_then(Micros::new)
        .ok_or_else(|| format!("duration \"{text}\" is too long; the longest is {}", longest()))
}

/// One unit's length by any of its names.
pub(crate) fn unit(name: &str) -> Option<Micros> {
    let short = match name {
        "millisecond" | "milliseconds" => "ms",
        "second" | "seconds" => "s",
        "minute" | "minutes" => "m",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        "week" | "weeks" => "w",
        other => other,
    };
    UNITS.iter().find(|(n, _)| *n == short).map(|(_, us)| Micros::saturating(*us))
}

fn longest() -> String {
    format!("{}d", Micros::MAX.get() / 86_400_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<u64, &str>) {
        match (duration(text), expected) {
            (Ok(got), Ok(us)) => assert_eq!(got.get(), us, "{text}"),
            (Err(got), Err(part)) => assert!(got.contains(part), "{text}: {got}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn every_unit_has_its_names() {
        check("500ms", Ok(500_000));
        check("1 millisecond", Ok(1_000));
        check("20s", Ok(20_000_000));
        check("1 second", Ok(1_000_000));
        check("10m", Ok(600_000_000));
        check("10 minutes", Ok(600_000_000));
        check("2h", Ok(7_200_000_000));
        check("7d", Ok(604_800_000_000));
        check("1w", Ok(604_800_000_000));
        check("2weeks", Ok(1_209_600_000_000));
        check("0s", Ok(0));
    }

    #[test]
    fn refusals_name_the_remedy() {
        check("", Err("does not start with a number"));
        check("ten minutes", Err("does not start with a number"));
        check("-5s", Err("does not start with a number"));
        check("10", Err("has no unit; write 10s"));
        check("10 parsecs", Err("unknown unit \"parsecs\""));
        check("1.5h", Err("unknown unit \".5h\""));
        check("99999999999999999999s", Err("too long; the longest is 52124d"));
        check("52125d", Err("too long"));
    }
}
