//! Scenarios as text: one line a request, through one `check`, for every algorithm.
//!
//! `AT COST -> allow|deny [left=N] [reset=US] [retry=US|never] [limit=N]`, or `limit TEXT` to
//! change the limit from there on.

use crate::{Decision, Limit, Meter, Micros, Verdict};

#[track_caller]
pub(crate) fn check<M: Meter + Default>(limit: &str, script: &str) {
    let mut limit: Limit = limit.parse().unwrap();
    let mut state = M::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(text) = line.strip_prefix("limit ") {
            limit = text.parse().unwrap();
            continue;
        }
        let (request, expected) = line.split_once("->").unwrap();
        let numbers: Vec<u64> = request.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let now = Micros::new(numbers[0]).unwrap();
        let decision = state.decide(&limit, now, u32::try_from(numbers[1]).unwrap());
        for word in expected.split_whitespace() {
            assert!(says(&decision, word), "{line}\n   but got {decision:?}");
        }
    }
}

fn says(decision: &Decision, word: &str) -> bool {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let retry = match decision.verdict {
        Verdict::Allow => None,
        Verdict::Deny { retry_after: None } => Some("never".to_owned()),
        Verdict::Deny { retry_after: Some(wait) } => Some(wait.get().to_string()),
    };
    match name {
        "allow" => decision.verdict.is_allowed(),
        "deny" => !decision.verdict.is_allowed(),
        "left" => decision.remaining.to_string() == value,
        "reset" => decision.reset_after.get().to_string() == value,
        "limit" => decision.limit.to_string() == value,
        "retry" => retry.as_deref() == Some(value),
        _ => panic!("unknown expectation {word}"),
    }
}
