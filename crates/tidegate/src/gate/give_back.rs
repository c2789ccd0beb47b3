//! Giving back what was charged before: work that did not happen, or cost less than was thought.
//!
//! The latest charges are given back first, whichever request they were for, and never more than is charged: nobody gets more than the limit. Of windows
//! only what the present one holds is given back; an average gives nothing back, nor does the sketch. A store that does not answer leaves the charge.

use super::Gate;
use super::limiter::Limiter;
use super::many::{HitAnswer, hit_answer, unasked_hit};
use super::plan::{Check, Plan, answered};
use crate::{Answer, AskError, Request};
use std::borrow::Cow;
use std::time::Duration;
use tidegate_core::all_or_nothing::{self, Intent, Ruling};
use tidegate_store::{StoreError, When};
use tokio::time::Instant;

impl Gate {
    /// Gives back what a key of one limiter was charged, and says how it stands then. A candidate gets it back, too.
    ///
    /// # Errors
    /// When the store cannot do it. One that does not answer leaves the charge; `on_failure` then says how things stand.
    pub async fn give_back(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<HitAnswer, AskError> {
        let plan = Plan::of_key(limiter, Cow::Borrowed(key), self.door());
        let [check, candidates @ ..] = plan.0.as_slice() else { return Ok(HitAnswer::Unlimited) };
        if let Some(answer) = unasked_hit(check, Intent::Peek, self.now()) {
            return Ok(answer);
        }
        let by = self.deadline();
        let told = self.give_back_to(check, cost, by).await?;
        for candidate in candidates.iter().filter(|check| check.is_asked()) {
            // What becomes of it changes no answer.
            drop(self.give_back_to(candidate, cost, by).await);
        }
        Ok(told)
    }

    /// Gives back a request's cost to every limiter that it meets, candidates too, and says how things stand then: allowed, unless a key is blocked.
    /// `within` and the gate's deadline bound it.
    ///
    /// # Errors
    /// As [`Gate::ask`], and when the store cannot give back.
    pub async fn give_back_all(&self, request: &Request<'_>, within: Duration) -> Result<Answer, AskError> {
        // Not the guard of a load: that belongs to a thread, and this may go on in another.
        let live = self.0.live.load_full();
        let (plan, by) = (Plan::of(&live, request, self.door())?, self.deadline_within(within));
        let mut told: Vec<(&Check<'_>, Ruling)> = Vec::new();
        for check in plan.0.iter().filter(|check| check.is_asked()) {
            match self.give_back_to(check, request.cost, by).await {
                Ok(HitAnswer::Ruled { ruling, .. }) => told.push((check, ruling)),
                Err(error) if !check.is_candidate() => return Err(error),
                Ok(HitAnswer::Unlimited | HitAnswer::Disabled) | Err(_) => {}
            }
        }
        let at = self.now();
        Ok(match Ruling::deciding(told.iter().map(|(_, ruling)| ruling)) {
            Some(index) => answered(&told[index].0.spec, &told[index].1, at),
            None => plan.unasked(at),
        })
    }

    async fn give_back_to(&self, check: &Check<'_>, cost: u32, by: Instant) -> Result<HitAnswer, AskError> {
        let limiter = check.limiter;
        if limiter.store.is_embedded() {
            let told = limiter.table.give_back(&check.spec.rules, &check.key, cost, || self.now());
            return Ok(hit_answer(check, told));
        }
        if !limiter.store.answers() || by <= Instant::now() {
            return Ok(self.give_back_without_store(check, cost));
        }
        let question = check.question(all_or_nothing::Role::Enforced);
        match limiter.store.give_back(&question, cost, When { now: self.0.clock.manual_now(), by }).await {
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
