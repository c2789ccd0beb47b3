//! What was found, as text for people at a terminal and as JSON for machines.

use super::picture::range;
use super::{Found, Subject, Traffic};
use crate::human::{self, Align, Columns};
use std::fmt::Write as _;
use tidegate::Micros;

/// Everything that there is to tell.
pub(super) struct Findings<'a> {
    pub(super) input: &'a str,
    pub(super) subject: &'a Subject,
    pub(super) traffic: &'a Traffic,
    pub(super) found: &'a [Found],
    pub(super) skipped: u64,
}

/// How wide the longest bar is, in characters.
const BAR: u64 = 40;

impl Findings<'_> {
    /// `access.log: 1,000 requests of 52 keys by ip, over 1 hour`.
    pub(super) fn headline(&self) -> String {
        let (first, last) = self.traffic.span.unwrap_or_default();
        let by = match &self.subject.limiter {
            Some(name) => format!("of limiter {name}"),
            None => format!("by {}", self.subject.what()),
        };
        format!(
            "{} of {} {by}, over {}",
            human::plural(self.traffic.requests(), "request"),
            human::plural(self.traffic.keys() as u64, "key"),
            human::duration_ms(last.saturating_sub(first).as_millis_ceil())
        )
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!("{}: {}\n", self.input, self.headline());
        if self.skipped > 0 {
            let _ = writeln!(out, "{} lines could not be read and were passed over", human::count(self.skipped));
        }
        for found in self.found {
            let _ = write!(out, "\n{}\n{}", distribution(found), self.suggestions(found));
        }
        if let Some(first) = self.found.first().and_then(|found| found.suggestions.first()) {
            let _ = write!(
                out,
                "\nThe first of them, for the file; tidegate simulate --config FILE shows what it does:\n\n{}",
                self.subject.toml(first)
            );
        }
        out
    }

    fn suggestions(&self, found: &Found) -> String {
        let columns = [
            ("AT MOST", Align::Right),
            ("ALGORITHM", Align::Left),
            ("LIMIT", Align::Left),
            ("KEYS AFFECTED", Align::Right),
            ("OF ALL", Align::Right),
            ("REQUESTS DENIED", Align::Right),
            ("OF ALL", Align::Right),
        ];
        let mut table = Columns::new(&columns);
        for one in &found.suggestions {
            table.row([
                one.share.to_string(),
                one.algorithm.name().to_owned(),
                one.limit(),
                human::count(one.keys_affected),
                percent(one.keys_affected, self.traffic.keys() as u64),
                human::count(one.requests_denied),
                percent(one.requests_denied, self.traffic.requests()),
            ]);
        }
        table.to_string()
    }

    pub(super) fn json(&self) -> String {
        let suggestion = |found: &Found, one: &super::Suggestion| {
            serde_json::json!({
                "algorithm": one.algorithm.name(),
                "limit": one.limit(),
                "per": found.per.to_string(),
                "share": one.share.to_string().replace(' ', ""),
                "keys_affected": one.keys_affected,
                "requests_denied": one.requests_denied,
                "limiter": self.subject.toml(one),
            })
        };
        let suggestions: Vec<_> = self
            .found
            .iter()
            .flat_map(|found| found.suggestions.iter().map(move |one| suggestion(found, one)))
            .collect();
        let distribution = |found: &Found| {
            let ranges: Vec<_> = found
                .picture
                .ranges
                .iter()
                .map(|(from, to, keys)| serde_json::json!({"from": from, "to": to, "keys": keys}))
                .collect();
            serde_json::json!({"per": found.per.to_string(), "ranges": ranges, "most": found.picture.most})
        };
        let distributions: Vec<_> = self.found.iter().map(distribution).collect();
        serde_json::json!({
            "input": self.input,
            "requests": self.traffic.requests(),
            "keys": self.traffic.keys(),
            "distributions": distributions,
            "suggestions": suggestions,
        })
        .to_string()
    }
}

fn distribution(found: &Found) -> String {
    let mut out = format!("Keys by the most requests that each made within {}:\n\n", spelled(found.per));
    let ranges = &found.picture.ranges;
    let width = ranges.iter().map(|(from, to, _)| range(*from, *to).chars().count()).max().unwrap_or(0);
    let all = ranges.iter().map(|(.., keys)| keys).sum();
    for (from, to, keys) in ranges {
        let _ = writeln!(
            out,
            "  {:>width$}  {:<40}  {} ({})",
            range(*from, *to),
            bar(*keys, found.picture.fullest()),
            human::count(*keys),
            percent(*keys, all)
        );
    }
    let [half, ninety, ninety_nine, thousandth] = found.picture.quantiles;
    let quantiles =
        [half, ninety, ninety_nine, thousandth].map(|(name, count)| format!("{name} at most {}", human::count(count)));
    let _ = writeln!(out, "\n  {}; the busiest {}", quantiles.join(", "), human::count(found.picture.most));
    out
}

/// `1 minute`.
pub(super) fn spelled(per: Micros) -> String {
    human::duration_ms(per.as_millis_ceil())
}

/// A bar of block characters, by eighths; a count that is there is never invisible.
fn bar(count: u64, fullest: u64) -> String {
    const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
    if count == 0 {
        return String::new();
    }
    let eighths = (count * BAR * 8 / fullest).max(1);
    let mut out = "█".repeat(usize::try_from(eighths / 8).unwrap_or(0));
    if !eighths.is_multiple_of(8) {
        out.push(EIGHTHS[usize::try_from(eighths % 8 - 1).unwrap_or(0)]);
    }
    out
}

/// `0.12 %`: shares here are small.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let hundredths = (part * 10_000 + whole / 2) / whole;
    match hundredths {
        0 => "0.01 %".to_owned(),
        10_000 => "100 %".to_owned(),
        n => format!("{}.{:02} %", n / 100, n % 100),
    }
}
