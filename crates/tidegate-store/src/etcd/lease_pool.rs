//! Leases that entries are written under, so that none is left behind: one [`CleanupLease`] for each lifetime.

use super::{CleanupLease, Etcd, LeaseId, StoreError, locked};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The leases in use, by the seconds that what is written under them must live.
#[derive(Default, Debug)]
pub(super) struct LeasePool(Mutex<HashMap<u64, Arc<Pooled>>>);

#[derive(Debug)]
struct Pooled {
    lease: CleanupLease,
    /// Entries written under it.
    writes: AtomicU32,
}

/// About the most entries under one lease: etcd deletes them all at once.
const WRITES_MAX: u32 = 10_000;
/// The shortest time that entries live.
const SECONDS_MIN: u64 = 64;

impl LeasePool {
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
        let pooled = self.pooled(seconds, writes);
        pooled.lease.lease(etcd, by.saturating_duration_since(Instant::now())).await
    }

    fn pooled(&self, seconds: u64, writes: u32) -> Arc<Pooled> {
        let mut pool = locked(&self.0);
        let has_room = |pooled: &&Arc<Pooled>| pooled.writes.load(Relaxed) < WRITES_MAX;
        let pooled = match pool.get(&seconds).filter(has_room) {
            Some(pooled) => Arc::clone(pooled),
            None => {
                let lease = CleanupLease::new(Duration::from_secs(seconds));
                let new = Arc::new(Pooled { lease, writes: AtomicU32::new(0) });
                pool.insert(seconds, Arc::clone(&new));
                new
            }
        };
        pooled.writes.fetch_add(writes, Relaxed);
        pooled
    }

    /// A lease is gone: it was revoked, or the etcd was replaced.
    pub(super) fn forget(&self) {
        locked(&self.0).clear();
    }
}
