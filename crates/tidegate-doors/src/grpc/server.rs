//! The door as a whole: its settings, what all calls share, and how it is run.

use super::connection::run;
use super::metrics::Metrics;
use crate::access::Access;
use crate::budget::Limits;
use crate::http::bounds::SEND_BUFFER_BYTES;
use crate::listener::{self, Bounds, Tls};
use crate::ratelimit::{RateLimitCounters, RateLimitSettings};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate::Gate;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How the door behaves. Every setting has a default.
#[derive(Clone, Debug)]
pub struct GrpcSettings {
    /// How long a client may take for its handshake and the first bytes of HTTP/2. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long a message may take. Default 10 s.
    pub message_timeout: Duration,
    /// How long a connection may be without a call. Longer than the age at which it ends in order, so that it is for clients that do not
    /// heed that. Default 2 h.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of an answer that is there for it. Default 10 s.
    pub write_timeout: Duration,
    /// How long calls under way may take after the door was stopped. Default 10 s.
    pub drain_timeout: Duration,
    /// The age at which a connection ends in order (GOAWAY), so that clients spread over new replicas; up to a tenth more. Default 30
    /// min.
    pub max_age: Duration,
    /// While fewer connections are free, one on which nobody was admitted yet is cut after a second without a call. Default: a tenth.
    pub reserved_connections: Option<usize>,
    /// Who may ask what. Default: no tokens.
    pub access: Arc<Access>,
    /// The door's certificates. Default: none, which is clear text.
    pub tls: Option<Arc<Tls>>,
    /// What answers of the rate limit service carry.
    pub ratelimit: RateLimitSettings,
    /// What is counted of them; one for all doors that have the service. Default: its own.
    pub ratelimit_counters: Arc<RateLimitCounters>,
    /// What the door counts, for the `/metrics` of the HTTP door, and how many connections it takes. Default: as many as the HTTP door.
    pub metrics: Arc<Metrics>,
}

/// A tenth of the connections.
pub(super) const RESERVED_PART: usize = 10;

impl GrpcSettings {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            // Calls come on connections that wait for them: only those that nobody was admitted on make room for others.
            reserved: self.reserved_connections.unwrap_or(self.metrics.connections.caps().all / RESERVED_PART),
            head_timeout: self.handshake_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            drain_timeout: self.drain_timeout,
            send_buffer_bytes: Some(SEND_BUFFER_BYTES),
        }
    }
}

impl Default for GrpcSettings {
    fn default() -> GrpcSettings {
        GrpcSettings {
            handshake_timeout: Duration::from_secs(10),
            message_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(2 * 3600),
            write_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            max_age: Duration::from_secs(30 * 60),
            reserved_connections: None,
            access: Arc::default(),
            tls: None,
            ratelimit: RateLimitSettings::default(),
            ratelimit_counters: Arc::default(),
            metrics: Arc::new(Metrics::new(Limits::default().connections())),
        }
    }
}

/// What all calls of the door share.
pub(super) struct Door {
    pub(super) gate: Gate,
    pub(super) settings: GrpcSettings,
    /// Turns true when the door is stopping.
    pub(super) closing: watch::Sender<bool>,
}

/// Runs the door until `shutdown` is done: then it accepts no more, tells clients to go elsewhere (GOAWAY), lets the calls under way end within
/// [`GrpcSettings::drain_timeout`] and cuts what is left.
///
/// # Errors
/// When the listener is unusable. Failures that pass, such as too many open files, are waited out.
pub async fn serve(
    listener: TcpListener,
    gate: Gate,
    settings: GrpcSettings,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (bounds, tls) = (settings.bounds(), settings.tls.clone());
    let census = Arc::clone(&settings.metrics.connections);
    let gate = gate.at(tidegate::Door::Grpc);
    let door = Arc::new(Door { gate, settings, closing: watch::Sender::new(false) });
    let told_to_stop = async {
        shutdown.await;
        door.closing.send_replace(true);
    };
    let run = |connection| run(Arc::clone(&door), connection);
    listener::serve(listener, bounds, census, tls, told_to_stop, run).await
}
