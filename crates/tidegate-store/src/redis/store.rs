//! Redis as a store: the questions of [`crate::Store`], each by its script.

use super::tally::Bought;
use super::{Redis, StoreError, Url};
use crate::clock::Clock;
use crate::store::{
    Answers, Asked, Backend, Capabilities, Holder, Layout, NewOverride, Overrides, Placed, Question, Register, Reserve,
    Reserved, Settled, Swap, When,
};
use crate::table::{Listing, PageOf, PartAnswer};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::replicas::CLOCKS_DIFFER;
use tidegate_core::turnstile::{Grant, QuotaRequest};

/// What is counted of grants.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// Requests are numbered, so that the server can tell one that was overtaken.
    number: AtomicU64,
    round_trips: AtomicU64,
}

impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        self.url().capabilities()
    }

    fn address(&self) -> String {
        self.url().to_string()
    }

    /// What keys in one place can do and keys on several servers cannot.
    fn remedy(&self) -> &'static str {
        "use redis:// or redis-sentinel:// in [store] url for that"
    }

    fn answers(&self) -> bool {
        self.answers()
    }

    fn down(&self) -> Option<StoreError> {
        self.down()
    }

    async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        self.decide(questions, asked).await
    }

    async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError> {
        self.disabled(limiters, when).await
    }

    async fn set_disabled(&self, limiter: &str, layout: Layout, disabled: bool, when: When) -> Result<(), StoreError> {
        self.set_disabled(limiter, layout, disabled, when).await
    }

    async fn set_override(
        &self,
        limiter: &str,
        key: &[u8],
        new: &NewOverride,
        when: When,
    ) -> Result<Placed, StoreError> {
        self.set_override(limiter, key, new, when).await
    }

    async fn clear_override(&self, limiter: &str, key: &[u8], when: When) -> Result<bool, StoreError> {
        self.clear_override(limiter, key, when).await
    }

    async fn overrides(
        &self,
        limiters: &[(&str, Option<u64>)],
        when: When,
    ) -> Result<Vec<Option<Overrides>>, StoreError> {
        self.overrides(limiters, when).await
    }

    async fn increment(
        &self,
        question: &Question<'_>,
        count: u32,
        at: Option<Micros>,
        when: When,
    ) -> Result<(Micros, bool), StoreError> {
        self.increment(question, count, at, when).await
    }

    async fn analyze(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        self.analyze(question, if_blocked, when).await
    }

    async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        self.give_back(question, cost, when).await
    }

    async fn reserve(&self, question: &Question<'_>, reserve: &Reserve, when: When) -> Result<Reserved, StoreError> {
        self.reserve(question, reserve, when).await
    }

    async fn settle(
        &self,
        question: &Question<'_>,
        nonce: u128,
        cost: u32,
        when: When,
    ) -> Result<Option<Settled>, StoreError> {
        self.settle(question, nonce, cost, when).await
    }

    async fn block(&self, question: &Question<'_>, span: Micros, when: When) -> Result<Option<Micros>, StoreError> {
        self.block(question, span, when).await
    }

    async fn unblock(&self, question: &Question<'_>, when: When) -> Result<bool, StoreError> {
        self.unblock(question, when).await
    }

    async fn unblock_all(&self, question: &Question<'_>, when: When) -> Result<u64, StoreError> {
        self.unblock_all(question, when).await
    }

    async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        self.list(question, page, when).await
    }

    async fn grant(&self, holder: Holder<'_>, want: &QuotaRequest, within: Duration) -> Result<Grant, StoreError> {
        let (number, asked_at) = (self.grants.number.fetch_add(1, Relaxed) + 1, Instant::now());
        self.grants.round_trips.fetch_add(1, Relaxed);
        match self.buy(tally_key(holder, want), (holder.me, number), want, None, within).await? {
            Bought::Granted(grant) => Ok(grant),
            Bought::Overtaken => Ok(Grant::FAILED),
            Bought::OtherTime(at) => Err(self.other_window(want, at, asked_at.elapsed())),
        }
    }

    async fn keep_slots(&self, holder: Holder<'_>, held: &[QuotaRequest], within: Duration) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        for want in held {
            self.grants.round_trips.fetch_add(1, Relaxed);
            let kept = self.keep_slots_of(tally_key(holder, want), holder.me, want.held, within).await;
            // One server of a cluster may be away; the slots at the others are not to be lost with it.
            outcome = kept.and(outcome);
        }
        outcome
    }

    fn grant_round_trips(&self) -> u64 {
        self.grants.round_trips.load(Relaxed)
    }

    async fn swap(&self, register: Register<'_>, swap: Swap<'_>, within: Duration) -> Result<String, StoreError> {
        let key = format!("tidegate:share:{}:{}", register.name, register.period.get());
        self.swap_key(key.as_bytes(), swap, within).await
    }

    /// A Redis that drops keys when it is full lifts limits.
    async fn warning(&self) -> Option<String> {
        let policy = self.evicts().await?;
        Some(format!(
            "the store has maxmemory-policy {policy}: when its memory is full it drops counts, which lifts limits; \
             set it to noeviction"
        ))
    }
}

impl Redis {
    /// As [`crate::Store::open`] connects. The server's clock decides, and a manual one only where a question brings it.
    pub(crate) async fn connect(url: Url, _clock: &Clock) -> Redis {
        Redis::open(url).await
    }

    /// The server took so long that the window was over, or its clock is another one.
    fn other_window(&self, want: &QuotaRequest, theirs: Micros, took: Duration) -> StoreError {
        let address = self.url().to_string();
        let began = want.windows.begin(want.window);
        let why = match took.as_micros() > CLOCKS_DIFFER.get().into() {
            true => format!("the store at {address} answered after {} ms, when the window was over", took.as_millis()),
            false => format!(
                "by the clock of {address} it is {} ms from the beginning of the window that has begun here; its clock counts",
                theirs.get().abs_diff(began.get()) / 1_000
            ),
        };
        StoreError::OtherWindow { address, now: theirs, why }
    }
}

/// Windows of another length are other windows.
fn tally_key(holder: Holder<'_>, want: &QuotaRequest) -> Vec<u8> {
    format!("tidegate:exact:{}:{}:{{{}}}", holder.pool, want.windows.period().get(), want.name).into_bytes()
}
