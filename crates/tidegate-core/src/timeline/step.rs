//! What can happen on a timeline, and what a submission is answered.

use crate::Micros;
use std::sync::Arc;

/// One change of a stream's state. All but a re-armed attempt are sent to subscribers, each with the
/// next clock value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// An event was accepted.
    Submitted {
        /// The clock value.
        clock: u64,
        /// The text.
        event: Arc<str>,
        /// When it was received.
        time_ms: u64,
    },
    /// Its duration passed without a conflict.
    Published {
        /// The clock value.
        clock: u64,
        /// The text.
        event: Arc<str>,
        /// When it was received.
        time_ms: u64,
    },
    /// Another of the same text came too soon.
    Invalidated {
        /// The clock value.
        clock: u64,
        /// The text.
        event: Arc<str>,
        /// When the event that is invalidated was received.
        time_ms: u64,
        /// The attempt that did it, from which the window counts now.
        last_ms: u64,
    },
    /// A rejected attempt moved the window of a text that is invalid already.
    Rearmed {
        /// The text.
        event: Arc<str>,
        /// The attempt.
        last_ms: u64,
    },
    /// A snapshot was sent to all.
    KeyFrame {
        /// The clock value.
        clock: u64,
        /// When.
        time_ms: u64,
    },
}

impl Step {
    /// The clock value, if it is sent to subscribers.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        match self {
            Step::Submitted { clock, .. }
            | Step::Published { clock, .. }
            | Step::Invalidated { clock, .. }
            | Step::KeyFrame { clock, .. } => Some(*clock),
            Step::Rearmed { .. } => None,
        }
    }
}

/// What a submission is answered.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Accepted; it incubates.
    Submitted {
        /// The clock value of its message.
        clock: u64,
    },
    /// Another of the same text is less than the duration away.
    Conflict {
        /// When an attempt could succeed, if none is made before.
        next: Micros,
    },
    /// It would be accepted, but `max_events` are remembered already.
    Full {
        /// When the first of them goes.
        next: Micros,
    },
}
