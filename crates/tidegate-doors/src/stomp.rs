//! The STOMP door: event streams pushed over WebSocket, at `/ws` of the HTTP door.
//!
//! `handshake` turns an HTTP request into a WebSocket; `session` is one client from CONNECT to its end;
//! `subscription` brings a stream's messages into frames; `writer` brings frames to the socket; `time` is the
//! topic of this server's time. A client that does not read is noticed by the listener, as any other.
//! Invariant: no client waits for another that does not read (promise C4).

mod end;
pub(crate) mod handshake;
mod session;
mod subscription;
pub(crate) mod time;
mod words;
mod writer;

pub(crate) use session::serve;

use crate::access::{Caller, Lasting};
use crate::budget::{Budget, Holder};
use crate::listener::{Account, Place, Taken};
use std::sync::Arc;
use std::time::Duration;
use tidegate::Gate;
use tidegate_events::Streams;
use time::TimeTopic;
use tokio::sync::watch;

/// The version of STOMP that is spoken.
const VERSION: &str = "1.2";

/// Who begins a session, and what all sessions share.
pub(crate) struct SessionContext {
    pub(crate) caller: Lasting,
    /// Whose clock says when a token expires.
    pub(crate) gate: Gate,
    pub(crate) streams: Arc<Streams>,
    pub(crate) time: Arc<TimeTopic>,
    /// True once the door is closing.
    pub(crate) closing: watch::Receiver<bool>,
    /// How long a client may read nothing.
    pub(crate) write_timeout: Duration,
    /// How long a client may say nothing while it has no subscription.
    pub(crate) idle_timeout: Duration,
    /// What clients have taken.
    pub(crate) budget: Arc<Budget>,
}

/// What a session takes from the beginning on.
pub(crate) struct SessionPlaces {
    /// Among feeds and sessions.
    pub(crate) lasting: Place,
    /// Among sessions without a subscription, as long as it is one.
    pub(crate) idle: Option<Place>,
    /// Among the connections of the token that it has shown in CONNECT.
    pub(crate) holder: Holder,
}

impl SessionPlaces {
    /// Charges them to the token that the session's client has shown since it was opened.
    ///
    /// # Errors
    /// What the token has as many of as one may, and how many.
    fn charge(&mut self, budget: &Budget, caller: &Caller, account: &Account) -> Result<(), String> {
        let told = |what: &'static str, most: usize| move |taken: Taken| format!("{what}: {taken}, {most}; end some");
        let connections = &budget.connections;
        self.holder.count(connections, caller).map_err(told("connections", connections.caps().per_token))?;
        let most = budget.lasting.caps().per_token;
        self.lasting.charge(account).map_err(told("feeds and sessions", most))?;
        let most = budget.idle_sessions.caps().per_token;
        let idle = self.idle.as_mut().map_or(Ok(()), |idle| idle.charge(account));
        idle.map_err(told("sessions without a subscription", most))
    }
}
