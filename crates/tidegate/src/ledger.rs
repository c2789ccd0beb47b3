//! Replicas that count together: starts and slots of a turnstile, bought of a store.
//!
//! What is asked and what an answer means is decided in [`tidegate_core::turnstile`]; here a question is carried to
//! the store, in one round trip, and the slots that were lent are kept from running out.

mod redis;

use crate::StoreUrl;
use redis::RedisTallies;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::replicas::{ReplicaId, SLOTS_LEASE};
use tidegate_core::turnstile::{Name, Question, Told};
#[cfg(feature = "etcd")]
use tidegate_store::etcd::{Etcd, Tallies as EtcdTallies};

/// Where replicas count together, and under which name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Together {
    /// The store.
    pub store: StoreUrl,
    /// What the replicas of one limit have in common.
    pub name: String,
}

/// One replica's way to the store.
pub struct Ledger {
    tallies: Tallies,
    me: ReplicaId,
    /// The last question of each key of which slots are held: who says nothing loses them.
    lent: Mutex<HashMap<Name, Question>>,
}

enum Tallies {
    Redis(RedisTallies),
    #[cfg(feature = "etcd")]
    Etcd(EtcdTallies),
}

/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(1);

impl Ledger {
    /// Connects, or goes on trying in the background.
    pub async fn open(together: Together) -> Ledger {
        let Together { store, name } = together;
        let me = ReplicaId(RandomState::new().hash_one(0_u8));
        let tallies = match store {
            StoreUrl::Redis(url) => Tallies::Redis(RedisTallies::open(url, name, me).await),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => Tallies::Etcd(EtcdTallies::new(Etcd::open(url).await, &name, me)),
        };
        Ledger { tallies, me, lent: Mutex::default() }
    }

    /// This replica's name, drawn at random.
    #[must_use]
    pub const fn me(&self) -> ReplicaId {
        self.me
    }

    /// How often [`Ledger::keep`] must be called: three times in the time after which slots are taken for lost.
    #[must_use]
    pub fn beat(&self) -> Duration {
        Duration::from_micros(SLOTS_LEASE.get() / 3)
    }

    /// Round trips that were made, with those that failed.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        match &self.tallies {
            Tallies::Redis(redis) => redis.round_trips(),
            #[cfg(feature = "etcd")]
            Tallies::Etcd(etcd) => etcd.round_trips(),
        }
    }

    /// Carries a question to the store. One round trip, on etcd more when other replicas ask at the same time.
    ///
    /// # Errors
    /// Why there is no answer. The store may have counted what was asked for: then fewer start, not more.
    pub async fn ask(&self, question: &Question) -> Result<Told, String> {
        let told = match &self.tallies {
            Tallies::Redis(redis) => redis.buy(question, WITHIN).await,
            #[cfg(feature = "etcd")]
            Tallies::Etcd(etcd) => etcd.buy(question, WITHIN).await.map_err(|error| error.to_string()),
        }?;
        let held = question.held + told.granted;
        let mut lent = self.lent();
        if question.in_flight > 0 && held > 0 {
            lent.insert(question.name, Question { held, want: 0, unused: 0, ..*question });
        } else {
            lent.remove(&question.name);
        }
        Ok(told)
    }

    /// Tells the store again that this replica is there, so that what it holds is not taken for lost.
    ///
    /// # Errors
    /// Why that failed for some key.
    pub async fn keep(&self) -> Result<(), String> {
        let lent: Vec<Question> = self.lent().values().copied().collect();
        match &self.tallies {
            Tallies::Redis(redis) => redis.keep(&lent, WITHIN).await,
            #[cfg(feature = "etcd")]
            Tallies::Etcd(etcd) => etcd.keep(&lent, WITHIN).await,
        }
        .map_err(|error| error.to_string())
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<Name, Question>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
