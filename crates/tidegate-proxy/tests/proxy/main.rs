//! The proxy between real clients and real upstreams, over loopback.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod counting;
mod support;
