//! Answers for people.

use crate::calendar;
use crate::human::{self, Align, Columns};
use serde::Deserialize;
use std::fmt::Write as _;
use tidegate::Micros;

/// A decision, as the server gives it.
#[derive(Deserialize)]
pub(super) struct Answer {
    allowed: bool,
    limiter: Option<String>,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    reason: String,
    #[serde(default)]
    degraded: Option<Degraded>,
    #[serde(default)]
    explanation: Vec<Explained>,
}

/// How it was decided while the store did not answer.
#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Degraded {
    Local,
    Allow,
    Deny,
}

impl Degraded {
    /// Behind what is said otherwise.
    const fn because(self) -> &'static str {
        match self {
            Degraded::Local => "by this server alone, as the store does not answer",
            Degraded::Allow => "the store does not answer, and the limiter allows everything until it does",
            Degraded::Deny => "the store does not answer, and the limiter denies until it does",
        }
    }
}

/// What one limiter had to say.
#[derive(Deserialize)]
struct Explained {
    limiter: String,
    limits: Vec<LimitAnswer>,
}

/// What one limit had to say.
#[derive(Deserialize)]
struct LimitAnswer {
    rule: String,
    allowed: bool,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

/// `allowed: api u1, 4 of 5 left, …`, with a table of the limits when there are several.
pub(super) fn answer(whom: &str, answer: &Answer) -> String {
    let mut out = format!("{}: {whom}, ", if answer.allowed { "allowed" } else { "denied" });
    out.push_str(&because(answer));
    let limits =
        answer.explanation.iter().flat_map(|explained| explained.limits.iter().map(move |limit| (explained, limit)));
    let limits: Vec<(&Explained, &LimitAnswer)> = limits.collect();
    if limits.len() > 1 {
        let _ = write!(out, "\n\n{}", limits_table(&limits));
    }
    out
}

/// The same for a request by attributes, which says which limiter decided.
pub(super) fn answer_by_attributes(attributes: &[(String, String)], domain: Option<&str>, told: &Answer) -> String {
    let pair = |(name, value): &(String, String)| format!("{name}={}", human::key(value.as_bytes()));
    let pairs = attributes.iter().map(pair).collect::<Vec<_>>().join(" ");
    match (&told.limiter, domain) {
        (Some(limiter), _) => answer(&format!("{limiter} {pairs}"), told),
        (None, Some(domain)) => format!("allowed: {pairs}, no limiter of domain {domain} applies"),
        (None, None) => format!("allowed: {pairs}, no limiter without a domain applies"),
    }
}

fn because(answer: &Answer) -> String {
    let wait =
        answer.retry_after_ms.map_or(String::new(), |wait| format!("; try again in {}", human::duration_ms(wait)));
    match (answer.degraded, answer.reason.as_str()) {
        (Some(Degraded::Local), "degraded") => {
            format!("the store does not answer, and this server's share of the limit is less than the cost{wait}")
        }
        (Some(mode), "degraded") => format!("{}{wait}", mode.because()),
        (Some(mode), _) => format!("{} ({})", by_limits(answer), mode.because()),
        (None, _) => by_limits(answer),
    }
}

fn by_limits(answer: &Answer) -> String {
    let left = match (answer.remaining, answer.limit) {
        (Some(remaining), Some(limit)) => format!("{} of {} left", human::count(remaining), human::count(limit)),
        _ => "no limit applies".to_owned(),
    };
    match (answer.reason.as_str(), answer.retry_after_ms, answer.reset_after_ms) {
        ("disabled", ..) => "the limiter is disabled and counts nothing".to_owned(),
        ("cost_above_limit", ..) => {
            format!("the cost is above the limit of {} and can never pass", human::count(answer.limit.unwrap_or(0)))
        }
        ("blocked", Some(wait), _) => format!("blocked for another {}", human::duration_ms(wait)),
        (_, Some(wait), _) => format!("{left}; try again in {}", human::duration_ms(wait)),
        (_, None, Some(0) | None) => left,
        (_, None, Some(reset)) => format!("{left}; as new in {}", human::duration_ms(reset)),
    }
}

fn limits_table(limits: &[(&Explained, &LimitAnswer)]) -> String {
    // One limiter needs no column of its own.
    let several = limits.iter().any(|(explained, _)| explained.limiter != limits[0].0.limiter);
    let named = |explained: &Explained, rule: &str| match several {
        true => format!("{}: {rule}", explained.limiter),
        false => rule.to_owned(),
    };
    let mut table = Columns::new(&[
        ("LIMIT", Align::Left),
        ("SAYS", Align::Left),
        ("LEFT", Align::Right),
        ("TRY AGAIN IN", Align::Left),
        ("AS NEW IN", Align::Left),
    ]);
    for (explained, limit) in limits {
        table.row([
            named(explained, &limit.rule),
            if limit.allowed { "yes" } else { "no" }.to_owned(),
            human::count(limit.remaining),
            limit.retry_after_ms.map_or("-".to_owned(), human::duration_ms),
            if limit.reset_after_ms == 0 { "-".to_owned() } else { human::duration_ms(limit.reset_after_ms) },
        ]);
    }
    table.to_string()
}

/// All limiters, as the server gives them.
#[derive(Deserialize)]
pub(super) struct Limiters {
    limiters: Vec<Limiter>,
}

/// One limiter.
#[derive(Deserialize)]
struct Limiter {
    name: String,
    enabled: bool,
    algorithm: String,
    #[serde(default)]
    aligned: bool,
    limits: Vec<String>,
    domain: Option<String>,
    by: Vec<String>,
    /// Not there for a limiter whose states are in a store on other machines.
    entries: Option<u64>,
    bytes: Option<u64>,
    counts: Counts,
}

/// How decisions went.
#[derive(Deserialize)]
struct Counts {
    allowed: u64,
    denied: u64,
}

pub(super) fn limiters(all: &Limiters) -> String {
    if all.limiters.is_empty() {
        return "the policy has no limiter; add one to the configuration: [[limiter]]".to_owned();
    }
    let mut table = Columns::new(&[
        ("LIMITER", Align::Left),
        ("STATE", Align::Left),
        ("LIMITS", Align::Left),
        ("ALGORITHM", Align::Left),
        ("MET BY", Align::Left),
        ("KEYS", Align::Right),
        ("MEMORY", Align::Right),
        ("ALLOWED", Align::Right),
        ("DENIED", Align::Right),
    ]);
    for limiter in &all.limiters {
        table.row([
            limiter.name.clone(),
            if limiter.enabled { "enabled" } else { "disabled" }.to_owned(),
            limiter.limits.join(", "),
            format!("{}{}", limiter.algorithm, if limiter.aligned { ", aligned" } else { "" }),
            met_by(limiter),
            limiter.entries.map_or("-".to_owned(), human::count),
            limiter.bytes.map_or("-".to_owned(), human::bytes),
            human::count(limiter.counts.allowed),
            human::count(limiter.counts.denied),
        ]);
    }
    table.to_string()
}

fn met_by(limiter: &Limiter) -> String {
    let by = match limiter.by.as_slice() {
        [] => "name".to_owned(),
        by => by.join(" + "),
    };
    match &limiter.domain {
        Some(domain) => format!("{by} in {domain}"),
        None => by,
    }
}

pub(super) fn keys(texts: &[String], binary: &[String]) -> String {
    let lines = texts.iter().map(|key| human::key(key.as_bytes()));
    let encoded = binary.iter().map(|key| format!("{key}  (bytes, percent-encoded)"));
    lines.chain(encoded).collect::<Vec<_>>().join("\n")
}

/// What became of an increment.
#[derive(Deserialize)]
pub(super) struct Counted {
    count: u64,
    timestamp: serde_json::Number,
    counted: bool,
    #[serde(default)]
    degraded: Option<Degraded>,
}

pub(super) fn counted(limiter: &str, key: &[u8], told: &Counted) -> String {
    let (key, count, at) = (human::key(key), human::count(told.count), instant(&told.timestamp));
    let out = match told.counted {
        true => format!("counted: {limiter} {key}, {count} at {at}"),
        false => {
            format!("not counted: {limiter} {key}, {count} at {at} is nothing, too old, or the limiter is disabled")
        }
    };
    with_degraded(out, told.degraded)
}

fn with_degraded(mut out: String, degraded: Option<Degraded>) -> String {
    if let Some(mode) = degraded {
        let _ = write!(out, " ({})", mode.because());
    }
    out
}

/// What a key's counts say.
#[derive(Deserialize)]
pub(super) struct Analysis {
    status: String,
    sum: Option<u64>,
    limit: Option<String>,
    blocked_until: Option<serde_json::Number>,
    #[serde(default)]
    degraded: Option<Degraded>,
}

impl Analysis {
    pub(super) fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

pub(super) fn analysis(limiter: &str, key: &[u8], told: &Analysis) -> String {
    let mut out = format!("{}: {limiter} {}", told.status, human::key(key));
    if let (Some(sum), Some(limit)) = (told.sum, &told.limit) {
        let _ = write!(out, ", {} counted of {limit}", human::count(sum));
    }
    if let Some(until) = &told.blocked_until {
        let _ = write!(out, ", blocked until {}", instant(until));
    }
    match told.degraded {
        Some(Degraded::Deny) => format!("{out} ({}; try again in a moment)", Degraded::Deny.because()),
        mode => with_degraded(out, mode),
    }
}

/// `2026-11-15 21:39:59 UTC`, to the second.
pub(super) fn instant(seconds: &serde_json::Number) -> String {
    let seconds = seconds.as_f64().unwrap_or(0.0).max(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown to the second, saturating")]
    let (date, time) = calendar::date_and_time(Micros::from_secs(seconds as u64));
    format!("{date} {time} UTC")
}

pub(super) fn blocked(limiter: &str, key: &[u8], span: &str, until_seconds: &serde_json::Number) -> String {
    let span = tidegate::text::duration(span).map_or(span.to_owned(), |span| human::duration_ms(span.as_millis_ceil()));
    format!("blocked: {limiter} {} for {span}, until {}", human::key(key), instant(until_seconds))
}

pub(super) fn unblocked(limiter: &str, key: &[u8], was_blocked: bool) -> String {
    let key = human::key(key);
    match was_blocked {
        true => format!("unblocked: {limiter} {key}, its history is forgotten"),
        false => format!("not blocked: {limiter} {key}, its history is forgotten"),
    }
}

pub(super) fn unblocked_all(limiter: &str, count: u64) -> String {
    format!("unblocked: {limiter}, {}", human::plural(count, "key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(members: &str, expected: &str) {
        let rest = r#""limiter":"api","remaining":null,"reset_after_ms":null"#;
        let told: Answer = serde_json::from_str(&format!("{{{rest},{members}}}")).unwrap();
        assert_eq!(answer("api u1", &told), expected);
    }

    /// A denial because the store was down was shown as a cost that can never pass, an admission as "no limit applies".
    #[test]
    fn degraded_answers_say_so_why_and_when_to_try_again() {
        check(
            r#""allowed":false,"limit":null,"retry_after_ms":1000,"reason":"degraded","degraded":"deny""#,
            "denied: api u1, the store does not answer, and the limiter denies until it does; try again in 1 second",
        );
        check(
            r#""allowed":true,"limit":null,"retry_after_ms":null,"reason":"degraded","degraded":"allow""#,
            "allowed: api u1, the store does not answer, and the limiter allows everything until it does",
        );
        check(
            r#""allowed":false,"limit":5,"retry_after_ms":1000,"reason":"degraded","degraded":"local""#,
            "denied: api u1, the store does not answer, and this server's share of the limit is less than the cost; try again in 1 second",
        );
        let told: Analysis = serde_json::from_str(r#"{"status":"limited","degraded":"deny"}"#).unwrap();
        assert_eq!(
            analysis("api", b"u1", &told),
            "limited: api u1 (the store does not answer, and the limiter denies until it does; try again in a moment)"
        );
        check(
            r#""allowed":false,"limit":5,"retry_after_ms":null,"reason":"cost_above_limit""#,
            "denied: api u1, the cost is above the limit of 5 and can never pass",
        );
    }
}
