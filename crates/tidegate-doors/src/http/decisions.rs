//! The latest decisions on one key, where its limiter keeps them.

use super::bounds::{TOP_KEYS_DEFAULT, TOP_KEYS_MAX};
use super::door::Door;
use super::limiters::name;
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::query;
use super::reply::{Reply, json_reply, seconds};
use tidegate::{Decided, Reason, Verdict};

pub(crate) fn answer(door: &Door, limiter: &str, key: &str, query: Option<&str>) -> Result<Reply, Problem> {
    let [most] = query::read(query, ["n"])?;
    let most = match most.as_deref() {
        None => TOP_KEYS_DEFAULT,
        Some(text) => query::number(text, "n", 1, TOP_KEYS_MAX as u64)?.try_into().unwrap_or(TOP_KEYS_MAX),
    };
    let (limiter, key) = (name(limiter)?, decode(key, Plus::Plus, "key")?);
    let Some(latest) = door.gate.latest_decisions(&limiter, &key, most)? else {
        let detail = format!("limiter \"{limiter}\" keeps no decisions; set last_decisions = 1000 to see the latest");
        return Err(Problem::new(501, "not_kept", detail));
    };
    let latest: Vec<String> = latest.iter().map(decided).collect();
    Ok(json_reply(format!("{{\"decisions\":[{}]}}", latest.join(","))))
}

fn decided(Decided { at, cost, ruling }: &Decided) -> String {
    let decision = &ruling.decision;
    let retry_after = match decision.verdict {
        Verdict::Deny { retry_after: Some(wait) } => wait.as_millis_ceil().to_string(),
        _ => "null".to_owned(),
    };
    format!(
        "{{\"at\":{},\"allowed\":{},\"reason\":\"{}\",\"cost\":{cost},\"limit\":{},\"remaining\":{},\"retry_after_ms\":{retry_after}}}",
        seconds(*at),
        ruling.is_allowed(),
        Reason::from(ruling.reason).as_str(),
        decision.limit,
        decision.remaining,
    )
}
