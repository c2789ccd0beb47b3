//! `GET /v1/allowed?user=U&ip=I[&domain=D][&deny_status=403]`: a hit by query, for proxies that can
//! send a subrequest and nothing else.
//!
//! An empty value counts as missing: nginx sends `user=` for a client that has not logged in. nginx writes values into a
//! query as they are, so that a user's name could end it or add to it: `user_header=NAME` says which header field has the
//! name instead.

use super::door::Door;
use super::problem::Problem;
use super::query;
use super::reply::{DenyStatus, Explain, Reply, answer_reply};
use crate::access::{Caller, Scope, What};
use http::HeaderMap;
use http::header::HeaderName;
use std::borrow::Cow;
use tidegate::{AskError, KEY_LEN_MAX, NAME_LEN_MAX, Request};

pub(crate) async fn answer(
    door: &Door,
    caller: &Caller,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Reply, Problem> {
    let [user, user_header, ip, domain, deny_status] =
        query::read(query, ["user", "user_header", "ip", "domain", "deny_status"])?;
    let user = match user_header {
        Some(_) if user.is_some() => return Err(two_users()),
        Some(name) => field_named(&name, headers)?,
        None => user,
    };
    let deny = deny_status.as_deref().map_or(Ok(DenyStatus::DEFAULT), DenyStatus::parse)?;
    let domain = domain.as_deref().filter(|domain| !domain.is_empty()).map(name).transpose()?;
    caller.check(Scope::Check, What::Domain(domain))?;
    let mut attributes: Vec<(&str, &[u8])> = Vec::with_capacity(2);
    for (name, value) in [("user", &user), ("ip", &ip)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            attributes.push((name, within_bound(name, value)?));
        }
    }
    if attributes.is_empty() {
        let detail = "both \"user\" and \"ip\" are missing; send one of them at least";
        return Err(Problem::new(400, "missing_field", detail).field("user"));
    }
    let answer = door.gate.ask(&Request::of(domain, &attributes).explained()).await.map_err(|error| match error {
        // The parts fit, their combination does not.
        AskError::Key(error) => Problem::new(400, "bad_key", error.to_string()).field("user"),
        other => other.into(),
    })?;
    Ok(answer_reply(&answer, deny, Explain::No))
}

fn two_users() -> Problem {
    let detail = "\"user\" and \"user_header\" exclude each other; send one of them";
    Problem::new(400, "conflicting_fields", detail).field("user_header")
}

/// The value of the header field that `user_header` names; `None`: the request has no such field.
fn field_named<'h>(name: &[u8], headers: &'h HeaderMap) -> Result<Option<Cow<'h, [u8]>>, Problem> {
    let header = HeaderName::from_bytes(name).map_err(|_| {
        let detail = "\"user_header\" must be the name of a header field, such as X-Limit-User";
        Problem::new(400, "bad_name", detail).field("user_header").value(super::percent::shown(name))
    })?;
    let mut values = headers.get_all(&header).iter();
    match (values.next(), values.next()) {
        (Some(_), Some(_)) => Err(super::json::duplicate_field(header.as_str())),
        (value, _) => Ok(value.map(|value| Cow::Borrowed(value.as_bytes()))),
    }
}

fn name(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).ok().filter(|name| name.len() <= NAME_LEN_MAX).ok_or_else(|| {
        let detail = format!("\"domain\" is not 1 to {NAME_LEN_MAX} bytes of UTF-8");
        Problem::new(400, "bad_name", detail).field("domain").value(super::percent::shown(bytes))
    })
}

fn within_bound<'v>(field: &'static str, value: &'v [u8]) -> Result<&'v [u8], Problem> {
    if value.len() <= KEY_LEN_MAX {
        return Ok(value);
    }
    let detail = format!(
        "\"{field}\" has {} bytes, more than {KEY_LEN_MAX}; use a shorter one, such as a hash of it",
        value.len()
    );
    Err(Problem::new(400, "bad_key", detail).field(field).value(super::percent::shown(value)))
}
