//! Limits that calls bring, which `CL.THROTTLE` needs.

use super::Gate;
use super::limiter::Limiter;
use tidegate_core::{Limit, Rules, RulesError};

impl Gate {
    /// A limiter by another limit, for one whose calls bring their limits; its keys keep their states, and a key whose limits were set by hand keeps
    /// those. For a token bucket only.
    ///
    /// # Errors
    /// When the limit is too fine or too large to count exactly.
    pub fn with_limit(&self, limiter: &Limiter, limit: Limit) -> Result<Limiter, RulesError> {
        Ok(limiter.with_rules(Rules::per_call(limit)?, self.0.failure.local_share))
    }
}
