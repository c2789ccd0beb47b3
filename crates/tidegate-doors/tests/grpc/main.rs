//! The gRPC door as a client sees it: a real server on port 0 and a client of HTTP/2.
//!
//! Scenarios are data through one `check`, see `server`. The engine's clock is set by hand, so that nothing sleeps; only the limits on slow
//! clients take real milliseconds.

#![expect(clippy::unwrap_used, reason = "the harness is test code too")]

mod access;
mod answers;
mod bounds;
mod calls;
mod health;
mod ratelimit;
mod server;
mod store_stopped;
mod tls;
