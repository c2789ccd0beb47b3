//! A gate whose states are in Redis.
//!
//! The same policy, questions and answers; the arithmetic is done there. What stays in this process are
//! counters, and the flags of disabled limiters, which are looked up twice a second and not for
//! every decision.

use super::{Cursor, Gate, Inner, Limiter, Live, Met, Page, put_together};
use crate::{Analyzed, Answer, AskError, Clock, Policy, Request, Settings, Target};
use arc_swap::ArcSwap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidegate_core::all_or_nothing::IfBlocked;
use tidegate_core::{Micros, check_key};
use tidegate_store::redis::{Asked, Layout, Question, Redis, StoreError, Url};
use tidegate_store::{Memory, Which};

/// How often the flags of disabled limiters are looked up: a change reaches all within a second.
const FLAGS_EVERY: Duration = Duration::from_millis(450);

impl Gate {
    /// A gate whose states are in Redis, shared with every other process that uses it. The server's clock
    /// decides; a manual one takes its place, for tests. Needs a running tokio runtime.
    ///
    /// The gate is made whether the server can be reached or not; see [`Gate::store_error`].
    pub async fn on_redis(policy: &Policy, settings: &Settings, clock: Clock, url: Url) -> Gate {
        let store = Memory::new(settings.max_memory, None);
        let live = ArcSwap::from_pointee(Live::new(&store, policy));
        let redis = Some(Redis::open(url).await);
        let gate = Gate(Arc::new(Inner {
            store,
            clock,
            live,
            directory: None,
            saves: Default::default(),
            tend_turn: Default::default(),
            redis,
        }));
        // Told by `store_error`, and tried again.
        let _ = gate.0.follow_flags().await;
        tokio::spawn(follow_flags(Arc::downgrade(&gate.0)));
        gate
    }

    /// Why the store cannot be asked, if it cannot; `None` on the embedded store.
    #[must_use]
    pub fn store_error(&self) -> Option<StoreError> {
        self.0.redis.as_ref().and_then(Redis::down)
    }

    pub(super) async fn ask_redis(&self, redis: &Redis, request: &Request<'_>) -> Result<Answer, AskError> {
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
        let answers = redis.decide(&questions, &Asked { now: self.given_now(), cost, intent, explain }).await?;
        let all_allow = answers.1.iter().all(|answer| answer.ruling.is_allowed());
        for (met, answer) in asked.iter().zip(&answers.1) {
            let Limiter { spec, table } = met.limiter;
            table.note(&spec.rules, &met.key, &answer.ruling, all_allow, intent, answers.0);
        }
        Ok(put_together(&met, answers, request))
    }

    /// A manual clock's time; otherwise the server's counts.
    pub(crate) fn given_now(&self) -> Option<Micros> {
        match self.clock() {
            Clock::Manual(_) => Some(self.now()),
            Clock::Process(_) => None,
        }
    }

    /// The store elsewhere, if that is where states are.
    pub(crate) fn redis(&self) -> Option<&Redis> {
        self.0.redis.as_ref()
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
    ) -> Result<bool, AskError> {
        let limiter = self.limiter_for(limiter, key)?;
        limiter.check_buckets("increment")?;
        if !limiter.is_heeded() {
            return Ok(false);
        }
        Ok(redis.increment(self.given_now(), &limiter.question(key), count, at).await?.1)
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

    pub(crate) async fn set_enabled_there(&self, redis: &Redis, limiter: &str, enabled: bool) -> Result<(), AskError> {
        let limiter = self.limiter(limiter)?;
        redis.set_disabled(limiter.spec.scope(), limiter.layout(), !enabled).await?;
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
        let Some(redis) = &self.redis else { return Ok(()) };
        let live = self.live.load_full();
        let limiters: Vec<_> = live.limiters.iter().map(|limiter| (limiter.spec.scope(), limiter.layout())).collect();
        let disabled = redis.disabled(&limiters).await?;
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
    pub(crate) fn layout(&self) -> Layout<'_> {
        match self.spec.pause_layout {
            true => Layout::Pause { scope: self.spec.scope() },
            false => Layout::Native,
        }
    }

    pub(crate) fn question<'a>(&'a self, key: &'a [u8]) -> Question<'a> {
        let Limiter { spec, .. } = self;
        let layout = self.layout();
        Question { limiter: spec.scope(), rules: &spec.rules, names: spec.names, key, layout }
    }
}
