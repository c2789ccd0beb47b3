//! Leases: what is written under one goes when it runs out. Only to clean up.
//!
//! A change of leader gives every lease its full time again, and a busy etcd revokes late: what a lease holds may
//! live longer than it was meant to, never shorter. No count may depend on it.

use super::json::integer;
use super::{Etcd, Json, Meaning, StoreError};
use serde_json::json;
use std::time::Duration;

/// A lease's number, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseId(pub(super) i64);

/// The longest lease that etcd grants, in seconds.
const SECONDS_MAX: u64 = 9_000_000_000;

impl Etcd {
    /// A new lease of at least `ttl`, in whole seconds. One round trip.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses. There may be a lease all the same, that no one
    /// knows and that runs out.
    pub async fn grant_lease(&self, ttl: Duration, within: Duration) -> Result<LeaseId, StoreError> {
        let seconds = ttl.as_millis().div_ceil(1000).clamp(1, SECONDS_MAX.into());
        let reply = self.call("/v3/lease/grant", json!({ "TTL": seconds.to_string() }).to_string(), within).await?;
        match integer(&reply, "ID") {
            Some(id) if id != 0 => Ok(LeaseId(id)),
            _ => Err(self.garbled("a lease without a number")),
        }
    }

    /// Gives a lease its full time again, and says how long that is; zero: there is no such lease any more.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses.
    pub async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<Duration, StoreError> {
        let reply = self.call("/v3/lease/keepalive", lease.to_json(), within).await;
        let Some(reply) = unless_gone(reply)? else { return Ok(Duration::ZERO) };
        let result = reply.get("result").ok_or_else(|| self.garbled("a lease's renewal without its result"))?;
        let seconds = integer(result, "TTL").unwrap_or(0);
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    /// Ends a lease, and deletes what was written under it. One that has ended already is no error.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses.
    pub async fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        let reply = self.call("/v3/lease/revoke", lease.to_json(), within).await;
        unless_gone(reply).map(|_| ())
    }
}

impl LeaseId {
    fn to_json(self) -> String {
        json!({ "ID": self.0.to_string() }).to_string()
    }
}

fn unless_gone(reply: Result<Json, StoreError>) -> Result<Option<Json>, StoreError> {
    match reply {
        Err(StoreError::Refused { meaning: Meaning::NoLease, .. }) => Ok(None),
        reply => reply.map(Some),
    }
}
