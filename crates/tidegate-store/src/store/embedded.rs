//! The embedded store behind the questions that every store is asked.
//!
//! It never waits. The engine's shortest way goes to the tables themselves, see [`crate::Table`].

use super::backend::Backend;
use super::{Answers, Asked, Capabilities, Layout, Question, StoreError, When};
use crate::clock::Clock;
use crate::memory::Memory;
use crate::table::{Listing, PageOf, Part, PartAnswer, Table, decide_all};
use std::sync::Arc;
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
        let parts: Vec<Part<'_>> =
            parts.map(|(table, Question { rules, key, cost, .. })| Part { table, rules, key, cost: *cost }).collect();
        Ok(decide_all(&parts, asked.intent, asked.explain, || self.now(asked.now)))
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

    async fn give_back(&self, question: &Question<'_>, when: When) -> Result<(Micros, PartAnswer), StoreError> {
        let Question { limiter, rules, key, cost, .. } = *question;
        let mut at = Micros::ZERO;
        let ruling = self.table(limiter)?.give_back(rules, key, cost, || {
            at = self.now(when.now);
            at
        });
        Ok((at, PartAnswer { ruling, blocked_until: Micros::ZERO, sketched: false, decisions: Vec::new() }))
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
        Ok(self.table(question.limiter)?.unblock_all(question.rules, || self.now(when.now)))
    }

    async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        let table = self.table(question.limiter)?;
        Ok(table.list(question.rules, page, || self.now(when.now)))
    }
}

fn not_buckets(question: &Question<'_>) -> StoreError {
    let algorithm = question.rules.algorithm().name();
    StoreError::Unsupported(format!("{algorithm} does not count and ask apart; buckets do"))
}
