//! Event streams: only-once and strictly-once timelines, kept over restarts, and the one ordered log
//! of messages that subscribers read.
//!
//! What an event may do is decided by [`tidegate_core::timeline`]; here it is made durable and told.
//! No socket lives here, and no clock: time comes from a closure that the caller gives.

pub mod message;
mod spec;

pub use spec::{MAX_EVENTS_MAX, STREAMS_MAX, SpecProblem, StreamSpec, check_event};
pub use tidegate_core::timeline::{EVENT_LEN_MAX, Mode, Outcome, Overdue, StreamRules};
