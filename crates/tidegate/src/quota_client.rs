//! Shared counting: starts and slots of a turnstile, requested of a store.
//!
//! What is asked and what a grant means is decided in [`tidegate_core::turnstile`]; here a request is carried to the
//! store, and the slots that this replica holds are kept from being taken for lost.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::replicas::{ReplicaId, SLOTS_LEASE};
use tidegate_core::turnstile::{Grant, Name, QuotaRequest};
use tidegate_store::{Holder, Store, StoreError};

/// One replica's requests to the store that it shares with the others.
#[derive(Debug)]
pub struct QuotaClient {
    store: Store,
    /// What the replicas of one limit have in common.
    pool: String,
    me: ReplicaId,
    /// The last request of each key of which slots are held: a replica that says nothing loses them.
    held: Mutex<HashMap<Name, QuotaRequest>>,
}

/// How long the store may take to answer.
const WITHIN: Duration = Duration::from_secs(1);

impl QuotaClient {
    /// A new replica of those that share this pool.
    #[must_use]
    pub fn new(store: Store, pool: &str) -> QuotaClient {
        let me = ReplicaId(RandomState::new().hash_one(0_u8));
        QuotaClient { store, pool: pool.to_owned(), me, held: Mutex::default() }
    }

    /// This replica's name, drawn at random.
    #[must_use]
    pub const fn me(&self) -> ReplicaId {
        self.me
    }

    /// How often [`QuotaClient::keep_slots`] must be called: three times in the time after which slots are taken for lost.
    #[must_use]
    pub fn beat(&self) -> Duration {
        Duration::from_micros(SLOTS_LEASE.get() / 3)
    }

    /// Round trips to the store so far, those that failed included.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.store.grant_round_trips()
    }

    /// Carries a request to the store. One round trip, where other replicas ask at the same time more.
    ///
    /// # Errors
    /// Why there is no grant. The store may have counted what was asked for: then fewer start, not more.
    pub async fn ask(&self, request: &QuotaRequest) -> Result<Grant, StoreError> {
        let grant = self.store.grant(self.holder(), request, WITHIN).await?;
        let held = request.held + grant.granted;
        let mut all = self.held();
        if request.in_flight > 0 && held > 0 {
            all.insert(request.name, QuotaRequest { held, want: 0, unused: 0, ..*request });
        } else {
            all.remove(&request.name);
        }
        Ok(grant)
    }

    /// Tells the store again that this replica is there, so that its slots are not taken for lost.
    ///
    /// # Errors
    /// Why that failed for some key.
    pub async fn keep_slots(&self) -> Result<(), StoreError> {
        let held: Vec<QuotaRequest> = self.held().values().copied().collect();
        self.store.keep_slots(self.holder(), &held, WITHIN).await
    }

    fn holder(&self) -> Holder<'_> {
        Holder { pool: &self.pool, me: self.me }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Name, QuotaRequest>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
