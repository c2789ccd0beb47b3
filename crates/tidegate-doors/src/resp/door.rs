//! What all connections of the door share.

use super::counters::Counters;
use super::server::RespSettings;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::{Algorithm, Gate, Limiter, THROTTLE_LIMITER};

/// The door on an engine, whose policy can be replaced while it is asked.
pub struct Door {
    pub(super) gate: Gate,
    pub(super) settings: RespSettings,
    live: ArcSwap<Live>,
    counters: Arc<Counters>,
    ids: AtomicU64,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// The limiters in force, by name.
#[derive(Debug)]
pub(super) struct Live {
    limiters: Vec<Limiter>,
    by_name: HashMap<Vec<u8>, usize>,
    /// Of `CL.THROTTLE`, if the policy has it and the store can count so.
    pub(super) throttle: Option<Limiter>,
}

impl Door {
    /// A door on this engine.
    #[must_use]
    pub fn new(gate: Gate, settings: RespSettings) -> Door {
        let gate = gate.at(tidegate::Door::Resp);
        let counters = Arc::new(Counters::new(settings.connections, settings.buffer_bytes));
        Door { live: ArcSwap::from_pointee(Live::new(&gate)), gate, settings, counters, ids: AtomicU64::new(0) }
    }

    /// The engine has another policy.
    pub fn reload(&self) {
        self.live.store(Arc::new(Live::new(&self.gate)));
    }

    /// What the metrics tell.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The limiters in force: those that are known, or as an error others.
    pub(super) fn live(&self, known: Option<Arc<Live>>) -> Result<Arc<Live>, Arc<Live>> {
        let live = self.live.load();
        known.filter(|known| Arc::ptr_eq(known, &live)).ok_or_else(|| Arc::clone(&live))
    }

    /// A number for a connection.
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed) + 1
    }
}

impl Live {
    fn new(gate: &Gate) -> Live {
        let all = gate.limiters();
        let limiters: Vec<Limiter> = all.iter().filter_map(|info| gate.limiter(&info.spec.name).ok()).collect();
        let names = limiters.iter().map(|limiter| limiter.spec().name.clone().into_bytes());
        let by_name = names.zip(0..).collect();
        let counts = gate.store().capabilities().counts(Algorithm::TokenBucket);
        let throttle = gate.limiter(THROTTLE_LIMITER).ok().filter(|_| counts);
        Live { limiters, by_name, throttle }
    }

    /// The number of the limiter of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.limiters.iter().map(|limiter| limiter.spec().name.as_str())
    }

    pub(super) fn limiter(&self, number: usize) -> &Limiter {
        &self.limiters[number]
    }
}
