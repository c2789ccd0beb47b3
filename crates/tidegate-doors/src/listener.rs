//! The listener: accepts TCP connections, caps them, refuses past the cap, cuts those that stall, and drains on stop.
//!
//! Every TCP connection of Tidegate comes in here: those of the HTTP door (and so of STOMP, which begins as an HTTP request), of the gRPC
//! door, of the proxy and of its admin address. [`serve`] does all of it in one loop. The proxy spreads its connections over threads, and uses
//! the two halves: an [`Acceptor`], and in each thread a [`Roster`].
//!
//! Time limits take no timer for each connection: a connection notes the tick at which it began to be idle, to send a head or
//! not to read, and a sweep over all of them twice a second cuts those that are over their limit. The price: a limit may be
//! overstayed by up to two ticks.
//!
//! What a connection was answered and has not read is bounded over all connections of a door by the private `backlog` module.
//!
//! What a connection speaks is found out in one place, [`Connection::protocol`], which makes the TLS handshake if the door has
//! certificates ([`Tls`]); every byte goes through the private `stream` module, whose socket is in clear text or has TLS over it.
//! Invariant: a client's bytes go through [`Watched`] and nowhere else, so that the sweep sees a client that does not read.

mod acceptor;
mod account;
mod backlog;
mod census;
mod connection;
mod frames;
mod handshake;
mod http2;
mod roster;
mod socket;
mod stream;
mod strict;
mod threads;
mod ticks;
mod tls;
mod watched;

pub use acceptor::{Accepted, Acceptor, HandedOver};
pub(crate) use account::Account;
pub(crate) use backlog::{Backlog, Held, LARGE, TooMuchUnread};
pub use census::{Caps, Census};
pub(crate) use census::{Place, Taken};
pub use connection::{Busy, Connection, Order};
pub use http2::{Http2, Requests, STREAMS_MAX, http2};
pub use roster::Roster;
pub use stream::Protocol;
pub use strict::Strict;
pub use threads::serve_in_threads;
pub use ticks::{IdleTimeout, TICK, TickClock, ticks};
pub use tidegate_wire::certificate::CertificateNames;
pub use tls::{Speaks, Tls, TlsError, TlsFiles};
pub use watched::Watched;

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

/// What connections may take beside their places: for how long.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// When fewer connections than these are free, one that waits for a request, or is in the middle of a head, is cut after a
    /// second, but for those of clients that were admitted (`note_admitted`); 0: never.
    pub reserved: usize,
    /// How long a head may take from its first byte to its last.
    pub head_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long a client may read nothing while something is to be written.
    pub write_timeout: Duration,
    /// How long connections may take to end after the stop.
    pub drain_timeout: Duration,
    /// What the kernel is asked to keep of bytes that a client has not acknowledged; `None`: as much as it likes.
    pub send_buffer_bytes: Option<usize>,
}

/// Serves each connection with `serve`, with TLS or in clear text, until `shutdown` is done: then no more are accepted, those that are open may end within
/// [`Bounds::drain_timeout`], and the rest is cut.
///
/// # Errors
/// When the listener is unusable. Failures that pass, such as too many open files, are waited out.
pub async fn serve<Serving: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    bounds: Bounds,
    census: Arc<Census>,
    tls: Option<Arc<Tls>>,
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(Arc<Connection>) -> Serving,
) -> io::Result<()> {
    let mut roster = Roster::new(&bounds, &census);
    let outcome = {
        let mut acceptor = Acceptor::new(listener, bounds, census, tls);
        tokio::select! {
            () = shutdown => Ok(()),
            error = serve_all(&mut acceptor, &mut roster, serve) => Err(error),
        }
    };
    roster.drain().await;
    outcome
}

/// Goes on until the listener breaks.
async fn serve_all<Serving: Future<Output = ()> + Send + 'static>(
    acceptor: &mut Acceptor,
    roster: &mut Roster,
    serve: impl Fn(Arc<Connection>) -> Serving,
) -> io::Error {
    let mut rounds = interval(TICK);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = acceptor.next() => match accepted {
                Ok(accepted) => roster.serve(accepted, &serve),
                Err(error) => return error,
            },
            _ = rounds.tick() => roster.sweep(),
        }
    }
}
