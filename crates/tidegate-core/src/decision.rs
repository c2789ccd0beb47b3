//! The answer to "may this happen now?" for one limit.

use crate::Micros;

/// Yes, or no and when to come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may happen now.
    Allow,
    /// It may not.
    Deny {
        /// How long until the same request can pass; `None`: this cost can never pass.
        retry_after: Option<Micros>,
    },
}

impl Verdict {
    /// True for [`Verdict::Allow`].
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Verdict::Allow)
    }

    /// A denial that no waiting can cure.
    pub const NEVER: Verdict = Verdict::Deny { retry_after: None };

    /// How the longest denial is found: allowed < a wait < a longer wait < never.
    pub(crate) fn severity(self) -> (u8, Micros) {
        match self {
            Verdict::Allow => (0, Micros::ZERO),
            Verdict::Deny { retry_after: Some(wait) } => (1, wait),
            Verdict::Deny { retry_after: None } => (2, Micros::ZERO),
        }
    }
}

/// What one limit says of one request, after it was charged if it was allowed.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Yes or no.
    pub verdict: Verdict,
    /// The most that can pass at once: the count, or a token bucket's burst.
    pub limit: u32,
    /// What is left now, rounded down.
    pub remaining: u32,
    /// Until this limit is as if never used, rounded up.
    pub reset_after: Micros,
}

/// What is left of a limit, apart from any request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// What could pass now, rounded down.
    pub remaining: u32,
    /// Until this limit is as if never used, rounded up.
    pub reset_after: Micros,
}
