//! Changes by hand: done, noted in the audit, answered; in this order. What is refused is no change, and is not noted.

use super::bounds;
use super::client::Client;
use super::json::shorten;
use super::keys::BlockFor;
use super::limiters::name;
use super::overrides::NewLimits;
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::query;
use super::reply::{Reply, json_reply, seconds};
use crate::access::Caller;
use crate::audit::{AuditPage, Change, REASON_LEN_MAX};
use http::HeaderMap;
use std::sync::Arc;
use tidegate::{AskError, Gate};

/// The header field in which a caller says why, percent-encoded where it is not ASCII. Every change takes it.
const REASON_FIELD: &str = "tidegate-reason";

/// What a route changes.
pub(crate) enum Operation {
    Enable,
    Disable,
    Block(BlockFor),
    Unblock,
    UnblockAll,
    Override(NewLimits),
    ClearOverride,
}

/// What became of it: the answer's body, and the same in words.
type Done = (String, String);

/// Does it, and notes it. `limiter` and `key` are still percent-encoded.
pub(crate) async fn run(
    client: &Client,
    caller: &Caller,
    headers: &HeaderMap,
    mut operation: Operation,
    limiter: &str,
    key: &str,
) -> Result<Reply, Problem> {
    let (limiter, key) = (name(limiter)?, decode(key, Plus::Plus, "key")?.into_owned());
    let mut why = reason(headers)?;
    match &mut operation {
        Operation::Block(BlockFor { reason, .. }) => why = reason.take().or(why),
        // Its reason is kept with it, too.
        Operation::Override(NewLimits { reason, .. }) => {
            why = reason.take().or(why);
            reason.clone_from(&why);
        }
        _ => {}
    }
    let (gate, audit) = (client.door.gate.clone(), Arc::clone(&client.door.settings.audit));
    let who = caller.to_string();
    // A task of its own: a change whose client has left meanwhile is noted, too.
    let changing = tokio::spawn(async move {
        let outcome = operation.change(&gate, &limiter, &key).await;
        let detail = match &outcome {
            Ok((_, detail)) => detail.clone(),
            Err(AskError::Store(error)) if error.is_ambiguous() => {
                "not known if it was done: the store did not answer".to_owned()
            }
            Err(_) => return outcome,
        };
        let key = (!key.is_empty()).then_some(key);
        let change = Change { who, what: operation.name(), limiter: Some(limiter), key, detail, why };
        audit.note(gate.now(), &change).await;
        outcome
    });
    match changing.await {
        Ok(outcome) => Ok(json_reply(outcome?.0)),
        Err(_) => Err(Problem::new(
            500,
            "internal",
            "the change failed, and it is not known if it was made; the server stops",
        )),
    }
}

impl Operation {
    /// As the command is called.
    const fn name(&self) -> &'static str {
        match self {
            Operation::Enable => "enable",
            Operation::Disable => "disable",
            Operation::Block(_) => "block",
            Operation::Unblock => "unblock",
            Operation::UnblockAll => "unblock-all",
            Operation::Override(_) => "override",
            Operation::ClearOverride => "clear-override",
        }
    }

    async fn change(&self, gate: &Gate, limiter: &str, key: &[u8]) -> Result<Done, AskError> {
        let (all, one) = (gate.actions(limiter), gate.action(limiter, key));
        Ok(match self {
            Operation::Enable => {
                all.enable().await?;
                (format!("{{\"limiter\":\"{limiter}\",\"enabled\":true}}"), String::new())
            }
            Operation::Disable => {
                all.disable().await?;
                (format!("{{\"limiter\":\"{limiter}\",\"enabled\":false}}"), String::new())
            }
            Operation::UnblockAll => {
                let unblocked = all.unblock_all().await?;
                (format!("{{\"unblocked\":{unblocked}}}"), format!("unblocked: {unblocked}"))
            }
            Operation::Unblock => {
                let unblocked = one.unblock().await?;
                (format!("{{\"unblocked\":{unblocked}}}"), format!("unblocked: {unblocked}"))
            }
            Operation::Override(NewLimits { limits, span, reason }) => {
                let until = gate.set_override(limiter, key, limits, *span, reason.as_deref()).await?;
                let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
                let lasts = span.map_or(String::new(), |span| format!(" for {span}"));
                let until = until.map_or("null".to_owned(), seconds);
                (format!("{{\"until\":{until}}}"), format!("{}{lasts}", limits.join(", ")))
            }
            Operation::ClearOverride => {
                let cleared = gate.clear_override(limiter, key).await?;
                (format!("{{\"cleared\":{cleared}}}"), format!("cleared: {cleared}"))
            }
            Operation::Block(BlockFor { span, .. }) => {
                let until = one.block_for(*span).await?;
                (format!("{{\"blocked_until\":{}}}", seconds(until)), format!("for {span}"))
            }
        })
    }
}

/// The reason in the header, if there is one.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(REASON_FIELD) else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad_reason("it is not ASCII; percent-encode it", String::new()))?;
    let decoded = decode(text, Plus::Plus, REASON_FIELD)?;
    match std::str::from_utf8(&decoded) {
        Ok(reason) => checked(reason).map(Some),
        Err(_) => Err(bad_reason("it is not UTF-8; percent-encode a text", shorten(text))),
    }
}

/// A reason of a body.
pub(crate) fn checked(reason: &str) -> Result<String, Problem> {
    if reason.len() <= REASON_LEN_MAX {
        return Ok(reason.to_owned());
    }
    let what = format!("it has {} bytes; at most {REASON_LEN_MAX} are kept, so write a shorter one", reason.len());
    Err(bad_reason(&what, shorten(reason)))
}

fn bad_reason(what: &str, value: String) -> Problem {
    Problem::new(400, "bad_reason", format!("the reason is not taken: {what}")).field("reason").value(value)
}

/// A page of the audit, newest first.
pub(crate) fn audit(client: &Client, query: Option<&str>) -> Result<Reply, Problem> {
    let [most, before] = query::read(query, ["most", "before"])?;
    let most = match most.as_deref() {
        None => bounds::PAGE_KEYS_DEFAULT,
        Some(text) => {
            query::number(text, "most", 1, bounds::PAGE_KEYS_MAX as u64)?.try_into().unwrap_or(bounds::PAGE_KEYS_MAX)
        }
    };
    let before = before.as_deref().map(|text| query::number(text, "before", 1, u64::MAX)).transpose()?;
    let audit = &client.door.settings.audit;
    let AuditPage { entries, next } = audit.page(before, most);
    let mut body = format!("{{\"kept\":{},\"entries\":[", audit.is_kept());
    body.push_str(&entries.join(","));
    body.push_str("],\"next\":");
    body.push_str(&next.map_or("null".to_owned(), |next| next.to_string()));
    body.push('}');
    Ok(json_reply(body))
}
