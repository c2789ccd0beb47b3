//! Limiters of a gate that replicas share: each renews its membership, and is assigned its share.

use super::Membership;
use crate::{Gate, PROXY_LIMITER, Seen, Windows};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long taking leave may take.
const FAREWELL: Duration = Duration::from_secs(1);

impl Gate {
    /// Renews this process's share of a limiter with `replicas = "share"`, through the gate's store, until `stopped`, or until
    /// the policy has no such limiter with these windows any more. `tell` hears of every look at the register.
    pub async fn renew_share(
        &self,
        (limiter, windows): (&str, Windows),
        stopped: impl Future<Output = ()>,
        mut tell: impl FnMut(&Seen),
    ) {
        let name = register_of(limiter);
        let mut membership = Membership::new(self.store().clone(), &name, windows, self.clock().clone());
        let mut stopped = std::pin::pin!(stopped);
        loop {
            membership.renew().await;
            if !self.unassigned().iter().any(|(name, of)| name == limiter && *of == windows) {
                break;
            }
            self.assign(limiter, membership.schedule().clone());
            tell(membership.seen());
            tokio::select! {
                () = sleep(membership.beat()) => {}
                () = &mut stopped => break,
            }
        }
        let _ = timeout(FAREWELL, membership.leave()).await;
    }
}

/// What a limiter's register is called in the store. The proxy's limiter has a name of its own there, which replicas that
/// are still of an earlier version use, too.
fn register_of(limiter: &str) -> String {
    if limiter == PROXY_LIMITER { limiter.to_owned() } else { format!("limiter:{limiter}") }
}
