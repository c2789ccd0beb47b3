//! What people and applications do with a gate besides asking: look at limiters and keys, switch, block and unblock, count
//! and analyze apart. The same calls for every store.
//!
//! They are async, as a store may be on another machine; on the embedded store they never wait, see [`Gate::at_once`].

use super::limiter::Limiter;
use super::plan::{NEVER, UNLIMITED};
use super::standing::{Effect, Standing};
use super::{Cursor, Gate, LimiterInfo, Page, Usage};
use crate::{Analyzed, AskError, Incremented, LimiterSpec, Request, Status, Target};
use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent};
use tidegate_core::{Algorithm, Micros, check_key};
use tidegate_store::{Decided, Denials, Door, KeyStats, PageOf, Question, StoreError, TopBy, TopListing, When, Which};
use tokio::time::Instant;

/// How long an operator's call may take at a store on another machine.
const OPERATE_WITHIN: Duration = Duration::from_secs(2);

/// Set by a call that goes on at once.
#[derive(Default)]
struct Yielded(AtomicBool);

impl Wake for Yielded {
    fn wake(self: Arc<Yielded>) {
        self.0.store(true, Relaxed);
    }
}

impl Gate {
    /// The outcome of a call on the embedded store, where none waits: for code that is not async.
    ///
    /// ```
    /// # use tidegate::{Algorithm, Gate, LimiterSpec, Micros, Policy, Rules};
    /// # let rules = Rules::new(Algorithm::SlidingLog, &["3 per minute".parse()?])?;
    /// # let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
    /// gate.at_once(gate.block("api", b"user-1", Micros::from_secs(600)))?;
    /// assert!(!gate.hit("api", "user-1")?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As the call, or [`AskError::Remote`] when the states are not in this process; it was not begun then.
    pub fn at_once<T>(&self, call: impl Future<Output = Result<T, AskError>>) -> Result<T, AskError> {
        self.is_local()?;
        let (mut call, yielded) = (pin!(call), Arc::new(Yielded::default()));
        let waker = Waker::from(Arc::clone(&yielded));
        loop {
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => return outcome,
                // A long listing lets others have their turn; here are none.
                Poll::Pending if yielded.0.swap(false, Relaxed) => {}
                Poll::Pending => return Err(AskError::Remote),
            }
        }
    }

    /// Counts for a key at the time `at` (`None`: now), whatever its limits say. A time that is older than the history is
    /// not counted, and a disabled limiter counts nothing. A time further ahead than the shortest period counts now.
    /// While the store does not answer, `on_failure = "local"` counts here, and everything else is an error.
    ///
    /// # Errors
    /// An unknown limiter, one that does not count in buckets, a bad key, or a store that does not answer.
    pub async fn increment(
        &self,
        limiter: &str,
        key: &[u8],
        count: u32,
        at: Option<Micros>,
    ) -> Result<Incremented, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        limiter.check_buckets("increment")?;
        if !limiter.is_enforced() {
            let timestamp = at.unwrap_or_else(|| self.now());
            return Ok(Incremented { timestamp, counted: false, degraded: None });
        }
        let spec = limiter.standing_by_name(key).spec;
        let question = limiter.question(&spec, key);
        let told = self.within_deadline(limiter, &question, async |when| {
            limiter.store.increment(&question, count, at, when).await
        });
        let told = told.await;
        if told.is_ok()
            && let Some(candidate) = &limiter.candidate
        {
            let spec = candidate.in_force();
            let when = When { now: self.0.clock.manual_now(), by: self.deadline() };
            // What becomes of a candidate's count changes nothing.
            let _ = candidate.store.increment(&candidate.question(&spec, key), count, at, when).await;
        }
        match told {
            Ok((now, counted)) => Ok(Incremented { timestamp: at.unwrap_or(now), counted, degraded: None }),
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(error) => self.increment_degraded(limiter, key, (count, at), error),
        }
    }

    /// Has a key reached a limit? The first that it has, in definition order, blocks it. Nothing is counted; a disabled
    /// limiter is always fine. While the store does not answer, `on_failure` decides.
    ///
    /// # Errors
    /// An unknown limiter, one that does not count in buckets, or a bad key.
    pub async fn analyze(&self, limiter: &str, key: &[u8], if_blocked: IfBlocked) -> Result<Analyzed, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        limiter.check_buckets("analyze")?;
        if !limiter.is_enforced() {
            return Ok(Analyzed { at: self.now(), status: Status::Ok, degraded: None });
        }
        let Standing { spec, effect, .. } = limiter.standing_by_name(key);
        let status = match effect {
            Effect::Limits => None,
            Effect::Unlimited => Some(Status::Ok),
            Effect::Deny => Some(Status::Denied),
        };
        if let Some(status) = status {
            return Ok(Analyzed { at: self.now(), status, degraded: None });
        }
        let question = limiter.question(&spec, key);
        let found = self
            .within_deadline(limiter, &question, async |when| limiter.store.analyze(&question, if_blocked, when).await);
        let found = found.await;
        if found.is_ok()
            && let Some(candidate) = &limiter.candidate
        {
            self.analyze_candidate(candidate, key, if_blocked).await;
        }
        match found {
            // A candidate is told of in the metrics.
            Ok((at, analysis)) if limiter.spec.candidate => {
                limiter.note_analysis(key, self.door(), &analysis, at);
                Ok(Analyzed { at, status: Status::Ok, degraded: None })
            }
            Ok((at, analysis)) => Ok(Analyzed::of(&spec, key, at, analysis)),
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(error) => self.analyze_degraded(limiter, key, if_blocked, error),
        }
    }

    /// Blocks a key for `span` from now, and says until when.
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, a full table has no place for it, the store does not answer, or the
    /// replicas of a proxy that count together would not see the block.
    pub async fn block(&self, limiter: &str, key: &[u8], span: Micros) -> Result<Micros, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        let spec = limiter.standing_by_name(key).spec;
        self.0.shared_blocks.check(&spec)?;
        let until = limiter.store.block(&limiter.question(&spec, key), span, self.when()).await?;
        let until = until.ok_or_else(|| AskError::Full { limiter: spec.name.clone() })?;
        self.0.shared_blocks.insert(&spec, key, until);
        Ok(until)
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, or the store does not answer.
    pub async fn unblock(&self, limiter: &str, key: &[u8]) -> Result<bool, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        let spec = limiter.standing_by_name(key).spec;
        let was_blocked = limiter.store.unblock(&limiter.question(&spec, key), self.when()).await?;
        self.0.shared_blocks.remove(&spec, key);
        Ok(was_blocked)
    }

    /// Forgets all blocked keys of a limiter; how many were there?
    ///
    /// # Errors
    /// When there is no such limiter, or the store does not answer; some may be unblocked then.
    pub async fn unblock_all(&self, limiter: &str) -> Result<u64, AskError> {
        let limiter = self.limiter(limiter)?;
        let spec = limiter.in_force();
        let count = limiter.store.unblock_all(&limiter.question(&spec, b""), self.when()).await?;
        self.0.shared_blocks.clear(&spec);
        Ok(count)
    }

    /// Names of a limiter's keys, about `most` at a time, sorted within the page.
    ///
    /// # Errors
    /// When there is no such limiter, it keeps no names, or the store cannot list them or does not answer.
    pub async fn keys(
        &self,
        limiter: &str,
        which: Which,
        after: Option<Cursor>,
        most: usize,
    ) -> Result<Page, AskError> {
        let limiter = self.named_limiter(limiter)?;
        let (spec, after) = (limiter.in_force(), after.map(|cursor| cursor.0));
        let question = limiter.question(&spec, b"");
        let page = PageOf { which, after, most: most.max(1) };
        let listing = limiter.store.list(&question, page, self.when()).await?;
        Ok(Page { keys: listing.keys, next: listing.next.map(Cursor) })
    }

    /// The keys of a limiter that this process was asked about most, or denied most, within the last minutes. Memory is
    /// bounded, and so counts may be too large by what each of them tells as its error.
    ///
    /// # Errors
    /// When there is no such limiter, or it keeps no names.
    pub fn top(&self, limiter: &str, by: TopBy, most: usize) -> Result<TopListing, AskError> {
        let limiter = self.named_limiter(limiter)?;
        Ok(limiter.table.top(by, most, self.now()))
    }

    /// The keys of a limiter that are blocked longest from now, and until when. Looks at all keys that are held.
    ///
    /// # Errors
    /// When there is no such limiter, it keeps no names, or its states are on other machines.
    pub fn longest_blocked(&self, limiter: &str, most: usize) -> Result<Vec<(Micros, Vec<u8>)>, AskError> {
        let limiter = self.named_limiter(limiter)?;
        if !limiter.store.is_embedded() {
            let why = "the store keeps no order of blocked keys; list them with state=blocked";
            return Err(StoreError::Unsupported(why.to_owned()).into());
        }
        Ok(limiter.table.longest_blocked(&limiter.in_force().rules, most, || self.now()))
    }

    /// The latest decisions of this process on a key that are still known, the newest first; `None`: the limiter keeps none.
    ///
    /// # Errors
    /// When there is no such limiter, or the key is bad.
    pub fn latest_decisions(&self, limiter: &str, key: &[u8], most: usize) -> Result<Option<Vec<Decided>>, AskError> {
        let (limiter, key) = self.limiter_of(limiter, key)?;
        Ok(limiter.table.latest_decisions(&key, most))
    }

    /// The denials since it was asked last, of limiters that keep them for a log.
    #[must_use]
    pub fn take_denials(&self) -> Vec<(Arc<LimiterSpec>, Denials)> {
        let live = self.0.live.load();
        let all = live.limiters.iter().map(|limiter| (Arc::clone(&limiter.spec), limiter.table.take_denials()));
        all.filter(|(_, denials)| !denials.first.is_empty()).collect()
    }

    /// Enables or disables a limiter, for every process that shares its store: in this one at once, in the others within a
    /// second. A disabled limiter allows everything and counts nothing.
    ///
    /// # Errors
    /// When there is no such limiter, or the store does not answer.
    pub async fn set_enabled(&self, limiter: &str, enabled: bool) -> Result<(), AskError> {
        let limiter = self.limiter(limiter)?;
        // The flag is everybody's, also of a limiter of which each process holds a share.
        self.0.store.set_disabled(limiter.spec.scope(), limiter.layout(), !enabled, self.when()).await?;
        limiter.table.set_disabled(!enabled);
        Ok(())
    }

    /// False while a limiter is disabled.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn is_enabled(&self, limiter: &str) -> Result<bool, AskError> {
        Ok(!self.0.live.load().limiter(limiter)?.table.is_disabled())
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

    /// What a key did since start; zeros for one that is not known, or when the limiter keeps no statistics. Asking is not
    /// a use.
    #[must_use]
    pub fn key_stats_on(&self, limiter: &Limiter, key: &[u8]) -> KeyStats {
        limiter.table.key_stats(key, self.now())
    }

    /// May a denial of this request violate several limits, so that only an explanation names them all?
    #[must_use]
    pub fn has_several_limits(&self, request: &Request<'_>) -> bool {
        match request.target {
            Target::Attributes { .. } | Target::Descriptor { .. } => true,
            Target::Limiter { name, .. } => {
                self.0.any_has_several_limits.load(Relaxed)
                    && self.0.live.load().limiter(name).is_ok_and(Limiter::has_several_limits)
            }
        }
    }

    /// Memory and keys of all limiters in this process.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let memory = &self.0.memory;
        Usage {
            bytes: memory.bytes(),
            max_bytes: memory.max_bytes(),
            entries: memory.entries(),
            capacity: memory.capacity(),
        }
    }

    /// Asks what would take the place of a limiter's limits, and counts what it says.
    async fn analyze_candidate(&self, candidate: &Limiter, key: &[u8], if_blocked: IfBlocked) {
        let spec = candidate.in_force();
        let when = When { now: self.0.clock.manual_now(), by: self.deadline() };
        if let Ok((at, analysis)) = candidate.store.analyze(&candidate.question(&spec, key), if_blocked, when).await {
            candidate.note_analysis(key, self.door(), &analysis, at);
        }
    }

    /// Puts a question to the store within the deadline of decisions, unless it is known not to answer.
    async fn within_deadline<T>(
        &self,
        limiter: &Limiter,
        question: &Question<'_>,
        ask: impl AsyncFnOnce(When) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if !limiter.store.answers() {
            let silent = || StoreError::silent(limiter.store.address());
            return Err(limiter.store.down().unwrap_or_else(silent));
        }
        let outcome = ask(When { now: self.0.clock.manual_now(), by: self.deadline() }).await;
        self.0.errors.note(&[*question], Intent::Hit, &outcome);
        outcome
    }

    /// Now, with the deadline of an operator's call.
    pub(super) fn when(&self) -> When {
        When { now: self.0.clock.manual_now(), by: Instant::now() + OPERATE_WITHIN }
    }

    /// A limiter that keeps the names of its keys.
    fn named_limiter(&self, limiter: &str) -> Result<Limiter, AskError> {
        let limiter = self.limiter(limiter)?;
        if limiter.spec.names { Ok(limiter) } else { Err(AskError::NoNames(limiter.spec.name.clone())) }
    }

    /// A limiter, and the key that it uses for the one that was named.
    pub(super) fn limiter_of<'k>(&self, limiter: &str, key: &'k [u8]) -> Result<(Limiter, Cow<'k, [u8]>), AskError> {
        let limiter = self.0.live.load().limiter_for(limiter, key)?.clone();
        let key = limiter.spec.key_by_name(key);
        check_key(&key)?;
        Ok((limiter, key))
    }
}

impl Limiter {
    fn check_buckets(&self, doing: &'static str) -> Result<(), AskError> {
        match self.spec.rules.algorithm() {
            Algorithm::Buckets => Ok(()),
            algorithm => Err(AskError::NeedsBuckets { limiter: self.spec.name.clone(), algorithm, doing }),
        }
    }

    /// Counts what a candidate has found.
    fn note_analysis(&self, key: &[u8], door: Door, analysis: &Analysis, at: Micros) {
        let allows = *analysis == Analysis::Ok;
        self.note((key, Intent::Hit, door), if allows { &UNLIMITED } else { &NEVER }, allows, at);
    }

    fn info(&self) -> LimiterInfo {
        LimiterInfo {
            candidate: self.candidate.as_ref().map(|candidate| candidate.table.counts()),
            spec: Arc::clone(&self.spec),
            enabled: !self.table.is_disabled(),
            entries: self.store.is_embedded().then(|| self.table.entries()),
            bytes: self.store.is_embedded().then(|| self.table.bytes()),
            counts: self.table.counts(),
        }
    }
}
