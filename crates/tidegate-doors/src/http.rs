//! The HTTP door: JSON over HTTP/1.1 and HTTP/2, with TLS or in clear text.
//!
//! [`serve`] runs it on a listener until it is stopped. The paths are in `routes`, one table
//! that the metrics and the OpenAPI text are held against; what each does is in the file named
//! after it. Bounds on what a client may send are in [`bounds`].
//! Invariant: nothing is charged unless the answer is a decision.

mod access;
mod allowed;
pub(crate) mod body;
pub mod bounds;
mod client;
mod cors;
mod counting;
mod dashboard;
mod decisions;
mod dispatch;
mod door;
mod feed;
mod fields;
mod health;
mod hit;
mod hits;
mod host;
mod http2;
mod json;
mod keys;
mod limiters;
mod live;
mod metrics;
mod openapi;
pub(crate) mod operate;
mod overrides;
mod percent;
mod problem;
mod query;
mod ratelimit;
mod reply;
mod reply_body;
mod reserve;
mod routes;
mod server;
mod streams;
mod top;

pub use crate::budget::Limits;
pub use server::{DEFAULT_ADDRESS, HttpSettings, serve};
