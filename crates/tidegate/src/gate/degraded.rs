//! What is answered when the store does not answer: by this process alone, yes, or no.
//!
//! `local` is this process's own table with its part of each limit. Its counts are never taken over by the store, nor the
//! store's by it: they age by themselves, so that nothing stale comes into a later window, and a store that comes and
//! goes within a window gives no second part.
//! Invariant: these functions never wait.

use super::limiter::Limiter;
use super::plan::{Check, Plan, answered, unasked};
use super::{Gate, HitAnswer};
use crate::{Analyzed, Answer, AskError, Incremented, LimiterSpec, OnFailure, Reason, Request, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::all_or_nothing::{self, Demand, IfBlocked, Intent, Ruling};
use tidegate_core::{Decision, Limit, Micros, Rate, Verdict};
use tidegate_store::{Part, Single, StoreError, decide_all};

impl Gate {
    /// Decides without the store.
    pub(super) fn decide_degraded(&self, plan: Plan<'_>, request: &Request<'_>) -> Answer {
        if plan.enforced().next().is_none() {
            return plan.combine((self.now(), Vec::new()), request);
        }
        self.note_degraded();
        let first = plan.0.iter().find(|check| !check.is_candidate()).map(|check| (&check.limiter.spec, check.role));
        let modes = |mode| move |check: &Check<'_>| check.is_enforced() && self.on_failure(check.limiter) == mode;
        let may_pass =
            |check: &Check<'_>| check.is_alternative() && check.is_enforced() && !modes(OnFailure::Deny)(check);
        let is_left_to_others = plan.0.iter().any(may_pass);
        let denies =
            |check: &&Check<'_>| modes(OnFailure::Deny)(check) && !(check.is_alternative() && is_left_to_others);
        if let Some(denying) = plan.0.iter().find(denies) {
            let (at, ruling) = (self.now(), denied(&denying.spec));
            denying.note(&ruling, false, request.intent, at);
            return marked(answered(&denying.spec, &ruling, at), OnFailure::Deny);
        }
        for check in plan.0.iter().filter(|check| modes(OnFailure::Allow)(check)) {
            check.note(&allowed(&check.spec), true, request.intent, self.now());
        }
        let local: Vec<Check<'_>> =
            plan.0.into_iter().filter(|check| modes(OnFailure::Local)(check)).map(Check::fall_back).collect();
        if local.is_empty() {
            return marked(unasked(first, self.now()), OnFailure::Allow);
        }
        let parts: Vec<Part<'_>> = local.iter().map(|check| check.part(check.weight())).collect();
        let answers = decide_all(&parts, request.cost, request.intent, request.explain, || self.now());
        let local = Plan(local);
        let answer = local.combine(answers, request);
        let decided =
            |check: &&Check<'_>| answer.limiter.as_ref().is_some_and(|spec| spec.name == check.limiter.spec.name);
        let decided = local.0.iter().find(decided).map(Check::whole);
        by_share(answer, decided.as_deref(), request.cost)
    }

    /// The shortest way for one key: no lists are made.
    pub(super) fn decide_one_degraded(&self, limiter: &Limiter, key: &[u8], request: &Request<'_>) -> Answer {
        let mut at = Micros::ZERO;
        let clock = || {
            at = self.now();
            at
        };
        let fallback = &limiter.fallback.own;
        let ruling = self.rule_degraded(limiter, fallback, key, request.cost, request.intent, clock);
        let mode = self.on_failure(limiter);
        match mode {
            OnFailure::Local => by_share(answered(fallback, &ruling, at), Some(&limiter.spec), request.cost),
            OnFailure::Allow | OnFailure::Deny => marked(answered(&limiter.spec, &ruling, at), mode),
        }
    }

    /// One hit of many, without the store.
    pub(super) fn hit_degraded(&self, check: &Check<'_>, Demand { cost, intent }: Demand) -> HitAnswer {
        let fallback = check.limiter.fallback_for(&check.basis);
        let ruling = self.rule_degraded(check.limiter, &fallback, &check.key, cost, intent, || self.now());
        HitAnswer::ruled(&fallback.rules, ruling)
    }

    /// Gives back without the store what was charged without it.
    pub(super) fn give_back_degraded(&self, check: &Check<'_>, cost: u32) -> HitAnswer {
        if self.on_failure(check.limiter) == OnFailure::Local {
            self.note_degraded();
            let fallback = check.limiter.fallback_for(&check.basis);
            let told = check.limiter.table.give_back(&fallback.rules, &check.key, cost, || self.now());
            return HitAnswer::ruled(&fallback.rules, told);
        }
        self.hit_degraded(check, Demand { cost: 0, intent: Intent::Peek })
    }

    /// One key's ruling without the store, by this process's part of the rules; a table reads the clock when it is its turn.
    #[inline]
    fn rule_degraded(
        &self,
        limiter: &Limiter,
        fallback: &LimiterSpec,
        key: &[u8],
        cost: u32,
        intent: Intent,
        clock: impl FnOnce() -> Micros,
    ) -> Ruling {
        self.note_degraded();
        let ruling = match self.on_failure(limiter) {
            OnFailure::Local => {
                let single = Single::new(&fallback.rules, key, cost, intent).at(self.door());
                return limiter.table.decide(single, clock);
            }
            OnFailure::Allow => allowed(fallback),
            OnFailure::Deny => denied(fallback),
        };
        limiter.note((key, intent, self.door()), &ruling, ruling.is_allowed(), clock());
        ruling
    }

    /// Counts without the store, where this process decides alone meanwhile; otherwise the error stays one.
    pub(super) fn increment_degraded(
        &self,
        limiter: &Limiter,
        key: &[u8],
        (count, at): (u32, Option<Micros>),
        error: StoreError,
    ) -> Result<Incremented, AskError> {
        if self.on_failure(limiter) != OnFailure::Local {
            return Err(error.into());
        }
        self.note_degraded();
        let fallback = limiter.fallback_for(&limiter.standing_by_name(key).basis);
        let counted = limiter.table.increment(&fallback.rules, key, count, at, || self.now());
        let (now, counted) = counted.ok_or(error)?;
        Ok(Incremented { timestamp: at.unwrap_or(now), counted, degraded: Some(OnFailure::Local) })
    }

    /// Analyzes without the store.
    pub(super) fn analyze_degraded(
        &self,
        limiter: &Limiter,
        key: &[u8],
        if_blocked: IfBlocked,
        error: StoreError,
    ) -> Result<Analyzed, AskError> {
        self.note_degraded();
        let mode = self.on_failure(limiter);
        let status = match mode {
            OnFailure::Allow => Status::Ok,
            OnFailure::Deny => Status::Denied,
            OnFailure::Local => {
                let spec = limiter.fallback_for(&limiter.standing_by_name(key).basis);
                let found = limiter.table.analyze(&spec.rules, key, if_blocked, || self.now());
                let (at, analysis) = found.ok_or(error)?;
                return Ok(Analyzed { degraded: Some(mode), ..Analyzed::of(&spec, key, at, analysis) });
            }
        };
        Ok(Analyzed { at: self.now(), status, degraded: Some(mode) })
    }

    pub(super) fn on_failure(&self, limiter: &Limiter) -> OnFailure {
        limiter.spec.on_failure.unwrap_or(self.0.failure.on_failure)
    }

    pub(super) fn note_degraded(&self) {
        self.0.degraded.fetch_add(1, Relaxed);
    }
}

/// When a decision that the store could not make is worth asking for again.
const TRY_AGAIN: Micros = Micros::from_secs(1);

/// An answer that says how it came about: no limit was asked.
pub(super) fn marked(answer: Answer, mode: OnFailure) -> Answer {
    Answer {
        degraded: Some(mode),
        reason: Reason::Degraded,
        limit: None,
        remaining: None,
        reset_after: None,
        // The store may be back by then, which is all that a denial waits for.
        retry_after: (!answer.allowed).then_some(TRY_AGAIN),
        ..answer
    }
}

/// An answer by this process's share of the limits; `decided` is the limiter that decided, with its whole limits. A cost that
/// is above the share alone can pass when the store is back; one above a whole limit never can, and is told that limit.
pub(super) fn by_share(answer: Answer, decided: Option<&Arc<LimiterSpec>>, cost: u32) -> Answer {
    let answer = Answer { degraded: Some(OnFailure::Local), ..answer };
    let (Reason::CostAboveLimit, Some(whole)) = (answer.reason, decided) else { return answer };
    let mut limits = whole.rules.limits().iter().enumerate();
    match limits.find(|(_, limit)| cost > limit.burst()) {
        None => Answer { reason: Reason::Degraded, retry_after: Some(TRY_AGAIN), ..answer },
        Some((limit_index, limit)) => {
            Answer { limiter: Some(Arc::clone(whole)), limit_index, limit: Some(limit.burst()), ..answer }
        }
    }
}

pub(super) fn allowed(spec: &LimiterSpec) -> Ruling {
    unknown(spec, Verdict::Allow, all_or_nothing::Reason::Ok)
}

pub(super) fn denied(spec: &LimiterSpec) -> Ruling {
    unknown(spec, Verdict::Deny { retry_after: Some(TRY_AGAIN) }, all_or_nothing::Reason::Limited)
}

/// A ruling of which nothing is known but the verdict.
fn unknown(spec: &LimiterSpec, verdict: Verdict, reason: all_or_nothing::Reason) -> Ruling {
    let limit = spec.rules.limits().first().map_or(0, Limit::burst);
    let decision = Decision { verdict, limit, remaining: 0, reset_after: Micros::ZERO, rate: Rate::new(0.0) };
    Ruling { limit_index: 0, decision, reason }
}
