//! Limiters that several servers share without asking a store: each server keeps its part.

use std::collections::HashSet;
use std::time::Duration;
use tidegate::{Gate, Micros, Seen, StoreUrl};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

/// How often it is looked whether the policy has other limiters now.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps the parts of all limiters that want one, until told to stop.
pub(super) async fn run(gate: Gate, store: Option<StoreUrl>, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let mut kept: HashSet<(String, Micros)> = HashSet::new();
    let mut tasks = JoinSet::new();
    while !*stopped.borrow() {
        while let Some(Ok(ended)) = tasks.try_join_next() {
            kept.remove(&ended);
        }
        let Some(store) = &store else {
            // The configuration has made sure that nobody needs one.
            super::told_to_stop(stopped.clone()).await;
            break;
        };
        for limiter in gate.unnumbered() {
            if kept.insert(limiter.clone()) {
                tasks.spawn(keep(gate.clone(), limiter, store.clone(), stopped.clone()));
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

async fn keep(
    gate: Gate,
    (name, period): (String, Micros),
    store: StoreUrl,
    stopped: watch::Receiver<bool>,
) -> (String, Micros) {
    let mut known = Seen::default();
    let tell = |seen: &Seen| {
        match (&known.error, &seen.error) {
            (None, Some(error)) => warn!("limiter {name}: {error}; what is promised is kept to, and no more"),
            (Some(_), None) => info!("limiter {name}: the register of the servers is read again"),
            _ => {}
        }
        if known.members != seen.members {
            info!("limiter {name} is shared by {}; this one is {}", seen.members.join(" "), seen.me);
        }
        known.clone_from(seen);
    };
    gate.keep_part((&name, period), store, super::told_to_stop(stopped), tell).await;
    (name, period)
}
