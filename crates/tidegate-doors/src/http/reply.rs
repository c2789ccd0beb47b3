//! Responses: an answer, a JSON text, a plain text, a problem.

use super::json::push_string;
use super::keys::push_key;
use super::problem::Problem;
use super::reply_body::ReplyBody;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tidegate::headers::{push_answer_members, push_policy, push_problem_members, push_rate_limit, retry_after_s};
use tidegate::{Answer, Explained, Micros, Verdict};

/// Every response of this door.
pub(crate) type Reply = Response<ReplyBody>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

pub(crate) fn json_reply(body: String) -> Reply {
    reply(StatusCode::OK, JSON, body)
}

/// 201 with JSON.
pub(crate) fn created_reply(body: String) -> Reply {
    reply(StatusCode::CREATED, JSON, body)
}

/// JSON that is shared already.
pub(crate) fn shared_json_reply(body: Bytes) -> Reply {
    reply(StatusCode::OK, JSON, body)
}

/// 101: what follows is another protocol.
pub(crate) fn switching_reply(fields: HeaderMap) -> Reply {
    let mut reply = Response::new(ReplyBody::Text(None));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = fields;
    reply
}

/// Server-sent events.
pub(crate) fn feed_reply(body: ReplyBody) -> Reply {
    let mut reply = Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would hold messages back until its buffer is full.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    reply
}

pub(crate) fn problem_reply(status: u16, body: String) -> Reply {
    reply(status_code(status), PROBLEM_JSON, body)
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

pub(crate) fn text_reply(content_type: &'static str, body: String) -> Reply {
    reply(StatusCode::OK, HeaderValue::from_static(content_type), body)
}

fn reply(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::Text(Some(body.into())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// What a denial is answered with; 200 always stands for an allowed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DenyStatus(u16);

impl DenyStatus {
    pub(crate) const DEFAULT: DenyStatus = DenyStatus(429);

    pub(crate) fn parse(text: &[u8]) -> Result<DenyStatus, Problem> {
        match text {
            b"401" => Ok(DenyStatus(401)),
            b"403" => Ok(DenyStatus(403)),
            b"429" => Ok(DenyStatus(429)),
            _ => {
                let problem = Problem::new(400, "bad_deny_status", "deny_status must be 401, 403 or 429");
                Err(problem.field("deny_status").value(super::percent::shown(text)))
            }
        }
    }
}

/// Does the answer tell what every limiter that matched had to say?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Explain {
    Yes,
    No,
}

/// The decision itself: 200 or a denial, with the same members and header fields.
pub(crate) fn answer_reply(answer: &Answer, deny: DenyStatus, explain: Explain) -> Reply {
    answer_reply_with(answer, deny, explain, "")
}

/// The same with `more` members, each after a comma.
pub(crate) fn answer_reply_with(answer: &Answer, deny: DenyStatus, explain: Explain, more: &str) -> Reply {
    // One buffer for the fields and the body, and slices of it: this is the path of every hit.
    let mut text = String::with_capacity(if answer.allowed { 320 } else { 768 });
    push_policy(&mut text, answer);
    let policy = 0..text.len();
    push_rate_limit(&mut text, answer);
    let rate_limit = policy.end..text.len();
    push_body(&mut text, answer, deny, explain, more);
    let all = Bytes::from(text);
    let (status, content_type) = match answer.allowed {
        true => (StatusCode::OK, JSON),
        false => (status_code(deny.0), PROBLEM_JSON),
    };
    let mut reply = reply(status, content_type, all.slice(rate_limit.end..));
    let headers = reply.headers_mut();
    for (name, range) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, rate_limit)] {
        // The text is ASCII, so it always is a header value.
        if !range.is_empty()
            && let Ok(value) = HeaderValue::from_maybe_shared(all.slice(range))
        {
            headers.insert(name, value);
        }
    }
    if let Some(wait) = retry_after_s(answer) {
        headers.insert(RETRY_AFTER, wait.into());
    }
    if let Some(mode) = answer.degraded {
        headers.insert(DEGRADED, HeaderValue::from_static(mode.as_str()));
    }
    reply
}

/// The answers of a batch, in order; `together`: they are one decision, which is denied unless all are allowed.
pub(crate) fn answers_reply(answers: &[Result<(Answer, Explain), Problem>], together: bool) -> Reply {
    let mut text = String::with_capacity(32 + 160 * answers.len());
    let allowed = !together || Answer::all_pass(answers.iter().flatten().map(|(answer, _)| answer));
    text.push('{');
    if together {
        text.push_str(if allowed { "\"allowed\":true," } else { "\"allowed\":false," });
    }
    text.push_str("\"answers\":[");
    for (place, answer) in answers.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        match answer {
            Ok((answer, explain)) => push_plain(&mut text, answer, *explain),
            Err(problem) => text.push_str(&problem.body()),
        }
    }
    text.push_str("]}");
    let mut reply = reply(if allowed { StatusCode::OK } else { status_code(429) }, JSON, text);
    let denied = answers.iter().flatten().filter(|_| !allowed);
    if let Some(wait) = denied.filter_map(|(answer, _)| retry_after_s(answer)).max() {
        reply.headers_mut().insert(RETRY_AFTER, wait.into());
    }
    reply
}

/// An answer without what belongs to a response of its own.
fn push_plain(text: &mut String, answer: &Answer, explain: Explain) {
    text.push('{');
    push_answer_members(text, answer);
    if let Some(mode) = answer.degraded {
        text.push_str(&format!(",\"degraded\":\"{}\"", mode.as_str()));
    }
    if explain == Explain::Yes {
        push_explanation(text, &answer.explanation);
    }
    text.push('}');
}

/// The store did not answer: `local`, `allow` or `deny` says how it was decided.
const DEGRADED: HeaderName = HeaderName::from_static("tidegate-degraded");

fn push_body(text: &mut String, answer: &Answer, deny: DenyStatus, explain: Explain, more: &str) {
    push_plain(text, answer, explain);
    if !more.is_empty() {
        text.pop();
        text.push_str(more);
        text.push('}');
    }
    if !answer.allowed {
        text.pop();
        text.push(',');
        push_problem_members(text, answer, deny.0);
        text.push('}');
    }
}

fn push_explanation(body: &mut String, explanation: &[Explained]) {
    body.push_str(",\"explanation\":[");
    for (index, explained) in explanation.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        push_explained(body, explained);
    }
    body.push(']');
}

fn push_explained(body: &mut String, explained: &Explained) {
    body.push_str(&format!("{{\"limiter\":\"{}\",", explained.limiter.name));
    push_key(body, &explained.key);
    let Explained { enabled, decided, sketched, .. } = explained;
    let role = match explained {
        Explained { replaced: true, .. } => "replaced",
        Explained { candidate: true, .. } => "candidate",
        Explained { limiter, .. } if limiter.alternative => "alternative",
        _ => "enforced",
    };
    body.push_str(&format!(",\"role\":\"{role}\",\"enabled\":{enabled},\"decided\":{decided},\"sketched\":{sketched}"));
    body.push_str(&format!(",\"unlimited\":{}", explained.unlimited));
    match explained.matched {
        Some(index) => body.push_str(&format!(",\"match\":{}", index + 1)),
        None => body.push_str(",\"match\":null"),
    }
    body.push_str(&format!(",\"override\":{}", explained.overridden.is_some()));
    if let Some(info) = &explained.overridden {
        body.push_str(",\"override_until\":");
        body.push_str(&info.until.map_or("null".to_owned(), seconds));
        body.push_str(",\"override_reason\":");
        match &info.reason {
            Some(reason) => push_string(body, reason),
            None => body.push_str("null"),
        }
    }
    body.push_str(&format!(",\"blocked_until\":{}", explained.blocked_until.map_or("null".to_owned(), seconds)));
    body.push_str(",\"limits\":[");
    for (index, (limit, decision)) in explained.limits.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let retry_after_ms = match decision.verdict {
            Verdict::Deny { retry_after: Some(wait) } => wait.as_millis_ceil().to_string(),
            _ => "null".to_owned(),
        };
        body.push_str(&format!(
            "{comma}{{\"rule\":\"{limit}\",\"allowed\":{},\"limit\":{},\"remaining\":{},\"retry_after_ms\":{retry_after_ms},\"reset_after_ms\":{}}}",
            decision.verdict.is_allowed(),
            decision.limit,
            decision.remaining,
            decision.reset_after.as_millis_ceil(),
        ));
    }
    body.push_str("]}");
}

/// An instant in seconds since the epoch, exact: `14401` or `14401.5`.
pub(crate) fn seconds(at: Micros) -> String {
    crate::metrics::seconds(at.get())
}
