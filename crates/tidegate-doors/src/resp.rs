//! The RESP door: the Redis protocol, so that any Redis client can ask.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the settings, and the threads that serve |
//! | `door` | what all connections share: the limiters in force, the counters |
//! | `buffers` | what a connection keeps of what it read and answers |
//! | `client` | one connection: reads, has it answered, writes |
//! | `session` | what a client has said of itself, and commands in their order |
//! | `commands` | every command as one table: its name, its parts, the scope that it needs |
//! | `checks` | decisions that wait for the rest of what was read, decided in one call |
//! | `throttle` | `CL.THROTTLE` as redis-cell answers it |
//! | `operate` | blocks, counts and figures |
//! | `words` | what clients say on connecting: HELLO, AUTH, CLIENT, COMMAND… |
//! | `counters` | what the metrics tell |
//!
//! Pipelining: commands that were read together are decided by one call to the store and answered by one write, in their order.
//! Invariant: a connection holds one read and its answers and no more: it reads on only when all is written.

mod buffers;
mod checks;
mod client;
mod commands;
mod counters;
mod door;
mod operate;
mod server;
mod session;
mod throttle;
mod words;

pub use counters::Counters;
pub use door::Door;
pub use server::{DEFAULT_ADDRESS, RespSettings, serve};
