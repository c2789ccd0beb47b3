//! The plan of a request: the limiters that it matches, each with its key and the rules in force; and the answer that is
//! combined from what they say.
//!
//! The same for every store, and for none. Nothing here decides. Invariant: an answer names the rules that it was made
//! with, so that headers and explanations cannot print others.

use super::limiter::{InForce, Limiter, Live};
use crate::{Answer, AskError, Explained, LimiterSpec, Reason, Request, Target};
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::Ruling;
use tidegate_core::{Micros, Verdict, check_key};
use tidegate_store::{Answers, Part, PartAnswer, Question};

/// Everything that one request is checked against, in definition order.
pub(super) struct Plan<'a>(pub(super) Vec<Check<'a>>);

/// One limiter that a request matches.
pub(super) struct Check<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) key: Cow<'a, [u8]>,
    pub(super) role: Role,
    pub(super) cost: u32,
    /// The limiter with the rules in force.
    spec: InForce<'a>,
}

/// What a limiter has to say in a request. Looked at once: a limiter may be switched while the request is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It decides, and is charged.
    Enforced,
    /// It is disabled: named in the answer, and not asked.
    Disabled,
}

impl<'a> Check<'a> {
    fn new(limiter: &'a Limiter, key: Cow<'a, [u8]>, cost: u32) -> Result<Check<'a>, AskError> {
        check_key(&key)?;
        let role = if limiter.is_enforced() { Role::Enforced } else { Role::Disabled };
        Ok(Check { limiter, key, role, cost, spec: limiter.in_force() })
    }

    pub(super) fn is_enforced(&self) -> bool {
        self.role == Role::Enforced
    }

    /// What this process's own table is asked, by the rules in force.
    pub(super) fn part(&self) -> Part<'_> {
        Part { table: &self.limiter.table, rules: &self.spec.rules, key: &self.key, cost: self.cost }
    }

    /// The same, by this process's part of the rules: the store does not answer.
    pub(super) fn fallback_part(&self) -> Part<'_> {
        Part { rules: &self.limiter.fallback.rules, ..self.part() }
    }

    /// Decides by this process's part of the rules from here on.
    pub(super) fn fall_back(self) -> Check<'a> {
        Check { spec: InForce::Policy(&self.limiter.fallback), ..self }
    }

    pub(super) fn question(&self) -> Question<'_> {
        Question { cost: self.cost, ..self.limiter.question(&self.spec, &self.key) }
    }
}

impl<'a> Plan<'a> {
    /// What this request is checked against.
    ///
    /// # Errors
    /// An unknown limiter, or a key that is empty or too long.
    pub(super) fn of(live: &'a Live, request: &Request<'a>) -> Result<Plan<'a>, AskError> {
        match request.target {
            Target::Limiter { name, key } => {
                let limiter = live.limiter_for(name, key)?;
                limiter.check_has_limit()?;
                Ok(Plan(vec![Check::new(limiter, limiter.spec.key_by_name(key), request.cost)?]))
            }
            Target::Attributes { domain, attributes } => {
                let matching = live.of_domain(domain).filter_map(|limiter| {
                    Some(Check::new(limiter, Cow::Owned(limiter.spec.key_of(attributes)?), request.cost))
                });
                matching.collect::<Result<_, _>>().map(Plan)
            }
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

    /// The answer to a request, from what each limiter that was asked has said.
    pub(super) fn combine(&self, (at, answers): Answers, request: &Request<'_>) -> Answer {
        let deciding = Ruling::deciding(answers.iter().map(|answer| &answer.ruling));
        let decided = deciding.and_then(|index| Some((self.enforced().nth(index)?, &answers[index].ruling)));
        let mut answer = match decided {
            Some((check, ruling)) => answered(&check.spec, ruling, at),
            None => unasked(self.0.first().map(|check| &check.limiter.spec), at),
        };
        if request.explain {
            let mut said = answers.into_iter().enumerate();
            let explained = self.0.iter().map(|check| {
                let said = if check.is_enforced() { said.next() } else { None };
                explain(check, said, deciding, at)
            });
            answer.explanation = explained.collect();
        }
        answer
    }
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
        degraded: None,
        explanation: Vec::new(),
    }
}

/// No limiter was asked: none matched, or those that did are disabled.
pub(super) fn unasked(disabled: Option<&Arc<LimiterSpec>>, at: Micros) -> Answer {
    Answer {
        allowed: true,
        reason: if disabled.is_some() { Reason::Disabled } else { Reason::Ok },
        limiter: disabled.map(Arc::clone),
        limit_index: 0,
        limit: None,
        remaining: None,
        retry_after: None,
        reset_after: None,
        at,
        degraded: None,
        explanation: Vec::new(),
    }
}

fn explain(check: &Check<'_>, said: Option<(usize, PartAnswer)>, deciding: Option<usize>, at: Micros) -> Explained {
    let decided = said.as_ref().is_some_and(|(index, _)| Some(*index) == deciding);
    let said = said.map(|(_, answer)| answer);
    let limits = check.spec.rules.limits().iter().copied();
    Explained {
        limiter: Arc::clone(&check.spec),
        key: check.key.to_vec(),
        enabled: said.is_some(),
        decided,
        blocked_until: said.as_ref().map(|said| said.blocked_until).filter(|until| *until > at),
        sketched: said.as_ref().is_some_and(|said| said.sketched),
        limits: limits.zip(said.into_iter().flat_map(|said| said.decisions)).collect(),
    }
}
