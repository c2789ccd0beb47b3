//! Counting together in Redis: a script for each question.

use crate::{Micros, RedisUrl, StoreError};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_core::replicas::{CLOCKS_DIFFER, ReplicaId};
use tidegate_core::turnstile::{Question, Told};
use tidegate_store::redis::{Bought, Redis};

pub(super) struct RedisTallies {
    redis: Redis,
    name: String,
    me: ReplicaId,
    /// Questions are numbered, so that the server can tell one that was overtaken.
    numbers: AtomicU64,
    round_trips: AtomicU64,
}

impl RedisTallies {
    pub(super) async fn open(url: RedisUrl, name: String, me: ReplicaId) -> RedisTallies {
        let redis = Redis::open(url).await;
        RedisTallies { redis, name, me, numbers: AtomicU64::new(1), round_trips: AtomicU64::new(0) }
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Relaxed)
    }

    pub(super) async fn buy(&self, question: &Question, within: Duration) -> Result<Told, String> {
        let (number, asked) = (self.numbers.fetch_add(1, Relaxed), Instant::now());
        self.round_trips.fetch_add(1, Relaxed);
        match self.redis.buy(self.key(question), (self.me, number), question, None, within).await {
            Ok(Bought::Told(told)) => Ok(told),
            Ok(Bought::Overtaken) => Ok(Told::FAILED),
            Ok(Bought::OtherTime(at)) => Err(self.other_time(question, at, asked.elapsed())),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) async fn keep(&self, lent: &[Question], within: Duration) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        for question in lent {
            self.round_trips.fetch_add(1, Relaxed);
            let kept = self.redis.keep_slots(self.key(question), self.me, question.held, within).await;
            // One server of a cluster may be away; the slots at the others are not to be lost with it.
            outcome = kept.and(outcome);
        }
        outcome
    }

    /// The server took so long that the window was over, or its clock is another one.
    fn other_time(&self, question: &Question, theirs: Micros, took: Duration) -> String {
        let url = self.redis.url();
        if took.as_micros() > CLOCKS_DIFFER.get().into() {
            return format!("the store at {url} answered after {} ms, when the window was over", took.as_millis());
        }
        let begins = question.window.saturating_mul(question.period.get());
        format!(
            "by the clock of {url} it is {} ms from the beginning of the window that has begun here; set both clocks by NTP",
            theirs.get().abs_diff(begins) / 1_000
        )
    }

    fn key(&self, question: &Question) -> Vec<u8> {
        // Windows of another length are other windows.
        format!("tidegate:exact:{}:{}:{{{}}}", self.name, question.period.get(), question.name).into_bytes()
    }
}
