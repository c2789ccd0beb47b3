//! The etcd store: counts live in etcd, and this process decides with the core's arithmetic.
//!
//! It is spoken to through its JSON gateway over HTTP/1.1, which every etcd from 3.4 on has at its client port.
//! What was read is written over only if no other process has written: every change is one transaction that compares
//! revisions. Leases only clean up; no count ever depends on one.

mod cleanup_lease;
mod counts;
mod error;
mod json;
mod lease;
mod lease_pool;
mod member;
mod members;
mod register;
mod session;
mod store;
mod tally;
mod txn;
mod url;

use crate::store::{Meaning, StoreError};
pub use cleanup_lease::CleanupLease;
pub use counts::Counts;
pub use lease::LeaseId;
pub(crate) use store::Store;
pub use tally::Tallies;
pub use txn::{Condition, OPERATIONS_MAX, Operation, Outcome, Pair, Txn};
pub use url::Url;

use bytes::Bytes;
use error::Then;
use json::Json;
use members::Members;
use session::{LOGIN_TIME_MAX, Session};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// An etcd that is looked for until this and its clones are dropped. Needs a running tokio runtime.
#[derive(Clone, Debug)]
pub struct Etcd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    url: Url,
    members: Arc<Members>,
    session: Arc<Session>,
    tasks: Vec<JoinHandle<()>>,
}

impl Etcd {
    /// Looks for its members and logs in, or goes on trying in the background: see [`Etcd::down`].
    pub async fn open(url: Url) -> Etcd {
        let members = Arc::new(Members::of(&url));
        let session = Arc::new(Session::of(&url));
        let tasks = members.tend().await;
        if members.answers() {
            // What comes of it is in the session.
            let _ = session.token(&members, Instant::now() + LOGIN_TIME_MAX).await;
        }
        Etcd(Arc::new(Inner { url, members, session, tasks }))
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0.url
    }

    /// False: do not ask it now, the answer would be an error. Costs next to nothing.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.0.members.answers()
    }

    /// Why it cannot be asked, if it cannot.
    #[must_use]
    pub fn down(&self) -> Option<StoreError> {
        self.0.members.down().or_else(|| self.0.session.refusal())
    }

    /// Asks, logged in if we have a name.
    async fn call(&self, path: &'static str, body: String, within: Duration) -> Result<Json, StoreError> {
        let Inner { members, session, .. } = &*self.0;
        let (body, by) = (Bytes::from(body), Instant::now() + within);
        let token = session.token(members, by).await?;
        match members.ask(path, &body, token.clone(), by).await {
            Err((_, Then::LogIn)) if session.forget(token.as_ref()) => {
                let token = session.token(members, by).await?;
                members.ask(path, &body, token, by).await
            }
            answer => answer,
        }
        .map_err(|(error, _)| error)
    }

    /// An answer that makes no sense.
    #[must_use]
    pub fn senseless(&self, why: &str) -> StoreError {
        self.garbled(why)
    }

    /// The reply makes no sense.
    fn garbled(&self, why: &str) -> StoreError {
        error::garbled(&self.0.members.addresses(), why)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The time that is left until the deadline.
fn left(by: Instant) -> Duration {
    by.saturating_duration_since(Instant::now())
}

/// What a thread that panicked left under a lock here is whole: nothing is changed in steps.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
