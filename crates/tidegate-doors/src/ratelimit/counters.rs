//! What Envoy's rate limit service counts beside the engine, at gRPC and at `/json`.

use crate::metrics::{Kind, Page};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tidegate::{Answer, Gate};

/// One set of counters for all doors that have the service.
#[derive(Debug, Default)]
pub struct RateLimitCounters {
    unmatched: AtomicU64,
    shadowed: AtomicU64,
    /// By limiter. The lock is taken for hits that are near their limit, and held for one addition.
    near: Mutex<BTreeMap<String, u64>>,
}

impl RateLimitCounters {
    /// Notes each descriptor's answer, and whether it was a hit that was charged.
    pub(super) fn note<'a>(&self, answers: impl Iterator<Item = (bool, &'a Answer)>) {
        for (is_charged, answer) in answers {
            match &answer.limiter {
                None if answer.allowed => _ = self.unmatched.fetch_add(1, Relaxed),
                Some(spec) if is_charged && is_near(answer) => self.note_near(&spec.name),
                _ => {}
            }
        }
    }

    fn note_near(&self, limiter: &str) {
        let mut near = self.near.lock().unwrap_or_else(PoisonError::into_inner);
        match near.get_mut(limiter) {
            Some(count) => *count += 1,
            None => _ = near.insert(limiter.to_owned(), 1),
        }
    }

    pub(super) fn note_shadowed(&self) {
        self.shadowed.fetch_add(1, Relaxed);
    }

    /// Fills a page. Limiters that the gate has no more are forgotten.
    pub(crate) fn fill(&self, gate: &Gate, page: &mut Page) {
        let limiters = gate.limiters();
        let help = "Hits by Envoy's rate limit service that left less than a fifth of the limit.";
        let mut family = page.family("tidegate_near_limit_total", Kind::Counter, help);
        let mut near = self.near.lock().unwrap_or_else(PoisonError::into_inner);
        near.retain(|name, _| limiters.iter().any(|limiter| limiter.spec.name == *name));
        near.iter().for_each(|(name, count)| family.sample(&[("limiter", name)], *count));
        drop(near);
        let counters = [
            (
                "tidegate_grpc_unmatched_descriptors_total",
                "Descriptors of Envoy's rate limit service that no limiter is for.",
                &self.unmatched,
            ),
            ("tidegate_grpc_shadowed_total", "Denials that [grpc] shadow turned into OK.", &self.shadowed),
        ];
        counters
            .into_iter()
            .for_each(|(name, help, count)| page.single(name, Kind::Counter, help, count.load(Relaxed)));
    }
}

fn is_near(answer: &Answer) -> bool {
    let (Some(limit), Some(left)) = (answer.limit, answer.remaining) else { return false };
    answer.allowed && u64::from(left) * 5 < u64::from(limit)
}
