//! A gate whose states are in Redis or in etcd.
//!
//! The same policy, questions and answers. What stays in this process are
//! counters, and the flags of disabled limiters, which are looked up twice a second and not for
//! every decision.

use super::remote::{Opened, Remote};
use super::trouble::Trouble;
use super::{Batch, Cursor, Gate, Inner, Limiter, Live, Met, Page, put_together};
use crate::{Analyzed, Answer, AskError, Clock, Incremented, OnFailure, Policy, Request, Settings, StoreUrl, Target};
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidegate_core::all_or_nothing::{IfBlocked, Intent, Ruling};
use tidegate_core::{Micros, check_key};
use tidegate_store::redis::{Answers, Asked, Layout, Question, Redis, StoreError};
use tidegate_store::{Memory, Which};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Where states are, and what to do when they cannot be reached.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where the store is.
    pub url: StoreUrl,
    /// What a decision is when it does not answer in time, where a limiter does not say.
    pub on_failure: OnFailure,
    /// This process's part of each limit while the store is away, for [`OnFailure::Local`]; from 0 to 1.
    pub local_share: f64,
    /// How long a decision may take.
    pub deadline: Duration,
    /// Bytes that this process's own limiters may hold meanwhile.
    pub max_memory: usize,
}

impl StoreSettings {
    /// The defaults for a store at this place.
    #[must_use]
    pub fn new(url: StoreUrl) -> StoreSettings {
        let max_memory = Settings::default().max_memory;
        StoreSettings { url, on_failure: OnFailure::Local, local_share: 1.0, deadline: DEADLINE, max_memory }
    }
}

/// How the store does.
#[derive(Clone, Debug)]
pub struct StoreHealth {
    /// Where it is; no password.
    pub url: String,
    /// Why it cannot be asked now, or refuses to decide.
    pub error: Option<StoreError>,
    /// Decisions that were made without it.
    pub degraded: u64,
    /// How often it was asked in vain, by kind. While it is known not to answer it is not asked.
    pub errors: Vec<(&'static str, u64)>,
}

#[derive(Debug)]
pub(super) struct Elsewhere {
    remote: Remote,
    /// How long a decision may wait: less than the deadline, as the answer takes time, too.
    patience: Duration,
    pub(super) local_share: f64,
    trouble: Trouble,
    /// For threads that wait.
    runtime: Handle,
}

/// How long a decision may take unless it is said otherwise.
const DEADLINE: Duration = Duration::from_millis(50);
/// How often the flags of disabled limiters are looked up: a change reaches all within a second.
const FLAGS_EVERY: Duration = Duration::from_millis(450);

impl Gate {
    /// A gate whose states are in a store that it shares with every other process that uses it. On Redis the
    /// server's clock decides, and a manual one takes its place, for tests; on etcd `clock` does. Needs a running
    /// tokio runtime.
    ///
    /// The gate is made whether the store can be reached or not; see [`Gate::store_error`].
    pub async fn on_store(policy: &Policy, settings: StoreSettings, clock: Clock) -> Gate {
        let StoreSettings { url, on_failure, local_share, deadline, max_memory } = settings;
        let store = Memory::new(max_memory, None);
        let opened = Opened::at(url).await;
        let gate = Gate(Arc::new_cyclic(|gate: &Weak<Inner>| {
            let gate = gate.clone();
            let elsewhere = Elsewhere {
                remote: opened.with_clock(move || Some(gate.upgrade()?.clock.now())),
                patience: deadline * 4 / 5,
                local_share,
                trouble: Trouble::default(),
                runtime: Handle::current(),
            };
            let promised = super::parts::Promised::default();
            Inner {
                live: ArcSwap::from_pointee(Live::new(&store, policy, local_share, &promised)),
                promised,
                store,
                clock,
                directory: None,
                saves: Default::default(),
                tend_turn: Default::default(),
                elsewhere: Some(elsewhere),
                on_failure,
                degraded: AtomicU64::new(0),
            }
        }));
        // Told by `store_error`, and tried again.
        let _ = gate.0.follow_flags().await;
        tokio::spawn(follow_flags(Arc::downgrade(&gate.0)));
        gate
    }

    /// Why the store cannot be asked, if it cannot; `None` on the embedded store.
    #[must_use]
    pub fn store_error(&self) -> Option<StoreError> {
        self.0.elsewhere.as_ref().and_then(|elsewhere| elsewhere.remote.down())
    }

    /// How the store does, if it is elsewhere.
    #[must_use]
    pub fn store_health(&self) -> Option<StoreHealth> {
        let elsewhere = self.0.elsewhere.as_ref()?;
        Some(StoreHealth {
            url: elsewhere.remote.url(),
            error: elsewhere.remote.down().or_else(|| elsewhere.trouble.refusal()),
            degraded: self.0.degraded.load(Relaxed),
            errors: elsewhere.trouble.counts(),
        })
    }

    /// The store's policy for full memory, if that is one that drops keys and with them counts.
    pub async fn evicts(&self) -> Option<String> {
        self.redis().ok()??.evicts().await
    }

    pub(super) async fn ask_elsewhere(&self, elsewhere: &Elsewhere, request: &Request<'_>) -> Result<Answer, AskError> {
        if !elsewhere.remote.answers() {
            return self.decide_degraded(request);
        }
        let live = self.0.live.load_full();
        let met = match request.target {
            Target::Limiter { name, key } => {
                check_key(key)?;
                vec![Met::new(live.limiter(name)?, key.into())]
            }
            Target::Attributes { domain, attributes } => live.met(domain, attributes)?,
        };
        let asked: Vec<&Met<'_>> = met.iter().filter(|met| met.heeded).collect();
        if asked.is_empty() {
            return Ok(put_together(&met, (self.now(), Vec::new()), request));
        }
        let questions: Vec<Question<'_>> = asked.iter().map(|met| met.limiter.question(&met.key)).collect();
        let Request { cost, intent, explain, .. } = *request;
        let answers = match elsewhere.decide(self, &questions, cost, intent, explain, elsewhere.by()).await {
            Ok(answers) => answers,
            Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
            Err(_) => return self.decide_degraded(request),
        };
        let all_allow = answers.1.iter().all(|answer| answer.ruling.is_allowed());
        for (met, answer) in asked.iter().zip(&answers.1) {
            met.limiter.note(&met.key, &answer.ruling, all_allow, intent, answers.0);
        }
        Ok(put_together(&met, answers, request))
    }

    /// Many keys, each on its own, all sent before any is waited for.
    pub(super) fn hit_each_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        uses: &[(&Limiter, &[u8])],
        cost: u32,
        batch: &Batch,
        answers: &mut Vec<Ruling>,
    ) {
        let here = |limiter: &Limiter, key: &[u8]| {
            limiter.table.decide(&limiter.rules(), key, cost, Intent::Hit, || batch.now)
        };
        let degraded = |limiter: &Limiter, key: &[u8]| match limiter.is_shared() {
            true => here(limiter, key),
            false => self.rule_degraded(limiter, key, cost, Intent::Hit, || self.now()).1,
        };
        if !elsewhere.remote.answers() {
            return answers.extend(uses.iter().map(|(limiter, key)| degraded(limiter, key)));
        }
        let by = batch.by.unwrap_or_else(|| elsewhere.by());
        let one = async |limiter: &Limiter, key: &[u8]| {
            if limiter.is_shared() {
                return here(limiter, key);
            }
            let question = [limiter.question(key)];
            match elsewhere.decide(self, &question, cost, Intent::Hit, false, by).await {
                Ok((at, told)) if told.len() == 1 => {
                    let ruling = told[0].ruling;
                    limiter.note(key, &ruling, ruling.is_allowed(), Intent::Hit, at);
                    ruling
                }
                _ => degraded(limiter, key),
            }
        };
        let all = futures_util::future::join_all(uses.iter().map(|(limiter, key)| one(limiter, key)));
        answers.extend(elsewhere.runtime.block_on(all));
    }

    /// A manual clock's time; otherwise the server's counts.
    pub(crate) fn given_now(&self) -> Option<Micros> {
        self.clock().manual_now()
    }

    /// The Redis, if that is where states are.
    ///
    /// # Errors
    /// When they are in a store that cannot do what only Redis can.
    pub(crate) fn redis(&self) -> Result<Option<&Redis>, StoreError> {
        self.0.elsewhere.as_ref().map(|elsewhere| elsewhere.remote.redis()).transpose()
    }
}

impl Elsewhere {
    /// Until when the store may answer what is asked now.
    pub(super) fn by(&self) -> Instant {
        Instant::now() + self.patience
    }

    async fn decide(
        &self,
        gate: &Gate,
        questions: &[Question<'_>],
        cost: u32,
        intent: Intent,
        explain: bool,
        by: Instant,
    ) -> Result<Answers, StoreError> {
        let asked = Asked { now: gate.given_now(), cost, intent, explain, by };
        let outcome = self.remote.decide(questions, &asked).await;
        self.trouble.note(&outcome);
        outcome
    }
}

/// What [`crate::Action`] and [`crate::Actions`] do on Redis.
impl Gate {
    pub(crate) async fn increment_there(
        &self,
        redis: &Redis,
        limiter: &str,
        key: &[u8],
        count: u32,
        at: Option<Micros>,
    ) -> Result<Incremented, AskError> {
        let limiter = self.limiter_for(limiter, key)?;
        limiter.check_buckets("increment")?;
        if !limiter.is_heeded() {
            return Ok(Incremented { timestamp: at.unwrap_or_else(|| self.now()), counted: false });
        }
        let (now, counted) = redis.increment(self.given_now(), &limiter.question(key), count, at).await?;
        Ok(Incremented { timestamp: at.unwrap_or(now), counted })
    }

    pub(crate) async fn analyze_there(
        &self,
        redis: &Redis,
        limiter: &str,
        key: &[u8],
        if_blocked: IfBlocked,
    ) -> Result<Analyzed, AskError> {
        let limiter = self.limiter_for(limiter, key)?;
        limiter.check_buckets("analyze")?;
        if !limiter.is_heeded() {
            return Ok(Analyzed::Ok { at: self.now() });
        }
        let (at, analysis) = redis.analyze(self.given_now(), &limiter.question(key), if_blocked).await?;
        Ok(limiter.analyzed(key, at, analysis))
    }

    pub(crate) async fn block_there(
        &self,
        redis: &Redis,
        limiter: &str,
        key: &[u8],
        span: Micros,
    ) -> Result<Micros, AskError> {
        let limiter = self.limiter_for(limiter, key)?;
        Ok(redis.block(self.given_now(), &limiter.question(key), span).await?)
    }

    pub(crate) async fn unblock_there(&self, redis: &Redis, limiter: &str, key: &[u8]) -> Result<bool, AskError> {
        let limiter = self.limiter_for(limiter, key)?;
        Ok(redis.unblock(self.given_now(), &limiter.question(key)).await?)
    }

    pub(crate) async fn unblock_all_there(&self, redis: &Redis, limiter: &str) -> Result<u64, AskError> {
        let limiter = self.limiter(limiter)?;
        Ok(redis.unblock_all(self.given_now(), &limiter.question(b"")).await?)
    }

    /// Enables or disables a limiter for all processes; for every store.
    pub(crate) async fn set_enabled_for_all(&self, limiter: &str, enabled: bool) -> Result<(), AskError> {
        let Some(elsewhere) = &self.0.elsewhere else { return self.set_enabled(limiter, enabled) };
        let limiter = self.limiter(limiter)?;
        elsewhere.remote.set_disabled(limiter.spec.scope(), limiter.layout(), !enabled).await?;
        // The other processes follow within a second, this one at once.
        limiter.table.set_disabled(!enabled);
        Ok(())
    }

    pub(crate) async fn page_there(
        &self,
        redis: &Redis,
        limiter: &str,
        which: Which,
        after: Option<Cursor>,
        most: usize,
    ) -> Result<Page, AskError> {
        let limiter = self.limiter(limiter)?;
        if !limiter.spec.names {
            return Err(AskError::NoNames(limiter.spec.name.clone()));
        }
        let after = after.map(|cursor| cursor.0);
        let listing = redis.list(self.given_now(), &limiter.question(b""), which, after, most.max(1)).await?;
        Ok(Page { keys: listing.keys, next: listing.next.map(Cursor) })
    }

    fn limiter_for(&self, limiter: &str, key: &[u8]) -> Result<Limiter, AskError> {
        check_key(key)?;
        self.limiter(limiter)
    }
}

impl Inner {
    async fn follow_flags(&self) -> Result<(), StoreError> {
        let Some(Elsewhere { remote, trouble, .. }) = &self.elsewhere else { return Ok(()) };
        let live = self.live.load_full();
        let limiters: Vec<_> = live.limiters.iter().map(|limiter| (limiter.spec.scope(), limiter.layout())).collect();
        // A server that takes no connection is counted here: nobody else asks it.
        let disabled = remote.disabled(&limiters).await.inspect_err(|error| trouble.count(error))?;
        for (limiter, disabled) in live.limiters.iter().zip(disabled) {
            limiter.table.set_disabled(disabled);
        }
        Ok(())
    }
}

/// Goes on for as long as there is a gate.
async fn follow_flags(gate: Weak<Inner>) {
    loop {
        tokio::time::sleep(FLAGS_EVERY).await;
        let Some(gate) = gate.upgrade() else { return };
        // A store that is away keeps the flags as they were.
        let _ = gate.follow_flags().await;
    }
}

impl Limiter {
    /// Counts a decision that its table did not make.
    pub(super) fn note(&self, key: &[u8], ruling: &Ruling, all_allow: bool, intent: Intent, at: Micros) {
        self.table.note(&self.local, key, ruling, all_allow, intent, at);
    }

    pub(crate) fn layout(&self) -> Layout<'_> {
        match self.spec.pause_layout {
            true => Layout::Pause { scope: self.spec.scope() },
            false => Layout::Native,
        }
    }

    pub(crate) fn question<'a>(&'a self, key: &'a [u8]) -> Question<'a> {
        let (spec, layout) = (&self.spec, self.layout());
        Question { limiter: spec.scope(), rules: &spec.rules, names: spec.names, key, layout }
    }
}
