//! Several requests that are charged together or not at all: descriptors of Envoy, each with a cost of its own.
//!
//! Their plans are joined into one, which is decided as the plan of one request is; each request is then answered from what its own
//! limiters said. Invariant: a key stands once in the joined plan. Where requests share one, their costs are added, so that two hits of which each
//! would pass alone do not pass together; a peek beside a hit is answered by the hit.

use super::Gate;
use super::degraded::{allowed, by_share, denied, marked};
use super::limiter::Live;
use super::plan::{Candidacy, Check, NEVER, Plan, Role, UNLIMITED, answered, deciding, unasked};
use crate::{Answer, AskError, OnFailure, Request};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Ruling};
use tidegate_store::{Answers, Asked, Part, Question, StoreError, decide_all};
use tokio::time::Instant;

/// The plans of several requests, as one.
struct Joint<'a> {
    plan: Plan<'a>,
    /// Each request's checks, by their places in the plan.
    members: Vec<Vec<usize>>,
}

/// What becomes of requests that the store cannot decide in one step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfUnsupported {
    Refuse,
    Degrade,
}

impl Gate {
    /// Asks several requests at once, on any store: each gets its answer, in their order, and unless they pass, all of them or of alternatives one
    /// ([`Answer::all_pass`]), nothing is charged. It never waits on the embedded store; on one on other machines it takes a round trip, and `within` and the gate's
    /// deadline bound it. Explanations are not made.
    ///
    /// # Errors
    /// As [`Gate::ask`], for the first request at fault. Nothing is charged then.
    pub async fn ask_together(&self, requests: &[Request<'_>], within: Duration) -> Result<Vec<Answer>, AskError> {
        self.together(requests, within, IfUnsupported::Refuse).await
    }

    /// The same for callers that take an error for a yes: what the store cannot decide in one step is answered as if it did not answer, by `on_failure`.
    ///
    /// # Errors
    /// An unknown limiter, or a key that is empty or too long. Nothing is charged then.
    pub async fn answer_together(&self, requests: &[Request<'_>], within: Duration) -> Result<Vec<Answer>, AskError> {
        self.together(requests, within, IfUnsupported::Degrade).await
    }

    async fn together(
        &self,
        requests: &[Request<'_>],
        within: Duration,
        if_unsupported: IfUnsupported,
    ) -> Result<Vec<Answer>, AskError> {
        // Not the guard of a load: that belongs to a thread, and this may go on in another.
        let live = self.0.live.load_full();
        let joint = self.join(&live, requests)?;
        if joint.plan.is_local() {
            let asked = joint.plan.asked();
            let parts: Vec<Part<'_>> = asked.iter().map(|(check, role)| check.part(*role)).collect();
            let answers = decide_all(&parts, 1, Intent::Hit, false, || self.now());
            return Ok(joint.answers(&answers));
        }
        if joint.plan.0.iter().any(|check| check.limiter.is_shared()) {
            if if_unsupported == IfUnsupported::Degrade {
                return Ok(self.decide_together_degraded(joint));
            }
            let what = "one request about a limiter that replicas share and about others; ask for them one by one";
            return Err(StoreError::Unsupported(what.to_owned()).into());
        }
        self.ask_store_together(joint, within, if_unsupported).await
    }

    /// The requests' plans as one, and recorded.
    fn join<'a>(&self, live: &'a Live, requests: &[Request<'a>]) -> Result<Joint<'a>, AskError> {
        let plans =
            requests.iter().map(|request| Plan::of(live, request, self.door())).collect::<Result<Vec<_>, _>>()?;
        let mut joint = Joint { plan: Plan(Vec::with_capacity(requests.len())), members: Vec::new() };
        for (request, plan) in requests.iter().zip(plans) {
            self.record_request(request, Some(&plan));
            joint.add(plan, Demand { cost: request.cost, intent: request.intent });
        }
        joint.plan.leave_out_replaced();
        if joint.plan.0.iter().any(|check| check.denies_always()) {
            joint.look_only();
        }
        Ok(joint)
    }

    async fn ask_store_together(
        &self,
        joint: Joint<'_>,
        within: Duration,
        if_unsupported: IfUnsupported,
    ) -> Result<Vec<Answer>, AskError> {
        let (store, by) = (&self.0.store, self.deadline_within(within));
        // A store that has no time left is not asked: it might charge what it is not waited for.
        if !store.answers() || by <= Instant::now() {
            return Ok(self.decide_together_degraded(joint));
        }
        let asked = Asked { now: self.0.clock.manual_now(), cost: 1, intent: Intent::Hit, explain: false, by };
        let outcome = {
            let questions = joint.plan.asked();
            let questions: Vec<Question<'_>> = questions.iter().map(|(check, role)| check.question(*role)).collect();
            if questions.is_empty() {
                return Ok(joint.answers(&(self.now(), Vec::new())));
            }
            let outcome = store.decide(&questions, &asked).await;
            self.0.errors.note(&questions, Intent::Hit, &outcome);
            outcome
        };
        let answers = match outcome {
            Ok(answers) => answers,
            Err(error @ StoreError::Unsupported(_)) if if_unsupported == IfUnsupported::Refuse => {
                return Err(error.into());
            }
            Err(_) => return Ok(self.decide_together_degraded(joint)),
        };
        joint.plan.note_all(&answers, Intent::Hit);
        Ok(joint.answers(&answers))
    }

    /// Decides without the store: limiters that deny then deny for all, and those that decide here charge only if none does. Candidates are not
    /// counted. A limiter of which this process holds a share needs no store, and decides by that share.
    fn decide_together_degraded<'a>(&self, mut joint: Joint<'a>) -> Vec<Answer> {
        let mode = |check: &Check<'_>| match check.limiter.is_shared() {
            true => check.is_enforced().then_some(OnFailure::Local),
            false => check.is_enforced().then(|| self.on_failure(check.limiter)),
        };
        let modes: Vec<Option<OnFailure>> = joint.plan.0.iter().map(mode).collect();
        if modes.iter().any(Option::is_some) {
            self.note_degraded();
        }
        let word =
            |(check, mode): (&Check<'_>, &Option<OnFailure>)| Some((check.weight(), (*mode)? != OnFailure::Deny));
        let is_denied = !all_or_nothing::pass(joint.plan.0.iter().zip(&modes).filter_map(word));
        self.note_modes(&joint, &modes, is_denied);
        if is_denied {
            joint.look_only();
        }
        let Joint { plan, members } = joint;
        let fall_back = |check: Check<'a>| if check.limiter.is_shared() { check } else { check.fall_back() };
        let checks: Vec<Check<'_>> = plan.0.into_iter().map(fall_back).collect();
        let here: Vec<usize> = (0..checks.len()).filter(|at| modes[*at] == Some(OnFailure::Local)).collect();
        let parts: Vec<Part<'_>> = here.iter().map(|at| checks[*at].part(checks[*at].weight())).collect();
        let (at, said) = decide_all(&parts, 1, Intent::Hit, false, || self.now());
        let said_of = |place: usize| here.iter().position(|own| *own == place).map(|index| &said[index].ruling);
        let (modes, joint) = (&modes, Joint { plan: Plan(checks), members });
        let answer = |places: &Vec<usize>| {
            if let Some(check) = joint.denying(places) {
                return never(check, at);
            }
            let of_mode = |mode| places.iter().copied().find(move |place| modes[*place] == Some(mode));
            if let Some(place) = of_mode(OnFailure::Deny) {
                let whole = joint.plan.0[place].whole();
                return marked(answered(&whole, &denied(&whole), at), OnFailure::Deny);
            }
            if let Some((check, ruling)) = joint.deciding(places, said_of) {
                return by_share(answered(&check.spec, ruling, at), Some(&check.whole()), check.demand().cost);
            }
            let unasked = joint.unasked(places, at);
            if of_mode(OnFailure::Allow).is_some() { marked(unasked, OnFailure::Allow) } else { unasked }
        };
        joint.members.iter().map(answer).collect()
    }

    /// Counts what limiters that ask nobody have to say while the store does not answer.
    fn note_modes(&self, joint: &Joint<'_>, modes: &[Option<OnFailure>], is_denied: bool) {
        for (check, mode) in joint.plan.0.iter().zip(modes) {
            let (intent, at) = (check.demand().intent, self.now());
            match mode {
                Some(OnFailure::Deny) => check.note(&denied(&check.spec), false, intent, at),
                Some(OnFailure::Allow) => check.note(&allowed(&check.spec), !is_denied, intent, at),
                Some(OnFailure::Local) | None => {}
            }
        }
    }
}

impl<'a> Joint<'a> {
    /// One more request.
    fn add(&mut self, plan: Plan<'a>, demand: Demand) {
        let mut places: Vec<usize> = Vec::with_capacity(plan.0.len());
        for check in plan.0 {
            let replaces = |Candidacy { replaces }: Candidacy| Candidacy { replaces: replaces.map(|at| places[at]) };
            let candidacy = check.candidacy.map(replaces);
            let place = self.place(Check { candidacy, ..check }, demand);
            places.push(place);
        }
        self.members.push(places);
    }

    /// The place of a check, which may be there already.
    fn place(&mut self, check: Check<'a>, demand: Demand) -> usize {
        let same = |other: &Check<'_>| {
            Arc::ptr_eq(&other.limiter.table, &check.limiter.table)
                && other.key == check.key
                && other.is_asked() == check.is_asked()
        };
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

    /// Nothing is charged, whatever the others say.
    fn look_only(&mut self) {
        for check in self.plan.0.iter_mut().filter(|check| check.is_asked()) {
            check.own = Some(Demand { intent: Intent::Peek, ..check.demand() });
        }
    }

    /// Each request's answer, from what the limiters that were asked have said.
    fn answers(&self, (at, said): &Answers) -> Vec<Answer> {
        let mut said = said.iter();
        let rulings: Vec<Option<&Ruling>> = self
            .plan
            .0
            .iter()
            .map(|check| if check.is_asked() { said.next().map(|answer| &answer.ruling) } else { None })
            .collect();
        let answer = |places: &Vec<usize>| match (self.denying(places), self.deciding(places, |place| rulings[place])) {
            (Some(check), _) => never(check, *at),
            (None, Some((check, ruling))) => answered(&check.spec, ruling, *at),
            (None, None) => self.unasked(places, *at),
        };
        let answers: Vec<Answer> = self.members.iter().map(answer).collect();
        let all_allow = Answer::all_pass(&answers);
        for check in &self.plan.0 {
            match check.role {
                Role::Unlimited => check.note(&UNLIMITED, all_allow, check.demand().intent, *at),
                Role::Denied => check.note(&NEVER, false, check.demand().intent, *at),
                Role::Enforced | Role::Disabled | Role::Replaced => {}
            }
        }
        answers
    }

    /// The limiter of a request that lets nothing of its key pass.
    fn denying(&self, places: &[usize]) -> Option<&Check<'a>> {
        places.iter().map(|place| &self.plan.0[*place]).find(|check| check.denies_always())
    }

    /// The limiter that decides a request, with what it says.
    fn deciding<'r>(
        &self,
        places: &[usize],
        said_of: impl Fn(usize) -> Option<&'r Ruling>,
    ) -> Option<(&Check<'a>, &'r Ruling)> {
        let enforced = places.iter().filter(|place| self.plan.0[**place].is_enforced());
        let ruled: Vec<(usize, &Ruling)> = enforced.filter_map(|place| Some((*place, said_of(*place)?))).collect();
        let (place, ruling) = ruled[deciding(ruled.iter().map(|(place, ruling)| (&self.plan.0[*place], *ruling)))?];
        Some((&self.plan.0[place], ruling))
    }

    /// The answer to a request of which nobody was asked.
    fn unasked(&self, places: &[usize], at: Micros) -> Answer {
        let others = || places.iter().map(|place| &self.plan.0[*place]).filter(|check| check.is_told());
        let unlimited = others().find(|check| check.role == Role::Unlimited);
        unasked(unlimited.or(others().next()).map(|check| (&check.limiter.spec, check.role)), at)
    }
}

/// The answer by a limiter that lets nothing of its key pass, whatever alternatives there are.
fn never(check: &Check<'_>, at: Micros) -> Answer {
    Answer { alternative: false, ..answered(&check.spec, &NEVER, at) }
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
