//! The door as a whole: its settings, and how it is run.

use super::client;
use super::door::Door;
use crate::access::Access;
use crate::audit::Audit;
use crate::budget::Limits;
use crate::listener::{Acceptor, Bounds, Caps, Taken, Tls, serve_in_threads};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Where the door listens by default: loopback only.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7403";

/// How the door behaves. Every setting has a default.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// Connections open at once: in all, from one address, and with one token. Past it one is told so and closed. Default: as many as the
    /// HTTP door.
    pub connections: Caps,
    /// While fewer connections are free, one that has asked nothing yet is cut after a second. Default: a tenth.
    pub reserved_connections: Option<usize>,
    /// Bytes that connections may have in all for long pipelines: past it others of them are read and answered in smaller pieces.
    /// Default 256 MiB.
    pub buffer_bytes: usize,
    /// How long a command may take from its first byte to its last; and where tokens are set, how long a client may take to show one.
    /// Default 10 s.
    pub command_timeout: Duration,
    /// How long a connection may be silent between commands. Default 5 minutes: clients keep connections in pools.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of its answers. Default 10 s.
    pub write_timeout: Duration,
    /// How long connections may take to end after the door was stopped. Default 10 s.
    pub drain_timeout: Duration,
    /// Threads that serve. Default: one for each processor, 16 at most.
    pub threads: usize,
    /// Who may ask what. Default: no tokens.
    pub access: Arc<Access>,
    /// Where changes by hand are noted. Default: in memory.
    pub audit: Arc<Audit>,
    /// The door's certificates. Default: none, which is clear text.
    pub tls: Option<Arc<Tls>>,
}

/// Most threads of the door: the kernel's own work is spread over as many processors again.
const THREADS_MAX: usize = 16;

/// What the kernel is asked to keep of bytes that a client has not acknowledged.
const SEND_BUFFER_BYTES: usize = 192 << 10;

impl Default for RespSettings {
    fn default() -> RespSettings {
        RespSettings {
            connections: Limits::default().connections(),
            reserved_connections: None,
            buffer_bytes: Limits::default().unread_bytes,
            command_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX),
            access: Arc::default(),
            audit: Arc::default(),
            tls: None,
        }
    }
}

impl RespSettings {
    fn bounds(&self) -> Bounds {
        Bounds {
            // Clients keep connections in pools: only those that have asked nothing yet make room for others.
            reserved: self.reserved_connections.unwrap_or(self.connections.all / 10),
            head_timeout: self.command_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            drain_timeout: self.drain_timeout,
            send_buffer_bytes: Some(SEND_BUFFER_BYTES),
        }
    }
}

/// Runs the door until `shutdown` is done: then it accepts no more, answers what was read, and closes.
///
/// # Errors
/// When a thread cannot be had, or the listener is unusable. Failures that pass, such as too many open files, are waited out.
pub async fn serve(listener: TcpListener, door: Arc<Door>, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let (bounds, threads) = (door.settings.bounds(), door.settings.threads);
    let acceptor =
        Acceptor::new(listener, bounds.clone(), Arc::clone(door.counters().census()), door.settings.tls.clone())
            .refusing_with(refusal);
    let run = move |connection| client::serve(Arc::clone(&door), connection);
    serve_in_threads(acceptor, &bounds, ("resp", threads), shutdown, run).await
}

fn refusal(taken: Taken) -> String {
    let detail = match taken {
        Taken::All => "all connections are taken; try again, and keep connections open between commands",
        Taken::ByAddress | Taken::ByToken => {
            "your address has as many connections as one address may; close some, and keep connections open between commands"
        }
    };
    format!("-ERR max number of clients reached: {detail}\r\n")
}
