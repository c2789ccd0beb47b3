//! Leases that entries are written under, so that none is left behind: one [`Broom`] for each time that they must live.

use super::{Broom, Etcd, LeaseId, StoreError, locked};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The leases in use, by the seconds that what is written under them must live.
#[derive(Default, Debug)]
pub(super) struct Lent(Mutex<HashMap<u64, Arc<Corner>>>);

#[derive(Debug)]
struct Corner {
    broom: Broom,
    /// Entries written under it.
    writes: AtomicU32,
}

/// About the most entries under one lease: etcd deletes them all at once.
const WRITES_MAX: u32 = 10_000;
/// The shortest time that entries live.
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
        let corner = self.corner(seconds, writes);
        corner.broom.lease(etcd, by.saturating_duration_since(Instant::now())).await
    }

    fn corner(&self, seconds: u64, writes: u32) -> Arc<Corner> {
        let mut corners = locked(&self.0);
        let has_room = |corner: &&Arc<Corner>| corner.writes.load(Relaxed) < WRITES_MAX;
        let corner = match corners.get(&seconds).filter(has_room) {
            Some(corner) => Arc::clone(corner),
            None => {
                let broom = Broom::new(Duration::from_secs(seconds));
                let new = Arc::new(Corner { broom, writes: AtomicU32::new(0) });
                corners.insert(seconds, Arc::clone(&new));
                new
            }
        };
        corner.writes.fetch_add(writes, Relaxed);
        corner
    }

    /// A lease is gone: somebody revoked it, or the etcd is another one.
    pub(super) fn forget(&self) {
        locked(&self.0).clear();
    }
}
