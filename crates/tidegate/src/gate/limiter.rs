//! The policy in force: its limiters with their tables, and how a request finds them.

use super::fallback::share_of;
use super::shares::Shares;
use crate::{Answer, AskError, LimiterSpec, Policy};
use arc_swap::{ArcSwap, Guard};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{Micros, Rules, check_key};
use tidegate_store::{Layout, Memory, Question, Store, Table};

/// The policy in force, with each limiter's table.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) limiters: Vec<Limiter>,
    by_name: HashMap<String, usize, RandomState>,
    /// Limiters with `by`, by domain, in definition order.
    by_domain: HashMap<Option<String>, Vec<usize>>,
}

/// One limiter of the policy in force: a handle that spares the look-up by name.
///
/// It keeps the limits of the policy that it was taken from, as long as there are as many and they are
/// counted the same way; take a new one after a reload.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// As the policy has it.
    pub(super) spec: Arc<LimiterSpec>,
    /// This process's states and counters of it.
    pub(super) table: Arc<Table>,
    /// Where its states are: the gate's store, or this process, where it holds a share of the limit.
    pub(super) store: Store,
    /// The limiter with this process's share of its rules, which changes with the replicas.
    pub(super) share: Option<Arc<ArcSwap<LimiterSpec>>>,
    /// The limiter with this process's part of its rules, for when the store does not answer.
    pub(super) fallback: Arc<LimiterSpec>,
    /// Does a request by name need more than its table? An address may be a part of its keys, or each call brings its limit.
    pub(super) needs_plan: bool,
}

/// A limiter with the rules by which it decides now.
pub(super) enum InForce<'a> {
    Policy(&'a Arc<LimiterSpec>),
    Share(Guard<Arc<LimiterSpec>>),
}

impl Deref for InForce<'_> {
    type Target = Arc<LimiterSpec>;

    #[inline]
    fn deref(&self) -> &Arc<LimiterSpec> {
        match self {
            InForce::Policy(spec) => spec,
            InForce::Share(spec) => spec,
        }
    }
}

impl Live {
    /// The policy on a store; the second one is this process's tables. `local_share` is this process's part of each limit while the store does not answer.
    pub(super) fn new(
        stores: (&Store, &Store),
        memory: &Memory,
        policy: &Policy,
        local_share: f64,
        shares: &Shares,
    ) -> Live {
        let mut live = Live { limiters: Vec::new(), by_name: HashMap::default(), by_domain: HashMap::new() };
        for (index, spec) in policy.limiters().iter().enumerate() {
            live.limiters.push(Limiter::new(stores, memory, spec, local_share, shares));
            live.by_name.insert(spec.name.clone(), index);
            if !spec.by.is_empty() {
                live.by_domain.entry(spec.domain.clone()).or_default().push(index);
            }
        }
        live
    }

    /// May a request violate more than one limit of some limiter?
    pub(super) fn any_has_several_limits(&self) -> bool {
        self.limiters.iter().any(Limiter::has_several_limits)
    }

    /// The limiter of this name, for a key that it may have.
    #[inline]
    pub(super) fn limiter_for(&self, name: &str, key: &[u8]) -> Result<&Limiter, AskError> {
        // The key first: a bad one is refused whatever the limiter.
        check_key(key)?;
        self.limiter(name)
    }

    pub(super) fn limiter(&self, name: &str) -> Result<&Limiter, AskError> {
        let found = self.by_name.get(name).map(|index| &self.limiters[*index]);
        found.ok_or_else(|| AskError::UnknownLimiter {
            name: name.to_owned(),
            known: self.limiters.iter().take(10).map(|limiter| limiter.spec.name.clone()).collect(),
        })
    }

    /// The limiters that a request of this domain may match, in definition order.
    pub(super) fn of_domain(&self, domain: Option<&str>) -> impl Iterator<Item = &Limiter> {
        let found = self.by_domain.get(&domain.map(str::to_owned)).into_iter().flatten();
        found.map(|index| &self.limiters[*index])
    }
}

impl Limiter {
    fn new(
        (store, local): (&Store, &Store),
        memory: &Memory,
        spec: &Arc<LimiterSpec>,
        local_share: f64,
        shares: &Shares,
    ) -> Limiter {
        let share = shares.of(spec);
        // Where each call brings its limit, each has its own share of it.
        let fallback = match store.is_embedded() || local_share >= 1.0 || spec.limit_per_call {
            true => Arc::clone(spec),
            false => Arc::new(LimiterSpec { rules: share_of(&spec.rules, local_share), ..LimiterSpec::clone(spec) }),
        };
        let table = memory.table(spec.scope(), spec.shape(), &fallback.rules);
        let store = if share.is_some() { local } else { store }.clone();
        let needs_plan = spec.is_by_address() || spec.limit_per_call;
        Limiter { spec: Arc::clone(spec), table, store, share, fallback, needs_plan }
    }

    /// Its definition.
    #[must_use]
    pub fn spec(&self) -> &Arc<LimiterSpec> {
        &self.spec
    }

    /// The limiter with the rules by which it decides now.
    #[inline]
    pub(super) fn in_force(&self) -> InForce<'_> {
        match &self.share {
            None => InForce::Policy(&self.spec),
            Some(share) => InForce::Share(share.load()),
        }
    }

    /// The limiter with the rules by which it decides now; `None`: it is disabled, allows everything and counts nothing.
    #[inline]
    pub(super) fn enforced(&self) -> Option<InForce<'_>> {
        self.is_enforced().then(|| self.in_force())
    }

    /// False while it is disabled.
    #[must_use]
    #[inline]
    pub fn is_enforced(&self) -> bool {
        !(self.spec.honour_disable && self.table.is_disabled())
    }

    /// True when a key is taken as it stands: no address is a part of it, and no call has to bring a limit.
    #[must_use]
    pub fn takes_any_key(&self) -> bool {
        !self.needs_plan
    }

    /// May a request violate more than one limit of it?
    pub(super) fn has_several_limits(&self) -> bool {
        self.spec.rules.limits().len() > 1
    }

    /// A ruling of its own as an answer, by the rules in force.
    pub fn answer(&self, ruling: &Ruling, at: Micros) -> Answer {
        super::plan::answered(&self.in_force(), ruling, at)
    }

    /// What it answers while it is disabled.
    pub fn disabled_answer(&self, at: Micros) -> Answer {
        super::plan::unasked(Some(&self.spec), at)
    }

    /// Counts a decision that its table did not make.
    pub(super) fn note(&self, key: &[u8], ruling: &Ruling, all_allow: bool, intent: Intent, at: Micros) {
        self.table.note(&self.fallback.rules, key, ruling, all_allow, intent, at);
    }

    pub(super) fn layout(&self) -> Layout {
        if self.spec.pause_layout { Layout::Pause } else { Layout::Native }
    }

    /// The same limiter by another limit, of which `local_share` counts while the store does not answer.
    pub(super) fn with_rules(&self, rules: Rules, local_share: f64) -> Limiter {
        let spec = Arc::new(LimiterSpec { rules, ..LimiterSpec::clone(&self.spec) });
        let fallback = match self.store.is_embedded() || local_share >= 1.0 {
            true => Arc::clone(&spec),
            false => Arc::new(LimiterSpec { rules: share_of(&spec.rules, local_share), ..LimiterSpec::clone(&spec) }),
        };
        Limiter { spec, fallback, share: None, ..self.clone() }
    }

    /// What its store is asked about a key, by the rules of `spec`; as a decision, one of cost 1.
    pub(super) fn question<'a>(&'a self, spec: &'a LimiterSpec, key: &'a [u8]) -> Question<'a> {
        Question { limiter: spec.scope(), rules: &spec.rules, names: spec.names, key, cost: 1, layout: self.layout() }
    }
}
