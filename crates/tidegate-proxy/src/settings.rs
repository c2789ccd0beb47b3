//! A proxy's settings: the policy, which can be replaced while it runs, and the rest, which cannot.

use crate::key::{KeyPart, Template};
use crate::upstream::Upstream;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Limit, Limiter, Micros};
use tidegate_core::turnstile::Bounds;
use tidegate_doors::access::Access;
use tidegate_doors::listener::{self, Tls};

/// What happens to a request that may not start now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WhenLimited {
    /// It waits its turn.
    #[default]
    Wait,
    /// It is answered 429.
    Reject,
}

/// What is limited and where it goes. Replaced with [`crate::Proxy::reload`].
#[derive(Clone, Debug)]
pub struct Policy {
    /// Where requests are forwarded.
    pub upstream: Upstream,
    /// The gate's limiter whose one limit says how many requests start per key and aligned window.
    pub limiter: Limiter,
    /// Requests under way per key; 0: no bound.
    pub in_flight: u32,
    /// Whether requests that may not start wait.
    pub when_limited: WhenLimited,
    /// How many may wait at once; past it, 503.
    pub max_waiting: u32,
    /// What the heads of all waiting requests may take, in bytes; past it, 503.
    pub max_waiting_bytes: u64,
    /// How many requests of one client (an address, or an IPv6 /64) may wait; past it, 503. Default: all but 64, or but a tenth if
    /// that is fewer, so that a load balancer, which is one client, is hardly held, and no client takes all.
    pub max_waiting_per_client: Option<u32>,
    /// How many of one client may be under way; others of it wait. The same default, of `max_upstream`.
    pub max_in_flight_per_client: Option<u32>,
    /// How long a request may wait, from its arrival on; then 429.
    pub max_wait: Option<Duration>,
    /// Connections to the upstream, and so requests under way over all keys.
    pub max_upstream: u32,
    /// Keys with a place of their own; past it, new ones share.
    pub max_keys: u32,
    /// What makes a key.
    pub key: Vec<KeyPart>,
    /// Paths that count as one.
    pub templates: Vec<Template>,
    /// Proxies in front of this one that append to X-Forwarded-For.
    pub trusted_hops: usize,
    /// How long connecting to the upstream may take; then 502.
    pub connect_timeout: Duration,
    /// How long the upstream may be silent in the middle of an answer, or before it (then 504).
    pub upstream_timeout: Duration,
}

impl Policy {
    /// The defaults in front of an upstream: 100 in flight per path, waiting.
    #[must_use]
    pub fn new(upstream: Upstream, limiter: Limiter) -> Policy {
        Policy {
            upstream,
            limiter,
            in_flight: 100,
            when_limited: WhenLimited::Wait,
            max_waiting: 10_000,
            max_waiting_bytes: 256 << 20,
            max_waiting_per_client: None,
            max_in_flight_per_client: None,
            max_wait: None,
            max_upstream: 1_000,
            max_keys: 1_000_000,
            key: vec![KeyPart::Path],
            templates: Vec::new(),
            trusted_hops: 0,
            connect_timeout: Duration::from_secs(5),
            upstream_timeout: Duration::from_secs(60),
        }
    }

    /// The limiter's one limit. Bursts and blocks have no meaning here.
    pub(crate) fn limit(&self) -> Limit {
        let spec = self.limiter.spec();
        let limit = spec.rules.limits().first().copied();
        let plain = limit.and_then(|limit| Some(Limit::new(limit.count(), limit.period()).ok()?.with_weeks_of(&limit)));
        plain.unwrap_or_else(|| Limit::new(0, Micros::from_secs(1)).expect("a second is a period"))
    }

    pub(crate) fn waiting_per_client(&self) -> u32 {
        self.max_waiting_per_client.unwrap_or_else(|| all_but_some(self.max_waiting))
    }

    pub(crate) fn in_flight_per_client(&self) -> u32 {
        self.max_in_flight_per_client.unwrap_or_else(|| all_but_some(self.max_upstream))
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            limit: self.limit(),
            in_flight: self.in_flight,
            total: self.max_upstream,
            waiting: self.max_waiting,
            waiting_weight: self.max_waiting_bytes,
            keys: self.max_keys,
        }
    }
}

/// What one client may take of so many: it leaves 64 to others, or a tenth if that is fewer.
fn all_but_some(all: u32) -> u32 {
    all - (all / 10).min(64)
}

/// How the proxy serves its clients. Every setting has a default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Client connections open at once; past it, 503. Default 10,000.
    pub max_connections: usize,
    /// The same from one address, or one IPv6 /64. Default: all but 64, or but a tenth if that is fewer.
    pub max_connections_per_address: Option<usize>,
    /// How long a head may take from its first byte to its last. Default 10 s.
    pub head_timeout: Duration,
    /// How long a connection may wait for its next request. Default 60 s.
    pub idle_timeout: Duration,
    /// How long a client may be silent in the middle of a body, or not read its answer. Default 60 s.
    pub client_timeout: Duration,
    /// How long requests under way may take after the proxy was stopped. Default 10 s.
    pub drain_timeout: Duration,
    /// Threads that serve connections. Default: one for each processor.
    pub workers: usize,
    /// The certificates of the address where clients ask. Default: none, which is clear text.
    pub tls: Option<Arc<Tls>>,
    /// Those of the admin address. Default: none.
    pub admin_tls: Option<Arc<Tls>>,
    /// For how long a store that replicas share may fail before requests that need it are answered 503. Default 3 s.
    pub store_outage: Duration,
    /// Log lines of the process that could not be written, for `/metrics`. Default: 0.
    pub log_lines_lost: fn() -> u64,
    /// Which callers the admin address answers. Default: no tokens.
    pub access: Arc<Access>,
}

impl Settings {
    pub(crate) fn connection_caps(&self) -> listener::Caps {
        let caps = listener::Caps::of(self.max_connections);
        listener::Caps { per_address: self.max_connections_per_address.unwrap_or(caps.per_address), ..caps }
    }

    pub(crate) fn connection_bounds(&self) -> listener::Bounds {
        listener::Bounds {
            // A request that waits in line is worth its connection; those that do not are few beside them.
            reserved: 0,
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.client_timeout,
            drain_timeout: self.drain_timeout,
            // Bodies of any size stream through: the kernel knows best.
            send_buffer_bytes: None,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_connections: 10_000,
            max_connections_per_address: None,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            client_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            tls: None,
            admin_tls: None,
            store_outage: Duration::from_secs(3),
            log_lines_lost: || 0,
            access: Arc::default(),
        }
    }
}
