//! The pure heart of Tidegate: limits, decisions, and one file per algorithm.
//!
//! Nothing here reads a clock, draws randomness, logs, allocates a thread or touches a file or a
//! socket: time comes in as an argument. The same code is the model for every store.

pub mod all_or_nothing;
pub mod average;
mod bit_queue;
pub mod buckets;
mod decision;
pub mod fixed_window;
mod key;
mod limit;
mod meter;
mod micros;
pub mod replicas;
mod rules;
#[cfg(test)]
mod scenario;
pub mod sketch;
pub mod sliding_log;
pub mod sliding_window;
mod state;
pub mod text;
pub mod timeline;
pub mod token_bucket;
pub mod top_keys;
pub mod turnstile;
mod weekday;
mod windows;

pub use decision::{Decision, Rate, Status, Verdict};
pub use key::{KEY_LEN_MAX, KeyError, check_key};
pub use limit::{Bucket, Limit, LimitError, PERIOD_MAX, PERIOD_MIN, TextProblem};
pub use meter::{Compact, Meter};
pub use micros::Micros;
pub use rules::{Algorithm, Check, LIMITS_MAX, Rules, RulesError};
pub use state::State;
pub use weekday::Weekday;
pub use windows::Windows;
