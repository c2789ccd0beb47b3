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
    /// How much is in use; for the averages, the rate of this request.
    pub rate: Rate,
}

/// How much of a limit is in use, to be shown. Only the averages have fractions of a request, and
/// only they decide by it. Kept as bits, so that decisions can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate(u64);

impl Rate {
    /// This rate.
    #[must_use]
    #[inline]
    pub const fn new(rate: f64) -> Rate {
        Rate(rate.to_bits())
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// What is left of a limit, apart from any request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// What could pass now, rounded down.
    pub remaining: u32,
    /// Until this limit is as if never used, rounded up.
    pub reset_after: Micros,
}
