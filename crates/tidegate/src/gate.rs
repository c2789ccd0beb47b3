//! The gate: a policy, a store and a clock that answer "may this happen now?".
//!
//! The engine turns requests into checks and answers; it does no arithmetic of its own. A gate is
//! cheap to clone and to share, and its policy can be replaced while it is asked.

mod apart;
#[cfg(feature = "redis")]
mod degraded;
#[cfg(feature = "redis")]
mod elsewhere;
mod met;
mod open;
mod operate;
mod parts;
#[cfg(feature = "redis")]
mod remote;
#[cfg(feature = "redis")]
mod trouble;

#[cfg(feature = "redis")]
pub use elsewhere::{StoreHealth, StoreSettings};
use met::{Met, answered, put_together, unasked};
use open::SaveCounters;
pub use open::{OpenError, Saves, Settings};
pub use operate::{Cursor, LimiterInfo, Page, Usage};

use crate::{Answer, AskError, Clock, LimiterSpec, Policy, Request, Target};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{Micros, check_key};
use tidegate_store::{Directory, Memory, Part, Table, decide_all};

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
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Memory,
    clock: Clock,
    live: ArcSwap<Live>,
    promised: parts::Promised,
    /// Where state is kept over restarts; locked while it is being written.
    directory: Option<Mutex<Directory>>,
    saves: SaveCounters,
    tend_turn: AtomicUsize,
    /// Where states are, if not in `store`.
    #[cfg(feature = "redis")]
    elsewhere: Option<elsewhere::Elsewhere>,
    #[cfg(feature = "redis")]
    on_failure: crate::OnFailure,
    /// Decisions that were made without the store.
    #[cfg(feature = "redis")]
    degraded: std::sync::atomic::AtomicU64,
}

/// The policy in force, with each limiter's table.
#[derive(Debug)]
struct Live {
    limiters: Vec<Limiter>,
    by_name: HashMap<String, usize>,
    /// Limiters with `by`, by domain, in definition order.
    by_domain: HashMap<Option<String>, Vec<usize>>,
}

/// One limiter of the policy in force: a handle that spares the look-up by name.
///
/// It keeps the limits of the policy that it was taken from, as long as there are as many and they are
/// counted the same way; take a new one after a reload.
#[derive(Clone, Debug)]
pub struct Limiter {
    spec: Arc<LimiterSpec>,
    table: Arc<Table>,
    /// The rules in force, where this process holds only a part of them.
    part: Option<Arc<ArcSwap<tidegate_core::Rules>>>,
    /// This process's share of the rules, for when the store does not answer.
    #[cfg(feature = "redis")]
    local: Arc<tidegate_core::Rules>,
}

/// Uses that came together and are answered together; see [`Gate::hit_each_at`].
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    now: Micros,
    /// Until when the store may answer.
    #[cfg(feature = "redis")]
    by: Option<tokio::time::Instant>,
}

impl Batch {
    /// The reading of the clock that it began at.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }
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
    /// A gate on an empty embedded store with the default budget and the process's clock.
    #[must_use]
    pub fn embedded(policy: Policy) -> Gate {
        Gate::with_clock(policy, Clock::process())
    }

    /// The same, with a clock of your own: simulations and tests.
    #[must_use]
    pub fn with_clock(policy: Policy, clock: Clock) -> Gate {
        Gate::on(Memory::new(Settings::default().max_memory, None), &policy, clock, None)
    }

    fn on(store: Memory, policy: &Policy, clock: Clock, directory: Option<Directory>) -> Gate {
        let promised = parts::Promised::default();
        let live = ArcSwap::from_pointee(Live::new(&store, policy, 1.0, &promised));
        let directory = directory.map(Mutex::new);
        Gate(Arc::new(Inner {
            store,
            clock,
            live,
            promised,
            directory,
            saves: SaveCounters::default(),
            tend_turn: AtomicUsize::new(0),
            #[cfg(feature = "redis")]
            elsewhere: None,
            #[cfg(feature = "redis")]
            on_failure: crate::OnFailure::default(),
            #[cfg(feature = "redis")]
            degraded: Default::default(),
        }))
    }

    /// True when the states are not in this process.
    #[must_use]
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        #[cfg(feature = "redis")]
        return self.0.elsewhere.is_some();
        #[cfg(not(feature = "redis"))]
        return false;
    }

    /// This process's part of each limit.
    fn share(&self) -> f64 {
        #[cfg(feature = "redis")]
        if let Some(elsewhere) = &self.0.elsewhere {
            return elsewhere.local_share;
        }
        1.0
    }

    /// The same for what people do with one limiter: of those held in parts each process has its own.
    fn here_for(&self, limiter: &str) -> Result<(), AskError> {
        if self.is_shared(limiter) { Ok(()) } else { self.here() }
    }

    fn here(&self) -> Result<(), AskError> {
        if self.is_elsewhere() { Err(AskError::Elsewhere) } else { Ok(()) }
    }

    /// May this happen now? For every store: on the embedded one it never waits, on one elsewhere it
    /// takes a round trip.
    ///
    /// # Errors
    /// As [`Gate::decide`], or when the store does not answer.
    pub async fn ask(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        #[cfg(feature = "redis")]
        if let Some(elsewhere) = &self.0.elsewhere {
            return match self.decide_shared(request)? {
                Some(answer) => Ok(answer),
                None => self.ask_elsewhere(elsewhere, request).await,
            };
        }
        self.decide(request)
    }

    /// May this happen now? Microseconds; no I/O. For the embedded store; see [`Gate::ask`].
    ///
    /// # Errors
    /// An unknown limiter, a key that is empty or too long, or a store elsewhere. Nothing is charged then.
    pub fn decide(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        self.here()?;
        let live = self.0.live.load();
        match request.target {
            Target::Limiter { name, key } => {
                check_key(key)?;
                let limiter = live.limiter(name)?;
                if request.explain || !limiter.is_heeded() {
                    return Ok(self.decide_met(&[Met::new(limiter, key.into())], request));
                }
                // The common case: one table, and no lists to be made for it.
                let mut at = Micros::ZERO;
                let clock = || {
                    at = self.now();
                    at
                };
                let ruling = limiter.table.decide(&limiter.rules(), key, request.cost, request.intent, clock);
                Ok(answered(limiter, &ruling, at))
            }
            Target::Attributes { domain, attributes } => Ok(self.decide_met(&live.met(domain, attributes)?, request)),
        }
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

    /// Hits many keys of one limiter, each on its own, with one reading of the clock. In a large
    /// table this is several times as fast as single hits.
    ///
    /// # Errors
    /// As [`Gate::decide`], for the first bad key; nothing is charged then.
    pub fn hit_many(&self, limiter: &str, keys: &[&[u8]], cost: u32) -> Result<Vec<Answer>, AskError> {
        self.here()?;
        let live = self.0.live.load();
        let limiter = live.limiter(limiter)?;
        let at = self.now();
        if !limiter.is_heeded() {
            keys.iter().try_for_each(|key| check_key(key))?;
            return Ok(keys.iter().map(|_| unasked(Some(limiter), at)).collect());
        }
        let mut rulings = Vec::new();
        self.hit_many_on(limiter, keys, cost, &mut rulings)?;
        Ok(rulings.iter().map(|ruling| answered(limiter, ruling, at)).collect())
    }

    /// A handle to one limiter, which spares the look-up by name; see [`Gate::hit_on`].
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn limiter(&self, name: &str) -> Result<Limiter, AskError> {
        self.0.live.load().limiter(name).cloned()
    }

    /// A hit through a handle: the shortest way to a decision. It does not look at the disabled flag,
    /// so that a disabled limiter goes on limiting here; see [`Limiter::is_heeded`].
    ///
    /// # Errors
    /// When the key is empty or too long.
    #[inline]
    pub fn hit_on(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<Ruling, AskError> {
        self.here()?;
        check_key(key)?;
        Ok(limiter.table.decide(&limiter.rules(), key, cost, Intent::Hit, || self.now()))
    }

    /// Many hits through a handle, as with [`Gate::hit_on`]; the answers are appended in the order of the keys.
    ///
    /// # Errors
    /// When a key is empty or too long; nothing is charged then.
    pub fn hit_many_on(
        &self,
        limiter: &Limiter,
        keys: &[&[u8]],
        cost: u32,
        answers: &mut Vec<Ruling>,
    ) -> Result<(), AskError> {
        self.here()?;
        keys.iter().try_for_each(|key| check_key(key))?;
        limiter.table.hit_many(&limiter.rules(), keys, cost, self.now(), answers);
        Ok(())
    }

    /// The same for a door that has read the clock for a batch, and whose protocol bounds its keys
    /// itself: they may be empty, and up to 1000 bytes long. With a store elsewhere, see [`Gate::hit_each_at`].
    pub fn hit_many_at(&self, limiter: &Limiter, keys: &[&[u8]], cost: u32, now: Micros, answers: &mut Vec<Ruling>) {
        if self.is_elsewhere() {
            let uses: Vec<(&Limiter, &[u8])> = keys.iter().map(|key| (limiter, *key)).collect();
            return self.hit_each_at(&uses, cost, &self.batch(now), answers);
        }
        limiter.table.hit_many(&limiter.rules(), keys, cost, now, answers);
    }

    /// The same for keys of several limiters and every store. Where it is elsewhere this blocks the thread,
    /// until the deadline at most, which counts from when the batch was begun: not for async code.
    pub fn hit_each_at(&self, uses: &[(&Limiter, &[u8])], cost: u32, batch: &Batch, answers: &mut Vec<Ruling>) {
        #[cfg(feature = "redis")]
        if let Some(elsewhere) = &self.0.elsewhere {
            return self.hit_each_elsewhere(elsewhere, uses, cost, batch, answers);
        }
        for (limiter, key) in uses {
            answers.push(limiter.table.decide(&limiter.rules(), key, cost, Intent::Hit, || batch.now));
        }
    }

    /// Begins a batch at this reading of the clock.
    #[must_use]
    pub fn batch(&self, now: Micros) -> Batch {
        Batch {
            now,
            #[cfg(feature = "redis")]
            by: self.0.elsewhere.as_ref().map(elsewhere::Elsewhere::by),
        }
    }

    /// Replaces the policy. Changed limits apply from the next call. States are kept by limiter name;
    /// each new limit goes on with those of the old one of the same count and period, else of the same
    /// period, else of the same position. A limiter with another algorithm starts afresh, blocks aside.
    ///
    /// # Errors
    /// When the tables would not fit the budget; the old policy then stays in force.
    pub fn reload(&self, policy: &Policy) -> Result<Reloaded, OpenError> {
        let store = &self.0.store;
        let shapes: Vec<_> = policy.limiters().iter().map(|spec| (spec.scope(), spec.shape())).collect();
        let (bytes, max_bytes) = (store.bytes_as(&shapes), store.max_bytes());
        if bytes > max_bytes {
            return Err(OpenError::TooSmall { bytes, max_bytes });
        }
        let before = self.0.live.load_full();
        let afresh = |spec: &&Arc<LimiterSpec>| {
            let old = before.limiter(&spec.name);
            old.is_ok_and(|old| old.spec.rules.algorithm() != spec.rules.algorithm())
        };
        let afresh = policy.limiters().iter().filter(afresh).map(|spec| spec.name.clone()).collect();
        self.0.live.store(Arc::new(Live::new(store, policy, self.share(), &self.0.promised)));
        self.forget_others(policy);
        Ok(Reloaded { afresh })
    }

    /// Drops the tables of limiters that the policy does not have.
    fn forget_others(&self, policy: &Policy) {
        let names: Vec<&str> = policy.limiters().iter().map(|spec| spec.scope()).collect();
        self.0.store.retain(&names);
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

    /// Housekeeping, to be called about once a second: follows the wall clock, drops idle keys of a
    /// part of the tables and gives their memory back.
    pub fn tend(&self) {
        self.0.clock.follow_wall();
        let turn = self.0.tend_turn.fetch_add(1, Relaxed);
        for limiter in &self.0.live.load().limiters {
            limiter.table.tend(limiter.local_rules(), turn, TEND_SHARE, || self.now());
        }
        self.0.store.release_freed();
    }

    /// A request of a limiter of which this process holds a part: no store is asked. `None`: it is none of those.
    #[cfg(feature = "redis")]
    fn decide_shared(&self, request: &Request<'_>) -> Result<Option<Answer>, AskError> {
        let live = self.0.live.load();
        if !live.limiters.iter().any(Limiter::is_shared) {
            return Ok(None);
        }
        let met = match request.target {
            Target::Limiter { name, key } => {
                check_key(key)?;
                vec![Met::new(live.limiter(name)?, key.into())]
            }
            Target::Attributes { domain, attributes } => live.met(domain, attributes)?,
        };
        // By the policy it is alone in its domain.
        let is_shared = met.iter().any(|met| met.limiter.is_shared());
        Ok(is_shared.then(|| self.decide_met(&met, request)))
    }

    fn decide_met(&self, met: &[Met<'_>], request: &Request<'_>) -> Answer {
        let parts: Vec<Part<'_>> = met.iter().filter(|met| met.heeded).map(Met::part).collect();
        let answers = decide_all(&parts, request.cost, request.intent, request.explain, || self.now());
        put_together(met, answers, request)
    }
}

impl Limiter {
    #[cfg(feature = "redis")]
    fn new(store: &Memory, spec: &Arc<LimiterSpec>, share: f64, promised: &parts::Promised) -> Limiter {
        let local = Arc::new(degraded::share_of(&spec.rules, share));
        let table = store.table(spec.scope(), spec.shape(), &local);
        Limiter { spec: Arc::clone(spec), table, part: promised.of(spec), local }
    }

    #[cfg(not(feature = "redis"))]
    fn new(store: &Memory, spec: &Arc<LimiterSpec>, _share: f64, promised: &parts::Promised) -> Limiter {
        let table = store.table(spec.scope(), spec.shape(), &spec.rules);
        Limiter { spec: Arc::clone(spec), table, part: promised.of(spec) }
    }

    /// The rules of its table.
    fn local_rules(&self) -> &tidegate_core::Rules {
        #[cfg(feature = "redis")]
        return &self.local;
        #[cfg(not(feature = "redis"))]
        return &self.spec.rules;
    }

    /// Its definition.
    #[must_use]
    pub fn spec(&self) -> &LimiterSpec {
        &self.spec
    }

    /// False while it is disabled: then it allows everything and counts nothing.
    #[must_use]
    pub fn is_heeded(&self) -> bool {
        !(self.spec.honour_disable && self.table.is_disabled())
    }

    /// A ruling of its own as an answer.
    pub fn answer(&self, ruling: &Ruling, at: Micros) -> Answer {
        answered(self, ruling, at)
    }

    /// What it answers while it is disabled.
    pub fn disabled_answer(&self, at: Micros) -> Answer {
        unasked(Some(self), at)
    }
}

impl Live {
    /// `share` is this process's part of each limit, where the store is elsewhere.
    fn new(store: &Memory, policy: &Policy, share: f64, promised: &parts::Promised) -> Live {
        let mut live = Live { limiters: Vec::new(), by_name: HashMap::new(), by_domain: HashMap::new() };
        for (index, spec) in policy.limiters().iter().enumerate() {
            live.limiters.push(Limiter::new(store, spec, share, promised));
            live.by_name.insert(spec.name.clone(), index);
            if !spec.by.is_empty() {
                live.by_domain.entry(spec.domain.clone()).or_default().push(index);
            }
        }
        live
    }

    fn limiter(&self, name: &str) -> Result<&Limiter, AskError> {
        let found = self.by_name.get(name).map(|index| &self.limiters[*index]);
        found.ok_or_else(|| AskError::UnknownLimiter {
            name: name.to_owned(),
            known: self.limiters.iter().take(10).map(|limiter| limiter.spec.name.clone()).collect(),
        })
    }

    /// The limiters that these attributes meet, with their keys.
    fn met(&self, domain: Option<&str>, attributes: &[(&str, &[u8])]) -> Result<Vec<Met<'_>>, AskError> {
        let candidates = self.by_domain.get(&domain.map(str::to_owned)).into_iter().flatten();
        let limiters = candidates.map(|index| &self.limiters[*index]);
        let met: Vec<_> =
            limiters.filter_map(|limiter| Some(Met::new(limiter, limiter.spec.key_of(attributes)?))).collect();
        met.iter().try_for_each(|met| check_key(&met.key))?;
        Ok(met)
    }
}
