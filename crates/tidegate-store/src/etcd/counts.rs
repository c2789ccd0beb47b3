//! Counts in etcd: aligned fixed windows, decided here with the core's arithmetic.
//!
//! **The idea.** What is known of a key from its last reply is taken for what is there. The core decides on it, and
//! one transaction writes the result if no other process has written since; otherwise the reply shows what is there now,
//! and it is decided again. A key that no other process uses thus costs one round trip. Requests of one process for the
//! same key wait for each other and are decided together: a hundred of them cost one transaction.
//!
//! **All or nothing.** Transactions of etcd span keys, so that several keys of a request are one of them (A5).
//!
//! **Time** is the process's clock. An entry holds the start of its window, and the core never lets that go back: of
//! two processes whose clocks differ, the one that is behind sees the other's window as the current one.
//! **Leases** only clean up, long after an entry could matter; that a new leader gives them their full time
//! again changes no count.
//!
//! **Known weakness.** Every process that hits the same key at the same time lets the others decide again; one of
//! them gets on with each round trip.

mod batch;
mod coalescer;
mod entry;
mod seen;

use super::lease_pool::LeasePool;
use super::{Condition, Etcd, Operation, StoreError, Txn, left, locked};
use crate::clock::Clock;
use crate::remote::unreachable;
use crate::store::{Answers, Asked, Question, When};
use crate::table::PartAnswer;
use batch::{Purpose, Request, Subject};
use coalescer::Coalescer;
use seen::Seen;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Micros};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Counts in an etcd. Clones share what was seen of it.
#[derive(Clone, Debug)]
pub struct Counts(Arc<Inner>);

struct Inner {
    etcd: Etcd,
    clock: Clock,
    coalescer: Mutex<Coalescer>,
    seen: Mutex<Seen>,
    leases: LeasePool,
    /// Transactions so far.
    round_trips: AtomicU64,
}

/// Where the flags of disabled limiters are. They have no lease.
const DISABLED: &str = "tidegate/disabled/";

impl Counts {
    /// Counts in this etcd, by this clock.
    #[must_use]
    pub fn new(etcd: Etcd, clock: Clock) -> Counts {
        let (coalescer, seen, leases) = Default::default();
        Counts(Arc::new(Inner { etcd, clock, coalescer, seen, leases, round_trips: AtomicU64::new(0) }))
    }

    /// Where they are.
    #[must_use]
    pub fn etcd(&self) -> &Etcd {
        &self.0.etcd
    }

    /// Transactions that were sent for decisions.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.0.round_trips.load(Relaxed)
    }

    /// Decides a request of one or several keys, all or nothing.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer in time, or refuses; when a limiter counts in another way than
    /// by aligned windows. [`StoreError::is_ambiguous`]: it may have been charged.
    pub async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        self.ask(Purpose::Decide, questions, asked).await
    }

    /// Gives back what a key was charged in its window, and says how it stands then.
    ///
    /// # Errors
    /// As [`Counts::decide`].
    pub async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        let asked = Asked { now: when.now, cost, intent: Intent::Hit, explain: false, by: when.by };
        let (at, answers) = self.ask(Purpose::GiveBack, std::slice::from_ref(question), &asked).await?;
        let lost = || unreachable(&self.0.etcd.url().to_string(), "the request was dropped".to_owned());
        answers.into_iter().next().map(|answer| (at, answer)).ok_or_else(lost)
    }

    async fn ask(&self, purpose: Purpose, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        if questions.iter().any(|question| question.rules.algorithm() != Algorithm::AlignedWindow) {
            return Err(StoreError::Unsupported("etcd counts aligned fixed windows only".to_owned()));
        }
        let (reply, answer) = oneshot::channel();
        let subjects = questions.iter().map(Subject::of).collect();
        self.0.submit(Request::new(purpose, subjects, *asked, reply));
        let lost = || unreachable(&self.0.etcd.url().to_string(), "the request was dropped".to_owned());
        match timeout_at(asked.by, answer).await {
            Ok(answered) => answered.unwrap_or_else(|_| Err(lost())),
            Err(_) => Err(StoreError::Ambiguous {
                address: self.0.etcd.url().to_string(),
                why: "it was not decided before the deadline".to_owned(),
            }),
        }
    }

    /// Which of these limiters are disabled.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses.
    pub async fn disabled(&self, limiters: &[&str], by: Instant) -> Result<Vec<bool>, StoreError> {
        let all = Operation::GetPrefix { prefix: DISABLED.into() };
        let outcome = self.0.etcd.transact(&Txn { then: vec![all], ..Txn::default() }, left(by)).await?;
        let found = outcome.found.first().map(Vec::as_slice).unwrap_or_default();
        let is_set = |limiter: &&str| found.iter().any(|flag| flag.key == flag_of(limiter));
        Ok(limiters.iter().map(is_set).collect())
    }

    /// Disables a limiter for all processes, or enables it.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses.
    pub async fn set_disabled(&self, limiter: &str, disabled: bool, by: Instant) -> Result<(), StoreError> {
        let key = flag_of(limiter);
        let change = match disabled {
            true => Operation::Put { key, value: b"1".to_vec(), lease: None },
            false => Operation::Delete { key },
        };
        self.0.etcd.transact(&Txn { then: vec![change], ..Txn::default() }, left(by)).await.map(|_| ())
    }
}

fn flag_of(limiter: &str) -> Vec<u8> {
    format!("{DISABLED}{limiter}").into_bytes()
}

impl Inner {
    /// Starts what can be decided now; what shares a key with a request under way waits for it.
    fn submit(self: &Arc<Inner>, request: Request) {
        let batches = locked(&self.coalescer).take(vec![request]);
        batches.into_iter().for_each(|batch| self.start(batch));
    }

    fn start(self: &Arc<Inner>, mut batch: batch::Batch) {
        let inner = Arc::clone(self);
        // It ends with the latest deadline of its requests.
        tokio::spawn(async move {
            batch.settle(&inner).await;
            let next = locked(&inner.coalescer).done(&batch);
            next.into_iter().for_each(|batch| inner.start(batch));
        });
    }

    async fn transact(&self, txn: &Txn, by: Instant) -> Result<super::Outcome, StoreError> {
        self.round_trips.fetch_add(1, Relaxed);
        self.etcd.transact(txn, left(by)).await
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.etcd.fmt(f)
    }
}

/// The condition that a key is as it was seen.
fn is_as_seen(key: &[u8], revision: i64) -> Condition {
    Condition::Revision { key: key.to_vec(), is: revision }
}
