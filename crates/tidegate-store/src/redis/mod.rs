//! The Redis store: states live in Redis, and scripts decide there, with the core's arithmetic.
//!
//! The client is ours, because what a rate limiter needs of one lies below what the clients that we know offer:
//! - Every call has a deadline of its own, and its error says whether the command may have been executed. A reply
//!   that is late is passed over and the connection goes on: nothing is asked twice (A7).
//! - A silent server costs no caller more than its deadline, and most callers nothing: a breaker that knows how long
//!   callers were willing to wait stops asking, probes, and resumes within a second (F1, F2).
//! - Every error reply has one meaning, in one table, with what follows and the remedy (F3).
//! - Redis, Valkey, Sentinel, Cluster and twemproxy are one `Route`, and scripts know which of them they run on.
//!
//! Its protocol is small: `tidegate_wire::resp` is 200 lines and is fuzzed. What is *not* here is what we do not need:
//! RESP 3, pub/sub, transactions, typed commands.
//!
//! One call a decision. The server's clock, read inside the script, is the authority. Every key has
//! an expiry, but for the flags of disabled limiters. `lua/` holds one file for each algorithm of the core;
//! `tests/redis_model.rs` compares the two number for number.

mod ask;
mod cluster;
mod connection;
mod cross_slot;
mod dial;
mod error;
mod foreign;
mod link;
mod names;
mod operate;
mod overrides;
mod plain;
mod register;
mod reserve;
mod route;
mod script;
mod sentinel;
mod sharded;
mod slot;
mod store;
mod tally;
mod url;

use crate::store::{Meaning, StoreError};
pub use foreign::{Lua, Reply};
pub use tally::Bought;
pub use url::{Kind, Url};

use route::Route;
use tidegate_wire::resp;

/// What [`crate::Store`] asks.
pub(crate) type Store = Redis;

/// A Redis that is kept connected until this is dropped. Needs a running tokio runtime.
#[derive(Debug)]
pub struct Redis {
    url: Url,
    route: Route,
    grants: store::Grants,
}

impl Redis {
    /// Connects, or goes on trying in the background: see [`Redis::down`].
    pub async fn open(url: Url) -> Redis {
        let route = Route::open(&url).await;
        Redis { url, route, grants: store::Grants::default() }
    }

    /// Another connection to the same Redis, for reads that wait at the server.
    pub async fn for_blocking_reads(&self) -> Redis {
        Redis::open(self.url.clone()).await
    }

    /// Where it is.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// False: do not ask it now, the answer would be an error. Costs next to nothing.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.route.answers()
    }

    /// Why it is not connected, if it is not.
    #[must_use]
    pub fn down(&self) -> Option<StoreError> {
        self.route.down()
    }

    /// True when keys of one request may live on different servers: scripts then get one key each.
    fn is_sharded(&self) -> bool {
        matches!(self.url.kind, Kind::Twemproxy | Kind::Cluster)
    }

    /// The reply makes no sense.
    fn garbled(&self, why: &str) -> StoreError {
        StoreError::Garbled { address: self.url.to_string(), why: why.to_owned() }
    }
}
