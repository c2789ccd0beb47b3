//! The model of a key: its limits' opinions combined, its block, and the answer that a caller gets.

use crate::naive::{Naive, Opinion, micros};
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent, Reason, Ruling};
use tidegate_core::{Algorithm, Limit, Micros, Rules, Verdict};

/// An answer, in plain numbers.
#[derive(PartialEq, Debug)]
pub(crate) struct Reply {
    pub(crate) reason: &'static str,
    pub(crate) limit_index: usize,
    pub(crate) limit: i128,
    pub(crate) remaining: i128,
    pub(crate) reset_after: i128,
    /// `None`: allowed, or never.
    pub(crate) retry_after: Option<i128>,
    /// The rate as the UDP protocol prints it.
    pub(crate) rate: String,
}

impl Reply {
    pub(crate) fn of(ruling: &Ruling) -> Reply {
        Reply {
            reason: match ruling.reason {
                Reason::Ok => "ok",
                Reason::Limited => "limited",
                Reason::Blocked => "blocked",
                Reason::CostAboveLimit => "never",
            },
            limit_index: ruling.limit_index.into(),
            limit: ruling.decision.limit.into(),
            remaining: ruling.decision.remaining.into(),
            reset_after: ruling.decision.reset_after.get().into(),
            retry_after: match ruling.decision.verdict {
                Verdict::Deny { retry_after } => retry_after.map(|wait| wait.get().into()),
                Verdict::Allow => None,
            },
            rate: format!("{:.1}", ruling.decision.rate.get()),
        }
    }

    /// Number for number, but for an average's wait: where floats cross the limit, a microsecond or
    /// two lie between one rounding and the next.
    pub(crate) fn agrees(&self, other: &Reply, algorithm: Algorithm) -> bool {
        let near = |a: i128, b: i128| (a - b).abs() <= 3;
        let waits = match (self.retry_after, other.retry_after, algorithm) {
            (Some(a), Some(b), Algorithm::StrictAverage | Algorithm::LeakyAverage) => near(a, b),
            (a, b, _) => a == b,
        };
        let rest = |reply: &Reply| {
            (reply.reason, reply.limit_index, reply.limit, reply.remaining, reply.reset_after, reply.rate.clone())
        };
        waits && rest(self) == rest(other)
    }
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Key {
    pub(crate) blocked_until: i128,
    pub(crate) limits: Vec<Naive>,
}

impl Key {
    pub(crate) fn request(&mut self, rules: &Rules, now: i128, cost: i128, intent: Intent) -> Reply {
        let (algorithm, limits) = (rules.algorithm(), rules.limits());
        self.limits.resize_with(limits.len(), Naive::default);
        let saved = self.limits.clone();
        let opinions = |limits_now: &mut Vec<Naive>, cost: i128| -> Vec<Opinion> {
            limits_now.iter_mut().zip(limits).map(|(naive, limit)| naive.opinion(rules, limit, now, cost)).collect()
        };
        let mut before = opinions(&mut self.limits, cost);
        let allowed = before.iter().all(|opinion| opinion.wait.is_ok());
        let blocked = self.blocked_until > now;
        if intent == Intent::Hit && cost > 0 && allowed && !blocked {
            for (naive, limit) in self.limits.iter_mut().zip(limits) {
                naive.admit(rules, limit, now, cost);
            }
            let mut after = opinions(&mut self.limits, 0);
            // The rate that is shown is the request's own, not the next one's.
            after.iter_mut().zip(&self.limits).for_each(|(after, naive)| after.rate = naive.average.map(|(_, r)| r));
            return reply("ok", &after);
        }
        if intent == Intent::Hit && cost > 0 && !blocked && algorithm == Algorithm::StrictAverage {
            for ((naive, limit), opinion) in self.limits.iter_mut().zip(limits).zip(&mut before) {
                let counts = opinion.wait.is_err() && cost <= i128::from(limit.count()).max(1);
                if counts {
                    naive.admit(rules, limit, now, cost);
                    let after = naive.opinion(rules, limit, now, 0);
                    let rate = naive.average.map(|(_, rate)| rate);
                    *opinion = Opinion { wait: opinion.wait, rate, ..after };
                }
            }
        }
        if intent == Intent::Peek {
            self.limits = saved;
        }
        let mut reply = match before.iter().any(|opinion| opinion.wait == Err(None)) {
            true => reply("never", &before),
            false if allowed => reply("ok", &before),
            false => reply("limited", &before),
        };
        if reply.reason == "never" {
            return reply;
        }
        let mut hide = |until: i128, reason: &'static str| {
            reply.reason = reason;
            reply.remaining = 0;
            reply.retry_after = Some(reply.retry_after.unwrap_or(0).max(until - now));
            reply.reset_after = reply.reset_after.max(until - now);
        };
        if blocked {
            hide(self.blocked_until, "blocked");
        } else if !allowed && intent == Intent::Hit && cost > 0 {
            let denying = before.iter().zip(limits).filter(|(opinion, _)| opinion.wait.is_err());
            if let Some(block) = denying.filter_map(|(_, limit)| block_of(algorithm, limit)).max() {
                self.blocked_until = now + i128::from(block.get());
                hide(self.blocked_until, "limited");
            }
        }
        reply
    }
}

impl Key {
    pub(crate) fn increment(&mut self, rules: &Rules, now: i128, at: i128, count: u32) -> bool {
        self.limits.resize_with(rules.limits().len(), Naive::default);
        self.limits.iter_mut().for_each(|naive| naive.settle_blocks(rules, now));
        let mut all = self.limits.iter_mut();
        count > 0 && all.all(|naive| naive.count_at(rules, now, at, i128::from(count)))
    }

    pub(crate) fn analyze(&mut self, rules: &Rules, now: i128, if_blocked: IfBlocked) -> Analysis {
        let blocked = self.blocked_until > now;
        if blocked && if_blocked == IfBlocked::Tell {
            return Analysis::Blocked { until: micros(self.blocked_until) };
        }
        self.limits.resize_with(rules.limits().len(), Naive::default);
        self.limits.iter_mut().for_each(|naive| naive.settle_blocks(rules, now));
        for (index, (naive, limit)) in self.limits.iter().zip(rules.limits()).enumerate() {
            let mut sum = 0;
            for (_, count) in naive.counted(rules, limit, now).into_iter().rev() {
                sum += count;
                if sum >= i128::from(limit.count()) {
                    if !blocked {
                        self.blocked_until = now + i128::from(limit.block().unwrap_or(limit.period()).get());
                    }
                    return Analysis::Limited {
                        limit_index: u8::try_from(index).unwrap(),
                        sum: u64::try_from(sum).unwrap(),
                        blocked_until: micros(self.blocked_until),
                    };
                }
            }
        }
        if blocked { Analysis::Blocked { until: micros(self.blocked_until) } } else { Analysis::Ok }
    }
}

pub(crate) fn block_of(algorithm: Algorithm, limit: &Limit) -> Option<Micros> {
    let default = (algorithm == Algorithm::Buckets).then_some(limit.period());
    limit.block().or(default)
}

/// The longest wait, or the least remaining; the first of equals.
pub(crate) fn reply(reason: &'static str, opinions: &[Opinion]) -> Reply {
    let weight = |opinion: &Opinion| match opinion.wait {
        Ok(()) => (0, -opinion.remaining),
        Err(Some(wait)) => (1, wait),
        Err(None) => (2, 0),
    };
    let best = (0..opinions.len()).rev().max_by_key(|i| weight(&opinions[*i])).unwrap();
    let opinion = &opinions[best];
    Reply {
        reason,
        limit_index: best,
        limit: opinion.capacity,
        remaining: opinion.remaining,
        reset_after: opinion.reset_after,
        retry_after: opinion.wait.err().flatten(),
        rate: format!("{:.1}", opinion.rate.unwrap_or((opinion.capacity - opinion.remaining) as f64)),
    }
}
