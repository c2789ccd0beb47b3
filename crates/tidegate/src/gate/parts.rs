//! Limiters of which this process holds a part (promise A8).
//!
//! The part of each window is in the rules themselves: whoever decides looks at the window that it charges, so that no
//! decision can take from one window by another's part. Here are only the rules in force, which change with what is
//! promised, and survive a reload.

use super::{Gate, Limiter};
use crate::{LimiterSpec, Micros, Replicas};
use arc_swap::{ArcSwap, Guard};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::Rules;
use tidegate_core::replicas::Schedule;

/// The rules by which a limiter decides now.
pub(super) enum InForce<'a> {
    Whole(&'a Rules),
    Part(Guard<Arc<Rules>>),
}

impl Deref for InForce<'_> {
    type Target = Rules;

    #[inline]
    fn deref(&self) -> &Rules {
        match self {
            InForce::Whole(rules) => rules,
            InForce::Part(rules) => rules,
        }
    }
}

/// What is promised of each limiter that is held in parts, by name.
#[derive(Default, Debug)]
pub(super) struct Promised(Mutex<HashMap<String, Promise>>);

#[derive(Debug)]
struct Promise {
    schedule: Schedule,
    is_numbered: bool,
    period: Micros,
    rules: Arc<ArcSwap<Rules>>,
}

impl Promised {
    /// The rules of a limiter that is held in parts; `None`: it is not.
    pub(super) fn of(&self, spec: &LimiterSpec) -> Option<Arc<ArcSwap<Rules>>> {
        let Replicas::Share(numbered) = spec.replicas else { return None };
        let period = spec.rules.limits().first()?.period();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&spec.name).filter(|known| known.period == period && !known.is_numbered);
        let schedule = match (numbered, known) {
            (Some((rank, of)), _) => Schedule::fixed(rank, of),
            (None, Some(known)) => known.schedule.clone(),
            (None, None) => Schedule::NONE,
        };
        // The policy has made sure that it can be held in parts.
        let part = Arc::new(spec.rules.in_parts(&schedule)?);
        let rules = match all.get(&spec.name) {
            Some(known) => {
                known.rules.store(part);
                Arc::clone(&known.rules)
            }
            None => Arc::new(ArcSwap::new(part)),
        };
        all.insert(
            spec.name.clone(),
            Promise { schedule, is_numbered: numbered.is_some(), period, rules: Arc::clone(&rules) },
        );
        Some(rules)
    }

    fn promise(&self, spec: &LimiterSpec, schedule: Schedule) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(known), Some(part)) = (all.get_mut(&spec.name), spec.rules.in_parts(&schedule)) {
            known.rules.store(Arc::new(part));
            known.schedule = schedule;
        }
    }
}

impl Limiter {
    /// What it decides by now.
    #[inline]
    pub(super) fn rules(&self) -> InForce<'_> {
        match &self.part {
            None => InForce::Whole(&self.spec.rules),
            Some(part) => InForce::Part(part.load()),
        }
    }

    /// Does this process hold only a part of it? Then no store is asked.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.part.is_some()
    }
}

impl Gate {
    /// Does this process hold only a part of the limiter?
    pub(crate) fn is_shared(&self, limiter: &str) -> bool {
        self.0.live.load().limiter(limiter).is_ok_and(Limiter::is_shared)
    }

    /// Which limiters wait to be told their part, with the length of their windows: those of `replicas = "share"` that
    /// are not numbered. See [`Gate::promise`].
    #[must_use]
    pub fn unnumbered(&self) -> Vec<(String, Micros)> {
        let live = self.0.live.load();
        let shared = live.limiters.iter().filter(|limiter| limiter.spec.replicas == Replicas::Share(None));
        let named =
            |limiter: &Limiter| Some((limiter.spec.name.clone(), limiter.spec.rules.limits().first()?.period()));
        shared.filter_map(named).collect()
    }

    /// Tells a limiter which parts of its windows this process holds. What is not promised is denied.
    pub fn promise(&self, limiter: &str, schedule: Schedule) {
        if let Ok(limiter) = self.0.live.load().limiter(limiter) {
            self.0.promised.promise(&limiter.spec, schedule);
        }
    }

    /// What this process may take of a limiter in the current window; `None`: all of it.
    #[must_use]
    pub fn part(&self, limiter: &str) -> Option<u32> {
        let (live, now) = (self.0.live.load(), self.now());
        let limiter = live.limiter(limiter).ok().filter(|limiter| limiter.is_shared())?;
        limiter.rules().limits().first().map(|limit| limit.part_at(now))
    }
}
