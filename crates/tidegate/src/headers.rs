//! An answer in HTTP's words: the RateLimit fields, Retry-After, and the members of its JSON body.
//!
//! Plain texts, no HTTP types: the HTTP door and the tower layer send the same ones. Names in them
//! are limiter names (`A–Z a–z 0–9 _ . -`), so nothing needs escaping.
//! Invariant: Retry-After is never earlier than the end of `t`; both are the same number.

use crate::{Answer, LimiterSpec, OnFailure, Reason};
use tidegate_core::Micros;

/// The type of the problem that a denial is (RFC 9457, registered by the RateLimit draft).
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The type of the problem that a denial without the store is: no quota is known to be exceeded (from the same draft).
pub const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The header fields of an answer, as in draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RateLimitHeaders {
    /// `RateLimit-Policy`: one item for each limit of the limiter that decided, `"name";q=100;w=60`.
    pub policy: String,
    /// `RateLimit`: the limit that decided, `"name";r=0;t=30`.
    pub rate_limit: String,
    /// `Retry-After` in whole seconds, on a denial that waiting can cure.
    pub retry_after: Option<String>,
}

impl RateLimitHeaders {
    /// The fields, or `None` when no limit was asked (no limiter applied, or it is disabled).
    ///
    /// ```
    /// use tidegate::{Algorithm, Gate, LimiterSpec, Policy, RateLimitHeaders, Rules};
    /// let rules = Rules::new(Algorithm::SlidingLog, &["1 per minute".parse()?, "500 per hour".parse()?])?;
    /// let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
    /// let headers = RateLimitHeaders::of(&gate.hit("api", "u1")?).unwrap();
    /// assert_eq!(headers.policy, r#""api";q=1;w=60, "api-2";q=500;w=3600"#);
    /// assert_eq!(headers.rate_limit, r#""api";r=0;t=60"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of(answer: &Answer) -> Option<RateLimitHeaders> {
        let (mut policy, mut rate_limit) = (String::with_capacity(64), String::with_capacity(48));
        push_policy(&mut policy, answer);
        push_rate_limit(&mut rate_limit, answer);
        let retry_after = retry_after_s(answer).map(|s| s.to_string());
        (!policy.is_empty()).then_some(RateLimitHeaders { policy, rate_limit, retry_after })
    }
}

/// Writes the value of `RateLimit-Policy`, or nothing when no limit was asked.
pub fn push_policy(text: &mut String, answer: &Answer) {
    let Some((limiter, _)) = asked(answer) else { return };
    for (index, limit) in limiter.rules.limits().iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        push_policy_name(text, limiter, index);
        text.push_str(";q=");
        push_number(text, u64::from(limit.count()));
        text.push_str(";w=");
        push_number(text, limit.period().as_secs_ceil());
    }
}

/// Writes the value of `RateLimit`, or nothing when no limit was asked.
pub fn push_rate_limit(text: &mut String, answer: &Answer) {
    let Some((limiter, remaining)) = asked(answer) else { return };
    push_policy_name(text, limiter, answer.limit_index);
    text.push_str(";r=");
    push_number(text, u64::from(remaining));
    // Until a denied request can pass, or until an allowed one is forgotten.
    let wait = if answer.allowed { answer.reset_after } else { answer.retry_after };
    if let Some(wait) = wait {
        text.push_str(";t=");
        push_number(text, wait.as_secs_ceil());
    }
}

/// The value of `Retry-After`, on a denial that waiting can cure.
#[must_use]
pub fn retry_after_s(answer: &Answer) -> Option<u64> {
    answer.retry_after.filter(|_| !answer.allowed).map(Micros::as_secs_ceil)
}

fn asked(answer: &Answer) -> Option<(&LimiterSpec, u32)> {
    Some((answer.limiter.as_deref()?, answer.remaining?))
}

/// The quoted name of one limit: the limiter's, then `name-2`…
fn push_policy_name(text: &mut String, limiter: &LimiterSpec, index: usize) {
    text.push('"');
    text.push_str(&limiter.name);
    if index > 0 {
        text.push('-');
        push_number(text, index as u64 + 1);
    }
    text.push('"');
}

/// Writes `"allowed":true,"limiter":"api",…,"reason":"ok"`: the members of every answer's body.
pub fn push_answer_members(text: &mut String, answer: &Answer) {
    text.push_str(if answer.allowed { "\"allowed\":true,\"limiter\":" } else { "\"allowed\":false,\"limiter\":" });
    match &answer.limiter {
        Some(limiter) => {
            text.push('"');
            text.push_str(&limiter.name);
            text.push('"');
        }
        None => text.push_str("null"),
    }
    text.push_str(",\"limit\":");
    push_number_or_null(text, answer.limit.map(u64::from));
    text.push_str(",\"remaining\":");
    push_number_or_null(text, answer.remaining.map(u64::from));
    text.push_str(",\"retry_after_ms\":");
    push_number_or_null(text, answer.retry_after.filter(|_| !answer.allowed).map(Micros::as_millis_ceil));
    text.push_str(",\"reset_after_ms\":");
    push_number_or_null(text, answer.reset_after.map(Micros::as_millis_ceil));
    text.push_str(",\"reason\":\"");
    text.push_str(answer.reason.as_str());
    text.push('"');
}

/// Writes `"type":…,"title":…,"status":429,"detail":…,"violated-policies":[…]`: what a denial's
/// body holds besides the answer's members.
pub fn push_problem_members(text: &mut String, answer: &Answer, status: u16) {
    let (problem, title) = match answer.reason {
        Reason::Degraded => {
            (REDUCED_CAPACITY, "Request cannot be satisfied due to temporary server capacity constraints")
        }
        _ => (QUOTA_EXCEEDED, "Request cannot be satisfied as assigned quota has been exceeded"),
    };
    text.push_str("\"type\":\"");
    text.push_str(problem);
    text.push_str("\",\"title\":\"");
    text.push_str(title);
    text.push_str("\",\"status\":");
    push_number(text, u64::from(status));
    text.push_str(",\"detail\":\"");
    push_detail(text, answer);
    text.push_str("\",\"violated-policies\":[");
    if answer.reason != Reason::Degraded {
        push_violated(text, answer);
    }
    text.push(']');
}

/// The names of all limits that deny, where the answer has every limiter that matched; otherwise of the one that decided.
fn push_violated(text: &mut String, answer: &Answer) {
    let before = text.len();
    for explained in answer.explanation.iter().filter(|explained| explained.enabled && !explained.candidate) {
        let denies = |index: &usize| !explained.limits[*index].1.verdict.is_allowed();
        let violated: Vec<usize> = (0..explained.limits.len()).filter(denies).collect();
        let is_blocked = violated.is_empty() && explained.blocked_until.is_some();
        let blocking = is_blocked.then_some(if explained.decided { answer.limit_index } else { 0 });
        for index in violated.into_iter().chain(blocking) {
            if text.len() > before {
                text.push(',');
            }
            push_policy_name(text, &explained.limiter, index);
        }
    }
    if let Some(limiter) = answer.limiter.as_ref().filter(|_| text.len() == before) {
        push_policy_name(text, limiter, answer.limit_index);
    }
}

/// One sentence for people, free of characters that JSON escapes.
fn push_detail(text: &mut String, answer: &Answer) {
    let Some(limiter) = &answer.limiter else {
        return text.push_str("the request is denied");
    };
    let is_local = answer.degraded == Some(OnFailure::Local);
    if answer.reason == Reason::Degraded {
        text.push_str("the store does not answer, and ");
    }
    text.push_str("limiter ");
    text.push_str(&limiter.name);
    text.push_str(match answer.reason {
        Reason::Blocked => " blocks this key",
        Reason::CostAboveLimit => " never allows this cost: ",
        Reason::Degraded if is_local => " has a smaller share than this cost on this server: ",
        Reason::Degraded => " denies until it does",
        _ => " allows ",
    });
    let shows_limit = match answer.reason {
        Reason::Blocked => false,
        Reason::Degraded => is_local,
        _ => true,
    };
    if let Some(limit) = limiter.rules.limits().get(answer.limit_index).filter(|_| shows_limit) {
        text.push_str(&limit.to_string());
    }
    // A cost above the whole limit has nothing to do with the store.
    if is_local && !matches!(answer.reason, Reason::Degraded | Reason::CostAboveLimit) {
        text.push_str(" on this server while the store does not answer");
    }
    match answer.retry_after {
        Some(wait) => {
            text.push_str("; try again in ");
            push_number(text, wait.as_millis_ceil());
            text.push_str(" ms");
        }
        None if answer.reason == Reason::Blocked => text.push_str("; waiting does not help"),
        None => text.push_str("; waiting does not help, ask for less"),
    }
}

fn push_number_or_null(text: &mut String, number: Option<u64>) {
    match number {
        Some(number) => push_number(text, number),
        None => text.push_str("null"),
    }
}

/// Without the formatting machinery: this runs several times for every request.
fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_core::{Algorithm, Rules};

    fn limiter(limits: &[&str]) -> Arc<LimiterSpec> {
        let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
        Arc::new(LimiterSpec::new("api", Rules::new(Algorithm::SlidingLog, &limits).unwrap()))
    }

    fn denied(limits: &[&str], limit_index: usize, retry_after: Option<u64>) -> Answer {
        Answer {
            allowed: false,
            reason: if retry_after.is_some() { Reason::Limited } else { Reason::CostAboveLimit },
            limiter: Some(limiter(limits)),
            limit_index,
            limit: Some(3),
            remaining: Some(2),
            retry_after: retry_after.map(Micros::saturating),
            reset_after: Some(Micros::saturating(2_500_001)),
            at: Micros::ZERO,
            alternative: false,
            degraded: None,
            explanation: Vec::new(),
        }
    }

    #[track_caller]
    fn check(answer: &Answer, policy: &str, rate_limit: &str, retry_after: Option<&str>) {
        let headers = RateLimitHeaders::of(answer).unwrap();
        assert_eq!(headers.policy, policy);
        assert_eq!(headers.rate_limit, rate_limit);
        assert_eq!(headers.retry_after.as_deref(), retry_after);
    }

    #[test]
    fn waits_are_rounded_up_and_retry_after_is_the_end_of_t() {
        let limits = &["3 per 1500ms", "500 per hour"];
        let policy = r#""api";q=3;w=2, "api-2";q=500;w=3600"#;
        check(&denied(limits, 0, Some(1)), policy, r#""api";r=2;t=1"#, Some("1"));
        check(&denied(limits, 1, Some(1_000_001)), policy, r#""api-2";r=2;t=2"#, Some("2"));
        check(&denied(limits, 0, None), policy, r#""api";r=2"#, None);
        let allowed = Answer { allowed: true, reason: Reason::Ok, ..denied(limits, 0, None) };
        check(&allowed, policy, r#""api";r=2;t=3"#, None);
        check(&denied(&["3 per 1ms"], 0, Some(999)), r#""api";q=3;w=1"#, r#""api";r=2;t=1"#, Some("1"));
    }

    #[test]
    fn no_fields_when_no_limit_was_asked() {
        let disabled = Answer { limit: None, remaining: None, ..denied(&["3 per day"], 0, None) };
        assert_eq!(RateLimitHeaders::of(&disabled), None);
        assert_eq!(RateLimitHeaders::of(&Answer { limiter: None, ..disabled }), None);
    }

    #[test]
    fn bodies_are_the_answer_and_the_problem() {
        let mut text = String::new();
        push_answer_members(&mut text, &denied(&["3 per day"], 0, Some(1_001)));
        assert_eq!(
            text,
            r#""allowed":false,"limiter":"api","limit":3,"remaining":2,"retry_after_ms":2,"reset_after_ms":2501,"reason":"limited""#
        );
        let mut text = String::new();
        push_problem_members(&mut text, &denied(&["3 per day"], 0, None), 429);
        assert!(text.contains("never allows this cost: 3 per 1d; waiting does not help, ask for less"), "{text}");
        assert!(text.ends_with(r#""violated-policies":["api"]"#), "{text}");
    }

    /// A denial because the store was down said that the cost could never pass.
    #[test]
    fn a_degraded_denial_says_so_why_and_when_to_try_again() {
        let check = |reason, mode, retry_after: Option<u64>, detail: &str, policies: &str| {
            let answer = Answer { reason, degraded: Some(mode), ..denied(&["3 per day"], 0, retry_after) };
            let mut text = String::new();
            push_problem_members(&mut text, &answer, 429);
            assert!(text.contains(&format!("\"detail\":\"{detail}\"")), "{text}");
            assert!(text.ends_with(&format!("\"violated-policies\":[{policies}]")), "{text}");
            assert_eq!(text.contains("temporary-reduced-capacity"), reason == Reason::Degraded, "{text}");
        };
        let down = "the store does not answer";
        let denies = format!("{down}, and limiter api denies until it does; try again in 1000 ms");
        check(Reason::Degraded, OnFailure::Deny, Some(1_000_000), &denies, "");
        let small = format!(
            "{down}, and limiter api has a smaller share than this cost on this server: 3 per 1d; try again in 1000 ms"
        );
        check(Reason::Degraded, OnFailure::Local, Some(1_000_000), &small, "");
        let limited = format!("limiter api allows 3 per 1d on this server while {down}; try again in 2 ms");
        check(Reason::Limited, OnFailure::Local, Some(2_000), &limited, "\"api\"");
        let blocked = format!("limiter api blocks this key on this server while {down}; try again in 2 ms");
        check(Reason::Blocked, OnFailure::Local, Some(2_000), &blocked, "\"api\"");
        let never = "limiter api never allows this cost: 3 per 1d; waiting does not help, ask for less";
        check(Reason::CostAboveLimit, OnFailure::Local, None, never, "\"api\"");
    }

    #[test]
    fn numbers_of_every_length() {
        for number in [0, 9, 10, 1_234_567, u64::MAX] {
            let mut text = String::new();
            push_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
    }
}
