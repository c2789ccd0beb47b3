//! Tidegate's transparent proxy: requests wait their turn.
//!
//! Connections come in through the doors' listener. A request's way: `worker` reads it (the listener's `Strict` watches the bytes), `exchange` finds its `target` and its
//! `key`, passes the turnstile or lines up in the `queue`, writes the `fields` anew, takes a `link` from the
//! `pool` when its turn has come, and streams `body` by body. What may start when is decided in `tidegate-core`.
//!
//! Nothing here collects a body, parses a configuration or keeps a path.

mod admin;
mod body;
mod client;
mod client_slots;
mod exchange;
mod fields;
mod incoming;
mod key;
mod link;
mod metrics;
mod outgoing;
mod pool;
mod queue;
mod reply;
mod server;
mod settings;
mod share;
mod shared_counting;
mod state;
mod target;
mod tunnel;
mod upstream;
mod window_clock;
mod window_timer;
mod worker;

/// The locks of [`queue`]: a test puts others in their place, which try every interleaving.
mod sync {
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
}

pub use key::{KeyPart, Template};
pub use server::Proxy;
pub use settings::{Policy, Settings, WhenLimited};
pub use upstream::Upstream;
