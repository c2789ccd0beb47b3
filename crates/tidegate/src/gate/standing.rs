//! Which rules hold for a key: those that were set for it by hand, or those of a match, or the limiter's own.
//!
//! Every rule that can hold is made once, as a limiter of its own with these limits, when the policy comes in force: an answer
//! names it, and headers and explanations print what it says. Invariant: a limiter without matches, whose keys have no limits
//! of their own, is never asked for a standing where time matters; see [`Limiter::is_uniform`].

use super::fallback::share_of;
use super::limiter::{InForce, Limiter};
use super::overrides::Overridden;
use crate::{LimiterSpec, Outcome};
use std::sync::Arc;
use tidegate_core::replicas::Schedule;
use tidegate_core::{Limit, Rules};

/// A limiter with its own rules, and with those of each of its matches.
#[derive(Debug)]
pub(super) struct Variants {
    pub(super) own: Arc<LimiterSpec>,
    pub(super) matched: Vec<Arc<LimiterSpec>>,
    /// This process's share of all of them, if it holds one.
    pub(super) schedule: Option<Schedule>,
}

/// Whose rules hold.
#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// The limiter's.
    Own,
    /// Those of this match, from 0.
    Match(usize),
    /// Those that were set for the key by hand.
    Override(Arc<Overridden>),
    /// The limit that the request brings.
    Request(Arc<Brought>),
}

/// A limiter with the limit that a request brings, and with this process's part of it.
#[derive(Debug)]
pub(super) struct Brought {
    pub(super) whole: Arc<LimiterSpec>,
    fallback: Arc<LimiterSpec>,
}

/// How a key stands with a limiter.
pub(super) struct Standing<'a> {
    /// The limiter with the rules in force.
    pub(super) spec: InForce<'a>,
    pub(super) basis: Basis,
    pub(super) effect: Effect,
}

/// What the rules in force come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Limits, to be asked.
    Limits,
    /// Allowed, and not counted.
    Unlimited,
    /// Denied, whatever the store says.
    Deny,
}

impl Variants {
    /// The variants of a limiter, each with what `made` makes of its rules; `None`: it cannot be made.
    pub(super) fn of(spec: &Arc<LimiterSpec>, made: impl Fn(&Rules) -> Option<Rules>) -> Option<Variants> {
        let with = |rules: &Rules, metadata: Option<&String>| {
            let (rules, metadata) = (made(rules)?, metadata.or(spec.metadata.as_ref()));
            Some(match rules == spec.rules && metadata == spec.metadata.as_ref() {
                true => Arc::clone(spec),
                false => Arc::new(LimiterSpec { rules, metadata: metadata.cloned(), ..LimiterSpec::clone(spec) }),
            })
        };
        let matched = spec.matches.iter().map(|one| match &one.outcome {
            Outcome::Limits(rules) => with(rules, one.metadata.as_ref()),
            Outcome::Unlimited => with(&spec.rules, None),
            Outcome::Deny => Some(Arc::new(LimiterSpec { rules: spec.rules.never(), ..LimiterSpec::clone(spec) })),
        });
        Some(Variants { matched: matched.collect::<Option<_>>()?, own: with(&spec.rules, None)?, schedule: None })
    }

    pub(super) fn get(&self, basis: &Basis) -> &Arc<LimiterSpec> {
        match basis {
            Basis::Own => &self.own,
            Basis::Match(index) => &self.matched[*index],
            // They have their own, see [`Limiter::whole_for`].
            Basis::Override(_) | Basis::Request(_) => &self.own,
        }
    }

    /// The rules of its matches.
    pub(super) fn others(&self) -> Vec<Rules> {
        self.matched.iter().map(|spec| spec.rules.clone()).collect()
    }
}

impl Limiter {
    /// Do the same rules hold for all its keys? And is it enabled: then nothing but them has to be looked at.
    #[inline]
    pub(super) fn is_uniform(&self) -> bool {
        !self.varies && self.table.is_plain()
    }

    /// How a key stands in a request with these attributes.
    pub(super) fn standing(&self, key: &[u8], attributes: &[(&str, &[u8])]) -> Standing<'_> {
        if let Some(one) = self.overridden(key) {
            return one;
        }
        let Some(index) = self.spec.matched(key, attributes) else {
            return Standing { spec: self.in_force(), basis: Basis::Own, effect: Effect::Limits };
        };
        let effect = match self.spec.matches[index].outcome {
            Outcome::Limits(_) => Effect::Limits,
            Outcome::Unlimited => Effect::Unlimited,
            Outcome::Deny => Effect::Deny,
        };
        let basis = Basis::Match(index);
        let spec = match &self.share {
            None => InForce::Policy(self.variants.get(&basis)),
            Some(share) => InForce::Made(Arc::clone(share.load().get(&basis))),
        };
        Standing { spec, basis, effect }
    }

    /// How a key stands whose limits were set by hand.
    fn overridden(&self, key: &[u8]) -> Option<Standing<'_>> {
        let one = self.table.is_overridden().then(|| self.overrides.get(key))??;
        let mut spec = Arc::clone(one.whole()?);
        if let Some(schedule) = self.share.as_ref().and_then(|share| share.load().schedule.clone()) {
            spec = Arc::new(LimiterSpec { rules: spec.rules.shared(&schedule)?, ..LimiterSpec::clone(&spec) });
        }
        Some(Standing { spec: InForce::Made(spec), basis: Basis::Override(one), effect: Effect::Limits })
    }

    /// The limiter with a limit that a request brings, if it takes such and can count it. The table is told of its period first: what has
    /// not passed by it must not be dropped as fresh.
    pub(super) fn brought(&self, limit: Limit) -> Option<Arc<Brought>> {
        let rules = self.spec.request_limits.then(|| self.spec.rules.with_limits(&[limit]).ok())??;
        if self.overrides.note_brought(limit.period()) {
            self.note_overrides();
        }
        let with = |rules: Rules| Arc::new(LimiterSpec { rules, ..LimiterSpec::clone(&self.spec) });
        let fallback = share_of(&rules, self.local_share);
        Some(Arc::new(Brought { fallback: with(fallback), whole: with(rules) }))
    }

    /// The same by the key alone: how it stands in a request by name.
    pub(super) fn standing_by_name(&self, key: &[u8]) -> Standing<'_> {
        self.standing(key, &[])
    }

    /// The limiter with this process's part of the rules in force, for when the store does not answer.
    pub(super) fn fallback_for(&self, basis: &Basis) -> InForce<'_> {
        match basis {
            Basis::Override(one) => InForce::Made(Arc::clone(one.fallback().unwrap_or(&self.fallback.own))),
            Basis::Request(one) => InForce::Made(Arc::clone(&one.fallback)),
            basis => InForce::Policy(self.fallback.get(basis)),
        }
    }

    /// The limiter with the whole of these rules.
    pub(super) fn whole_for(&self, basis: &Basis) -> InForce<'_> {
        match basis {
            Basis::Override(one) => InForce::Made(Arc::clone(one.whole().unwrap_or(&self.variants.own))),
            Basis::Request(one) => InForce::Made(Arc::clone(&one.whole)),
            basis => InForce::Policy(self.variants.get(basis)),
        }
    }
}
