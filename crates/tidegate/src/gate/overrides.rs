//! Limits of single keys, set by hand (promise A11): kept in the store like blocks, and held here ready to be decided by.
//!
//! Every process looks for changes twice a second, together with the flags of disabled limiters; the one that changes an
//! override knows it at once. What is held survives a reload, and is fitted to the new policy then. Invariant: a limiter without
//! overrides looks at one flag of its table and at nothing here.

use super::Gate;
use super::fallback::share_of;
use super::limiter::{Limiter, Live};
use crate::{AskError, Clock, LimiterSpec};
use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::replicas::Schedule;
use tidegate_core::{Limit, Micros, Rules};
use tidegate_store::{Layout, NewOverride, Overrides, Placed, StoreError};

/// Longest reason of an override, in bytes.
pub const OVERRIDE_REASON_MAX: usize = 512;

/// An override as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverrideInfo {
    /// Whom it is for.
    pub key: Vec<u8>,
    /// Its limits, in place of the limiter's by position.
    pub limits: Vec<Limit>,
    /// Until when it holds, by the store's clock; `None`: until it is cleared.
    pub until: Option<Micros>,
    /// Why it was set.
    pub reason: Option<String>,
    /// False: the policy has changed, and its limits do not suit the limiter any more; the limiter's own hold.
    pub fits: bool,
}

/// What processes know of overrides, by scope; it survives a reload.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<HashMap<String, Arc<Held>>>);

/// The overrides of one limiter.
#[derive(Debug)]
pub(super) struct Held {
    clock: Clock,
    now: ArcSwap<Known>,
    /// The longest period of the limits that requests brought, in microseconds.
    longest_brought: AtomicU64,
}

/// What is known of them now.
#[derive(Debug, Default)]
struct Known {
    /// As the store counts changes; `None`: it was not asked yet.
    version: Option<u64>,
    by_key: HashMap<Vec<u8>, Arc<Overridden>, RandomState>,
}

/// One override, ready to be decided by.
#[derive(Debug)]
pub(super) struct Overridden {
    pub(super) info: OverrideInfo,
    /// Until when, by this process's clock.
    until: Option<Micros>,
    /// The limiter with these limits, and with this process's part of them for when the store does not answer.
    specs: Option<(Arc<LimiterSpec>, Arc<LimiterSpec>)>,
}

impl Overridden {
    fn new(spec: &Arc<LimiterSpec>, local_share: f64, info: OverrideInfo, until: Option<Micros>) -> Arc<Overridden> {
        let with = |rules: Rules| Arc::new(LimiterSpec { rules, ..LimiterSpec::clone(spec) });
        let specs = rules_of(spec, &info.limits).ok().map(|rules| {
            let fallback = share_of(&rules, local_share);
            (with(rules), with(fallback))
        });
        Arc::new(Overridden { info: OverrideInfo { fits: specs.is_some(), ..info }, until, specs })
    }

    /// The limiter with the whole limits.
    pub(super) fn whole(&self) -> Option<&Arc<LimiterSpec>> {
        self.specs.as_ref().map(|(whole, _)| whole)
    }

    /// The limiter with this process's part of them.
    pub(super) fn fallback(&self) -> Option<&Arc<LimiterSpec>> {
        self.specs.as_ref().map(|(_, fallback)| fallback)
    }
}

/// These limits in place of the limiter's own.
fn rules_of(spec: &LimiterSpec, limits: &[Limit]) -> Result<Rules, AskError> {
    let refuse = |why: String| AskError::Override { limiter: spec.name.clone(), why };
    let rules = spec.rules.with_limits(limits).map_err(|error| refuse(error.to_string()))?;
    if spec.replicas != crate::Replicas::Exact && rules.shared(&Schedule::NONE).is_none() {
        return Err(refuse(
            "replicas share the limiter, and cannot share a limit with a block; leave the block out".to_owned(),
        ));
    }
    Ok(rules)
}

impl Book {
    /// What is known of a limiter's overrides, fitted to this policy.
    pub(super) fn of(&self, spec: &Arc<LimiterSpec>, clock: &Clock, local_share: f64) -> Arc<Held> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made =
            || Arc::new(Held { clock: clock.clone(), now: ArcSwap::default(), longest_brought: AtomicU64::new(0) });
        let held = Arc::clone(all.entry(spec.scope().to_owned()).or_insert_with(made));
        let known = held.now.load();
        let fitted = |(key, one): (&Vec<u8>, &Arc<Overridden>)| {
            (key.clone(), Overridden::new(spec, local_share, one.info.clone(), one.until))
        };
        let by_key = known.by_key.iter().map(fitted).collect();
        held.now.store(Arc::new(Known { version: known.version, by_key }));
        held
    }
}

impl Held {
    /// The override that holds for a key now.
    pub(super) fn get(&self, key: &[u8]) -> Option<Arc<Overridden>> {
        let known = self.now.load();
        let found = known.by_key.get(key).filter(|one| one.specs.is_some())?;
        found.until.is_none_or(|until| until > self.clock.now()).then(|| Arc::clone(found))
    }

    /// Notes the period of a limit that a request brought; is it the longest so far?
    pub(super) fn note_brought(&self, period: Micros) -> bool {
        self.longest_brought.load(Relaxed) < period.get()
            && self.longest_brought.fetch_max(period.get(), Relaxed) < period.get()
    }

    fn version(&self) -> Option<u64> {
        self.now.load().version
    }

    fn all(&self) -> Vec<OverrideInfo> {
        let (known, now) = (self.now.load(), self.clock.now());
        let holds = |one: &&Arc<Overridden>| one.until.is_none_or(|until| until > now);
        let mut all: Vec<_> = known.by_key.values().filter(holds).map(|one| one.info.clone()).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    /// The rules by which keys are decided besides the limiter's.
    fn rules(&self) -> Vec<Rules> {
        self.now.load().by_key.values().filter_map(|one| Some(one.fallback()?.rules.clone())).collect()
    }

    fn replace(&self, spec: &Arc<LimiterSpec>, local_share: f64, found: Overrides) {
        let now = self.clock.now();
        let made = found.keys.into_iter().map(|(key, one)| {
            // The store's clock says when it ends; from here on this process's does.
            let until = one.until.map(|until| now.saturating_add(until.saturating_sub(found.at)));
            let info =
                OverrideInfo { key: key.clone(), limits: one.limits, until: one.until, reason: one.reason, fits: true };
            (key, Overridden::new(spec, local_share, info, until))
        });
        self.now.store(Arc::new(Known { version: Some(found.version), by_key: made.collect() }));
    }
}

impl Limiter {
    /// Puts what the store has told in force.
    pub(super) fn take_overrides(&self, found: Overrides, local_share: f64) {
        self.overrides.replace(&self.spec, local_share, found);
        self.note_overrides();
    }

    /// Forgets those that have ended.
    pub(super) fn drop_expired_overrides(&self) {
        let (known, now) = (self.overrides.now.load_full(), self.overrides.clock.now());
        let holds = |one: &Overridden| one.until.is_none_or(|until| until > now);
        if known.by_key.values().any(|one| !holds(one)) {
            let left = known.by_key.iter().filter(|(_, one)| holds(one));
            let by_key = left.map(|(key, one)| (key.clone(), Arc::clone(one))).collect();
            // Not over a change that was taken in meanwhile: its turn comes with the next one.
            self.overrides.now.compare_and_swap(&known, Arc::new(Known { version: known.version, by_key }));
            self.note_overrides();
        }
    }

    /// Tells the table by which rules its keys are decided.
    pub(super) fn note_overrides(&self) {
        let mut rules = self.overrides.rules();
        // Counts do not matter to when a key is fresh.
        let brought = Micros::new(self.overrides.longest_brought.load(Relaxed)).filter(|period| !period.is_zero());
        let brought = brought.and_then(|period| self.spec.rules.with_limits(&[Limit::new(1, period).ok()?]).ok());
        rules.extend(brought);
        let any = !self.overrides.now.load().by_key.is_empty();
        self.table.set_variants(self.fallback.others().into_iter().chain(rules).collect());
        self.table.set_overridden(any);
    }
}

impl Live {
    /// Limiters that may have overrides, each with the version that is known.
    pub(super) fn overridable(&self) -> Vec<(&Limiter, (&str, Option<u64>))> {
        let native = self.limiters.iter().filter(|limiter| limiter.layout() == Layout::Native);
        native.map(|limiter| (limiter, (limiter.spec.scope(), limiter.overrides.version()))).collect()
    }
}

impl Gate {
    /// Gives one key other limits, as many as its limiter has and by position, for `span` from now or until they are cleared;
    /// every process on the same store decides by them within a second, this one at once. They share the key's counters.
    /// Returns until when they hold.
    ///
    /// # Errors
    /// An unknown limiter, a bad key, limits that do not suit the limiter, too many overrides, or a store that cannot keep them or
    /// does not answer.
    pub async fn set_override(
        &self,
        limiter: &str,
        key: &[u8],
        limits: &[Limit],
        span: Option<Micros>,
        reason: Option<&str>,
    ) -> Result<Option<Micros>, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        rules_of(&limiter.spec, limits)?;
        if let Some(long) = reason.filter(|reason| reason.len() > OVERRIDE_REASON_MAX) {
            let why =
                format!("a reason of {} bytes is longer than {OVERRIDE_REASON_MAX}; write a shorter one", long.len());
            return Err(AskError::Override { limiter: limiter.spec.name.clone(), why });
        }
        self.can_override(limiter)?;
        let new = NewOverride { limits: limits.to_vec(), span, reason: reason.map(str::to_owned) };
        // The limits are everybody's, also of a limiter of which each process holds a share.
        let placed = self.0.store.set_override(limiter.spec.scope(), key, &new, self.when()).await?;
        let Placed::Until(until) = placed else {
            return Err(AskError::TooManyOverrides { limiter: limiter.spec.name.clone() });
        };
        self.look_up_overrides(limiter).await;
        Ok(until)
    }

    /// Takes a key's other limits back; were there any?
    ///
    /// # Errors
    /// An unknown limiter, a bad key, or a store that does not answer.
    pub async fn clear_override(&self, limiter: &str, key: &[u8]) -> Result<bool, AskError> {
        let (limiter, key) = &self.limiter_of(limiter, key)?;
        self.can_override(limiter)?;
        let cleared = self.0.store.clear_override(limiter.spec.scope(), key, self.when()).await?;
        self.look_up_overrides(limiter).await;
        Ok(cleared)
    }

    /// All overrides of a limiter, by key, as this process knows them.
    ///
    /// # Errors
    /// When there is no such limiter, or its store cannot keep them.
    pub fn overrides(&self, limiter: &str) -> Result<Vec<OverrideInfo>, AskError> {
        let limiter = self.limiter(limiter)?;
        self.can_override(&limiter)?;
        Ok(limiter.overrides.all())
    }

    fn can_override(&self, limiter: &Limiter) -> Result<(), AskError> {
        let store = self.0.store.capabilities();
        let why = match (store.overrides, limiter.layout()) {
            (false, _) => format!("{} does not keep limits of single keys; write a [[limiter.match]]", store.name),
            (true, Layout::Pause) => {
                "Pause's layout has no limits of single keys; write a [[limiter.match]], or use the native layout"
                    .to_owned()
            }
            (true, Layout::Native) if self.0.shared_blocks.are_of(&limiter.spec) => format!(
                "replicas of the proxy count the starts of limiter \"{}\" together, by one limit for all keys",
                limiter.spec.name
            ),
            (true, Layout::Native) => return Ok(()),
        };
        Err(StoreError::Unsupported(why).into())
    }

    /// Looks one limiter's overrides up now. What the store does not tell, the next turn does.
    async fn look_up_overrides(&self, limiter: &Limiter) {
        let live = self.0.live.load_full();
        // Another policy may have come in force meanwhile.
        let Ok(limiter) = live.limiter(&limiter.spec.name) else { return };
        let known = [(limiter.spec.scope(), limiter.overrides.version())];
        if let Ok(found) = self.0.store.overrides(&known, self.when()).await
            && let Some(found) = found.into_iter().flatten().next()
        {
            limiter.take_overrides(found, self.0.failure.local_share);
        }
    }
}
