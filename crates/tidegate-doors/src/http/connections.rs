//! One connection, and the list of all that are open.
//!
//! A connection is in one of three phases: idle, sending its head, or busy with a request. Idle and
//! sending are bounded in time, and the watchdog cuts what overstays; a request's body has its own
//! timeout, and nothing else takes time.

use super::dispatch::dispatch;
use super::door::Door;
use super::watchdog::Watched;
use crate::stomp;
use http::StatusCode;
use http_body_util::Either;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::net::TcpStream;
use tokio::sync::Notify;

pub(crate) struct Connection {
    pub(crate) door: Arc<Door>,
    pub(crate) peer: SocketAddr,
    /// The phase in the low bits and the tick of its beginning above them.
    since: AtomicU64,
    order: AtomicU8,
    ordered: Notify,
    /// What comes after the answer 101.
    upgrade: Mutex<Option<OnUpgrade>>,
}

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The next request; also while the last response is on its way.
    Idle = 0,
    /// The rest of a head.
    Head = 1,
    /// The answer, or a body that has its own timeout.
    Busy = 2,
}

/// What the server tells a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Nothing = 0,
    /// End after the response under way.
    Finish = 1,
    /// End now.
    Cut = 2,
}

impl Connection {
    fn open(door: Arc<Door>, peer: SocketAddr) -> Connection {
        door.metrics.connections.fetch_add(1, Relaxed);
        door.metrics.connections_total.fetch_add(1, Relaxed);
        let connection = Connection {
            door,
            peer,
            since: AtomicU64::new(0),
            order: AtomicU8::new(Order::Nothing as u8),
            ordered: Notify::new(),
            upgrade: Mutex::new(None),
        };
        // It must send its first head in time like any other.
        connection.enter(Phase::Head);
        connection
    }

    /// After the answer under way it speaks STOMP.
    pub(crate) fn go_over_to(&self, upgrade: OnUpgrade) {
        *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
    }

    fn upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.since.store(self.door.tick.load(Relaxed) << 2 | phase as u64, Relaxed);
    }

    /// Bytes came in: if they are the first of a head, its time begins.
    pub(crate) fn heard(&self) {
        if self.since.load(Relaxed) & 3 == Phase::Idle as u64 {
            self.enter(Phase::Head);
        }
    }

    /// Has it been idle or sending a head for longer than this many ticks?
    fn overstays(&self, idle_ticks: u64, head_ticks: u64) -> bool {
        let since = self.since.load(Relaxed);
        let ticks = self.door.tick.load(Relaxed).saturating_sub(since >> 2);
        match since & 3 {
            phase if phase == Phase::Idle as u64 => ticks > idle_ticks,
            phase if phase == Phase::Head as u64 => ticks > head_ticks,
            _ => false,
        }
    }

    fn give(&self, order: Order) {
        self.order.store(order as u8, Relaxed);
        self.ordered.notify_one();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.door.metrics.connections.fetch_sub(1, Relaxed);
    }
}

/// Serves one connection to its end.
pub(crate) async fn run(http: http1::Builder, connection: Arc<Connection>, stream: TcpStream) {
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&connection)));
    let served = Arc::clone(&connection);
    let service = service_fn(move |request| {
        let connection = Arc::clone(&served);
        async move {
            connection.enter(Phase::Busy);
            let reply = dispatch(&connection, request).await;
            // A feed says itself when it has ended, and a WebSocket has time limits of its own.
            if matches!(reply.body(), Either::Left(_)) && reply.status() != StatusCode::SWITCHING_PROTOCOLS {
                connection.enter(Phase::Idle);
            }
            Ok::<_, Infallible>(reply)
        }
    });
    let mut serving = pin!(http.serve_connection(io, service).with_upgrades());
    loop {
        tokio::select! {
            biased;
            // An error here is the client's going away or not speaking HTTP: nobody is left to tell.
            _ = serving.as_mut() => break,
            () = connection.ordered.notified() => {
                if connection.order.load(Relaxed) == Order::Cut as u8 {
                    return;
                }
                serving.as_mut().graceful_shutdown();
            }
        }
    }
    if let Some(upgrade) = connection.upgrade()
        && let Ok(upgraded) = upgrade.await
    {
        stomp::serve(TokioIo::new(upgraded), connection.door.house()).await;
    }
}

/// All open connections, and closed ones until the next round.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Vec<Weak<Connection>>>);

impl Connections {
    pub(crate) fn open(&self, door: &Arc<Door>, peer: SocketAddr) -> Arc<Connection> {
        let connection = Arc::new(Connection::open(Arc::clone(door), peer));
        self.list().push(Arc::downgrade(&connection));
        connection
    }

    /// Cuts those that overstay, and forgets those that are gone.
    pub(crate) fn sweep(&self, door: &Door, idle_ticks: u64, head_ticks: u64) {
        self.list().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            let cut = connection.overstays(idle_ticks, head_ticks);
            if cut {
                door.metrics.cut_total.fetch_add(1, Relaxed);
                connection.give(Order::Cut);
            }
            !cut
        });
    }

    /// Lets each end after the response under way.
    pub(crate) fn finish(&self) {
        self.list().iter().filter_map(Weak::upgrade).for_each(|connection| connection.give(Order::Finish));
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
