//! Replicas that count together: starts and slots of a turnstile, bought of a store.
//!
//! What is asked and what an answer means is decided in [`tidegate_core::turnstile`]; here a question is carried to
//! the store, in one round trip, and the slots that were lent are kept from running out.

use crate::{Micros, RedisUrl};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::replicas::{ReplicaId, SLOTS_LEASE};
use tidegate_core::turnstile::{Name, Question, Told};
use tidegate_store::redis::{Bought, Redis};

/// Where replicas count together, and under which name.
#[derive(Clone, PartialEq, Debug)]
pub struct Together {
    /// The store.
    pub redis: RedisUrl,
    /// What the replicas of one limit have in common.
    pub name: String,
}

/// One replica's way to the store.
pub struct Ledger {
    redis: Redis,
    name: String,
    me: ReplicaId,
    /// Questions are numbered, so that the store can tell one that was overtaken.
    numbers: AtomicU64,
    /// The last question of each key of which slots are held: who says nothing loses them.
    lent: Mutex<HashMap<Name, Question>>,
    round_trips: AtomicU64,
}

/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(1);

impl Ledger {
    /// Connects, or goes on trying in the background.
    pub async fn open(together: Together) -> Ledger {
        let Together { redis, name } = together;
        Ledger {
            redis: Redis::open(redis).await,
            name,
            me: ReplicaId(RandomState::new().hash_one(0_u8)),
            numbers: AtomicU64::new(1),
            lent: Mutex::default(),
            round_trips: AtomicU64::new(0),
        }
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
        self.round_trips.load(Relaxed)
    }

    /// Carries a question to the store. One round trip.
    ///
    /// # Errors
    /// Why there is no answer. The store may have counted what was asked for: then fewer start, not more.
    pub async fn ask(&self, question: &Question, now: Micros) -> Result<Told, String> {
        let told = self.carry(question, now).await?;
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
        for question in lent {
            self.round_trips.fetch_add(1, Relaxed);
            let kept = self.redis.keep_slots(self.key(&question), self.me, question.held, WITHIN).await;
            kept.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn carry(&self, question: &Question, now: Micros) -> Result<Told, String> {
        let number = self.numbers.fetch_add(1, Relaxed);
        self.round_trips.fetch_add(1, Relaxed);
        match self.redis.buy(self.key(question), (self.me, number), question, None, WITHIN).await {
            Ok(Bought::Told(told)) => Ok(told),
            Ok(Bought::Overtaken) => Ok(Told::FAILED),
            Ok(Bought::OtherTime(theirs)) => Err(format!(
                "the clock of {} says {}, this machine's says {}, and between them a window begins; set them alike, with NTP",
                self.redis.url(),
                seconds(theirs),
                seconds(now)
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn key(&self, question: &Question) -> Vec<u8> {
        let hash: String = question.name.0.iter().map(|byte| format!("{byte:02x}")).collect();
        // Windows of another length are other windows.
        format!("tidegate:exact:{}:{}:{{{hash}}}", self.name, question.period.get()).into_bytes()
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<Name, Question>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(at: Micros) -> String {
    format!("{}.{:03} s", at.get() / 1_000_000, at.get() / 1_000 % 1_000)
}
