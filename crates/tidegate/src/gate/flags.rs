//! The flags of disabled limiters, where processes share a store: looked up twice a second, and not for every decision.

use super::{Gate, Inner};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidegate_store::{StoreError, When};
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
        Ok(())
    }
}

/// A store that is away keeps the flags as they were.
async fn follow(gate: Weak<Inner>) {
    loop {
        sleep(FLAGS_EVERY).await;
        let Some(gate) = gate.upgrade() else { return };
        let _ = gate.look_up_flags().await;
    }
}
