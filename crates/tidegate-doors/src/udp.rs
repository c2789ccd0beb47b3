//! The UDP door: the `over_limit` protocol.
//!
//! A [`Responder`] turns datagrams into replies: it parses with `tidegate-wire`, finds the limiter with
//! [`Routes`] and asks the engine, a batch at a time. It does no I/O, so that the simulator answers
//! with the same code. [`serve`] is the I/O around it: a thread and a socket of its own for each
//! processor, datagrams in batches. Invariant: what is denied is answered; silence is an admission.

mod batch;
mod check;
mod client;
mod counters;
mod counts;
mod responder;
mod routes;
mod server;
mod sockets;
mod source;

pub use client::{Client, TIMEOUT};
pub use counters::Counters;
pub use counts::{Counts, Unknown};
pub use responder::{Responder, Scratch, Slot};
pub use routes::{
    Caches, Count, Found, PATTERN_LEN_MAX, REPLACEMENT_LEN_MAX, REWRITES_MAX, ROUTES_MAX, Rewrite, Route, RouteProblem,
    Routes, Routing,
};
pub use server::{DEFAULT_ADDRESS, serve};
pub use sockets::Sockets;
