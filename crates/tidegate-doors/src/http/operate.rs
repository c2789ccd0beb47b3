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
use crate::audit::{Audit, AuditPage, Change, REASON_LEN_MAX};
use http::HeaderMap;
use std::sync::Arc;
use tidegate::{AskError, Gate, Micros};

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

/// What became of it.
pub(crate) enum Done {
    /// The limiter is enabled, or not.
    Switched(bool),
    /// The key was blocked, or not.
    Unblocked(bool),
    /// So many keys were blocked.
    UnblockedAll(u64),
    /// Until then it is blocked.
    Blocked(Micros),
    /// Until then its limits hold; `None`: until they are cleared.
    Overridden(Option<Micros>),
    /// The key had limits of its own, or not.
    Cleared(bool),
}

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
    let name = limiter.clone();
    match carry_out(gate, audit, caller, operation, limiter, key, why).await {
        Some(outcome) => Ok(json_reply(outcome?.body(&name))),
        None => Err(Problem::new(500, "internal", CHANGE_FAILED)),
    }
}

/// What is told of a change that panicked.
pub(crate) const CHANGE_FAILED: &str = "the change failed, and it is not known if it was made; the server stops";

/// Does it, and notes it, for any door; `None`: it panicked.
pub(crate) async fn carry_out(
    gate: Gate,
    audit: Arc<Audit>,
    caller: &Caller,
    operation: Operation,
    limiter: String,
    key: Vec<u8>,
    why: Option<String>,
) -> Option<Result<Done, AskError>> {
    let who = caller.to_string();
    // A task of its own: a change whose client has left meanwhile is noted, too.
    let changing = tokio::spawn(async move {
        let outcome = operation.change(&gate, &limiter, &key).await;
        let detail = match &outcome {
            Ok(done) => operation.detail(done),
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
    changing.await.ok()
}

impl Done {
    /// As the HTTP door tells it.
    fn body(&self, limiter: &str) -> String {
        match self {
            Done::Switched(enabled) => format!("{{\"limiter\":\"{limiter}\",\"enabled\":{enabled}}}"),
            Done::Unblocked(was) => format!("{{\"unblocked\":{was}}}"),
            Done::UnblockedAll(count) => format!("{{\"unblocked\":{count}}}"),
            Done::Blocked(until) => format!("{{\"blocked_until\":{}}}", seconds(*until)),
            Done::Overridden(until) => format!("{{\"until\":{}}}", until.map_or("null".to_owned(), seconds)),
            Done::Cleared(were) => format!("{{\"cleared\":{were}}}"),
        }
    }
}

impl Operation {
    /// A block of this length, without a reason.
    pub(crate) fn block(span: Micros) -> Operation {
        Operation::Block(BlockFor { span, reason: None })
    }

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
            Operation::Enable => all.enable().await.map(|_| Done::Switched(true))?,
            Operation::Disable => all.disable().await.map(|_| Done::Switched(false))?,
            Operation::UnblockAll => Done::UnblockedAll(all.unblock_all().await?),
            Operation::Unblock => Done::Unblocked(one.unblock().await?),
            Operation::Override(NewLimits { limits, span, reason }) => {
                Done::Overridden(gate.set_override(limiter, key, limits, *span, reason.as_deref()).await?)
            }
            Operation::ClearOverride => Done::Cleared(gate.clear_override(limiter, key).await?),
            Operation::Block(BlockFor { span, .. }) => Done::Blocked(one.block_for(*span).await?),
        })
    }

    /// As the audit tells it.
    fn detail(&self, done: &Done) -> String {
        match (self, done) {
            (Operation::Block(BlockFor { span, .. }), _) => format!("for {span}"),
            (Operation::Override(NewLimits { limits, span, .. }), _) => {
                let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
                let lasts = span.map_or(String::new(), |span| format!(" for {span}"));
                format!("{}{lasts}", limits.join(", "))
            }
            (_, Done::Cleared(were)) => format!("cleared: {were}"),
            (_, Done::Unblocked(was)) => format!("unblocked: {was}"),
            (_, Done::UnblockedAll(count)) => format!("unblocked: {count}"),
            (_, Done::Switched(_) | Done::Blocked(_) | Done::Overridden(_)) => String::new(),
        }
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
