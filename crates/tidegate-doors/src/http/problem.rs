//! What went wrong, as problem+json (RFC 9457) with a short stable `code`.
//!
//! A denial is not a problem of this kind: it is an answer, see `reply`.

use super::json::push_string;
use super::reply::{Reply, problem_reply};
use http::header::{ALLOW, CONNECTION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use std::borrow::Cow;
use tidegate::{AskError, Micros, StoreError};

/// A refusal. The text names the thing, the value, the bound and the remedy.
#[derive(Debug)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: u16,
    code: &'static str,
    detail: Cow<'static, str>,
    field: Option<Cow<'static, str>>,
    value: Option<String>,
    allow: Option<String>,
    retry_after: Option<Micros>,
    close: bool,
}

impl Problem {
    pub(crate) fn new(status: u16, code: &'static str, detail: impl Into<Cow<'static, str>>) -> Problem {
        let detail = detail.into();
        Problem(Box::new(Inner {
            status,
            code,
            detail,
            field: None,
            value: None,
            allow: None,
            retry_after: None,
            close: false,
        }))
    }

    /// Names the field at fault.
    pub(crate) fn field(mut self, field: impl Into<Cow<'static, str>>) -> Problem {
        self.0.field = Some(field.into());
        self
    }

    /// Shows the value at fault; it must be short already.
    pub(crate) fn value(mut self, value: impl Into<String>) -> Problem {
        self.0.value = Some(value.into());
        self
    }

    /// Names the methods that there are.
    pub(crate) fn allow(mut self, methods: String) -> Problem {
        self.0.allow = Some(methods);
        self
    }

    /// When it could go well.
    pub(crate) fn retry_after(mut self, wait: Micros) -> Problem {
        self.0.retry_after = Some(wait);
        self
    }

    /// The connection cannot be used any further.
    pub(crate) fn close(mut self) -> Problem {
        self.0.close = true;
        self
    }

    /// The same for the request at this place of a batch.
    pub(crate) fn within(mut self, place: usize) -> Problem {
        let field = self.0.field.take();
        self.0.field = Some(match field {
            Some(field) => format!("requests[{place}].{field}").into(),
            None => format!("requests[{place}]").into(),
        });
        self
    }

    /// As the text of an answer that has others beside it.
    pub(crate) fn body(&self) -> String {
        self.0.body()
    }

    pub(crate) fn into_reply(self) -> Reply {
        let inner = *self.0;
        let mut reply = problem_reply(inner.status, inner.body());
        let headers = reply.headers_mut();
        if let Some(allow) = inner.allow.and_then(|methods| HeaderValue::try_from(methods).ok()) {
            headers.insert(ALLOW, allow);
        }
        if let Some(wait) = inner.retry_after {
            headers.insert(RETRY_AFTER, wait.as_secs_ceil().into());
        }
        if inner.status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        if inner.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }
}

impl Inner {
    fn body(&self) -> String {
        let status = http::StatusCode::from_u16(self.status).unwrap_or_default();
        let mut text = String::with_capacity(256);
        text.push_str("{\"type\":\"about:blank\",\"title\":");
        push_string(&mut text, status.canonical_reason().unwrap_or_default());
        text.push_str(&format!(",\"status\":{},\"code\":", self.status));
        push_string(&mut text, self.code);
        text.push_str(",\"detail\":");
        push_string(&mut text, &self.detail);
        for (name, value) in [("field", self.field.as_deref()), ("value", self.value.as_deref())] {
            if let Some(value) = value {
                text.push_str(&format!(",\"{name}\":"));
                push_string(&mut text, value);
            }
        }
        if let Some(wait) = self.retry_after {
            text.push_str(&format!(",\"retry_after_ms\":{}", wait.as_millis_ceil()));
        }
        text.push('}');
        text
    }
}

/// What the engine refused. The engine's text names value, bound and remedy.
impl From<AskError> for Problem {
    fn from(error: AskError) -> Problem {
        let detail = error.to_string();
        match error {
            AskError::UnknownLimiter { .. } => Problem::new(404, "unknown_limiter", detail).field("limiter"),
            AskError::Key(_) => Problem::new(400, "bad_key", detail).field("key"),
            AskError::NeedsBuckets { .. } => Problem::new(409, "needs_buckets", detail).field("limiter"),
            AskError::LimitPerCall { .. } => Problem::new(400, "limit_per_call", detail).field("limiter"),
            AskError::NotReserved => Problem::new(409, "not_reserved", detail).field("reservation"),
            AskError::ReservationSpan(_) => Problem::new(400, "bad_duration", detail).field("for"),
            AskError::NoNames(_) => Problem::new(501, "no_names", detail),
            AskError::Override { .. } => Problem::new(400, "bad_limits", detail).field("limits"),
            AskError::Full { .. } | AskError::TooManyOverrides { .. } => Problem::new(507, "full", detail),
            AskError::Store(StoreError::Unsupported(_)) => Problem::new(501, "not_supported", detail),
            AskError::Store(error) => store_problem(&error),
            _ => Problem::new(500, "internal", "the engine refused this in a way that this door does not know"),
        }
    }
}

/// What the store did not do. Its address and its words are for the log: clients get the kind and the remedy.
fn store_problem(error: &StoreError) -> Problem {
    let detail = match error {
        StoreError::Refused { meaning, .. } => format!("the store refused this; {}", meaning.remedy()),
        error if error.is_ambiguous() => {
            "the store did not answer in time; it may have done it all the same, so look before you try again"
                .to_owned()
        }
        _ => "the store cannot be reached; try again in a moment".to_owned(),
    };
    Problem::new(503, "store_unavailable", detail).value(error.label())
}
