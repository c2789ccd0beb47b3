//! The policy in force: its limiters with their tables, and how a request finds them.

use super::fallback::share_of;
use super::overrides::{Book, Held};
use super::shares::Shares;
use super::standing::Variants;
use crate::{Answer, AskError, Clock, LimiterSpec, Policy};
use arc_swap::{ArcSwap, Guard};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Intent, Role, Ruling};
use tidegate_core::{Micros, Rules, check_key};
use tidegate_store::{Door, Keeping, Layout, Memory, Question, Single, Store, Table};

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
    pub(super) share: Option<Arc<ArcSwap<Variants>>>,
    /// The limiter with each of the rules that may hold for a key.
    pub(super) variants: Arc<Variants>,
    /// The same with this process's part of the rules, for when the store does not answer.
    pub(super) fallback: Arc<Variants>,
    /// Which part of limits it is that this process decides by then.
    pub(super) local_share: f64,
    /// What would take the place of its limits: a limiter of its own, which decides nothing.
    pub(super) candidate: Option<Arc<Limiter>>,
    /// The limits of single keys that were set by hand.
    pub(super) overrides: Arc<Held>,
    /// May keys have other rules than its own, by the policy?
    pub(super) varies: bool,
    /// Does a request by name need more than its table? An address may be a part of its keys, or each call brings its limit.
    pub(super) needs_plan: bool,
}

/// A limiter with the rules by which it decides now.
pub(super) enum InForce<'a> {
    Policy(&'a Arc<LimiterSpec>),
    Share(Guard<Arc<Variants>>),
    Made(Arc<LimiterSpec>),
}

impl Deref for InForce<'_> {
    type Target = Arc<LimiterSpec>;

    #[inline]
    fn deref(&self) -> &Arc<LimiterSpec> {
        match self {
            InForce::Policy(spec) => spec,
            InForce::Share(share) => &share.own,
            InForce::Made(spec) => spec,
        }
    }
}

/// What a policy is put in force with.
pub(super) struct Surroundings<'a> {
    /// Where states are.
    pub(super) store: &'a Store,
    /// This process's tables, as a store and as they are.
    pub(super) local: &'a Store,
    pub(super) memory: &'a Memory,
    pub(super) clock: &'a Clock,
    /// This process's part of each limit while the store does not answer.
    pub(super) local_share: f64,
    pub(super) shares: &'a Shares,
    pub(super) overrides: &'a Book,
}

impl Live {
    /// A policy in force.
    pub(super) fn new(policy: &Policy, around: &Surroundings<'_>) -> Live {
        let mut live = Live { limiters: Vec::new(), by_name: HashMap::default(), by_domain: HashMap::new() };
        for (index, spec) in policy.limiters().iter().enumerate() {
            live.limiters.push(Limiter::new(spec, around));
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
    fn new(spec: &Arc<LimiterSpec>, around: &Surroundings<'_>) -> Limiter {
        let Surroundings { store, local, memory, clock, local_share, .. } = *around;
        let share = around.shares.of(spec);
        let whole = |made: fn(&Rules, f64) -> Rules, share| Variants::of(spec, |rules| Some(made(rules, share)));
        let variants = Arc::new(whole(|rules, _| rules.clone(), 1.0).expect("each of its rules can be copied"));
        // Where each call brings its limit, each has its own share of it.
        let fallback = match store.is_embedded() || local_share >= 1.0 || spec.limit_per_call {
            true => Arc::clone(&variants),
            false => Arc::new(whole(share_of, local_share).expect("a part can be made of all rules")),
        };
        let local_share = if store.is_embedded() { 1.0 } else { local_share };
        let table = memory.table(spec.scope(), spec.shape(), &fallback.own.rules);
        table.set_ranked(spec.top_keys || spec.log_denials);
        table.keep_decisions(Keeping { latest: spec.last_decisions, denials: spec.log_denials && !spec.candidate });
        let store = if share.is_some() { local } else { store }.clone();
        let candidate = spec.candidate_spec().map(|candidate| Arc::new(Limiter::new(&Arc::new(candidate), around)));
        let needs_plan = spec.is_by_address() || spec.limit_per_call;
        let varies = !spec.matches.is_empty() || spec.candidate || candidate.is_some();
        let overrides = around.overrides.of(spec, clock, local_share);
        let spec = Arc::clone(spec);
        let limiter = Limiter {
            spec,
            table,
            store,
            share,
            variants,
            fallback,
            local_share,
            candidate,
            overrides,
            varies,
            needs_plan,
        };
        match limiter.table.overrides_since(None, clock.now()).filter(|_| around.store.is_embedded()) {
            Some(found) => limiter.take_overrides(found, local_share),
            None => limiter.note_overrides(),
        }
        limiter
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

    /// False while it is disabled: then it allows everything and counts nothing.
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

    /// An error where each call brings the limit.
    ///
    /// # Errors
    /// [`AskError::LimitPerCall`].
    pub fn check_has_limit(&self) -> Result<(), AskError> {
        match self.spec.limit_per_call {
            true => Err(AskError::LimitPerCall { limiter: self.spec.name.clone() }),
            false => Ok(()),
        }
    }

    /// The same limiter by another limit, of which `local_share` counts while the store does not answer.
    pub(super) fn with_rules(&self, rules: Rules, local_share: f64) -> Limiter {
        let with = |rules: Rules| {
            let own = Arc::new(LimiterSpec { rules, ..LimiterSpec::clone(&self.spec) });
            Arc::new(Variants { own, matched: Vec::new(), schedule: None })
        };
        let part = (!self.store.is_embedded() && local_share < 1.0).then(|| share_of(&rules, local_share));
        let variants = with(rules);
        let fallback = part.map_or_else(|| Arc::clone(&variants), with);
        Limiter { spec: Arc::clone(&variants.own), variants, fallback, share: None, ..self.clone() }
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
        super::plan::unasked(Some((&self.spec, super::plan::Role::Disabled)), at)
    }

    /// Counts a decision that its table did not make.
    pub(super) fn note(
        &self,
        (key, intent, door): (&[u8], Intent, Door),
        ruling: &Ruling,
        all_allow: bool,
        at: Micros,
    ) {
        let single = Single::new(&self.fallback.own.rules, key, 1, intent).at(door);
        self.table.note(single, ruling, all_allow, at);
    }

    pub(super) fn layout(&self) -> Layout {
        if self.spec.pause_layout { Layout::Pause } else { Layout::Native }
    }

    /// What its store is asked about a key, by the rules of `spec`.
    pub(super) fn question<'a>(&'a self, spec: &'a LimiterSpec, key: &'a [u8]) -> Question<'a> {
        Question {
            limiter: spec.scope(),
            rules: &spec.rules,
            names: spec.names,
            key,
            layout: self.layout(),
            role: Role::Enforced,
            own: None,
        }
    }
}
