//! The gate: a policy, a store and a clock that answer "may this happen now?".
//!
//! The engine turns requests into checks and answers; it does no arithmetic of its own. A gate is
//! cheap to clone and to share, and its policy can be replaced while it is asked.

use crate::{Answer, AskError, Clock, Explained, LimiterSpec, Policy, Reason, Request, Target};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, str::FromStr};
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{Micros, Verdict, check_key};
use tidegate_store::{
    Counts, Directory, KeyStats, Memory, Part, PartAnswer, Shape, SnapshotError, Table, Which, decide_all,
};

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
    /// Where state is kept over restarts; locked while it is being written.
    directory: Option<Mutex<Directory>>,
    tend_turn: AtomicUsize,
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
/// It keeps the limits of the policy that it was taken from; take a new one after a reload.
#[derive(Clone, Debug)]
pub struct Limiter {
    spec: Arc<LimiterSpec>,
    table: Arc<Table>,
}

/// What a gate needs besides its policy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that the embedded store may hold.
    pub max_memory: usize,
    /// A directory where state is kept over restarts.
    pub path: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_memory: 256 << 20, path: None }
    }
}

/// Why a gate could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The path cannot be used, or what was saved there is damaged.
    Snapshot(SnapshotError),
    /// The limiters' empty tables and what was saved are more than the budget.
    TooSmall {
        /// Bytes needed.
        bytes: usize,
        /// Bytes allowed.
        max_bytes: usize,
    },
}

impl From<SnapshotError> for OpenError {
    fn from(error: SnapshotError) -> OpenError {
        OpenError::Snapshot(error)
    }
}

impl std::error::Error for OpenError {}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Snapshot(error) => error.fmt(f),
            OpenError::TooSmall { bytes, max_bytes } => write!(
                f,
                "the limiters and what was saved of their keys need {:.1} MiB, more than max_memory = {:.1} MiB; raise it, \
                 or move the snapshot away to start with empty counters",
                mib(*bytes),
                mib(*max_bytes)
            ),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A limiter as it stands.
#[derive(Clone, Debug)]
pub struct LimiterInfo {
    /// Its definition.
    pub spec: Arc<LimiterSpec>,
    /// False: disabled.
    pub enabled: bool,
    /// Keys held, idle ones included.
    pub entries: usize,
    /// Memory held.
    pub bytes: usize,
    /// How decisions went.
    pub counts: Counts,
}

/// Memory and keys of all limiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Memory held.
    pub bytes: usize,
    /// Memory that may be held.
    pub max_bytes: usize,
    /// Keys held, idle ones included.
    pub entries: usize,
    /// Keys that the memory held now has room for.
    pub capacity: usize,
}

/// Where a listing goes on: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(u64);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Cursor {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Cursor, Self::Err> {
        u64::from_str_radix(text, 16).map(Cursor)
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Key names, sorted within the page.
    pub keys: Vec<Vec<u8>>,
    /// Where the next page starts; `None`: this was the last.
    pub next: Option<Cursor>,
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

    /// A gate with settings of your own. With a path, it goes on from what was saved there.
    ///
    /// # Errors
    /// When the path cannot be used, what was saved is damaged, or it does not fit the budget.
    pub fn open(policy: Policy, settings: &Settings, clock: Clock) -> Result<Gate, OpenError> {
        let directory = settings.path.as_deref().map(Directory::open).transpose()?;
        let saved = match &directory {
            Some(directory) => directory.load(settings.max_memory)?,
            None => None,
        };
        let store = match saved {
            Some((store, taken_at)) => {
                clock.not_before(taken_at);
                store
            }
            None => Memory::new(settings.max_memory, None),
        };
        let gate = Gate::on(store, &policy, clock, directory);
        gate.forget_others(&policy);
        (0..TEND_SHARE).for_each(|_| gate.tend());
        match gate.usage() {
            Usage { bytes, max_bytes, .. } if bytes > max_bytes => Err(OpenError::TooSmall { bytes, max_bytes }),
            _ => Ok(gate),
        }
    }

    fn on(store: Memory, policy: &Policy, clock: Clock, directory: Option<Directory>) -> Gate {
        let live = ArcSwap::from_pointee(Live::new(&store, policy));
        let directory = directory.map(Mutex::new);
        Gate(Arc::new(Inner { store, clock, live, directory, tend_turn: AtomicUsize::new(0) }))
    }

    /// May this happen now? Microseconds; no I/O.
    ///
    /// # Errors
    /// An unknown limiter, or a key that is empty or too long. Nothing is charged then.
    pub fn decide(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        let live = self.0.live.load();
        match request.target {
            Target::Limiter { name, key } => {
                check_key(key)?;
                let limiter = live.limiter(name)?;
                if request.explain || !limiter.is_heeded() {
                    return Ok(self.decide_met(&[(limiter, key.into())], request));
                }
                // The common case: one table, and no lists to be made for it.
                let mut at = Micros::ZERO;
                let clock = || {
                    at = self.now();
                    at
                };
                let ruling = limiter.table.decide(&limiter.spec.rules, key, request.cost, request.intent, clock);
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
    pub fn hit_many(&self, limiter: &str, keys: &[&[u8]], cost: u32) -> Result<Vec<Ruling>, AskError> {
        let live = self.0.live.load();
        let limiter = live.limiter(limiter)?;
        let mut answers = Vec::new();
        self.hit_many_on(limiter, keys, cost, &mut answers)?;
        Ok(answers)
    }

    /// A handle to one limiter, which spares the look-up by name; see [`Gate::hit_on`].
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn limiter(&self, name: &str) -> Result<Limiter, AskError> {
        self.0.live.load().limiter(name).cloned()
    }

    /// A hit through a handle: the shortest way to a decision. A disabled limiter is not heeded here.
    ///
    /// # Errors
    /// When the key is empty or too long.
    #[inline]
    pub fn hit_on(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<Ruling, AskError> {
        check_key(key)?;
        Ok(limiter.table.decide(&limiter.spec.rules, key, cost, Intent::Hit, || self.now()))
    }

    /// Many hits through a handle; the answers are appended in the order of the keys.
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
        keys.iter().try_for_each(|key| check_key(key))?;
        limiter.table.hit_many(&limiter.spec.rules, keys, cost, self.now(), answers);
        Ok(())
    }

    /// The same for a door that has read the clock for a batch, and whose protocol bounds its keys
    /// itself: they may be empty, and up to 1000 bytes long.
    pub fn hit_many_at(&self, limiter: &Limiter, keys: &[&[u8]], cost: u32, now: Micros, answers: &mut Vec<Ruling>) {
        limiter.table.hit_many(&limiter.spec.rules, keys, cost, now, answers);
    }

    /// All limiters, in definition order.
    #[must_use]
    pub fn limiters(&self) -> Vec<LimiterInfo> {
        self.0.live.load().limiters.iter().map(Limiter::info).collect()
    }

    /// One limiter.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn limiter_info(&self, name: &str) -> Result<LimiterInfo, AskError> {
        Ok(self.0.live.load().limiter(name)?.info())
    }

    /// What a key did since start; zeros for one that is not known, or when the limiter keeps no
    /// statistics. Asking is not a use.
    #[must_use]
    pub fn key_stats_on(&self, limiter: &Limiter, key: &[u8]) -> KeyStats {
        limiter.table.key_stats(key, self.now())
    }

    /// Enables or disables a limiter. A disabled one allows everything and counts nothing.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn set_enabled(&self, limiter: &str, enabled: bool) -> Result<(), AskError> {
        self.0.live.load().limiter(limiter)?.table.set_disabled(!enabled);
        Ok(())
    }

    /// Names of a limiter's keys, about `most` at a time.
    ///
    /// # Errors
    /// When there is no such limiter, or it keeps no names.
    pub fn keys(&self, limiter: &str, which: Which, after: Option<Cursor>, most: usize) -> Result<Page, AskError> {
        let live = self.0.live.load();
        let Limiter { spec, table } = live.limiter(limiter)?;
        if !spec.names {
            return Err(AskError::NoNames(spec.name.clone()));
        }
        let listing = table.list(&spec.rules, which, after.map(|cursor| cursor.0), most.max(1), || self.now());
        Ok(Page { keys: listing.keys, next: listing.next.map(Cursor) })
    }

    /// Blocks a key for `span` from now, and says until when.
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, or a full table has no place for it.
    pub fn block(&self, limiter: &str, key: &[u8], span: Micros) -> Result<Micros, AskError> {
        check_key(key)?;
        let live = self.0.live.load();
        let Limiter { spec, table } = live.limiter(limiter)?;
        let until = table.block(&spec.rules, key, span, || self.now());
        until.ok_or_else(|| AskError::Full { limiter: spec.name.clone() })
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// When there is no such limiter, or the key is bad.
    pub fn unblock(&self, limiter: &str, key: &[u8]) -> Result<bool, AskError> {
        check_key(key)?;
        let live = self.0.live.load();
        let Limiter { spec, table } = live.limiter(limiter)?;
        Ok(table.unblock(&spec.rules, key, || self.now()))
    }

    /// Forgets all blocked keys of a limiter; how many were there?
    ///
    /// # Errors
    /// When there is no such limiter.
    pub fn unblock_all(&self, limiter: &str) -> Result<u64, AskError> {
        let live = self.0.live.load();
        let Limiter { spec, table } = live.limiter(limiter)?;
        Ok(table.unblock_all(&spec.rules, || self.now()))
    }

    /// Replaces the policy. States are kept by limiter name; changed limits apply from the next call.
    pub fn reload(&self, policy: &Policy) {
        self.0.live.store(Arc::new(Live::new(&self.0.store, policy)));
        self.forget_others(policy);
    }

    /// Writes all state to the path of the settings, if there is one. Blocking file I/O; decisions
    /// go on meanwhile.
    ///
    /// # Errors
    /// When the file cannot be written; what was saved before is then still there.
    pub fn save(&self) -> Result<(), SnapshotError> {
        match &self.0.directory {
            Some(directory) => {
                let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
                directory.save(&self.0.store, self.now())
            }
            None => Ok(()),
        }
    }

    /// Drops the tables of limiters that the policy does not have.
    fn forget_others(&self, policy: &Policy) {
        let names: Vec<&str> = policy.limiters().iter().map(|spec| spec.name.as_str()).collect();
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

    /// Memory and keys of all limiters.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let store = &self.0.store;
        Usage {
            bytes: store.bytes(),
            max_bytes: store.max_bytes(),
            entries: store.entries(),
            capacity: store.capacity(),
        }
    }

    /// Housekeeping, to be called about once a second: follows the wall clock, drops idle keys of a
    /// part of the tables and gives their memory back.
    pub fn tend(&self) {
        self.0.clock.follow_wall();
        let turn = self.0.tend_turn.fetch_add(1, Relaxed);
        for Limiter { spec, table } in &self.0.live.load().limiters {
            table.tend(&spec.rules, turn, TEND_SHARE, || self.now());
        }
    }

    fn decide_met(&self, met: &[(&Limiter, Vec<u8>)], request: &Request<'_>) -> Answer {
        let asked: Vec<&(&Limiter, Vec<u8>)> = met.iter().filter(|(limiter, _)| limiter.is_heeded()).collect();
        let parts: Vec<Part<'_>> = asked
            .iter()
            .map(|(limiter, key)| Part { table: &limiter.table, rules: &limiter.spec.rules, key })
            .collect();
        let (at, answers) = decide_all(&parts, request.cost, request.intent, request.explain, || self.now());
        let deciding = Ruling::deciding(answers.iter().map(|answer| &answer.ruling));
        let mut answer = match deciding {
            Some(index) => answered(asked[index].0, &answers[index].ruling, at),
            None => unasked(met.first().map(|(limiter, _)| *limiter), at),
        };
        if request.explain {
            let mut told = answers.into_iter().enumerate();
            let explained = met.iter().map(|(limiter, key)| {
                let said = if limiter.is_heeded() { told.next() } else { None };
                explain(limiter, key, said, deciding, at)
            });
            answer.explanation = explained.collect();
        }
        answer
    }
}

fn answered(limiter: &Limiter, ruling: &Ruling, at: Micros) -> Answer {
    let decision = &ruling.decision;
    Answer {
        allowed: ruling.is_allowed(),
        reason: ruling.reason.into(),
        limiter: Some(Arc::clone(&limiter.spec)),
        limit_index: ruling.limit_index,
        limit: Some(decision.limit),
        remaining: Some(decision.remaining),
        retry_after: match decision.verdict {
            Verdict::Deny { retry_after } => retry_after,
            Verdict::Allow => None,
        },
        reset_after: Some(decision.reset_after),
        at,
        explanation: Vec::new(),
    }
}

/// No limiter was asked: none applied, or those that did are disabled.
fn unasked(disabled: Option<&Limiter>, at: Micros) -> Answer {
    Answer {
        allowed: true,
        reason: if disabled.is_some() { Reason::Disabled } else { Reason::Ok },
        limiter: disabled.map(|limiter| Arc::clone(&limiter.spec)),
        limit_index: 0,
        limit: None,
        remaining: None,
        retry_after: None,
        reset_after: None,
        at,
        explanation: Vec::new(),
    }
}

fn explain(
    limiter: &Limiter,
    key: &[u8],
    said: Option<(usize, PartAnswer)>,
    deciding: Option<usize>,
    at: Micros,
) -> Explained {
    let decided = said.as_ref().is_some_and(|(index, _)| Some(*index) == deciding);
    let said = said.map(|(_, answer)| answer);
    let limits = limiter.spec.rules.limits().iter().copied();
    Explained {
        limiter: Arc::clone(&limiter.spec),
        key: key.to_vec(),
        enabled: said.is_some(),
        decided,
        blocked_until: said.as_ref().map(|said| said.blocked_until).filter(|until| *until > at),
        sketched: said.as_ref().is_some_and(|said| said.sketched),
        limits: limits.zip(said.into_iter().flat_map(|said| said.decisions)).collect(),
    }
}

impl Limiter {
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

    fn info(&self) -> LimiterInfo {
        LimiterInfo {
            spec: Arc::clone(&self.spec),
            enabled: !self.table.is_disabled(),
            entries: self.table.entries(),
            bytes: self.table.bytes(),
            counts: self.table.counts(),
        }
    }
}

impl Live {
    fn new(store: &Memory, policy: &Policy) -> Live {
        let mut live = Live { limiters: Vec::new(), by_name: HashMap::new(), by_domain: HashMap::new() };
        for (index, spec) in policy.limiters().iter().enumerate() {
            let shape = Shape {
                algorithm: spec.rules.algorithm(),
                limits: spec.rules.limits().len(),
                names: spec.names,
                stats: spec.stats,
            };
            live.limiters.push(Limiter { spec: Arc::clone(spec), table: store.table(&spec.name, shape) });
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
    fn met(&self, domain: Option<&str>, attributes: &[(&str, &[u8])]) -> Result<Vec<(&Limiter, Vec<u8>)>, AskError> {
        let candidates = self.by_domain.get(&domain.map(str::to_owned)).into_iter().flatten();
        let limiters = candidates.map(|index| &self.limiters[*index]);
        let met: Vec<_> = limiters.filter_map(|limiter| Some((limiter, limiter.spec.key_of(attributes)?))).collect();
        met.iter().try_for_each(|(_, key)| check_key(key))?;
        Ok(met)
    }
}
