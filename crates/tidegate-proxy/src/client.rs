//! One client's connection, as a request sees it.

use crate::client_slots::ClientSlots;
use crate::fields::Hop;
use crate::pool::Pool;
use crate::state::ProxyState;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use tidegate_doors::listener::{self, Connection, IdleTimeout};

/// A connection that a client opened, in one of the threads.
pub(crate) struct Client {
    pub(crate) state: Arc<ProxyState>,
    worker: usize,
    pub(crate) peer: IpAddr,
    pub(crate) hop: Hop,
    /// Those of the address that the connection comes from.
    pub(crate) slots: Arc<ClientSlots>,
    pub(crate) connection: Arc<Connection>,
}

impl Client {
    pub(crate) fn new(state: Arc<ProxyState>, worker: usize, connection: Arc<Connection>) -> Client {
        let peer = connection.peer().ip();
        let slots = state.clients.at(peer);
        Client { state, worker, peer, hop: Hop::of(peer, connection.is_encrypted()), slots, connection }
    }

    /// The connections to the upstream that its thread has.
    pub(crate) fn pool(&self) -> &Pool {
        &self.state.pools.all[self.worker]
    }

    /// A limit of so many ticks on how long the client, or the upstream, may be silent.
    pub(crate) fn idle_timeout(&self, limit_ticks: u64) -> IdleTimeout {
        self.connection.idle_timeout(limit_ticks)
    }

    /// Has it closed its side, or broken off?
    pub(crate) fn has_left(&self) -> bool {
        self.connection.has_left()
    }

    /// Is nobody left to read an answer, as far as that is known?
    pub(crate) fn has_broken_off(&self) -> bool {
        self.connection.has_broken_off()
    }

    /// What comes next on this connection is no HTTP/1.
    pub(crate) fn switch_protocol(&self) {
        self.connection.switch_protocol();
    }
}

/// A client whose connection is busy while this lives.
pub(crate) struct Busy {
    client: Arc<Client>,
    _busy: listener::Busy,
}

impl Busy {
    pub(crate) fn new(client: Arc<Client>) -> Busy {
        client.connection.answer_half_closed(true);
        let busy = listener::Busy::new(Arc::clone(&client.connection));
        Busy { client, _busy: busy }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connection.answer_half_closed(false);
    }
}

impl Deref for Busy {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
