//! The proxy between real clients and real upstreams, over loopback.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod admin;
mod bounds;
mod clients;
mod counting;
mod gated;
mod http2_trickles;
mod leaving;
mod smuggling;
mod store_clock;
mod streaming;
mod support;
mod tls_and_h2;
mod turning_over;
mod upstream_breaks;
