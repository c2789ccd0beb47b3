//! Tidegate's doors: servers that decode a protocol, ask the engine and encode its answer.
//!
//! Sockets and tasks live here. No door decides anything, and none knows how the engine counts.

pub mod http;
mod pace;
mod stomp;
pub mod udp;
