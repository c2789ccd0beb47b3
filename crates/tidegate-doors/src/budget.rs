//! The one budget of everything that clients of the HTTP door can make grow (promise M6): `[limits]` of the configuration.
//!
//! Each thing is counted in all, for each address and for each token ([`account`]). Nobody gets all of anything: one address, or one token, leaves
//! a part to others. What is refused is told with the bound, counted, and told in `/metrics`.

use crate::access::Caller;
use crate::listener::{Account, Backlog, Caps, Census, Place, Taken};
use crate::metrics::{Kind, Page};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// How much of each thing there may be. Every bound has a default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections open at once; past it a connection is answered 503 and closed. Default 10,000.
    pub connections: usize,
    /// Connections open at once from one address, or one IPv6 /64. Default: all but 64, or but a tenth if that is fewer.
    pub connections_per_address: Option<usize>,
    /// Connections open at once that show one token or certificate. Default: the same.
    pub connections_per_token: Option<usize>,
    /// Connections that feeds and sessions leave to requests; and while fewer are free, one that waits for a request is cut
    /// after a second. Default: a tenth.
    pub reserved_connections: Option<usize>,
    /// Sessions of STOMP that have no subscription. Default 1,000.
    pub idle_sessions: usize,
    /// Subscriptions of all sessions, and feeds. Default 20,000.
    pub subscriptions: usize,
    /// Subscriptions of one session. Default 100.
    pub subscriptions_per_session: usize,
    /// Reservations that were made at this door and are open. Default 100,000.
    pub reservations: usize,
    /// Bytes of large answers and messages that clients have not read yet; one that many are sent counts once. Past
    /// it an answer is 503, and a feed or a session ends. Nine tenths of it for one address. Default 256 MiB.
    pub unread_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 10_000,
            connections_per_address: None,
            connections_per_token: None,
            reserved_connections: None,
            idle_sessions: 1_000,
            subscriptions: 20_000,
            subscriptions_per_session: 100,
            reservations: 100_000,
            unread_bytes: 256 << 20,
        }
    }
}

impl Limits {
    /// Connections that feeds and sessions leave to requests.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.reserved_connections.unwrap_or(self.connections / 10).min(self.connections)
    }

    /// How many connections a door takes.
    #[must_use]
    pub fn connections(&self) -> Caps {
        let caps = Caps::of(self.connections);
        Caps {
            per_address: self.connections_per_address.unwrap_or(caps.per_address),
            per_token: self.connections_per_token.unwrap_or(caps.per_token),
            ..caps
        }
    }
}

/// Who is charged for what this caller takes from that address.
pub(crate) fn account(address: IpAddr, caller: &Caller) -> Account {
    let account = Account::of(address);
    if caller.has_credential() { account.with(&caller.to_string()) } else { account }
}

/// Whose connection it is: the token or certificate that its client has shown last, with its place among the connections of that one.
#[derive(Default)]
pub(crate) struct Holder(Mutex<Option<(Caller, Place)>>);

impl Holder {
    /// Counts the connection for its client, once.
    pub(crate) fn count(&self, connections: &Arc<Census>, caller: &Caller) -> Result<(), Taken> {
        if !caller.has_credential() {
            return Ok(());
        }
        let mut holder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if holder.as_ref().is_some_and(|(known, _)| known.is_same(caller)) {
            return Ok(());
        }
        // First, as it may be the same by another reading of the tokens.
        *holder = None;
        *holder = Some((caller.clone(), connections.show(&caller.to_string())?));
        Ok(())
    }
}

/// What is taken of the budget.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    pub(crate) connections: Arc<Census>,
    /// Requests of HTTP/2 that are under way: as many as connections may be open.
    pub(crate) http2_requests: Arc<Census>,
    /// Connections and requests of HTTP/2 that stay: feeds and sessions.
    pub(crate) lasting: Arc<Census>,
    pub(crate) idle_sessions: Arc<Census>,
    pub(crate) subscriptions: Arc<Census>,
    pub(crate) reservations: Arc<Census>,
    pub(crate) backlog: Arc<Backlog>,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Budget {
        let census = |caps| Arc::new(Census::new(caps));
        let connections = limits.connections();
        let lasting = limits.connections - limits.reserved();
        Budget {
            connections: census(connections),
            http2_requests: census(connections),
            lasting: census(Caps {
                per_address: connections.per_address.min(Caps::of(lasting).per_address),
                per_token: connections.per_token.min(Caps::of(lasting).per_token),
                all: lasting,
            }),
            idle_sessions: census(Caps::of(limits.idle_sessions)),
            subscriptions: census(Caps::of(limits.subscriptions)),
            reservations: census(Caps::of(limits.reservations)),
            backlog: Arc::new(Backlog::new(limits.unread_bytes)),
            limits,
        }
    }

    /// What `/metrics` tells of each thing.
    pub(crate) fn things(&self) -> Vec<Thing> {
        let backlog = &self.backlog;
        let unread = Thing {
            what: "unread_bytes",
            taken: backlog.bytes(),
            max: backlog.max_bytes(),
            refused: backlog.refused(),
        };
        vec![
            Thing::counted("connections", &self.connections),
            Thing::counted("http2_requests", &self.http2_requests),
            Thing::counted("feeds_and_sessions", &self.lasting),
            Thing::counted("idle_sessions", &self.idle_sessions),
            Thing::counted("subscriptions", &self.subscriptions),
            Thing::counted("reservations", &self.reservations),
            unread,
        ]
    }
}

/// One of the things that clients of a door can make grow: how much there is and may be, and how often it was refused.
pub(crate) struct Thing {
    what: &'static str,
    taken: usize,
    max: usize,
    refused: u64,
}

impl Thing {
    pub(crate) fn counted(what: &'static str, census: &Census) -> Thing {
        Thing { what, taken: census.open(), max: census.caps().all, refused: census.refused() }
    }
}

/// Tells of the things of all doors, in one place.
pub(crate) fn fill(things: &[Thing], page: &mut Page) {
    let help = "What clients have taken of what [limits] lets them have.";
    let mut taken = page.family("tidegate_limits_taken", Kind::Gauge, help);
    things.iter().for_each(|thing| taken.sample(&[("what", thing.what)], thing.taken));
    let help = "What [limits] lets clients have in all.";
    let mut most = page.family("tidegate_limits_max", Kind::Gauge, help);
    things.iter().for_each(|thing| most.sample(&[("what", thing.what)], thing.max));
    let help = "How often [limits] refused something: in all, of one address, or of one token.";
    let mut refused = page.family("tidegate_limits_refused_total", Kind::Counter, help);
    things.iter().for_each(|thing| refused.sample(&[("what", thing.what)], thing.refused));
}
