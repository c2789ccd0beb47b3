//! Numbers, durations, keys and tables as people like to read them.

use std::fmt;
use tidegate::Replicas;

/// `1,234,567`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `12.3 %`; a share that is there never shows as none, and one that is not whole never as all.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let tenths = ((part * 1_000 + whole / 2) / whole).clamp(1, 999);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A duration in its two largest units: `1 hour 30 minutes`, `250 ms`. Rounded up.
pub(crate) fn duration_ms(ms: u64) -> String {
    const UNITS: [(&str, u64); 5] =
        [("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    if ms < 10_000 && !ms.is_multiple_of(1_000) {
        let tenths = ms.div_ceil(100);
        return format!("{}.{} seconds", tenths / 10, tenths % 10);
    }
    let seconds = ms.div_ceil(1_000);
    let first = UNITS.iter().position(|(_, size)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let (name, size) = UNITS[first];
    let rest = UNITS.get(first + 1).map_or(0, |(_, smaller)| (seconds % size).div_ceil(*smaller));
    match UNITS.get(first + 1) {
        Some((smaller, small)) if rest > 0 && rest * small < size => {
            format!("{} {}", plural(seconds / size, name), plural(rest, smaller))
        }
        Some(_) if rest > 0 => plural(seconds / size + 1, name),
        _ => plural(seconds / size, name),
    }
}

/// `1 key`, `2 keys`.
pub(crate) fn plural(n: u64, word: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {word}{s}", count(n))
}

/// `3 limiters`, `1 limiter, 2 UDP routes, 1 stream`.
pub(crate) fn policy(config: &crate::config::Config) -> String {
    let limiters = plural(config.policy.limiters().len() as u64, "limiter");
    let others = [(config.udp.routes.len(), "UDP route"), (config.streams.len(), "stream")];
    let others = others.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!(", {}", plural(*n as u64, word)));
    limiters + &others.collect::<String>()
}

/// With whom the starts of a proxy are counted: `counted with all replicas at redis://…`. `shared` is the address of a store
/// that several processes share.
pub(crate) fn counted_with(replicas: Replicas, shared: Option<&str>) -> String {
    match (replicas, shared) {
        (Replicas::Share(Some((rank, of))), _) => format!("of which this one has part {} of {of}", rank + 1),
        (_, None) => "counted in this process alone".to_owned(),
        (Replicas::Exact, Some(store)) => format!("counted with all replicas at {store}"),
        (Replicas::Share(None), Some(store)) => format!("shared with the replicas at {store}"),
    }
}

/// `1.5 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{}.{} {unit}", n / size, n % size * 10 / size),
        None => format!("{n} B"),
    }
}

/// A key in a table, where a long one would push the other columns away.
pub(crate) fn short_key(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 60;
    let text = key(bytes);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A key that cannot steer a terminal: control characters and those that turn the direction of text are escaped, other bytes
/// than UTF-8 are `\xff`.
pub(crate) fn key(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || turns_text(c) { out.extend(c.escape_default()) } else { out.push(c) }
        }
        out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    out
}

/// Characters that change the direction of what is around them, and are not seen themselves.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// On which side a column's cells stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with aligned columns.
pub(crate) struct Columns {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Columns {
        let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        Columns { aligns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![heads] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.aligns.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.aligns) {
                line.push_str(&match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_shares() {
        assert_eq!([count(0), count(999), count(1_000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([percent(0, 0), percent(2, 3), percent(1, 1_000_000)], ["0 %", "66.7 %", "0.1 %"]);
        assert_eq!([percent(999_999, 1_000_000), percent(5, 5)], ["99.9 %", "100 %"]);
        assert_eq!([bytes(12), bytes(1536), bytes(256 << 20)], ["12 B", "1.5 KiB", "256.0 MiB"]);
    }

    #[test]
    fn durations_are_rounded_up() {
        for (ms, text) in [
            (0, "0 ms"),
            (250, "250 ms"),
            (1_000, "1 second"),
            (1_001, "1.1 seconds"),
            (9_999, "10.0 seconds"),
            (20_001, "21 seconds"),
            (60_000, "1 minute"),
            (90_000, "1 minute 30 seconds"),
            (3_600_001, "1 hour 1 minute"),
            (7_199_500, "2 hours"),
            (86_400_000, "1 day"),
            (604_800_000, "1 week"),
        ] {
            assert_eq!(duration_ms(ms), text);
        }
    }

    #[test]
    fn keys_cannot_steer_a_terminal() {
        assert_eq!(key(b"a\x1b[31m\xff\n"), "a\\u{1b}[31m\\xff\\n");
        assert_eq!(key("grüße".as_bytes()), "grüße");
        assert_eq!(key("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(short_key(&[b'k'; 60]), "k".repeat(60));
        assert_eq!(short_key(&[b'k'; 61]), "k".repeat(60) + "…");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Columns::new(&[("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["a".to_owned(), "1000".to_owned()]);
        assert_eq!(table.to_string(), "NAME     N\na     1000\n");
    }
}
