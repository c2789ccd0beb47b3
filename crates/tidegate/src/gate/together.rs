//! Several requests as one: all of them are charged, or none.
//!
//! Their plans become one list of keys, each with its cost; a key that several requests name is asked for the sum. The store
//! decides that list as it decides one request of several keys, and each request is answered from what its own keys said.

use super::Gate;
use super::plan::{Check, Plan};
use crate::{Answer, AskError, Intent, Request};
use std::sync::Arc;
use tidegate_store::{Answers, Asked, Part, PartAnswer, Question, StoreError, decide_all};

/// Most requests that are decided together: all of their shards are locked at once.
pub const TOGETHER_MAX: usize = 32;

/// One key that is asked, by the plan and the place in it of the first request that names it.
struct Asking {
    plan: usize,
    check: usize,
    cost: u32,
}

impl Gate {
    /// May all of these happen now? If one may not, nothing is charged, and its answer says so; the answers of the others say what
    /// they would have been told. All of them are hits, or all peeks, as `intent` says. One round trip where one request
    /// of several keys takes one.
    ///
    /// # Errors
    /// As [`Gate::ask`] for any of them, or when the store cannot decide them as one. Nothing is charged then.
    pub async fn ask_together(&self, requests: &[Request<'_>], intent: Intent) -> Result<Vec<Answer>, AskError> {
        if requests.len() > TOGETHER_MAX {
            let what = format!("{} requests together, and {TOGETHER_MAX} at most are decided as one", requests.len());
            return Err(StoreError::Unsupported(what).into());
        }
        let live = self.0.live.load_full();
        let plans = requests.iter().map(|request| Plan::of(&live, request)).collect::<Result<Vec<_>, _>>()?;
        let (asking, places) = merge(&plans);
        let explain = requests.iter().any(|request| request.explain);
        let (at, told) = match self.ask_all(&plans, &asking, intent, explain).await? {
            Some(answers) => answers,
            None => return Ok(self.degraded_together(plans, requests, intent)),
        };
        let own = |places: &Vec<usize>| places.iter().map(|place| told[*place].clone()).collect::<Vec<PartAnswer>>();
        let each = plans.iter().zip(requests).zip(&places);
        Ok(each.map(|((plan, request), places)| plan.combine((at, own(places)), request)).collect())
    }

    /// What each key says; `None`: the store does not answer.
    async fn ask_all(
        &self,
        plans: &[Plan<'_>],
        asking: &[Asking],
        intent: Intent,
        explain: bool,
    ) -> Result<Option<Answers>, AskError> {
        let checks = asking.iter().map(|Asking { plan, check, cost }| (&plans[*plan].0[*check], *cost));
        let local = checks.clone().filter(|(check, _)| check.limiter.store.is_embedded()).count();
        if local == asking.len() {
            let parts: Vec<Part<'_>> = checks.map(|(check, cost)| Part { cost, ..check.part() }).collect();
            return Ok(Some(decide_all(&parts, intent, explain, || self.now())));
        }
        if local > 0 {
            let what = "requests together of which this process holds a share of one limit and the store has another; \
                        ask them one by one";
            return Err(StoreError::Unsupported(what.to_owned()).into());
        }
        if !self.0.store.answers() {
            return Ok(None);
        }
        let asked = Asked { now: self.0.clock.manual_now(), intent, explain, by: self.deadline() };
        let questions: Vec<Question<'_>> =
            checks.clone().map(|(check, cost)| Question { cost, ..check.question() }).collect();
        let outcome = self.0.store.decide(&questions, &asked).await;
        self.0.errors.note(&questions, intent, &outcome);
        match outcome {
            Ok((at, told)) => {
                let all_allow = told.iter().all(|told| told.ruling.is_allowed());
                for ((check, _), told) in checks.zip(&told) {
                    check.limiter.note(&check.key, &told.ruling, all_allow, intent, at);
                }
                Ok(Some((at, told)))
            }
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// All of them as one request, without the store; each is told the same.
    fn degraded_together(&self, plans: Vec<Plan<'_>>, requests: &[Request<'_>], intent: Intent) -> Vec<Answer> {
        let Some(first) = requests.first() else { return Vec::new() };
        let mut all: Vec<Check<'_>> = Vec::new();
        for check in plans.into_iter().flat_map(|plan| plan.0) {
            match all.iter_mut().find(|other| is_same(other, &check)) {
                Some(other) => other.cost = other.cost.saturating_add(check.cost),
                None => all.push(check),
            }
        }
        let answer = self.decide_degraded(Plan(all), &Request { intent, explain: false, ..*first });
        vec![answer; requests.len()]
    }
}

/// The keys to ask, each once; and for each plan, which of them are its own.
fn merge(plans: &[Plan<'_>]) -> (Vec<Asking>, Vec<Vec<usize>>) {
    let (mut asking, mut places): (Vec<Asking>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    for (plan, checks) in plans.iter().enumerate() {
        let mut own = Vec::new();
        for (index, check) in checks.0.iter().enumerate().filter(|(_, check)| check.is_enforced()) {
            let known = asking.iter().position(|asking| is_same(&plans[asking.plan].0[asking.check], check));
            let place = known.unwrap_or(asking.len());
            match known {
                Some(place) => asking[place].cost = asking[place].cost.saturating_add(check.cost),
                None => asking.push(Asking { plan, check: index, cost: check.cost }),
            }
            own.push(place);
        }
        places.push(own);
    }
    (asking, places)
}

/// Do both ask about one key of one limiter?
fn is_same(one: &Check<'_>, other: &Check<'_>) -> bool {
    Arc::ptr_eq(&one.limiter.table, &other.limiter.table) && one.key == other.key
}
