//! The plan of a request: the limiters that it matches, each with its key and the rules in force; and the answer that is
//! combined from what they say.
//!
//! The same for every store, and for none. Nothing here decides. Invariant: an answer names the rules that it was made
//! with, so that headers and explanations cannot print others.

use super::limiter::{InForce, Limiter, Live};
use super::standing::{Basis, Effect, Standing};
use crate::{Answer, AskError, Explained, LimiterSpec, Reason, Request, Target};
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Ruling};
use tidegate_core::{Decision, Limit, Micros, Rate, Verdict, check_key};
use tidegate_store::{Answers, Door, Part, PartAnswer, Question};

/// Everything that one request is checked against, in definition order.
pub(super) struct Plan<'a>(pub(super) Vec<Check<'a>>);

/// One limiter that a request matches.
pub(super) struct Check<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) key: Cow<'a, [u8]>,
    pub(super) role: Role,
    /// What is asked of this key alone, where the request is several.
    pub(super) own: Option<Demand>,
    /// The limiter with the rules in force.
    pub(super) spec: InForce<'a>,
    /// Whose rules they are.
    pub(super) basis: Basis,
    /// It is a candidate: asked, and deciding nothing.
    pub(super) candidacy: Option<Candidacy>,
    /// Where the request came in.
    pub(super) door: Door,
}

/// What a candidate would replace, if it would: the check at this place of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidacy {
    pub(super) replaces: Option<usize>,
}

/// What a limiter has to say in a request. Looked at once: a limiter may be switched while the request is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It decides, and is charged.
    Enforced,
    /// It is disabled: named in the answer, and not asked.
    Disabled,
    /// It does not limit this key: not asked either.
    Unlimited,
    /// It lets nothing of this key pass: it decides, no limiter is asked, and nothing is charged.
    Denied,
    /// Another limiter of the request is there in its place.
    Replaced,
}

impl<'a> Check<'a> {
    /// What a limiter has to say of a key, in a request with these attributes.
    pub(super) fn of(limiter: &'a Limiter, key: Cow<'a, [u8]>, attributes: &[(&str, &[u8])], door: Door) -> Check<'a> {
        let key = limiter.spec.counted_key(key, attributes);
        let candidacy = limiter.spec.candidate.then_some(Candidacy { replaces: None });
        if !limiter.is_enforced() {
            return Check {
                limiter,
                key,
                role: Role::Disabled,
                spec: limiter.in_force(),
                basis: Basis::Own,
                candidacy,
                own: None,
                door,
            };
        }
        let Standing { spec, basis, effect } = limiter.standing(&key, attributes);
        let role = match effect {
            Effect::Limits => Role::Enforced,
            Effect::Unlimited => Role::Unlimited,
            Effect::Deny => Role::Denied,
        };
        Check { limiter, key, role, own: None, spec, basis, candidacy, door }
    }

    /// By the limit that the request brings, if the limiter takes it: in place of its own and of a match's. What was set by hand stays, and so
    /// does a key that is not limited or not let pass.
    fn by_request(self, limit: Option<Limit>) -> Check<'a> {
        let takes = self.is_asked() && !matches!(self.basis, Basis::Override(_));
        match limit.filter(|_| takes).and_then(|limit| self.limiter.brought(limit)) {
            None => self,
            Some(brought) => {
                Check { spec: InForce::Made(Arc::clone(&brought.whole)), basis: Basis::Request(brought), ..self }
            }
        }
    }

    /// The candidate for the limits by which this check is decided, which is at `place` of its plan. Limits of a match or an
    /// override are not those that it would replace.
    fn candidate(&self, place: usize) -> Option<Check<'a>> {
        let limiter = self.limiter.candidate.as_deref().filter(|_| self.is_enforced())?;
        matches!(self.basis, Basis::Own).then_some(())?;
        let candidacy = Some(Candidacy { replaces: Some(place) });
        Some(Check { candidacy, ..Check::of(limiter, self.key.clone(), &[], self.door) })
    }

    /// Does it decide?
    pub(super) fn is_enforced(&self) -> bool {
        self.is_asked() && !self.is_candidate()
    }

    /// Is it asked, to decide or as a candidate?
    pub(super) fn is_asked(&self) -> bool {
        self.role == Role::Enforced
    }

    /// Is it named in an answer where nobody was asked?
    pub(super) fn is_told(&self) -> bool {
        !self.is_candidate() && self.role != Role::Replaced
    }

    pub(super) fn is_candidate(&self) -> bool {
        self.candidacy.is_some()
    }

    /// What its word counts for among the others, if it decides.
    pub(super) fn weight(&self) -> all_or_nothing::Role {
        if self.is_alternative() { all_or_nothing::Role::Alternative } else { all_or_nothing::Role::Enforced }
    }

    pub(super) fn is_alternative(&self) -> bool {
        self.limiter.spec.alternative
    }

    /// Does it let nothing of the key pass?
    pub(super) fn denies_always(&self) -> bool {
        self.role == Role::Denied && !self.is_candidate()
    }

    /// What this process's own table is asked, by the rules in force.
    pub(super) fn part(&self, role: all_or_nothing::Role) -> Part<'_> {
        let (table, rules) = (&self.limiter.table, &self.spec.rules);
        Part { table, rules, key: &self.key, role, own: self.own, door: self.door }
    }

    /// Decides by this process's part of the rules from here on: the store does not answer.
    pub(super) fn fall_back(self) -> Check<'a> {
        Check { spec: self.limiter.fallback_for(&self.basis), ..self }
    }

    /// The limiter with the whole rules, also after [`Check::fall_back`].
    pub(super) fn whole(&self) -> InForce<'a> {
        self.limiter.whole_for(&self.basis)
    }

    /// Counts a decision that no table made.
    pub(super) fn note(&self, ruling: &Ruling, all_allow: bool, intent: Intent, at: Micros) {
        self.limiter.note((&self.key, intent, self.door), ruling, all_allow, at);
    }

    pub(super) fn question(&self, role: all_or_nothing::Role) -> Question<'_> {
        Question { role, own: self.own, ..self.limiter.question(&self.spec, &self.key) }
    }
}

impl<'a> Plan<'a> {
    /// What this request is checked against.
    ///
    /// # Errors
    /// An unknown limiter, or a key that is empty or too long.
    pub(super) fn of(live: &'a Live, request: &Request<'a>, door: Door) -> Result<Plan<'a>, AskError> {
        match request.target {
            Target::Limiter { name, key } => {
                let limiter = live.limiter_for(name, key)?;
                limiter.check_has_limit()?;
                let key = limiter.spec.key_by_name(key);
                check_key(&key)?;
                Ok(Plan::of_key(limiter, key, door))
            }
            Target::Attributes { domain, attributes } => {
                let matching =
                    live.of_domain(domain).filter_map(|limiter| Some((limiter, limiter.spec.key_of(attributes)?)));
                let mut plan = Plan(Vec::new());
                for (limiter, key) in matching {
                    check_key(&key)?;
                    plan.add(Check::of(limiter, Cow::Owned(key), attributes, door));
                }
                plan.leave_out_replaced();
                Ok(plan)
            }
            Target::Descriptor { domain, entries, limit } => {
                let is_exact = |limiter: &&Limiter| {
                    limiter.spec.by.iter().map(String::as_str).eq(entries.iter().map(|(name, _)| *name))
                };
                let mut plan = Plan(Vec::new());
                for limiter in live.of_domain(Some(domain)).filter(is_exact) {
                    let Some(key) = limiter.spec.key_of_descriptor(entries) else { continue };
                    check_key(&key)?;
                    plan.add(Check::of(limiter, Cow::Owned(key), entries, door).by_request(limit));
                }
                plan.leave_out_replaced();
                Ok(plan)
            }
        }
    }

    /// The plan of a request by name.
    pub(super) fn of_key(limiter: &'a Limiter, key: Cow<'a, [u8]>, door: Door) -> Plan<'a> {
        let mut plan = Plan(Vec::with_capacity(1));
        plan.add(Check::of(limiter, key, &[], door));
        plan
    }

    fn add(&mut self, check: Check<'a>) {
        let candidate = check.candidate(self.0.len());
        self.0.push(check);
        self.0.extend(candidate);
    }

    /// Leaves out the limiters that others of the plan replace, where those limit. A candidate replaces nobody, as it decides nothing; a key of a deny
    /// list stays denied.
    pub(super) fn leave_out_replaced(&mut self) {
        let replacing = self.0.iter().filter(|check| check.is_enforced()).map(|check| check.limiter);
        let replaced: Vec<&'a String> = replacing.flat_map(|limiter| &limiter.spec.replaces).collect();
        for check in self.0.iter_mut().filter(|check| replaced.contains(&&check.limiter.spec.name)) {
            if matches!(check.role, Role::Enforced | Role::Unlimited) {
                check.role = Role::Replaced;
            }
        }
    }

    /// All that are asked, each with what its word counts for among them.
    pub(super) fn asked(&self) -> Vec<(&Check<'a>, all_or_nothing::Role)> {
        // Candidates are few: their places among those that are asked are counted for each.
        let place = |at: usize| u8::try_from(self.0[..at].iter().filter(|check| check.is_asked()).count()).ok();
        let role = |check: &Check<'_>| match check.candidacy {
            None => check.weight(),
            Some(Candidacy { replaces }) => all_or_nothing::Role::Candidate { replaces: replaces.and_then(place) },
        };
        self.0.iter().filter(|check| check.is_asked()).map(|check| (check, role(check))).collect()
    }

    /// Counts what a store has said of each that was asked.
    pub(super) fn note_all(&self, (at, answers): &Answers, intent: Intent) {
        let asked = self.asked();
        let roles: Vec<all_or_nothing::Role> = asked.iter().map(|(_, role)| *role).collect();
        let allowed: Vec<bool> = answers.iter().map(|answer| answer.ruling.is_allowed()).collect();
        if answers.len() != asked.len() {
            return;
        }
        for (index, ((check, _), answer)) in
            asked.iter().zip(answers).enumerate().filter(|(_, (_, answer))| answer.is_known)
        {
            let intent = check.own.map_or(intent, |own| own.intent);
            check.note(&answer.ruling, all_or_nothing::all_allow(&roles, &allowed, index), intent, *at);
        }
    }

    /// The limiters that decide.
    pub(super) fn enforced(&self) -> impl Iterator<Item = &Check<'a>> {
        self.0.iter().filter(|check| check.is_enforced())
    }

    /// True when this process decides alone: its table holds the states, or its share of the limit. By the policy a
    /// limiter that is shared is alone in its domain.
    pub(super) fn is_local(&self) -> bool {
        self.0.iter().all(|check| check.limiter.store.is_embedded())
    }

    /// The answer where a limiter lets nothing of its key pass: no other limiter is asked, and nothing is charged.
    pub(super) fn denied(&self, request: &Request<'_>, clock: impl FnOnce() -> Micros) -> Option<Answer> {
        let denying = self.0.iter().find(|check| check.denies_always())?;
        let at = clock();
        denying.note(&NEVER, false, request.intent, at);
        let mut answer = answered(&denying.spec, &NEVER, at);
        if request.explain {
            let explained = self.0.iter().map(|check| Explained {
                decided: std::ptr::eq(check, denying),
                limits: match check.role {
                    Role::Denied => check.spec.rules.limits().iter().map(|limit| (*limit, NEVER.decision)).collect(),
                    _ => Vec::new(),
                },
                ..explain(check, None, at)
            });
            answer.explanation = explained.collect();
        }
        Some(answer)
    }

    /// The answer where no limiter that decides was asked.
    pub(super) fn unasked(&self, at: Micros) -> Answer {
        let others = || self.0.iter().filter(|check| check.is_told());
        let unlimited = others().find(|check| check.role == Role::Unlimited);
        unasked(unlimited.or(others().next()).map(|check| (&check.limiter.spec, check.role)), at)
    }

    /// The answer to a request, from what each limiter that was asked has said.
    pub(super) fn combine(&self, (at, answers): Answers, request: &Request<'_>) -> Answer {
        // A candidate's answer is among the others, and decides nothing.
        let said = || self.0.iter().filter(|check| check.is_asked()).zip(&answers);
        let of_enforced: Vec<(&Check<'_>, &PartAnswer)> = said().filter(|(check, _)| check.is_enforced()).collect();
        let deciding = deciding(of_enforced.iter().map(|(check, answer)| (*check, &answer.ruling)));
        let decided = deciding.map(|index| of_enforced[index]);
        let mut answer = match decided {
            Some((check, said)) => answered(&check.spec, &said.ruling, at),
            None => self.unasked(at),
        };
        for check in &self.0 {
            match check.role {
                Role::Unlimited => check.note(&UNLIMITED, answer.allowed, request.intent, at),
                Role::Denied => check.note(&NEVER, false, request.intent, at),
                Role::Enforced | Role::Disabled | Role::Replaced => {}
            }
        }
        if request.explain {
            let decided = decided.map(|(check, _)| std::ptr::from_ref(check));
            let mut said = answers.into_iter();
            let explained = self.0.iter().map(|check| {
                let said = if check.is_asked() { said.next().filter(|said| said.is_known) } else { None };
                Explained { decided: decided == Some(std::ptr::from_ref(check)), ..explain(check, said, at) }
            });
            answer.explanation = explained.collect();
        }
        answer
    }
}

/// Which of these decides a request: the denial with the longest wait, or when it passes what has the least remaining. Of alternatives those speak that
/// allow, or when none does the one with the shortest wait.
pub(super) fn deciding<'c, 'r: 'c>(said: impl Iterator<Item = (&'c Check<'r>, &'c Ruling)> + Clone) -> Option<usize> {
    let alternatives = said.clone().enumerate().filter(|(_, (check, _))| check.is_alternative());
    let wait = |ruling: &Ruling| match ruling.decision.verdict {
        Verdict::Allow => Micros::ZERO,
        Verdict::Deny { retry_after } => retry_after.unwrap_or(Micros::MAX),
    };
    let first = alternatives.min_by_key(|(_, (_, ruling))| (!ruling.is_allowed(), wait(ruling)));
    let allowed = first.is_some_and(|(_, (_, ruling))| ruling.is_allowed());
    let speaks = |(index, (check, ruling)): &(usize, (&Check<'_>, &Ruling))| {
        !check.is_alternative() || if allowed { ruling.is_allowed() } else { first.map(|(at, _)| at) == Some(*index) }
    };
    let speaking = said.enumerate().filter(speaks);
    let at = Ruling::deciding(speaking.clone().map(|(_, (_, ruling))| ruling))?;
    speaking.map(|(index, _)| index).nth(at)
}

/// A ruling as an answer; `spec` has the rules that it was made with.
pub(super) fn answered(spec: &Arc<LimiterSpec>, ruling: &Ruling, at: Micros) -> Answer {
    let decision = &ruling.decision;
    Answer {
        allowed: ruling.is_allowed(),
        reason: ruling.reason.into(),
        limiter: Some(Arc::clone(spec)),
        limit_index: ruling.limit_index.into(),
        limit: Some(decision.limit),
        remaining: Some(decision.remaining),
        retry_after: match decision.verdict {
            Verdict::Deny { retry_after } => retry_after,
            Verdict::Allow => None,
        },
        reset_after: Some(decision.reset_after),
        at,
        alternative: spec.alternative,
        degraded: None,
        explanation: Vec::new(),
    }
}

/// What a limiter says that lets nothing of a key pass.
pub(super) const NEVER: Ruling = ruling(Verdict::NEVER, 0, all_or_nothing::Reason::Blocked);
/// What a limiter says that does not limit a key.
pub(super) const UNLIMITED: Ruling = ruling(Verdict::Allow, u32::MAX, all_or_nothing::Reason::Ok);

const fn ruling(verdict: Verdict, limit: u32, reason: all_or_nothing::Reason) -> Ruling {
    let decision = Decision { verdict, limit, remaining: limit, reset_after: Micros::ZERO, rate: Rate::new(0.0) };
    Ruling { limit_index: 0, decision, reason }
}

/// No limiter was asked: none matched, or those that did are disabled or do not limit the key.
pub(super) fn unasked(limiter: Option<(&Arc<LimiterSpec>, Role)>, at: Micros) -> Answer {
    Answer {
        allowed: true,
        reason: if limiter.is_some_and(|(_, role)| role == Role::Disabled) { Reason::Disabled } else { Reason::Ok },
        limiter: limiter.map(|(spec, _)| Arc::clone(spec)),
        limit_index: 0,
        limit: None,
        remaining: None,
        retry_after: None,
        reset_after: None,
        at,
        alternative: false,
        degraded: None,
        explanation: Vec::new(),
    }
}

/// What a limiter has said; which one decided is the caller's to say.
fn explain(check: &Check<'_>, said: Option<PartAnswer>, at: Micros) -> Explained {
    let limits = check.spec.rules.limits().iter().copied();
    Explained {
        limiter: Arc::clone(&check.spec),
        key: check.key.to_vec(),
        enabled: check.role != Role::Disabled,
        candidate: check.is_candidate(),
        decided: false,
        replaced: check.role == Role::Replaced,
        unlimited: check.role == Role::Unlimited,
        matched: if let Basis::Match(index) = check.basis { Some(index) } else { None },
        overridden: if let Basis::Override(one) = &check.basis { Some(one.info.clone()) } else { None },
        blocked_until: said.as_ref().map(|said| said.blocked_until).filter(|until| *until > at),
        sketched: said.as_ref().is_some_and(|said| said.sketched),
        limits: limits.zip(said.into_iter().flat_map(|said| said.decisions)).collect(),
    }
}
