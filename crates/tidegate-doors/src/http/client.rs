//! One client of the door, served from its first request to its end.

use super::dispatch::dispatch;
use super::door::Door;
use super::http2;
use super::problem::Problem;
use super::reply::Reply;
use super::reply_body::{Pieces, ReplyBody};
use crate::access::{Caller, Known};
use crate::budget::{Holder, account};
use crate::listener::{Account, Busy, Connection, LARGE, Protocol, Strict, TooMuchUnread, Watched};
use crate::stomp::{self, SessionPlaces};
use crate::turns::TurnsWhile;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::Micros;

/// A client and its connection.
pub(crate) struct Client {
    pub(crate) door: Arc<Door>,
    pub(crate) connection: Arc<Connection>,
    /// The token or certificate that it has shown.
    pub(crate) known: Known,
    /// The token or certificate that its connection counts for: the one that it has shown last.
    holder: Holder,
    /// Feeds that it has under way.
    pub(crate) feeds: AtomicUsize,
    /// What comes after the answer 101.
    upgrade: Mutex<Option<Upgrade>>,
}

/// A session that begins: who begins it, and its places.
pub(crate) struct Upgrade {
    pub(crate) on: OnUpgrade,
    pub(crate) caller: Caller,
    pub(crate) places: SessionPlaces,
}

impl Client {
    /// After the answer under way it speaks STOMP, so that what comes is no HTTP any more.
    pub(crate) fn go_over_to(&self, upgrade: Upgrade) {
        self.connection.switch_protocol();
        *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
    }

    fn upgrade(&self) -> Option<Upgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts its connection for the token or certificate that it shows, if there is one.
    ///
    /// # Errors
    /// 503: that one has as many connections as it may.
    pub(crate) fn count_for(&self, caller: &Caller) -> Result<(), Problem> {
        let connections = &self.door.budget.connections;
        self.holder.count(connections, caller).map_err(|taken| {
            let most = connections.caps().per_token;
            let detail =
                format!("connections: {taken}, {most}; close some, and keep connections open between requests");
            Problem::new(503, "too_many_connections", detail).retry_after(Micros::from_secs(1)).close()
        })
    }

    /// Who is charged for what this caller takes.
    pub(crate) fn account(&self, caller: &Caller) -> Account {
        account(self.connection.peer().ip(), caller)
    }

    /// A large text is held until the client has read it, charged to whoever asked for it, unless too much is unread already.
    pub(crate) fn bound(&self, reply: &mut Reply, caller: Option<&Caller>) -> Result<(), Problem> {
        let Some(text) = reply.body().text().filter(|text| text.len() > LARGE) else { return Ok(()) };
        let account = caller.map_or_else(|| Account::of(self.connection.peer().ip()), |caller| self.account(caller));
        let held = self.door.budget.backlog.hold(text, &account).map_err(|TooMuchUnread| {
            let detail = format!(
                "the answer has {} bytes, and clients have not read up to {} bytes, the most; read answers, and try again",
                text.len(),
                self.door.budget.backlog.max_bytes()
            );
            Problem::new(503, "too_much_unread", detail).retry_after(Micros::from_secs(1))
        })?;
        if let Some(held) = held {
            let pieces = Pieces { rest: text.clone(), _held: held, _busy: self.busy() };
            *reply.body_mut() = ReplyBody::Pieces(Box::new(pieces));
        }
        Ok(())
    }

    /// Its connection is neither idle nor sending a head as long as the answer holds this.
    pub(crate) fn busy(&self) -> Busy {
        Busy::new(Arc::clone(&self.connection))
    }
}

/// Serves one connection to its end.
pub(crate) async fn run(http1: http1::Builder, door: Arc<Door>, connection: Arc<Connection>) {
    let protocol = tokio::select! {
        protocol = connection.protocol() => protocol,
        // Whatever the order is: nothing is under way yet.
        _ = connection.ordered() => return,
    };
    let known = Known::of(connection.certificate());
    let client = Arc::new(Client {
        door,
        connection,
        known,
        holder: Holder::default(),
        feeds: AtomicUsize::new(0),
        upgrade: Mutex::default(),
    });
    match protocol {
        Ok(Protocol::Http1) => serve_http1(http1, client).await,
        Ok(Protocol::Http2) => http2::serve(client).await,
        Err(_) => {}
    }
}

async fn serve_http1(http: http1::Builder, client: Arc<Client>) {
    let connection = Arc::clone(&client.connection);
    let mut strict = Strict::default();
    let io = TokioIo::new(Watched::new(Arc::clone(&connection), move |bytes: &mut [u8]| {
        strict.look(bytes);
        strict.is_in_head()
    }));
    let served = Arc::clone(&client);
    let service = service_fn(move |request| {
        let client = Arc::clone(&served);
        async move {
            let _busy = client.busy();
            Ok::<_, Infallible>(dispatch(&client, request, None).await)
        }
    });
    let mut serving = pin!(http.serve_connection(io, service).with_upgrades());
    // One that has feeds goes on in turns: ten thousand that are woken at once must not stand before decisions.
    let serving = pin!(TurnsWhile::new(&client.feeds, serving.as_mut()));
    if !connection.serve(serving, |mut it| it.work().graceful_shutdown()).await {
        return;
    }
    if let Some(Upgrade { on, caller, places }) = client.upgrade()
        && let Ok(upgraded) = on.await
    {
        // A session has time limits of its own, but for a client that does not read.
        let _busy = client.busy();
        stomp::serve(TokioIo::new(upgraded), &connection, client.door.session_context(caller), places).await;
    }
}
