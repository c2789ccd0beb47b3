//! Tidegate's doors: servers that decode a protocol, ask the engine and encode its answer.
//!
//! Sockets and tasks live here; every TCP connection, also of the proxy, comes in through [`listener`]. No door decides anything, and none knows how the engine counts.

pub mod access;
pub mod audit;
mod budget;
pub mod grpc;
pub mod http;
pub mod listener;
pub mod metrics;
mod pace;
pub mod ratelimit;
pub mod resp;
mod stomp;
mod turns;
pub mod udp;
