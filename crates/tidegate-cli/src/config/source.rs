//! Where a setting was written: the file, or an environment variable; and how an error shows it.
//!
//! Positions are byte spans into one of a few texts. Only here do they become lines, columns and
//! carets. Columns count characters, from 1, as editors do.

use std::fmt::Write as _;

/// A span of bytes in one of the sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) source: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A text that settings come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The configuration file, by the name the user gave.
    File { name: String, text: String },
    /// One environment variable.
    Variable { name: String, text: String },
}

/// Most characters of a line that an error shows; longer lines are cut around the caret.
const EXCERPT_MAX: usize = 120;

impl Source {
    pub(crate) fn text(&self) -> &str {
        match self {
            Source::File { text, .. } | Source::Variable { text, .. } => text,
        }
    }

    /// `tidegate.toml:12:8`, or the variable's name.
    pub(crate) fn label(&self, place: Place) -> String {
        match self {
            Source::File { name, text } => {
                let spot = Spot::of(text, place);
                format!("{name}:{}:{}", spot.line_number, spot.column)
            }
            Source::Variable { name, .. } => format!("environment variable {name}"),
        }
    }

    /// The line of the place, and a caret line under it.
    pub(crate) fn excerpt(&self, place: Place) -> String {
        match self {
            Source::File { text, .. } => {
                let spot = Spot::of(text, place);
                spot.draw(&spot.line_number.to_string())
            }
            Source::Variable { name, text } => {
                let line = format!("{name}={text}");
                let shift = name.len() + 1;
                let moved = Place { start: place.start + shift, end: place.end + shift, ..place };
                Spot::of(&line, moved).draw(" ")
            }
        }
    }
}

/// A place as people see it.
struct Spot<'a> {
    line_number: usize,
    column: usize,
    carets: usize,
    line: &'a str,
}

impl<'a> Spot<'a> {
    fn of(text: &'a str, place: Place) -> Spot<'a> {
        let start = char_boundary(text, place.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let end = char_boundary(text, place.end).clamp(start, line_end);
        Spot {
            line_number: 1 + text[..start].matches('\n').count(),
            column: 1 + text[line_start..start].chars().count(),
            carets: text[start..end].chars().count().max(1),
            line: text[line_start..line_end].trim_end_matches('\r'),
        }
    }

    fn draw(&self, number: &str) -> String {
        let skipped = self.column.saturating_sub(EXCERPT_MAX / 2);
        let shown: String = self.line.chars().skip(skipped).take(EXCERPT_MAX).map(printable).collect();
        let carets = self.carets.min((EXCERPT_MAX + skipped + 1).saturating_sub(self.column)).max(1);
        let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(self.column - 1 - skipped));
        let mut out = String::new();
        let _ = writeln!(out, " {gutter} |");
        let _ = writeln!(out, "{}", format!(" {number} | {shown}").trim_end());
        let _ = write!(out, " {gutter} | {indent}{}", "^".repeat(carets));
        out
    }
}

/// The last boundary of a character up to `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Tabs take one column, so that the caret stands right; nothing here steers a terminal.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, start: usize, end: usize, label: &str, excerpt: &str) {
        let source = Source::File { name: "f".into(), text: text.into() };
        let place = Place { source: 0, start, end };
        assert_eq!(source.label(place), label);
        assert_eq!(source.excerpt(place), excerpt);
    }

    #[test]
    fn the_caret_stands_under_the_value() {
        check("a = 1\r\nb = 22\r\n", 11, 13, "f:2:5", "   |\n 2 | b = 22\n   |     ^^");
        check("\u{e9}\tb", 3, 4, "f:1:3", "   |\n 1 | \u{e9} b\n   |   ^");
        check("a = \"\"\"\nx\"\"\"", 4, 12, "f:1:5", "   |\n 1 | a = \"\"\"\n   |     ^^^");
        check("a", 1, 1, "f:1:2", "   |\n 1 | a\n   |  ^");
        check("", 0, 0, "f:1:1", "   |\n 1 |\n   | ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let text = "x".repeat(100_000);
        let source = Source::File { name: "f".into(), text };
        let excerpt = source.excerpt(Place { source: 0, start: 50_000, end: 90_000 });
        assert!(excerpt.lines().all(|line| line.chars().count() < 140), "{excerpt}");
    }
}
