//! Why rules are refused: each sentence names the limit, the bound and the remedy.

use super::{Algorithm, LIMITS_MAX};
use crate::{Limit, LimitError, Micros};
use std::fmt;

/// Why a limiter was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RulesError {
    /// No limit, or more than [`LIMITS_MAX`].
    HowMany(usize),
    /// Another number of limits than those that they stand in for.
    OtherNumber {
        /// How many there are.
        given: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// The periods of the limits that they stand in for, in another order.
    OtherOrder {
        /// Which limit, from 0.
        index: usize,
        /// The limit.
        limit: Limit,
    },
    /// A burst where the algorithm has none.
    NoBurst {
        /// Which limit, from 0.
        index: usize,
        /// The algorithm.
        algorithm: Algorithm,
        /// The limit.
        limit: Limit,
    },
    /// Buckets whose blocks are longer than the period.
    Resolution {
        /// Which limit, from 0.
        index: usize,
        /// The limit.
        limit: Limit,
        /// The resolution.
        resolution: Micros,
    },
    /// Buckets that forget before the period is over.
    History {
        /// Which limit, from 0.
        index: usize,
        /// The limit.
        limit: Limit,
        /// The history.
        history: Micros,
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
            RulesError::HowMany(_) | RulesError::OtherNumber { .. } => None,
            RulesError::NoBurst { index, .. }
            | RulesError::OtherOrder { index, .. }
            | RulesError::Resolution { index, .. }
            | RulesError::History { index, .. }
            | RulesError::Limit { index, .. } => Some(*index),
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
            RulesError::OtherNumber { given, wanted } => {
                write!(f, "{given} limits cannot stand in for the limiter's {wanted}; write {wanted}, by position")
            }
            RulesError::OtherOrder { limit, .. } => write!(
                f,
                "\"{limit}\" has the period of another limit of the limiter; write the limits in the limiter's order"
            ),
            RulesError::NoBurst { algorithm, limit, .. } => write!(
                f,
                "\"{limit}\": {} has no burst; leave it out or use algorithm = \"token-bucket\"",
                algorithm.name()
            ),
            RulesError::Resolution { limit, resolution, .. } => {
                let period = limit.period();
                write!(
                    f,
                    "\"{limit}\": resolution {resolution} is longer than its period {period}; use resolution = \"{period}\" or less"
                )
            }
            RulesError::History { limit, history, .. } => {
                let period = limit.period();
                write!(
                    f,
                    "\"{limit}\": history {history} is shorter than its period {period}; use history = \"{period}\" or more"
                )
            }
            RulesError::Limit { error, .. } => error.fmt(f),
        }
    }
}
