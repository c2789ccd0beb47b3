//! What the proxy answers itself: problem details (RFC 9457) with a short stable `code`.

use crate::body::Reply;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use std::sync::Arc;
use tidegate::headers::{push_answer_members, push_problem_members};
use tidegate::{Answer, Limiter, LimiterSpec, Micros, RateLimitHeaders, Reason};

/// A refusal that is not the limit's: a status, a code and a sentence with the remedy.
pub(crate) fn refusal(status: StatusCode, code: &str, detail: &str) -> Response<Reply> {
    let title = status.canonical_reason().unwrap_or_default();
    let kind = match status {
        StatusCode::SERVICE_UNAVAILABLE => "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        _ => "about:blank",
    };
    // Texts are ours and free of characters that JSON escapes.
    let body = format!(
        "{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{},\"code\":\"{code}\",\"detail\":\"{detail}\"}}",
        status.as_u16()
    );
    let mut response = problem(status, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// 400: the request is not one that can be forwarded.
pub(crate) fn bad_request(code: &str, detail: &str) -> Response<Reply> {
    refusal(StatusCode::BAD_REQUEST, code, detail)
}

fn problem(status: StatusCode, body: String) -> Response<Reply> {
    let mut response = Response::new(Reply::Own(Some(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// Writes 429s for one limiter.
pub(crate) struct Denials {
    limiter: Arc<LimiterSpec>,
}

/// The name under which the proxy's figures are in metrics.
pub(crate) const LIMITER: &str = "proxy";

impl Denials {
    pub(crate) fn new(limiter: &Limiter) -> Denials {
        Denials { limiter: Arc::clone(limiter.spec()) }
    }

    /// 429, limited or blocked. `wait`: until it can pass; `None`: it never can.
    pub(crate) fn denied(&self, reason: Reason, wait: Option<Micros>, now: Micros) -> Response<Reply> {
        let answer = Answer {
            allowed: false,
            reason,
            limiter: Some(Arc::clone(&self.limiter)),
            limit_index: 0,
            limit: self.limiter.rules.limits().first().map(|limit| limit.count()),
            remaining: Some(0),
            retry_after: wait,
            reset_after: wait,
            at: now,
            alternative: false,
            degraded: None,
            explanation: Vec::new(),
        };
        let mut body = String::with_capacity(512);
        body.push('{');
        push_problem_members(&mut body, &answer, 429);
        body.push(',');
        push_answer_members(&mut body, &answer);
        body.push('}');
        let mut response = problem(StatusCode::TOO_MANY_REQUESTS, body);
        if let Some(fields) = RateLimitHeaders::of(&answer) {
            let headers = response.headers_mut();
            let mut insert = |name: HeaderName, text: String| {
                if let Ok(value) = HeaderValue::try_from(text) {
                    headers.insert(name, value);
                }
            };
            insert(HeaderName::from_static("ratelimit-policy"), fields.policy);
            insert(HeaderName::from_static("ratelimit"), fields.rate_limit);
            if let Some(seconds) = fields.retry_after {
                insert(RETRY_AFTER, seconds);
            }
        }
        response
    }

    /// 429: all slots are in use; when one is free is not known.
    pub(crate) fn busy(&self) -> Response<Reply> {
        let detail = "all slots are in use; try again when a request has ended";
        let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, "in_flight", detail);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }
}
