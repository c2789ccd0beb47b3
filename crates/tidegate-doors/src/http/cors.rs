//! Answers that pages of `allowed_origins` may read (CORS, as the Fetch standard has it).
//!
//! No cookies and no certificates: a page shows a token, or the server has none.

use super::problem::Problem;
use super::reply::Reply;
use super::reply_body::ReplyBody;
use crate::access::{Rules, allowed_origin};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue,
    ORIGIN, VARY,
};
use http::request::Parts;
use http::{Method, Response, StatusCode};

/// What a page may send beside what it may anyway.
const REQUEST_FIELDS: HeaderValue = HeaderValue::from_static("authorization, content-type, last-event-id");
/// What a page may read beside what it may anyway.
const ANSWER_FIELDS: HeaderValue =
    HeaderValue::from_static("ratelimit, ratelimit-policy, retry-after, tidegate-degraded, www-authenticate");
/// How long a browser keeps a preflight's answer, in seconds.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");
/// Chromium asks before a public page reaches a private address.
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// A page that asks where pages of some origins may: its origin, if it is one of them.
pub(crate) struct Page(Option<HeaderValue>);

impl Page {
    /// `None`: no page of another origin may ask.
    pub(crate) fn of(rules: &Rules, parts: &Parts) -> Option<Page> {
        (!rules.origins.is_empty()).then(|| Page(allowed_origin(rules, &parts.headers).cloned()))
    }

    /// Lets the page read the answer, if it may.
    pub(crate) fn open(self, reply: &mut Reply) {
        let headers = reply.headers_mut();
        // A cache must not give one page the answer of another.
        headers.append(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.0 {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ANSWER_FIELDS);
        }
    }
}

/// Does a browser ask whether a page may send a request?
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(ORIGIN)
        && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// # Errors
/// Pages of this origin may not.
pub(crate) fn check_preflight(rules: &Rules, parts: &Parts) -> Result<(), Problem> {
    if allowed_origin(rules, &parts.headers).is_some() {
        return Ok(());
    }
    let detail = "pages of this origin may not ask; add it to [access] allowed_origins";
    Err(Problem::new(403, "cross_origin", detail).field("Origin"))
}

/// The answer to a page that may, for a path with these methods.
pub(crate) fn preflight_reply(parts: &Parts, methods: &str) -> Reply {
    let mut reply = Response::new(ReplyBody::Text(None));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let headers = reply.headers_mut();
    if let Ok(methods) = HeaderValue::try_from(methods) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_FIELDS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    if parts.headers.contains_key(REQUEST_PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    reply
}
