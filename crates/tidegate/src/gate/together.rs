//! Several requests that are charged together or not at all: descriptors of Envoy, each with a cost of its own.
//!
//! Their plans are joined into one, which is decided as the plan of one request is; each request is then answered from what its own
//! limiters said. Invariant: a key stands once in the joined plan. Where requests share one, their costs are added, so that two hits of which each
//! would pass alone do not pass together; a peek beside a hit is answered by the hit.

use super::Gate;
use super::degraded::{by_share, denied, marked};
use super::limiter::Live;
use super::plan::{Check, Plan, answered, unasked};
use crate::{Answer, AskError, OnFailure, Request};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::all_or_nothing::{Demand, Intent, Ruling};
use tidegate_store::{Answers, Asked, Part, Question, StoreError, decide_all};

/// The plans of several requests, as one.
struct Joint<'a> {
    plan: Plan<'a>,
    /// Each request's checks, by their places in the plan.
    members: Vec<Vec<usize>>,
}

impl Gate {
    /// Asks several requests at once, on any store: each gets its answer, in their order, and unless all of them are allowed nothing is
    /// charged. It never waits on the embedded store; on one on other machines it takes a round trip, and `within` and the gate's
    /// deadline bound it. Explanations are not made.
    ///
    /// # Errors
    /// As [`Gate::ask`], for the first request at fault. Nothing is charged then.
    pub async fn ask_together(&self, requests: &[Request<'_>], within: Duration) -> Result<Vec<Answer>, AskError> {
        // Not the guard of a load: that belongs to a thread, and this may go on in another.
        let live = self.0.live.load_full();
        let joint = Joint::of(&live, requests)?;
        if joint.plan.is_local() {
            let parts: Vec<Part<'_>> = joint.plan.enforced().map(Check::part).collect();
            let answers = decide_all(&parts, 1, Intent::Hit, false, || self.now());
            return Ok(joint.answers(&answers));
        }
        if joint.plan.0.iter().any(|check| check.limiter.is_shared()) {
            let what = "one request about a limiter that replicas share and about others; ask for them one by one";
            return Err(StoreError::Unsupported(what.to_owned()).into());
        }
        self.ask_store_together(joint, within).await
    }

    async fn ask_store_together(&self, joint: Joint<'_>, within: Duration) -> Result<Vec<Answer>, AskError> {
        let store = &self.0.store;
        if !store.answers() {
            return Ok(self.decide_together_degraded(joint));
        }
        let by = self.deadline_within(within);
        let asked = Asked { now: self.0.clock.manual_now(), cost: 1, intent: Intent::Hit, explain: false, by };
        let outcome = {
            let questions: Vec<Question<'_>> = joint.plan.enforced().map(Check::question).collect();
            if questions.is_empty() {
                return Ok(joint.answers(&(self.now(), Vec::new())));
            }
            let outcome = store.decide(&questions, &asked).await;
            self.0.errors.note(&questions, Intent::Hit, &outcome);
            outcome
        };
        let answers = match outcome {
            Ok(answers) => answers,
            Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
            Err(_) => return Ok(self.decide_together_degraded(joint)),
        };
        let all_allow = answers.1.iter().all(|answer| answer.ruling.is_allowed());
        for (check, answer) in joint.plan.enforced().zip(&answers.1) {
            check.limiter.note(&check.key, &answer.ruling, all_allow, check.demand().intent, answers.0);
        }
        Ok(joint.answers(&answers))
    }

    /// Decides without the store: limiters that deny then deny for all, and those that decide here charge only if none does.
    fn decide_together_degraded(&self, joint: Joint<'_>) -> Vec<Answer> {
        let Joint { plan, members } = joint;
        let mode = |check: &Check<'_>| check.is_enforced().then(|| self.on_failure(check.limiter));
        let modes: Vec<Option<OnFailure>> = plan.0.iter().map(mode).collect();
        if modes.iter().any(Option::is_some) {
            self.note_degraded();
        }
        let is_denied = modes.contains(&Some(OnFailure::Deny));
        let mut checks: Vec<Check<'_>> = plan.0.into_iter().map(Check::fall_back).collect();
        if is_denied {
            let peek = |check: &mut Check<'_>| check.own = Some(Demand { intent: Intent::Peek, ..check.demand() });
            checks.iter_mut().for_each(peek);
        }
        let here: Vec<usize> = (0..checks.len()).filter(|at| modes[*at] == Some(OnFailure::Local)).collect();
        let parts: Vec<Part<'_>> = here.iter().map(|at| checks[*at].fallback_part()).collect();
        let (at, said) = decide_all(&parts, 1, Intent::Hit, false, || self.now());
        let said_of = |place: usize| here.iter().position(|own| *own == place).map(|index| &said[index].ruling);
        let (modes, checks) = (&modes, &checks);
        let answer = |places: &Vec<usize>| {
            let of_mode = |mode| places.iter().copied().find(move |place| modes[*place] == Some(mode));
            if let Some(place) = of_mode(OnFailure::Deny) {
                let spec = &checks[place].limiter.spec;
                return marked(answered(spec, &denied(spec), at), OnFailure::Deny);
            }
            let ruled: Vec<(usize, &Ruling)> =
                places.iter().filter_map(|place| Some((*place, said_of(*place)?))).collect();
            if let Some(index) = Ruling::deciding(ruled.iter().map(|(_, ruling)| *ruling)) {
                let (place, ruling) = ruled[index];
                let check = &checks[place];
                return by_share(answered(&check.spec, ruling, at), Some(&check.limiter.spec), check.demand().cost);
            }
            let first = places.first().map(|place| &checks[*place].limiter.spec);
            match of_mode(OnFailure::Allow) {
                Some(_) => marked(unasked(first, at), OnFailure::Allow),
                None => unasked(first, at),
            }
        };
        members.iter().map(answer).collect()
    }
}

impl<'a> Joint<'a> {
    fn of(live: &'a Live, requests: &[Request<'a>]) -> Result<Joint<'a>, AskError> {
        let mut joint = Joint { plan: Plan(Vec::with_capacity(requests.len())), members: Vec::new() };
        for request in requests {
            let plan = Plan::of(live, request)?;
            let demand = Demand { cost: request.cost, intent: request.intent };
            let places = plan.0.into_iter().map(|check| joint.add(check, demand)).collect();
            joint.members.push(places);
        }
        Ok(joint)
    }

    /// The place of a check, which may be there already.
    fn add(&mut self, check: Check<'a>, demand: Demand) -> usize {
        let same =
            |other: &Check<'_>| Arc::ptr_eq(&other.limiter.table, &check.limiter.table) && other.key == check.key;
        match self.plan.0.iter().position(same) {
            Some(place) => {
                let other = &mut self.plan.0[place];
                other.own = Some(added(other.demand(), demand));
                place
            }
            None => {
                self.plan.0.push(Check { own: Some(demand), ..check });
                self.plan.0.len() - 1
            }
        }
    }

    /// Each request's answer, from what the limiters that were asked have said.
    fn answers(&self, (at, said): &Answers) -> Vec<Answer> {
        let mut said = said.iter();
        let rulings: Vec<Option<&Ruling>> = self
            .plan
            .0
            .iter()
            .map(|check| if check.is_enforced() { said.next().map(|answer| &answer.ruling) } else { None })
            .collect();
        let answer = |places: &Vec<usize>| {
            let ruled: Vec<(usize, &Ruling)> =
                places.iter().filter_map(|place| Some((*place, rulings[*place]?))).collect();
            match Ruling::deciding(ruled.iter().map(|(_, ruling)| *ruling)) {
                Some(index) => answered(&self.plan.0[ruled[index].0].spec, ruled[index].1, *at),
                None => unasked(places.first().map(|place| &self.plan.0[*place].limiter.spec), *at),
            }
        };
        self.members.iter().map(answer).collect()
    }
}

impl Check<'_> {
    /// What is asked of its key.
    fn demand(&self) -> Demand {
        self.own.unwrap_or(Demand { cost: 1, intent: Intent::Hit })
    }
}

/// What two requests ask of one key.
fn added(one: Demand, other: Demand) -> Demand {
    match (one.intent, other.intent) {
        (Intent::Hit, Intent::Hit) => Demand { cost: one.cost.saturating_add(other.cost), intent: Intent::Hit },
        (Intent::Hit, Intent::Peek) if one.cost > 0 => one,
        (Intent::Peek, Intent::Hit) if other.cost > 0 => other,
        _ => Demand { cost: one.cost.max(other.cost), intent: Intent::Peek },
    }
}
