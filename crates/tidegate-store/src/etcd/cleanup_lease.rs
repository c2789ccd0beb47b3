//! A lease that cleans up: what is written under it goes when it has not been needed for long.
//!
//! It is never renewed. Before half of its time is over, another takes its place, so that whatever is written lives
//! for half of it at least.

use super::{Etcd, LeaseId, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Hands out leases of one length.
#[derive(Debug)]
pub struct CleanupLease {
    lives: Duration,
    current: Mutex<Option<(LeaseId, Instant)>>,
}

impl CleanupLease {
    /// Whatever is written lives for as long as this, and for twice as long at most.
    #[must_use]
    pub fn new(at_least: Duration) -> CleanupLease {
        CleanupLease { lives: at_least.saturating_mul(2), current: Mutex::new(None) }
    }

    /// The lease to write under. A round trip once in a while.
    ///
    /// # Errors
    /// When etcd grants none.
    pub async fn lease(&self, etcd: &Etcd, within: Duration) -> Result<LeaseId, StoreError> {
        let known = *self.current();
        if let Some((lease, since)) = known
            && since.elapsed() < self.lives / 2
        {
            return Ok(lease);
        }
        let asked = Instant::now();
        let lease = etcd.grant_lease(self.lives, within).await?;
        *self.current() = Some((lease, asked));
        Ok(lease)
    }

    /// etcd does not know the lease any more.
    pub fn forget(&self) {
        *self.current() = None;
    }

    fn current(&self) -> MutexGuard<'_, Option<(LeaseId, Instant)>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
