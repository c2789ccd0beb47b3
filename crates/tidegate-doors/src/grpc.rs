//! The gRPC door: calls over HTTP/2, with TLS or in clear text.
//!
//! [`serve`] runs it on a listener until it is stopped. HTTP/2 is hyper's, within the bounds that every door has (`listener/http2.rs`);
//! here are a connection's life (`connection`), a call from its head to its trailers (`call`, `message`, `reply`), the services
//! (`health`, `ratelimit`) and what is counted (`metrics`).
//! Invariants: a message's length is looked at before it is kept; nothing is charged unless the answer is a decision; a decision that can
//! be made is never a gRPC error, as clients may take an error for a yes.

mod call;
mod connection;
mod health;
mod message;
mod metrics;
mod reply;
mod server;

pub use metrics::Metrics;
pub use server::{GrpcSettings, serve};

/// Longest message that is read. The longest sensible one, 32 descriptors of the longest keys, is about 20 KB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
