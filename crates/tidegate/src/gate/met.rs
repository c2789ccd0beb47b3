//! The limiters that a request meets, and the answer that is put together from what they say.
//!
//! The same for every store, and for none. Nothing here decides.

use super::Limiter;
use super::parts::InForce;
use crate::{Answer, Explained, Reason, Request};
use std::sync::Arc;
use tidegate_core::all_or_nothing::Ruling;
use tidegate_core::{Micros, Verdict};
use tidegate_store::{Part, PartAnswer};

/// A limiter that a request meets.
pub(super) struct Met<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) key: Vec<u8>,
    /// Looked at once: it may be switched while the request is decided.
    pub(super) heeded: bool,
    rules: InForce<'a>,
}

impl<'a> Met<'a> {
    pub(super) fn new(limiter: &'a Limiter, key: Vec<u8>) -> Met<'a> {
        Met { limiter, key, heeded: limiter.is_heeded(), rules: limiter.rules() }
    }

    pub(super) fn part(&self) -> Part<'_> {
        Part { table: &self.limiter.table, rules: &self.rules, key: &self.key }
    }
}

/// The answer to a request, from what each limiter that was asked has said.
pub(super) fn put_together(met: &[Met<'_>], (at, answers): (Micros, Vec<PartAnswer>), request: &Request<'_>) -> Answer {
    let asked = |index| met.iter().filter(|met| met.heeded).nth(index);
    let deciding = Ruling::deciding(answers.iter().map(|answer| &answer.ruling));
    let mut answer = match deciding.and_then(|index| Some((asked(index)?.limiter, &answers[index].ruling))) {
        Some((limiter, ruling)) => answered(limiter, ruling, at),
        None => unasked(met.first().map(|met| met.limiter), at),
    };
    if request.explain {
        let mut told = answers.into_iter().enumerate();
        let explained = met.iter().map(|met| {
            let said = if met.heeded { told.next() } else { None };
            explain(met.limiter, &met.key, said, deciding, at)
        });
        answer.explanation = explained.collect();
    }
    answer
}

pub(super) fn answered(limiter: &Limiter, ruling: &Ruling, at: Micros) -> Answer {
    let decision = &ruling.decision;
    Answer {
        allowed: ruling.is_allowed(),
        reason: ruling.reason.into(),
        limiter: Some(Arc::clone(&limiter.spec)),
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

/// No limiter was asked: none applied, or those that did are disabled.
pub(super) fn unasked(disabled: Option<&Limiter>, at: Micros) -> Answer {
    Answer {
        allowed: true,
        reason: if disabled.is_some() { Reason::Disabled } else { Reason::Ok },
        limiter: disabled.map(|limiter| Arc::clone(&limiter.spec)),
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

fn explain(
    limiter: &Limiter,
    key: &[u8],
    said: Option<(usize, PartAnswer)>,
    deciding: Option<usize>,
    at: Micros,
) -> Explained {
    let decided = said.as_ref().is_some_and(|(index, _)| Some(*index) == deciding);
    let said = said.map(|(_, answer)| answer);
    let limits = limiter.spec.rules.limits().iter().copied();
    Explained {
        limiter: Arc::clone(&limiter.spec),
        key: key.to_vec(),
        enabled: said.is_some(),
        decided,
        blocked_until: said.as_ref().map(|said| said.blocked_until).filter(|until| *until > at),
        sketched: said.as_ref().is_some_and(|said| said.sketched),
        limits: limits.zip(said.into_iter().flat_map(|said| said.decisions)).collect(),
    }
}
