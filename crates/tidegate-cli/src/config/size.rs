//! Sizes as people write them: `64MiB`.

/// Unit names and their bytes, largest first.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Parses a whole number and a binary unit.
///
/// # Errors
/// A sentence with the value and the remedy.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let shown = text.escape_debug();
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(format!("\"{shown}\" does not start with a whole number; write a size such as \"64MiB\""));
    }
    let Some(bytes) = unit_bytes(unit.trim_start()) else {
        return Err(match unit {
            "" => format!("\"{shown}\" has no unit; write \"{number}MiB\" or another of KiB, MiB, GiB, TiB"),
            _ => format!("\"{shown}\" has an unknown unit; use KiB, MiB, GiB or TiB, such as \"64MiB\""),
        });
    };
    let size = number.parse::<u64>().ok().and_then(|n| n.checked_mul(bytes));
    size.ok_or_else(|| format!("\"{shown}\" is more than a machine can have; write a size such as \"64MiB\""))
}

/// The largest unit that divides the size.
pub(crate) fn show(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size));
    unit.map_or_else(|| format!("{bytes} bytes"), |(name, size)| format!("{}{name}", bytes / size))
}

fn unit_bytes(name: &str) -> Option<u64> {
    UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, bytes)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_shows_sizes() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1KiB", 1024), ("3 GiB", 3 << 30), ("1TiB", 1 << 40)] {
            assert_eq!(parse(text), Ok(bytes));
            assert_eq!(show(bytes), text.replace(' ', ""));
        }
        assert_eq!(show(1025), "1025 bytes");
    }

    #[test]
    fn refusals_name_the_remedy() {
        for (text, part) in [
            ("", "does not start"),
            ("-1MiB", "does not start"),
            ("64", "has no unit; write \"64MiB\""),
            ("64MB", "unknown unit"),
            ("1.5GiB", "unknown unit"),
            ("99999999999TiB", "more than a machine"),
        ] {
            assert!(parse(text).unwrap_err().contains(part), "{text}");
        }
    }
}
