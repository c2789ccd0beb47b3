//! The keys of a limiter: listing, peeking, and what a block's body says.
//!
//! A key is any bytes. In paths it is percent-encoded. In JSON a key that is UTF-8 is a string as it
//! stands, and one that is not goes by another name, `binary_key` or `binary_keys`, percent-encoded
//! as a path takes it: so no two keys ever look the same.

use super::bounds::{PAGE_KEYS_DEFAULT, PAGE_KEYS_MAX};
use super::door::Door;
use super::fields::wrong_type;
use super::json::{self, Scalar, push_list, push_string, shorten};
use super::limiters::name;
use super::percent::{Plus, decode, encode};
use super::problem::Problem;
use super::reply::{DenyStatus, Explain, Reply, answer_reply, json_reply};
use super::{operate, overrides, query};
use tidegate::{Cursor, Micros, Request, Which, text};
use tidegate_core::PERIOD_MAX;

/// A page of key names.
pub(crate) async fn list(door: &Door, limiter: &str, query: Option<&str>) -> Result<Reply, Problem> {
    let [state, most, after] = query::read(query, ["state", "most", "after"])?;
    let which = match state.as_deref() {
        None | Some(b"tracked") => Which::Tracked,
        Some(b"blocked") => Which::Blocked,
        Some(b"overridden") => return Ok(json_reply(overrides::list(door, &name(limiter)?)?)),
        Some(other) => return Err(bad("bad_state", "state", other, "must be tracked, blocked or overridden")),
    };
    let most = match most.as_deref() {
        None => PAGE_KEYS_DEFAULT,
        Some(text) => query::number(text, "most", 1, PAGE_KEYS_MAX as u64)?.try_into().unwrap_or(PAGE_KEYS_MAX),
    };
    let after = after.as_deref().map(cursor).transpose()?;
    let page = door.gate.actions(&name(limiter)?).page(which, after, most).await?;
    let (texts, binary): (Vec<_>, Vec<_>) = page.keys.iter().partition(|key| std::str::from_utf8(key).is_ok());
    let mut body = String::from("{\"keys\":");
    push_list(&mut body, texts.iter().map(|key| String::from_utf8_lossy(key)));
    if !binary.is_empty() {
        body.push_str(",\"binary_keys\":");
        push_list(&mut body, binary.iter().map(|key| encode(key)));
    }
    match page.next {
        Some(cursor) => body.push_str(&format!(",\"next\":\"{cursor}\"}}")),
        None => body.push_str(",\"next\":null}"),
    }
    Ok(json_reply(body))
}

/// What a hit would be answered, and why.
pub(crate) async fn peek(door: &Door, limiter: &str, key: &str, query: Option<&str>) -> Result<Reply, Problem> {
    let [cost] = query::read(query, ["cost"])?;
    let cost = match cost.as_deref() {
        None => 1,
        Some(text) => query::number(text, "cost", 0, u64::from(u32::MAX))?.try_into().unwrap_or(u32::MAX),
    };
    let (name, key) = (name(limiter)?, decode(key, Plus::Plus, "key")?);
    let answer = door.gate.ask(&Request::hit(&name, &key).cost(cost).peek().explained()).await?;
    Ok(answer_reply(&answer, DenyStatus::DEFAULT, Explain::Yes))
}

/// What a block's body says.
pub(crate) struct BlockFor {
    pub(crate) span: Micros,
    pub(crate) reason: Option<String>,
}

/// Reads `{"for":"10m"}`, with a `"reason"` if there is one.
pub(crate) fn read_block(body: &[u8]) -> Result<BlockFor, Problem> {
    let (mut span, mut reason) = (None, None);
    json::read(body, &["for", "reason"], |index, value| {
        match (index, value.scalar()) {
            (0, value) => span = Some(self::span(value)?),
            (_, Scalar::Text(text)) => reason = Some(operate::checked(&text)?),
            (_, value) => return Err(wrong_type("reason", "a text", &value)),
        }
        Ok(())
    })?;
    let Some(span) = span else {
        let detail = "say for how long, such as {\"for\":\"10m\"}";
        return Err(Problem::new(400, "missing_field", detail).field("for"));
    };
    Ok(BlockFor { span, reason })
}

/// Writes `"key":"…"`, or `"binary_key":"%FF…"` for one that is no text.
pub(crate) fn push_key(body: &mut String, key: &[u8]) {
    match std::str::from_utf8(key) {
        Ok(key) => {
            body.push_str("\"key\":");
            push_string(body, key);
        }
        Err(_) => {
            body.push_str("\"binary_key\":");
            push_string(body, &encode(key));
        }
    }
}

/// How long a block or an override lasts.
pub(crate) fn span(value: Scalar<'_>) -> Result<Micros, Problem> {
    let Scalar::Text(written) = value else {
        return Err(wrong_type("for", "a duration such as \"10m\"", &value));
    };
    let refusal = |detail: String| Problem::new(400, "bad_duration", detail).field("for").value(shorten(&written));
    match text::duration(&shorten(&written)) {
        Ok(span) if !span.is_zero() && span <= PERIOD_MAX => Ok(span),
        Ok(_) => Err(refusal(format!("\"for\" is outside 1ms to {PERIOD_MAX}; choose one inside"))),
        Err(detail) => Err(refusal(detail)),
    }
}

fn cursor(text: &[u8]) -> Result<Cursor, Problem> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| bad("bad_cursor", "after", text, "must be the \"next\" of the page before"))
}

pub(crate) fn bad(code: &'static str, field: &'static str, value: &[u8], must: &str) -> Problem {
    Problem::new(400, code, format!("\"{field}\" {must}")).field(field).value(super::percent::shown(value))
}
