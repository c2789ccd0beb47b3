//! etcd as a store: the questions of [`crate::Store`], as far as etcd can answer them.

use super::register::Registers;
use super::{Counts, Etcd, StoreError, Tallies, Url, locked};
use crate::clock::Clock;
use crate::store::{Answers, Asked, Backend, Capabilities, Holder, Layout, Question, Register, Swap, When};
use crate::table::PartAnswer;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::replicas::ReplicaId;
use tidegate_core::turnstile::{Grant, QuotaRequest};

/// An etcd with what this process knows of it.
#[derive(Debug)]
pub struct Store {
    etcd: Etcd,
    counts: Counts,
    /// What replicas of this process hold, by pool and replica.
    tallies: Mutex<HashMap<(String, ReplicaId), Arc<Tallies>>>,
    registers: Registers,
}

impl Store {
    /// As [`crate::Store::open`] connects. The process's clock says which window it is.
    pub(crate) async fn connect(url: Url, clock: &Clock) -> Store {
        let etcd = Etcd::open(url).await;
        let counts = Counts::new(etcd.clone(), clock.clone());
        Store { etcd, counts, tallies: Mutex::default(), registers: Registers::default() }
    }

    fn tallies(&self, holder: Holder<'_>) -> Arc<Tallies> {
        let mut all = locked(&self.tallies);
        let made = || Arc::new(Tallies::new(self.etcd.clone(), holder.pool, holder.me));
        Arc::clone(all.entry((holder.pool.to_owned(), holder.me)).or_insert_with(made))
    }
}

impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        self.etcd.url().capabilities()
    }

    fn address(&self) -> String {
        self.etcd.url().to_string()
    }

    fn answers(&self) -> bool {
        self.etcd.answers()
    }

    fn down(&self) -> Option<StoreError> {
        self.etcd.down()
    }

    async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        self.counts.decide(questions, asked).await
    }

    async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        self.counts.give_back(question, cost, when).await
    }

    async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError> {
        let names: Vec<&str> = limiters.iter().map(|(name, _)| *name).collect();
        self.counts.disabled(&names, when.by).await
    }

    async fn set_disabled(&self, limiter: &str, _: Layout, disabled: bool, when: When) -> Result<(), StoreError> {
        self.counts.set_disabled(limiter, disabled, when.by).await
    }

    async fn grant(&self, holder: Holder<'_>, want: &QuotaRequest, within: Duration) -> Result<Grant, StoreError> {
        self.tallies(holder).buy(want, within).await
    }

    async fn keep_slots(&self, holder: Holder<'_>, held: &[QuotaRequest], within: Duration) -> Result<(), StoreError> {
        self.tallies(holder).keep(held, within).await
    }

    fn grant_round_trips(&self) -> u64 {
        locked(&self.tallies).values().map(|tallies| tallies.round_trips()).sum()
    }

    async fn swap(&self, register: Register<'_>, swap: Swap<'_>, within: Duration) -> Result<String, StoreError> {
        let key = format!("tidegate/share/{}/{}", register.name, register.period.get()).into_bytes();
        self.registers.swap(&self.etcd, key, swap, within).await
    }
}
