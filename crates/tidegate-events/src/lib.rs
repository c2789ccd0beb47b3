//! Event streams: only-once and strictly-once timelines, kept over restarts, and the one ordered log
//! of messages that subscribers read.
//!
//! What an event may do is decided by [`tidegate_core::timeline`]; here it is made durable and published.
//! No socket lives here, and no clock: time comes from a closure that the caller gives.
//!
//! | file | holds |
//! |---|---|
//! | `spec.rs` | a stream as it is configured |
//! | `message.rs` | messages as JSON |
//! | `epoch.rs` | which history of a stream a clock value belongs to |
//! | `journal.rs`, `journal/` | steps on disk: segments, frames, steps as bytes |
//! | `log.rs` | the latest messages, read by clock value |
//! | `stream.rs`, `embedded.rs` | one stream; its timeline, its thread and its commits |
//! | `shared.rs`, `shared/` | a stream that several servers share on one Redis (feature `redis`) |
//! | `line.rs` | one or the other |
//! | `subscription.rs` | one subscriber's place in the log |
//! | `streams.rs` | all streams of a server |

mod embedded;
mod epoch;
mod journal;
mod line;
mod log;
pub mod message;
#[cfg(feature = "redis")]
mod shared;
mod spec;
mod stream;
mod streams;
mod subscription;

pub use epoch::{Epoch, NoEpoch, Seen};
pub use journal::JournalError;
pub use log::Message;
#[cfg(feature = "redis")]
pub use shared::OpenError;
pub use spec::{MAX_EVENTS_MAX, STREAMS_MAX, SpecProblem, StreamSpec, check_event};
pub use stream::{Counts, READ_WITHIN, Snapshot, Stream, SubmitError, Unavailable};
pub use streams::{Opening, Streams};
pub use subscription::{Cut, Subscription};
pub use tidegate_core::timeline::{EVENT_LEN_MAX, Mode, Outcome, Overdue, StreamRules};

/// Where streams get the time from: the server's one clock.
pub type Now = std::sync::Arc<dyn Fn() -> tidegate_core::Micros + Send + Sync>;
