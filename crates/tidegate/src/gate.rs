//! The gate: a policy, a store and a clock that answer "may this happen now?".
//!
//! A request becomes a plan (`plan.rs`), the store decides it, and the answer is combined from what the limiters said. The
//! engine does no arithmetic of its own. There are three kinds of ways in: one request now, on the embedded store ([`Gate::decide`]);
//! one request, on any store ([`Gate::ask`]); and many, each on its own ([`Gate::ask_many`], and [`Gate::hit_each`] for doors) or charged together or not
//! at all ([`Gate::ask_together`]). ARCHITECTURE.md says why each function exists. A gate is cheap to clone
//! and to share, and its policy can be replaced while it is asked.

mod degraded;
mod error_stats;
mod fallback;
mod flags;
mod give_back;
mod housekeeping;
mod info;
mod limiter;
mod many;
mod open;
mod operate;
mod overrides;
mod per_call;
mod plan;
mod ready;
mod reserve;
mod shared_blocks;
mod shares;
mod standing;
mod together;

pub use info::{Cursor, LimiterInfo, Page, StoreHealth, Usage};
pub use limiter::Limiter;
pub use many::{Batch, Hit, HitAnswer};
pub use open::{OpenError, Saves, Settings, StoreSettings};
pub use overrides::{OVERRIDE_REASON_MAX, OverrideInfo};
pub use reserve::{CommitAnswer, RESERVATION_SPAN_MAX, Reservation, ReserveAnswer};

use crate::record::Recorder;
use crate::{Answer, AskError, Clock, Policy, RecordSettings, RecordStats, Recording, Request, Target};
use arc_swap::ArcSwap;
use error_stats::ErrorStats;
use limiter::{Live, Surroundings};
use open::{FailureSettings, Snapshots};
use overrides::Book;
use plan::Plan;
use ready::Lines;
use shared_blocks::SharedBlocks;
use shares::Shares;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{Micros, check_key};
use tidegate_store::{Asked, Door, Memory, Part, Question, Single, Store, StoreError, decide_all};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A rate limiter. Clones share one state.
///
/// ```
/// use tidegate::{Gate, LimiterSpec, Policy, Rules, Algorithm};
/// let rules = Rules::new(Algorithm::SlidingLog, &["3 per minute".parse()?])?;
/// let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
/// for left in [2, 1, 0] {
///     assert_eq!(gate.hit("api", "user-1")?.remaining, Some(left));
/// }
/// let answer = gate.hit("api", "user-1")?;
/// assert!(!answer.allowed);
/// assert!(answer.retry_after <= Some(tidegate::Micros::from_secs(60)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>, Door);

#[derive(Debug)]
struct Inner {
    /// Where states are.
    store: Store,
    /// This process's tables: the states of the embedded store, and otherwise counters, flags, shares, and what decides
    /// while the store does not answer.
    memory: Arc<Memory>,
    /// The same tables, as a store.
    local: Store,
    clock: Clock,
    live: ArcSwap<Live>,
    /// Spares a look at the policy where each of its limiters has one limit.
    any_has_several_limits: AtomicBool,
    shares: Shares,
    overrides: Book,
    snapshots: Option<Snapshots>,
    tend_turn: AtomicUsize,
    failure: FailureSettings,
    errors: ErrorStats,
    /// Those who wait for a key's turn.
    lines: Lines,
    /// Decisions that were made without the store.
    degraded: AtomicU64,
    /// Of the limiter whose starts replicas of a proxy count together at the store, apart from its keys.
    shared_blocks: SharedBlocks,
    /// What requests are recorded by, if they are.
    recorder: OnceLock<Arc<Recorder>>,
    /// For threads that wait for a store on other machines.
    runtime: Option<Handle>,
    /// The housekeeping ends when it is dropped.
    _tended: Sender<Infallible>,
}

/// What a new policy did to the states.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reloaded {
    /// Limiters whose algorithm changed, so that their counts started afresh.
    pub afresh: Vec<String>,
}

/// Idle entries are looked for in one of this many parts of the tables at a time.
const TEND_SHARE: usize = 16;

impl Gate {
    /// May this happen now? For every store: on the embedded one it never waits, on one on other machines it takes a round trip, and
    /// an answer comes within the deadline whether the store answers or not.
    ///
    /// # Errors
    /// As [`Gate::decide`], or when the store cannot do what the limiters need.
    pub async fn ask(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        if self.0.store.is_embedded() {
            return self.decide(request);
        }
        // Not the guard of a load: that belongs to a thread, and this may go on in another.
        let live = self.0.live.load_full();
        if !self.0.store.answers()
            && let Target::Limiter { name, key } = request.target
            && let limiter = live.limiter_for(name, key)?
            && !request.explain
            && !limiter.is_shared()
            && !limiter.needs_plan
            && limiter.is_uniform()
        {
            self.record_request(request, None);
            return Ok(self.decide_one_degraded(limiter, key, request));
        }
        let plan = Plan::of(&live, request, self.door())?;
        self.record_request(request, Some(&plan));
        if plan.is_local() {
            return Ok(self.decide_plan(&plan, request));
        }
        // Boxed beside a round trip: the embedded store's callers need not carry its future.
        Box::pin(self.ask_store(plan, request)).await
    }

    /// May this happen now? Microseconds; no I/O. For the embedded store; see [`Gate::ask`].
    ///
    /// # Errors
    /// An unknown limiter, a key that is empty or too long, or a store on other machines. Nothing is charged then.
    pub fn decide(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        self.is_local()?;
        let live = self.0.live.load();
        if let Target::Limiter { name, key } = request.target
            && !request.explain
        {
            // The common case: one table, and no lists to be made for it.
            let limiter = live.limiter_for(name, key)?;
            if limiter.needs_plan || !limiter.is_uniform() {
                let plan = Plan::of(&live, request, self.door())?;
                self.record_request(request, Some(&plan));
                return Ok(self.decide_plan(&plan, request));
            }
            self.record_request(request, None);
            let mut at = Micros::ZERO;
            let clock = || {
                at = self.now();
                at
            };
            let spec = limiter.in_force();
            let single = Single::new(&spec.rules, key, request.cost, request.intent).at(self.door());
            let ruling = limiter.table.decide(single, clock);
            return Ok(plan::answered(&spec, &ruling, at));
        }
        let plan = Plan::of(&live, request, self.door())?;
        self.record_request(request, Some(&plan));
        Ok(self.decide_plan(&plan, request))
    }

    /// A hit of cost 1 on one limiter.
    ///
    /// # Errors
    /// As [`Gate::decide`].
    pub fn hit(&self, limiter: &str, key: impl AsRef<[u8]>) -> Result<Answer, AskError> {
        self.decide(&Request::hit(limiter, key.as_ref()))
    }

    /// What a hit of cost 1 would be answered, charging nothing.
    ///
    /// # Errors
    /// As [`Gate::decide`].
    pub fn peek(&self, limiter: &str, key: impl AsRef<[u8]>) -> Result<Answer, AskError> {
        self.decide(&Request::hit(limiter, key.as_ref()).peek())
    }

    /// A handle to one limiter, which spares the look-up by name; see [`Gate::hit_on`].
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn limiter(&self, name: &str) -> Result<Limiter, AskError> {
        self.0.live.load().limiter(name).cloned()
    }

    /// [`Gate::decide`] for one hit through a handle: the shortest way to a decision, without an [`Answer`] around it. The
    /// key is taken as it stands, an address too. `None`: the limiter is disabled, or does not limit the key.
    ///
    /// # Errors
    /// When the key is empty or too long, or the limiter's states are on other machines.
    #[inline]
    pub fn hit_on(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<Option<Ruling>, AskError> {
        if !limiter.store.is_embedded() {
            return Err(AskError::Remote);
        }
        check_key(key)?;
        self.record_hit(limiter, key, cost);
        if !limiter.is_uniform() {
            return Ok(self.hit_by_standing(limiter, key, cost));
        }
        let in_force = limiter.in_force();
        let single = Single::new(&in_force.rules, key, cost, Intent::Hit).at(self.door());
        Ok(Some(limiter.table.decide(single, || self.now())))
    }

    /// Records a sample of the requests from now on, until what is returned is dropped; a gate is recorded once.
    ///
    /// # Errors
    /// When the files cannot be made, or it was recorded before.
    pub fn record(&self, settings: &RecordSettings) -> std::io::Result<Recording> {
        let (recorder, recording) = Recorder::start(settings, self.0.clock.clone())?;
        let set = self.0.recorder.set(recorder);
        set.map_err(|_| std::io::Error::other("this gate is recorded already; make one recording of it"))?;
        Ok(recording)
    }

    /// How its recording does, if it is or was recorded.
    #[must_use]
    pub fn record_stats(&self) -> Option<RecordStats> {
        self.0.recorder.get().map(|recorder| recorder.stats())
    }

    /// Records a request that is answered, if requests are recorded: one load otherwise.
    #[inline]
    fn record_request(&self, request: &Request<'_>, plan: Option<&Plan<'_>>) {
        let Some(recorder) = self.0.recorder.get() else { return };
        match (request.target, plan) {
            // A trace's attributes would meet other limiters too.
            (Target::Descriptor { .. }, Some(plan)) if request.intent == Intent::Hit => {
                for check in plan.0.iter().filter(|check| check.candidacy.is_none_or(|one| one.replaces.is_none())) {
                    self.record_hit(check.limiter, &check.key, request.cost);
                }
            }
            _ => recorder.request(request, plan.and_then(|plan| plan.0.first()).map(|check| &*check.key)),
        }
    }

    /// The same for a hit through a handle.
    #[inline]
    fn record_hit(&self, limiter: &Limiter, key: &[u8], cost: u32) {
        if let Some(recorder) = self.0.recorder.get()
            && cost > 0
            // A trace says nothing of the limit that a call brought.
            && !limiter.spec.limit_per_call
        {
            recorder.hit(&limiter.spec.name, key, cost);
        }
    }

    /// Decides a plan by this process's own tables.
    fn decide_plan(&self, plan: &Plan<'_>, request: &Request<'_>) -> Answer {
        if let Some(denied) = plan.denied(request, || self.now()) {
            return denied;
        }
        let asked = plan.asked();
        let parts: Vec<Part<'_>> = asked.iter().map(|(check, role)| check.part(*role)).collect();
        let answers = decide_all(&parts, request.cost, request.intent, request.explain, || self.now());
        plan.combine(answers, request)
    }

    /// Puts a plan to the store, within the deadline.
    async fn ask_store(&self, plan: Plan<'_>, request: &Request<'_>) -> Result<Answer, AskError> {
        if let Some(denied) = plan.denied(request, || self.now()) {
            return Ok(denied);
        }
        let store = &self.0.store;
        if !store.answers() {
            return Ok(self.decide_degraded(plan, request));
        }
        let Request { cost, intent, explain, .. } = *request;
        let asked = Asked { now: self.0.clock.manual_now(), cost, intent, explain, by: self.deadline() };
        let outcome = {
            let questions = plan.asked();
            let questions: Vec<Question<'_>> = questions.iter().map(|(check, role)| check.question(*role)).collect();
            if questions.is_empty() {
                return Ok(plan.combine((self.now(), Vec::new()), request));
            }
            let outcome = store.decide(&questions, &asked).await;
            self.0.errors.note(&questions, intent, &outcome);
            outcome
        };
        let (at, answers) = match outcome {
            Ok(answers) => answers,
            Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
            Err(_) => return Ok(self.decide_degraded(plan, request)),
        };
        let answers = (at, answers);
        plan.note_all(&answers, intent);
        Ok(plan.combine(answers, request))
    }

    /// How long the store may take for what is asked: four fifths of [`StoreSettings::deadline`], as the answer takes time, too.
    #[must_use]
    pub fn store_within(&self) -> Duration {
        self.0.failure.store_within
    }

    /// Until when the store may answer what is asked now.
    fn deadline(&self) -> Instant {
        self.deadline_within(Duration::MAX)
    }

    /// The same for a caller that may wait less long.
    fn deadline_within(&self, within: Duration) -> Instant {
        Instant::now() + self.0.failure.store_within.min(within)
    }

    /// The same gate, asked at this door: what it decides is counted for it. Calls of a gate that was told none are the library's.
    ///
    /// ```
    /// # use tidegate::{Algorithm, Door, Gate, LimiterSpec, Policy, Rules};
    /// # let rules = Rules::new(Algorithm::TokenBucket, &["3 per minute".parse()?])?;
    /// # let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
    /// gate.at(Door::Http).hit("api", "user-1")?;
    /// assert_eq!(gate.limiter_info("api")?.counts.by_door.at(Door::Http).allowed, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn at(&self, door: Door) -> Gate {
        Gate(Arc::clone(&self.0), door)
    }

    /// Where its requests come in.
    #[inline]
    const fn door(&self) -> Door {
        self.1
    }

    /// True when the states are in this process, so that no answer is waited for.
    #[must_use]
    #[inline]
    pub fn is_embedded(&self) -> bool {
        self.0.store.is_embedded()
    }

    /// An error where the states are not in this process.
    #[inline]
    fn is_local(&self) -> Result<(), AskError> {
        if self.0.store.is_embedded() { Ok(()) } else { Err(AskError::Remote) }
    }

    /// Replaces the policy. Changed limits apply from the next call. States are kept by limiter name;
    /// each new limit goes on with those of the old one of the same count and period, else of the same
    /// period, else of the same position. A limiter with another algorithm starts afresh, blocks aside.
    ///
    /// # Errors
    /// When the tables would not fit the budget; the old policy then stays in force.
    pub fn reload(&self, policy: &Policy) -> Result<Reloaded, OpenError> {
        let memory = &self.0.memory;
        let candidates = policy.candidates();
        let all = policy.limiters().iter().map(|spec| &**spec).chain(&candidates);
        let shapes: Vec<_> = all.map(|spec| (spec.scope(), spec.shape())).collect();
        let (bytes, max_bytes) = (memory.bytes_as(&shapes), memory.max_bytes());
        if bytes > max_bytes {
            return Err(OpenError::TooSmall { bytes, max_bytes });
        }
        let before = self.0.live.load_full();
        let afresh = |spec: &&Arc<crate::LimiterSpec>| {
            let old = before.limiter(&spec.name);
            old.is_ok_and(|old| old.spec.rules.algorithm() != spec.rules.algorithm())
        };
        let afresh = policy.limiters().iter().filter(afresh).map(|spec| spec.name.clone()).collect();
        let live = self.0.live_for(policy);
        let several = live.any_has_several_limits();
        // Meanwhile a request may meet either policy.
        self.0.any_has_several_limits.fetch_or(several, Relaxed);
        self.0.live.store(Arc::new(live));
        self.0.any_has_several_limits.store(several, Relaxed);
        self.forget_others(policy);
        Ok(Reloaded { afresh })
    }

    /// Drops the tables of limiters that the policy does not have.
    fn forget_others(&self, policy: &Policy) {
        let candidates = policy.candidates();
        let names: Vec<&str> =
            policy.limiters().iter().map(|spec| &**spec).chain(&candidates).map(|spec| spec.scope()).collect();
        self.0.memory.retain(&names);
    }

    /// Where states are; the proxy, the register of replicas and streams use the same store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The clock that stamps decisions.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The authority clock's time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Micros {
        self.0.clock.now()
    }

    /// Housekeeping: follows the wall clock, drops idle keys of a part of the tables and gives their memory back. The gate does
    /// it by itself once a second; only for one with a [`Clock::manual`] it is its owner's to call.
    pub fn tend(&self) {
        self.0.clock.follow_wall();
        let turn = self.0.tend_turn.fetch_add(1, Relaxed);
        let live = self.0.live.load();
        for limiter in live.limiters.iter().flat_map(|limiter| [Some(limiter), limiter.candidate.as_deref()]).flatten()
        {
            limiter.drop_expired_overrides();
            limiter.table.tend(&limiter.fallback.own.rules, turn, TEND_SHARE, || self.now());
        }
        self.0.memory.release_freed();
    }

    /// How the store does, if it is on other machines.
    #[must_use]
    pub fn store_health(&self) -> Option<StoreHealth> {
        let Inner { store, errors, degraded, .. } = &*self.0;
        (!store.is_embedded()).then(|| StoreHealth {
            url: store.address(),
            error: store.down().or_else(|| errors.refusal(Instant::now())),
            degraded: degraded.load(Relaxed),
            errors: errors.counts(),
        })
    }
}

impl Inner {
    fn live_for(&self, policy: &Policy) -> Live {
        let around = Surroundings {
            store: &self.store,
            local: &self.local,
            memory: &self.memory,
            clock: &self.clock,
            local_share: self.failure.local_share,
            shares: &self.shares,
            overrides: &self.overrides,
        };
        Live::new(policy, &around)
    }
}
