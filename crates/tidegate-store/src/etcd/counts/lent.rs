//! Leases that entries are written under, so that none is left behind.
//!
//! An entry lives for at least as long as it can matter, and for up to four times that. A lease is used for a while
//! and then replaced, never renewed: so entries that nobody writes any more go with theirs.

use super::super::{Etcd, LeaseId, StoreError};
use super::locked;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// The leases in use, by the seconds that what is written under them must live.
#[derive(Default)]
pub(super) struct Lent(Mutex<HashMap<u64, Arc<Lease>>>);

struct Lease {
    id: OnceCell<LeaseId>,
    since: Instant,
    writes: AtomicU32,
}

/// Most entries under one lease: etcd deletes them all at once.
const WRITES_MAX: u32 = 10_000;
/// The shortest time that entries live, and what is added to every lease.
const SECONDS_MIN: u64 = 64;

impl Lent {
    /// A lease under which `writes` entries live for `need` at least. Mostly no round trip.
    pub(super) async fn lease(
        &self,
        etcd: &Etcd,
        need: Duration,
        writes: u32,
        by: Instant,
    ) -> Result<LeaseId, StoreError> {
        // Powers of two, so that there are few.
        let seconds = need.as_secs().saturating_add(1).next_power_of_two().max(SECONDS_MIN);
        let lease = self.current(seconds, writes);
        let within = by.saturating_duration_since(Instant::now());
        let grant = || etcd.grant_lease(Duration::from_secs(seconds * 2 + SECONDS_MIN), within);
        lease.id.get_or_try_init(grant).await.copied()
    }

    fn current(&self, seconds: u64, writes: u32) -> Arc<Lease> {
        let mut leases = locked(&self.0);
        let is_good = |lease: &&Arc<Lease>| {
            lease.since.elapsed() < Duration::from_secs(seconds) && lease.writes.load(Relaxed) < WRITES_MAX
        };
        let lease = match leases.get(&seconds).filter(is_good) {
            Some(lease) => Arc::clone(lease),
            None => {
                let new = Lease { id: OnceCell::new(), since: Instant::now(), writes: AtomicU32::new(0) };
                let new = Arc::new(new);
                leases.insert(seconds, Arc::clone(&new));
                new
            }
        };
        lease.writes.fetch_add(writes, Relaxed);
        lease
    }

    /// This lease is gone: somebody revoked it, or the etcd is another one.
    pub(super) fn forget(&self, gone: LeaseId) {
        locked(&self.0).retain(|_, lease| lease.id.get() != Some(&gone));
    }
}
