//! The embedded store behind the questions that every store is asked.
//!
//! It never waits; what walks over a whole table lets other tasks have their turn between steps. The engine's shortest way goes to the tables themselves, see [`crate::Table`].

use super::backend::Backend;
use super::{
    Answers, Asked, Capabilities, Layout, Meaning, NewOverride, Overrides, Placed, Question, Reserve, Reserved,
    Settled, StoreError, When,
};
use crate::clock::Clock;
use crate::memory::Memory;
use crate::shard::{Door, SHARDS};
use crate::table::{Listing, NotReserved, PageOf, Part, PartAnswer, RESERVATIONS_MAX, Table, Walk, decide_all};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::{Algorithm, Micros};

/// This process's tables and its clock.
#[derive(Clone, Debug)]
pub struct Embedded {
    memory: Arc<Memory>,
    clock: Clock,
}

impl Embedded {
    /// The store of these tables, by this clock.
    pub(super) fn new(memory: Arc<Memory>, clock: &Clock) -> Embedded {
        Embedded { memory, clock: clock.clone() }
    }

    /// The tables.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn table(&self, limiter: &str) -> Result<Arc<Table>, StoreError> {
        self.memory.find(limiter).ok_or_else(|| StoreError::Unsupported(format!("no table is named {limiter}")))
    }

    fn now(&self, given: Option<Micros>) -> Micros {
        given.unwrap_or_else(|| self.clock.now())
    }
}

impl Backend for Embedded {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "the embedded store",
            algorithms: &Algorithm::ALL,
            lists: &[Layout::Native],
            blocks: true,
            gives_back: true,
            overrides: true,
            pause_layout: false,
            streams: true,
            shared: false,
        }
    }

    fn address(&self) -> String {
        "memory".to_owned()
    }

    fn answers(&self) -> bool {
        true
    }

    fn down(&self) -> Option<StoreError> {
        None
    }

    async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let tables = questions.iter().map(|question| self.table(question.limiter)).collect::<Result<Vec<_>, _>>()?;
        let parts = tables.iter().zip(questions);
        let parts: Vec<Part<'_>> = parts
            .map(|(table, q)| Part { table, rules: q.rules, key: q.key, role: q.role, own: q.own, door: Door::Library })
            .collect();
        Ok(decide_all(&parts, asked.cost, asked.intent, asked.explain, || self.now(asked.now)))
    }

    async fn disabled(&self, limiters: &[(&str, Layout)], _when: When) -> Result<Vec<bool>, StoreError> {
        limiters.iter().map(|(limiter, _)| Ok(self.table(limiter)?.is_disabled())).collect()
    }

    async fn set_disabled(&self, limiter: &str, _: Layout, disabled: bool, _when: When) -> Result<(), StoreError> {
        self.table(limiter)?.set_disabled(disabled);
        Ok(())
    }

    async fn increment(
        &self,
        question: &Question<'_>,
        count: u32,
        at: Option<Micros>,
        when: When,
    ) -> Result<(Micros, bool), StoreError> {
        let table = self.table(question.limiter)?;
        let counted = table.increment(question.rules, question.key, count, at, || self.now(when.now));
        counted.ok_or_else(|| not_buckets(question))
    }

    async fn analyze(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        let table = self.table(question.limiter)?;
        let found = table.analyze(question.rules, question.key, if_blocked, || self.now(when.now));
        found.ok_or_else(|| not_buckets(question))
    }

    async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        let mut at = Micros::ZERO;
        let ruling = self.table(question.limiter)?.give_back(question.rules, question.key, cost, || {
            at = self.now(when.now);
            at
        });
        Ok((at, PartAnswer { ruling, is_known: true, ..PartAnswer::UNKNOWN }))
    }

    async fn reserve(&self, question: &Question<'_>, reserve: &Reserve, when: When) -> Result<Reserved, StoreError> {
        let table = self.table(question.limiter)?;
        let reserved = table.reserve(question.rules, question.key, reserve, || self.now(when.now));
        reserved.map_err(|why| match why {
            NotReserved::Sketched => {
                let what =
                    "the table is full, and a key without a place gives nothing back; raise max_memory in [store]";
                StoreError::Unsupported(what.to_owned())
            }
            NotReserved::Full => StoreError::Refused {
                address: self.address(),
                meaning: Meaning::Overloaded,
                text: format!(
                    "{} has {RESERVATIONS_MAX} reservations open, the most that it may have",
                    question.limiter
                ),
            },
        })
    }

    async fn settle(
        &self,
        question: &Question<'_>,
        nonce: u128,
        cost: u32,
        when: When,
    ) -> Result<Option<Settled>, StoreError> {
        let table = self.table(question.limiter)?;
        Ok(table.settle(question.rules, question.key, nonce, cost, || self.now(when.now)))
    }

    async fn block(&self, question: &Question<'_>, span: Micros, when: When) -> Result<Option<Micros>, StoreError> {
        let table = self.table(question.limiter)?;
        Ok(table.block(question.rules, question.key, span, || self.now(when.now)))
    }

    async fn unblock(&self, question: &Question<'_>, when: When) -> Result<bool, StoreError> {
        let table = self.table(question.limiter)?;
        Ok(table.unblock(question.rules, question.key, || self.now(when.now)))
    }

    async fn unblock_all(&self, question: &Question<'_>, when: When) -> Result<u64, StoreError> {
        let (table, mut unblocked) = (self.table(question.limiter)?, 0);
        for index in 0..SHARDS {
            unblocked += table.unblock_shard(question.rules, index, || self.now(when.now));
            let_others().await;
        }
        Ok(unblocked)
    }

    async fn set_override(
        &self,
        limiter: &str,
        key: &[u8],
        new: &NewOverride,
        when: When,
    ) -> Result<Placed, StoreError> {
        Ok(self.table(limiter)?.set_override(key, new, self.now(when.now)))
    }

    async fn clear_override(&self, limiter: &str, key: &[u8], when: When) -> Result<bool, StoreError> {
        Ok(self.table(limiter)?.clear_override(key, self.now(when.now)))
    }

    async fn overrides(
        &self,
        limiters: &[(&str, Option<u64>)],
        when: When,
    ) -> Result<Vec<Option<Overrides>>, StoreError> {
        let since = |(limiter, known): &(&str, Option<u64>)| {
            Ok(self.table(limiter)?.overrides_since(*known, self.now(when.now)))
        };
        limiters.iter().map(since).collect()
    }

    async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        let table = self.table(question.limiter)?;
        let mut walk = Walk::new(page);
        while table.step(question.rules, &mut walk, || self.now(when.now)) {
            let_others().await;
        }
        Ok(walk.listing())
    }
}

/// Goes to the end of the runtime's line: decisions do not wait for a listing, only for a step of it.
async fn let_others() {
    let mut is_over = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn not_buckets(question: &Question<'_>) -> StoreError {
    let algorithm = question.rules.algorithm().name();
    StoreError::Unsupported(format!("{algorithm} does not count and ask apart; buckets do"))
}
