//! Limits that calls bring, and giving back what was charged: what `CL.THROTTLE` needs beyond a hit.

use super::Gate;
use super::limiter::Limiter;
use super::many::{HitAnswer, hit_answer, unasked_hit};
use super::plan::{Check, Plan};
use crate::AskError;
use std::borrow::Cow;
use tidegate_core::all_or_nothing::{self, Intent};
use tidegate_core::{Limit, Rules, RulesError};
use tidegate_store::{StoreError, When};

impl Gate {
    /// A limiter by another limit, for one whose calls bring their limits; its keys keep their states, and a key whose limits were set by hand keeps
    /// those. For a token bucket only.
    ///
    /// # Errors
    /// When the limit is too fine or too large to count exactly.
    pub fn with_limit(&self, limiter: &Limiter, limit: Limit) -> Result<Limiter, RulesError> {
        Ok(limiter.with_rules(Rules::per_call(limit)?, self.0.failure.local_share))
    }

    /// Gives back what a key of a token bucket was charged before, up to a full bucket, and says how it stands then. A candidate gets it back,
    /// too.
    ///
    /// # Errors
    /// When the store cannot do it. One that does not answer leaves the charge; `on_failure` then says how things stand.
    pub async fn give_back(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<HitAnswer, AskError> {
        let plan = Plan::of_key(limiter, Cow::Borrowed(key));
        let [check, candidates @ ..] = plan.0.as_slice() else { return Ok(HitAnswer::Unlimited) };
        if let Some(answer) = unasked_hit(check, Intent::Peek, self.now()) {
            return Ok(answer);
        }
        let told = self.give_back_to(check, cost).await?;
        for candidate in candidates.iter().filter(|check| check.is_asked()) {
            // What becomes of it changes no answer.
            drop(self.give_back_to(candidate, cost).await);
        }
        Ok(told)
    }

    async fn give_back_to(&self, check: &Check<'_>, cost: u32) -> Result<HitAnswer, AskError> {
        let limiter = check.limiter;
        if limiter.store.is_embedded() {
            let told = limiter.table.give_back(&check.spec.rules, &check.key, cost, || self.now());
            return Ok(hit_answer(check, told));
        }
        if !limiter.store.answers() {
            return Ok(self.give_back_without_store(check, cost));
        }
        let question = check.question(all_or_nothing::Role::Enforced);
        let when = When { now: self.0.clock.manual_now(), by: self.deadline() };
        match limiter.store.give_back(&question, cost, when).await {
            Ok((_, told)) => Ok(hit_answer(check, told.ruling)),
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(_) => Ok(self.give_back_without_store(check, cost)),
        }
    }

    /// A candidate is not counted while the store does not answer.
    fn give_back_without_store(&self, check: &Check<'_>, cost: u32) -> HitAnswer {
        if check.is_candidate() { HitAnswer::Unlimited } else { self.give_back_degraded(check, cost) }
    }
}
