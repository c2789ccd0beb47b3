//! The door as a whole: its settings, and how it is run.

use super::bounds::{HEADER_BUFFER_MAX, SEND_BUFFER_BYTES};
use super::client::run;
use super::door::Door;
use crate::access::Access;
use crate::audit::Audit;
use crate::budget::Limits;
use crate::grpc;
use crate::listener::{self, Bounds, Tls};
use crate::ratelimit::{RateLimitCounters, RateLimitSettings};
use crate::resp;
use crate::udp::Counters;
use hyper::server::conn::http1;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate::Gate;
use tidegate_events::Streams;
use tokio::net::TcpListener;

/// Where the door listens by default: loopback only.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7400";

/// How the door behaves. Every setting has a default.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// How much clients may take.
    pub limits: Limits,
    /// How long a head may take from its first byte to its last. Default 10 s.
    pub header_timeout: Duration,
    /// How long a body may take. Default 10 s.
    pub body_timeout: Duration,
    /// How long a connection may wait for its next request. Default 60 s.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of an answer, a feed or a session that has something for it. Default 10 s.
    pub write_timeout: Duration,
    /// How long requests under way may take after the door was stopped. Default 10 s.
    pub drain_timeout: Duration,
    /// Who may ask what. Default: no tokens; what an operator does by hand answers to this machine only.
    pub access: Arc<Access>,
    /// The UDP door beside this one, whose counts `/metrics` tells. Default: none.
    pub udp: Option<Arc<Counters>>,
    /// What the gRPC door beside this one counts, which `/metrics` tells. Default: none.
    pub grpc: Option<Arc<grpc::Metrics>>,
    /// The certificates of the gRPC door, of which `/metrics` tells, too. Default: none.
    pub grpc_tls: Option<Arc<Tls>>,
    /// The RESP door beside this one, whose counts `/metrics` tells, and its certificates. Default: none.
    pub resp: Option<(Arc<resp::Counters>, Option<Arc<Tls>>)>,
    /// The event streams. Default: none.
    pub streams: Arc<Streams>,
    /// The door's certificates. Default: none, which is clear text.
    pub tls: Option<Arc<Tls>>,
    /// Where changes by hand are noted. Default: in memory.
    pub audit: Arc<Audit>,
    /// What answers of `/json` carry. Default: the statuses.
    pub ratelimit: RateLimitSettings,
    /// What is counted of them; one for all doors that have the service. Default: its own.
    pub ratelimit_counters: Arc<RateLimitCounters>,
    /// Log lines of the process that could not be written, for `/metrics`. Default: 0.
    pub log_lines_lost: fn() -> u64,
}

impl HttpSettings {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            reserved: self.limits.reserved(),
            head_timeout: self.header_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            drain_timeout: self.drain_timeout,
            send_buffer_bytes: Some(SEND_BUFFER_BYTES),
        }
    }
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            limits: Limits::default(),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            access: Arc::default(),
            udp: None,
            grpc: None,
            grpc_tls: None,
            resp: None,
            streams: Arc::default(),
            audit: Arc::default(),
            ratelimit: RateLimitSettings::default(),
            ratelimit_counters: Arc::default(),
            log_lines_lost: || 0,
            tls: None,
        }
    }
}

/// Runs the door until `shutdown` is done: then it accepts no more, lets the requests under way
/// end within [`HttpSettings::drain_timeout`] and cuts what is left.
///
/// # Errors
/// When the listener is unusable. Failures that pass, such as too many open files, are waited out.
pub async fn serve(
    listener: TcpListener,
    gate: Gate,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (bounds, tls) = (settings.bounds(), settings.tls.clone());
    let door = Arc::new(Door::new(gate, settings));
    let census = Arc::clone(&door.budget.connections);
    let http1 = protocol();
    let told_to_stop = async {
        shutdown.await;
        door.close();
    };
    let run = |connection| run(http1.clone(), Arc::clone(&door), connection);
    listener::serve(listener, bounds, census, tls, told_to_stop, run).await
}

fn protocol() -> http1::Builder {
    let mut http = http1::Builder::new();
    // The listener's limits stand in for hyper's timer.
    http.header_read_timeout(None).max_buf_size(HEADER_BUFFER_MAX as usize);
    // Answers are small: copying one into a single write is cheaper than gathering its parts.
    http.writev(false);
    // A client that has nothing more to send may still want its answer.
    http.half_close(true);
    http
}
