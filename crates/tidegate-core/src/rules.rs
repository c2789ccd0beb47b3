//! The rules of a limiter: one algorithm and one to eight limits that hold together.
//!
//! Names, domains and keys are not here: they belong to the policy, in the `tidegate` crate.

use crate::{Limit, LimitError, State};
use std::fmt;

/// How admissions are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Algorithm {
    /// [`crate::token_bucket`], the default.
    #[default]
    TokenBucket,
    /// [`crate::fixed_window::FirstHit`].
    FixedWindow,
    /// [`crate::fixed_window::Aligned`].
    AlignedWindow,
    /// [`crate::sliding_log`].
    SlidingLog,
    /// [`crate::sliding_window`].
    SlidingWindow,
    /// [`crate::average::Strict`].
    StrictAverage,
    /// [`crate::average::Leaky`].
    LeakyAverage,
}

impl Algorithm {
    /// Every algorithm, for tests and tables that must not forget one.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::AlignedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::StrictAverage,
        Algorithm::LeakyAverage,
    ];

    /// The configuration's word for it; an aligned window and a strict average are
    /// a `fixed-window` and an `average` with a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow | Algorithm::AlignedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::StrictAverage | Algorithm::LeakyAverage => "average",
        }
    }
}

/// Most limits of one limiter. All are looked at for every request.
pub const LIMITS_MAX: usize = 8;

/// An algorithm and its limits, checked against each other.
///
/// ```
/// use tidegate_core::{Algorithm, Rules};
/// let limits = ["5 per minute".parse()?, "500 per hour".parse()?];
/// let rules = Rules::new(Algorithm::SlidingLog, &limits)?;
/// assert_eq!(rules.limits().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    algorithm: Algorithm,
    limits: Box<[Limit]>,
}

impl Rules {
    /// The limiter, if its limits suit its algorithm.
    ///
    /// # Errors
    /// No limit or too many; a burst on an algorithm without one; a token bucket too fine to count.
    pub fn new(algorithm: Algorithm, limits: &[Limit]) -> Result<Rules, RulesError> {
        if limits.is_empty() || limits.len() > LIMITS_MAX {
            return Err(RulesError::HowMany(limits.len()));
        }
        for (index, limit) in limits.iter().enumerate() {
            if algorithm == Algorithm::TokenBucket {
                limit.check_bucket().map_err(|error| RulesError::Limit { index, error })?;
            } else if limit.has_burst() {
                return Err(RulesError::NoBurst { index, algorithm, limit: *limit });
            }
        }
        Ok(Rules { algorithm, limits: limits.into() })
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What it allows, in definition order.
    #[must_use]
    pub const fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The states of a key that was never seen.
    #[must_use]
    pub fn fresh(&self) -> Vec<State> {
        vec![State::fresh(self.algorithm); self.limits.len()]
    }
}

/// Why a limiter was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RulesError {
    /// No limit, or more than [`LIMITS_MAX`].
    HowMany(usize),
    /// A burst where the algorithm has none.
    NoBurst {
        /// Which limit, from 0.
        index: usize,
        /// The algorithm.
        algorithm: Algorithm,
        /// The limit.
        limit: Limit,
    },
    /// One limit does not suit the algorithm.
    Limit {
        /// Which limit, from 0.
        index: usize,
        /// Why.
        error: LimitError,
    },
}

impl RulesError {
    /// The limit at fault, if one is.
    #[must_use]
    pub const fn index(&self) -> Option<usize> {
        match self {
            RulesError::HowMany(_) => None,
            RulesError::NoBurst { index, .. } | RulesError::Limit { index, .. } => Some(*index),
        }
    }
}

impl std::error::Error for RulesError {}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulesError::HowMany(0) => write!(f, "a limiter needs at least one limit, such as \"5 per minute\""),
            RulesError::HowMany(n) => {
                write!(f, "{n} limits are more than a limiter's {LIMITS_MAX}; use a second limiter")
            }
            RulesError::NoBurst { algorithm, limit, .. } => write!(
                f,
                "\"{limit}\": {} has no burst; leave it out or use algorithm = \"token-bucket\"",
                algorithm.name()
            ),
            RulesError::Limit { error, .. } => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(algorithm: Algorithm, limits: &[&str], part: &str) {
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
        let error = Rules::new(algorithm, &limits).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn refusals_name_the_remedy() {
        check(Algorithm::TokenBucket, &[], "at least one limit");
        check(Algorithm::TokenBucket, &["1 per day"; 9], "9 limits are more than a limiter's 8");
        check(
            Algorithm::SlidingLog,
            &["1 per day", "1 per hour burst 2"],
            "\"1 per 1h burst 2\": sliding-log has no burst",
        );
        check(Algorithm::TokenBucket, &["1000003 per week"], "nearest count that fits is 1000000");
    }
}
