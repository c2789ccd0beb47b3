//! The flags of disabled limiters and the limits of single keys, where processes share a store: looked up twice a second, and not
//! for every decision.
//! Keys that the store refused are looked at in the same turn, see `error_stats.rs`.

use super::{Gate, Inner};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidegate_core::all_or_nothing::Intent;
use tidegate_store::{Asked, StoreError, When};
use tokio::time::{Instant, sleep};

/// How often the flags are looked up: a change reaches every process within a second.
const FLAGS_EVERY: Duration = Duration::from_millis(450);
/// How long looking them up may take.
const FLAGS_WITHIN: Duration = Duration::from_secs(1);

impl Gate {
    /// Looks the flags up now, and from now on for as long as there is a gate.
    pub(super) async fn follow_flags(&self) {
        // A store that is away is reported by `store_health`, and asked again.
        let _ = self.0.look_up_flags().await;
        tokio::spawn(follow(Arc::downgrade(&self.0)));
    }
}

impl Inner {
    async fn look_up_flags(&self) -> Result<(), StoreError> {
        let live = self.live.load_full();
        let limiters: Vec<_> = live.limiters.iter().map(|limiter| (limiter.spec.scope(), limiter.layout())).collect();
        let when = When { now: None, by: Instant::now() + FLAGS_WITHIN };
        // A server that takes no connection is counted here: no other request goes to it.
        let disabled = self.store.disabled(&limiters, when).await.inspect_err(|error| self.errors.count(error))?;
        for (limiter, disabled) in live.limiters.iter().zip(disabled) {
            limiter.table.set_disabled(disabled);
        }
        if self.store.capabilities().overrides {
            let (limiters, known): (Vec<_>, Vec<_>) = live.overridable().into_iter().unzip();
            let when = When { now: self.clock.manual_now(), ..when };
            let found = self.store.overrides(&known, when).await.inspect_err(|error| self.errors.count(error))?;
            for (limiter, found) in limiters.into_iter().zip(found) {
                found.into_iter().for_each(|found| limiter.take_overrides(found, self.failure.local_share));
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Looks whether the store still refuses the keys that it refused, all of them within one deadline.
    async fn look_at_refused(&self) {
        let refused = self.errors.refused_keys(Instant::now());
        let (live, by) = (self.live.load_full(), Instant::now() + FLAGS_WITHIN);
        let asked = Asked { now: self.clock.manual_now(), cost: 1, intent: Intent::Peek, explain: false, by };
        for refused in refused {
            let limiter = live.limiters.iter().find(|limiter| limiter.spec.scope() == refused.scope);
            let Some(limiter) = limiter.filter(|_| Instant::now() < by) else { continue };
            let spec = limiter.in_force();
            let outcome = self.store.decide(&[limiter.question(&spec, &refused.key)], &asked).await;
            self.errors.note_look(&refused, &outcome, Instant::now());
        }
    }
}

/// A store that is away keeps the flags as they were.
async fn follow(gate: Weak<Inner>) {
    loop {
        sleep(FLAGS_EVERY).await;
        let Some(gate) = gate.upgrade() else { return };
        let _ = gate.look_up_flags().await;
        let _ = gate.look_up_shared_blocks().await;
        gate.look_at_refused().await;
    }
}
