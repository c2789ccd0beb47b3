//! The HTTP door as a client sees it: a real server on port 0 and a real TCP client.
//!
//! Scenarios are data through one `check`, see `server`. The engine's clock is set by hand, so that
//! nothing sleeps; only the limits on slow clients take real milliseconds.

#![expect(clippy::unwrap_used, reason = "the harness is test code too")]

mod access;
mod audit;
mod batches;
mod certificates;
mod connections;
mod counting;
mod decisions;
mod http2;
mod limiters;
mod limits;
mod operate;
mod ratelimit;
mod refusals;
mod reserve;
mod server;
mod state;
mod streams;
mod tls;
mod unread;
