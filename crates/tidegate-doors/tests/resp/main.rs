//! The RESP door as a client sees it: a real server on port 0 and a plain TCP client.
//!
//! Scenarios are data through one `check`. The engine's clock is set by hand, so that seconds pass without a sleep; only the limits on
//! slow clients take real time.
#![expect(clippy::unwrap_used, reason = "the harness is test code too")]

mod access;
mod commands;
mod connections;
mod server;
mod throttle;
