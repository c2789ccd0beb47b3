//! Limiters of which this process holds a share (promise A8).
//!
//! The share of each window is in the rules themselves: a decision looks at the window that it charges, so that no
//! decision can take from one window by another's share. Here are only the rules in force, which change with what is
//! assigned to this process, and survive a reload.

use super::standing::Variants;
use super::{Gate, Limiter};
use crate::{LimiterSpec, Replicas, Windows};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::replicas::Schedule;

/// What this process was assigned of each limiter that replicas share, by name.
#[derive(Default, Debug)]
pub(super) struct Shares(Mutex<HashMap<String, Share>>);

#[derive(Debug)]
struct Share {
    schedule: Schedule,
    is_numbered: bool,
    windows: Windows,
    in_force: Arc<ArcSwap<Variants>>,
}

impl Shares {
    /// The limiter with this process's share of its rules; `None`: replicas do not share it.
    pub(super) fn of(&self, spec: &Arc<LimiterSpec>) -> Option<Arc<ArcSwap<Variants>>> {
        let Replicas::Share(numbered) = spec.replicas else { return None };
        let windows = spec.rules.limits().first()?.windows();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&spec.name).filter(|known| known.windows == windows && !known.is_numbered);
        let schedule = match (numbered, known) {
            (Some((rank, of)), _) => Schedule::fixed(rank, of),
            (None, Some(known)) => known.schedule.clone(),
            (None, None) => Schedule::NONE,
        };
        let shared = Arc::new(with_share(spec, &schedule)?);
        let in_force = match all.get(&spec.name) {
            Some(known) => {
                known.in_force.store(shared);
                Arc::clone(&known.in_force)
            }
            None => Arc::new(ArcSwap::new(shared)),
        };
        let share = Share { schedule, is_numbered: numbered.is_some(), windows, in_force: Arc::clone(&in_force) };
        all.insert(spec.name.clone(), share);
        Some(in_force)
    }

    fn assign(&self, spec: &Arc<LimiterSpec>, schedule: Schedule) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(known), Some(shared)) = (all.get_mut(&spec.name), with_share(spec, &schedule)) {
            known.in_force.store(Arc::new(shared));
            known.schedule = schedule;
        }
    }
}

/// The policy has made sure that the limiter can be shared.
fn with_share(spec: &Arc<LimiterSpec>, schedule: &Schedule) -> Option<Variants> {
    let variants = Variants::of(spec, |rules| rules.shared(schedule))?;
    Some(Variants { schedule: Some(schedule.clone()), ..variants })
}

impl Limiter {
    /// Does this process hold only a share of it? Then no store is asked.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.share.is_some()
    }
}

impl Gate {
    /// Limiters that wait to be assigned their share, with their windows: those of `replicas = "share"` that
    /// are not numbered. See [`Gate::assign`].
    #[must_use]
    pub fn unassigned(&self) -> Vec<(String, Windows)> {
        let live = self.0.live.load();
        let shared = live.limiters.iter().filter(|limiter| limiter.spec.replicas == Replicas::Share(None));
        let named =
            |limiter: &Limiter| Some((limiter.spec.name.clone(), limiter.spec.rules.limits().first()?.windows()));
        shared.filter_map(named).collect()
    }

    /// Assigns this process its share of a limiter's windows. Windows that are not assigned admit nothing.
    pub fn assign(&self, limiter: &str, schedule: Schedule) {
        if let Ok(limiter) = self.0.live.load().limiter(limiter) {
            self.0.shares.assign(&limiter.spec, schedule);
        }
    }

    /// What this process was assigned of a limiter's windows; `None`: replicas do not share it.
    #[must_use]
    pub fn schedule(&self, limiter: &str) -> Option<Schedule> {
        let all = self.0.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(limiter).map(|share| share.schedule.clone())
    }

    /// What this process may admit of a limiter in the current window; `None`: all of it.
    #[must_use]
    pub fn share_now(&self, limiter: &str) -> Option<u32> {
        let (live, now) = (self.0.live.load(), self.now());
        let limiter = live.limiter(limiter).ok().filter(|limiter| limiter.is_shared())?;
        limiter.in_force().rules.limits().first().map(|limit| limit.share_at(now))
    }
}
