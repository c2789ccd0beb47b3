//! Limiters that several servers share without asking a store for each decision: each server renews its share.

use std::collections::HashSet;
use std::time::Duration;
use tidegate::{Gate, Seen, Windows};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

/// How often it is looked whether the policy has other limiters now.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Renews the shares of all limiters that want one, but for the proxy's, until the server stops. The proxy renews its own.
pub(super) async fn run(gate: Gate, proxys: Option<String>, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let mut renewed: HashSet<(String, Windows)> = HashSet::new();
    let mut tasks = JoinSet::new();
    while !*stopped.borrow() {
        while let Some(Ok(ended)) = tasks.try_join_next() {
            renewed.remove(&ended);
        }
        for limiter in gate.unassigned() {
            if Some(&limiter.0) != proxys.as_ref() && renewed.insert(limiter.clone()) {
                tasks.spawn(renew(gate.clone(), limiter, stopped.clone()));
            }
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = super::told_to_stop(stopped.clone()) => {}
        }
    }
    tasks.join_all().await;
    Ok(())
}

async fn renew(gate: Gate, (name, windows): (String, Windows), stopped: watch::Receiver<bool>) -> (String, Windows) {
    let mut known = Seen::default();
    let tell = |seen: &Seen| {
        match (&known.error, &seen.error) {
            (None, Some(error)) => warn!("limiter {name}: {error}; it goes on with what it was assigned, and no more"),
            (Some(_), None) => info!("limiter {name}: the register of the servers is read again"),
            _ => {}
        }
        if known.members != seen.members {
            info!("limiter {name} is shared by {}; this one is {}", seen.members.join(" "), seen.me);
        }
        known.clone_from(seen);
    };
    gate.renew_share((&name, windows), super::told_to_stop(stopped), tell).await;
    (name, windows)
}
