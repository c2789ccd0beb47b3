//! Limiters of a gate that replicas share: each keeps its membership, and is told what it holds.

use super::Membership;
use crate::{Gate, Micros, Seen, StoreUrl};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long taking leave may take.
const FAREWELL: Duration = Duration::from_secs(1);

impl Gate {
    /// Keeps this process's part of a limiter with `replicas = "share"`, through a store, until `stopped`, or until the policy
    /// has no such limiter with windows of this length any more. `tell` hears of every look at the register.
    pub async fn keep_part(
        &self,
        (limiter, period): (&str, Micros),
        store: StoreUrl,
        stopped: impl Future<Output = ()>,
        mut tell: impl FnMut(&Seen),
    ) {
        let gate = self.clone();
        let name = format!("limiter:{limiter}");
        let mut membership = Membership::open(store, &name, period, move || gate.now()).await;
        let mut stopped = std::pin::pin!(stopped);
        loop {
            membership.renew().await;
            tell(membership.seen());
            if !self.unnumbered().iter().any(|(name, windows)| name == limiter && *windows == period) {
                break;
            }
            self.promise(limiter, membership.schedule().clone());
            tokio::select! {
                () = sleep(membership.beat()) => {}
                () = &mut stopped => break,
            }
        }
        let _ = timeout(FAREWELL, membership.leave()).await;
    }
}
