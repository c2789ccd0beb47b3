//! The listener: accepts, refuses past the cap, sweeps, and stops in order.

use super::bounds::{HEADER_BUFFER_MAX, REFUSALS_MAX, SEND_BUFFER_BYTES};
use super::connections::{Connections, run};
use super::door::Door;
use super::watchdog::{tick_length, ticks};
use crate::udp::Counters;
use hyper::server::conn::http1;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidegate::Gate;
use tidegate_events::Streams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Where the door listens unless told otherwise: loopback only.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7400";

/// How the door behaves. Every setting has a default.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Connections open at once; past it a connection is answered 503 and closed. Default 10,000.
    pub max_connections: usize,
    /// How long a head may take from its first byte to its last. Default 10 s.
    pub header_timeout: Duration,
    /// How long a body may take. Default 10 s.
    pub body_timeout: Duration,
    /// How long a connection may wait for its next request. Default 60 s.
    pub idle_timeout: Duration,
    /// How long requests under way may take after the door was told to stop. Default 10 s.
    pub drain_timeout: Duration,
    /// Who may enable, disable, block and unblock. Default: this machine.
    pub who_may_change: WhoMayChange,
    /// The UDP door beside this one, whose counts `/metrics` tells. Default: none.
    pub udp: Option<Arc<Counters>>,
    /// The event streams. Default: none.
    pub streams: Arc<Streams>,
}

/// Who may change things.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WhoMayChange {
    /// Peers on this machine that ask directly, not through a proxy or another's web page.
    #[default]
    Loopback,
    /// Whoever reaches the door; still not through another's web page.
    Anyone,
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            max_connections: 10_000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
            who_may_change: WhoMayChange::Loopback,
            udp: None,
            streams: Arc::default(),
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
    let mut server = Server::new(gate, settings);
    let outcome = tokio::select! {
        () = shutdown => Ok(()),
        error = server.accept_all(&listener) => Err(error),
    };
    drop(listener);
    server.drain().await;
    outcome
}

struct Server {
    door: Arc<Door>,
    http: http1::Builder,
    connections: Connections,
    tasks: JoinSet<()>,
    refusals: JoinSet<()>,
}

/// How long to wait after a failure to accept, most likely too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Server {
    fn new(gate: Gate, settings: HttpSettings) -> Server {
        let mut http = http1::Builder::new();
        // The watchdog's limits stand in for hyper's timer.
        http.header_read_timeout(None).max_buf_size(HEADER_BUFFER_MAX);
        // Answers are small: copying one into a single write is cheaper than gathering its parts.
        http.writev(false);
        // A client that has nothing more to send may still want its answer.
        http.half_close(true);
        Server {
            door: Arc::new(Door::new(gate, settings)),
            http,
            connections: Connections::default(),
            tasks: JoinSet::new(),
            refusals: JoinSet::new(),
        }
    }

    /// Goes on until the listener breaks.
    async fn accept_all(&mut self, listener: &TcpListener) -> io::Error {
        let HttpSettings { idle_timeout, header_timeout, .. } = self.door.settings;
        let tick = tick_length([idle_timeout, header_timeout]);
        let mut rounds = interval(tick);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.accept(stream, peer),
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => return error,
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                _ = rounds.tick() => {
                    self.door.tick.fetch_add(1, Relaxed);
                    self.connections.sweep(&self.door, ticks(idle_timeout, tick), ticks(header_timeout, tick));
                }
            }
            while self.tasks.try_join_next().is_some() {}
            while self.refusals.try_join_next().is_some() {}
        }
    }

    fn accept(&mut self, stream: TcpStream, peer: SocketAddr) {
        // Answers are one small packet each; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        bound_send_buffer(&stream);
        if self.door.metrics.connections.load(Relaxed) >= self.door.settings.max_connections {
            self.door.metrics.refused_total.fetch_add(1, Relaxed);
            if self.refusals.len() < REFUSALS_MAX {
                self.refusals.spawn(refuse(stream));
            }
            return;
        }
        let connection = self.connections.open(&self.door, peer);
        self.tasks.spawn(run(self.http.clone(), connection, stream));
    }

    async fn drain(&mut self) {
        self.door.draining.store(true, Relaxed);
        self.door.closing.send_replace(true);
        self.connections.finish();
        let tasks = &mut self.tasks;
        let all_end = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(self.door.settings.drain_timeout, all_end).await;
        self.tasks.shutdown().await;
        self.refusals.shutdown().await;
    }
}

/// Bounds what lies in the kernel for a client that does not read. The kernel would let it grow to megabytes, and all of that
/// would be old by the time it is read. Not at the listener: who came before it listens here would have none.
fn bound_send_buffer(stream: &TcpStream) {
    #[cfg(unix)]
    let _ = socket2::SockRef::from(stream).set_send_buffer_size(SEND_BUFFER_BYTES);
}

/// How long a refused client may take to read why.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// Says why, then reads until the client closes: closing on unread bytes would reset the
/// connection, and the client would never see the answer.
async fn refuse(mut stream: TcpStream) {
    let body = r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"code":"too_many_connections","detail":"all connections are taken; try again, and keep connections open between requests"}"#;
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let farewell = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIME, farewell).await;
}
