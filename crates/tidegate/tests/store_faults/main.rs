//! A gate on a Redis that fails, in every way that one server can: what is answered, what is counted, what
//! people are told, and that exact service comes back (A7, F2, F3).
//!
//! Every case is a line of data through [`world::check`]. Gates here have `on_failure = deny`, so that an answer that
//! is not the store's is a denial, and what was admitted can be held against what the store counted.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod connections;
mod replies;
mod shards;
mod world;
