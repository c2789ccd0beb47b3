//! What a decision is when the store does not answer: local, allow or deny.
//!
//! Local is this process's own embedded limiter with its share of each limit. Its counts are never
//! taken over by the store, nor the store's by it: they age by themselves, so that nothing stale comes into a
//! later window, and a store that comes and goes within a window gives no second share.
//! Invariant: these functions never wait.

use super::{Gate, Limiter, Met, answered, put_together, unasked};
use crate::{Answer, AskError, LimiterSpec, OnFailure, Reason, Request, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::all_or_nothing::{self, Intent, Ruling};
use tidegate_core::{Decision, Limit, Micros, Rate, Rules, Verdict, check_key};
use tidegate_store::{Part, decide_all};

impl Gate {
    /// Decides without the store.
    pub(super) fn decide_degraded(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        let live = self.0.live.load();
        if let Target::Limiter { name, key } = request.target {
            check_key(key)?;
            let limiter = live.limiter(name)?;
            if !request.explain && limiter.is_heeded() {
                let (at, ruling) = self.rule_degraded(limiter, key, request.cost, request.intent, || self.now());
                return Ok(marked(answered(limiter, &ruling, at), self.on_failure(limiter)));
            }
        }
        let met = match request.target {
            Target::Limiter { name, key } => vec![Met::new(live.limiter(name)?, key.into())],
            Target::Attributes { domain, attributes } => live.met(domain, attributes)?,
        };
        Ok(self.decide_met_degraded(met, request))
    }

    fn decide_met_degraded(&self, mut met: Vec<Met<'_>>, request: &Request<'_>) -> Answer {
        let modes = |mode| move |met: &Met<'_>| met.heeded && self.on_failure(met.limiter) == mode;
        if !met.iter().any(|met| met.heeded) {
            return put_together(&met, (self.now(), Vec::new()), request);
        }
        self.note_degraded();
        if let Some(denying) = met.iter().find(|met| modes(OnFailure::Deny)(met)) {
            let (at, ruling) = (self.now(), denied(&denying.limiter.spec));
            denying.limiter.note(&denying.key, &ruling, false, request.intent, at);
            return marked(answered(denying.limiter, &ruling, at), OnFailure::Deny);
        }
        let first = met.first().map(|met| met.limiter);
        for met in met.iter().filter(|met| modes(OnFailure::Allow)(met)) {
            met.limiter.note(&met.key, &allowed(&met.limiter.spec), true, request.intent, self.now());
        }
        met.retain(modes(OnFailure::Local));
        if met.is_empty() {
            return marked(unasked(first, self.now()), OnFailure::Allow);
        }
        let parts: Vec<Part<'_>> = met.iter().map(Met::local_part).collect();
        let answers = decide_all(&parts, request.cost, request.intent, request.explain, || self.now());
        marked(put_together(&met, answers, request), OnFailure::Local)
    }

    /// One key's ruling without the store, and its time; a table reads the clock when it is its turn.
    #[inline]
    pub(super) fn rule_degraded(
        &self,
        limiter: &Limiter,
        key: &[u8],
        cost: u32,
        intent: Intent,
        clock: impl FnOnce() -> Micros,
    ) -> (Micros, Ruling) {
        self.note_degraded();
        let ruling = match self.on_failure(limiter) {
            OnFailure::Local => {
                let mut at = Micros::ZERO;
                let clock = || {
                    at = clock();
                    at
                };
                let ruling = limiter.table.decide(&limiter.local, key, cost, intent, clock);
                return (at, ruling);
            }
            OnFailure::Allow => allowed(&limiter.spec),
            OnFailure::Deny => denied(&limiter.spec),
        };
        let at = clock();
        limiter.note(key, &ruling, ruling.is_allowed(), intent, at);
        (at, ruling)
    }

    fn on_failure(&self, limiter: &Limiter) -> OnFailure {
        limiter.spec.on_failure.unwrap_or(self.0.on_failure)
    }

    fn note_degraded(&self) {
        self.0.degraded.fetch_add(1, Relaxed);
    }
}

impl Met<'_> {
    fn local_part(&self) -> Part<'_> {
        Part { table: &self.limiter.table, rules: &self.limiter.local, key: &self.key }
    }
}

/// An answer that says how it came about.
fn marked(mut answer: Answer, mode: OnFailure) -> Answer {
    answer.degraded = Some(mode);
    if mode != OnFailure::Local {
        answer.reason = Reason::Degraded;
        answer.remaining = None;
        answer.reset_after = None;
        answer.retry_after = None;
    }
    answer
}

fn allowed(spec: &Arc<LimiterSpec>) -> Ruling {
    unknown(spec, Verdict::Allow, all_or_nothing::Reason::Ok)
}

fn denied(spec: &Arc<LimiterSpec>) -> Ruling {
    unknown(spec, Verdict::Deny { retry_after: Some(Micros::from_secs(1)) }, all_or_nothing::Reason::Limited)
}

/// A ruling of which nothing is known but the verdict.
fn unknown(spec: &Arc<LimiterSpec>, verdict: Verdict, reason: all_or_nothing::Reason) -> Ruling {
    let limit = spec.rules.limits().first().map_or(0, Limit::burst);
    let decision = Decision { verdict, limit, remaining: 0, reset_after: Micros::ZERO, rate: Rate::new(0.0) };
    Ruling { limit_index: 0, decision, reason }
}

/// This process's part of the rules, rounded down. A limit that gets less than one passes nothing.
pub(super) fn share_of(rules: &Rules, share: f64) -> Rules {
    if share >= 1.0 {
        return rules.clone();
    }
    let limits: Vec<Limit> = rules.limits().iter().map(|limit| limit_share(limit, share)).collect();
    let made = match rules.algorithm() {
        tidegate_core::Algorithm::Buckets => Rules::buckets(*rules.grid(), &limits),
        other => Rules::new(other, &limits),
    };
    // What cannot be counted in whole ticks passes nothing rather than too much.
    made.unwrap_or_else(|_| share_of(rules, 0.0))
}

fn limit_share(limit: &Limit, share: f64) -> Limit {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
    let part = |count: u32| (f64::from(count) * share.max(0.0)).floor() as u32;
    let blocked = |made: Limit| limit.block().map_or(Ok(made), |block| made.with_block(block)).unwrap_or(made);
    // The largest count that a token bucket can hold exactly, near below.
    let counts = (0..=COARSER_MAX).map(|less| part(limit.count()).saturating_sub(less));
    let made = counts.filter_map(|count| {
        let made = Limit::new(count, limit.period()).ok()?;
        match (limit.has_burst(), part(limit.burst())) {
            (true, burst @ 1..) if count > 0 => made.with_burst(burst).ok(),
            (true, _) => Limit::new(0, limit.period()).ok(),
            (false, _) => Some(made),
        }
    });
    let fits = |made: &Limit| Rules::new(tidegate_core::Algorithm::TokenBucket, &[*made]).is_ok();
    let never = || Limit::new(0, limit.period()).expect("the limit has this period already");
    blocked(made.clone().find(fits).unwrap_or_else(never))
}

/// How much less than its share a limit may get so that it can be counted exactly.
const COARSER_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::share_of;
    use tidegate_core::{Algorithm, Limit, Rules};

    #[track_caller]
    fn check(limit: &str, share: f64, count: u32, burst: u32) {
        let limit: Limit = limit.parse().unwrap();
        let part = share_of(&Rules::new(Algorithm::TokenBucket, &[limit]).unwrap(), share);
        assert_eq!((part.limits()[0].count(), part.limits()[0].burst()), (count, burst), "{limit}");
    }

    #[test]
    fn shares_are_rounded_down_and_never_more_than_asked_for() {
        check("10 per minute", 1.0, 10, 10);
        check("10 per minute", 0.5, 5, 5);
        check("3 per minute", 0.5, 1, 1);
        check("1 per minute", 0.5, 0, 0);
        check("20 per minute burst 40 block 1h", 0.25, 5, 10);
        check("10 per minute", 0.0, 0, 0);
        // So fine that few counts near it can be held in whole ticks: the next that can, or none at all.
        check("4294400000 per 366d", 0.5, 2_147_200_000, 2_147_200_000);
        let fine: Limit = "4294400000 per 366d".parse().unwrap();
        let rules = Rules::new(Algorithm::TokenBucket, &[fine]).unwrap();
        for part in 1..100 {
            let share = f64::from(part) / 100.0;
            let count = share_of(&rules, share).limits()[0].count();
            assert!(f64::from(count) <= 4_294_400_000.0 * share, "{share}: {count}");
        }
    }
}
