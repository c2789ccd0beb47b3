//! Why somebody may not ask.

/// A refusal, for a door to write in its own words: HTTP as problem+json, STOMP as ERROR.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// 401: who asks is not known. 403: who asks may not.
    pub status: u16,
    /// Short and stable.
    pub code: &'static str,
    /// What is wrong, and the remedy. No token's text is in it.
    pub detail: String,
    /// The header field at fault.
    pub field: Option<&'static str>,
}

impl Refusal {
    pub(super) fn unauthorized(detail: impl Into<String>) -> Refusal {
        Refusal { status: 401, code: "unauthorized", detail: detail.into(), field: None }
    }

    pub(super) fn forbidden(code: &'static str, detail: impl Into<String>) -> Refusal {
        Refusal { status: 403, code, detail: detail.into(), field: None }
    }

    pub(super) fn field(self, field: &'static str) -> Refusal {
        Refusal { field: Some(field), ..self }
    }
}
