//! What goes on beside the requests: the store is looked at, and state is saved now and then. Idle keys are dropped by the gate
//! itself.

use super::store::Watch;
use super::told_to_stop;
use crate::config::Store;
use std::pin::pin;
use std::time::Duration;
use tidegate::Gate;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tracing::{error, info};

/// How often the store is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a failure that lasts is logged.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Looks at the store and saves until the server stops. The last snapshot is written by `serve`.
pub(crate) async fn run(
    gate: Gate,
    mut watch: Watch,
    store: Store,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let mut look = interval(LOOK_EVERY);
    let mut save = interval_at(Instant::now() + store.snapshot_every, store.snapshot_every);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    save.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saver = Saver { failing_since_told: None };
    let mut stop = pin!(told_to_stop(stopped));
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            _ = look.tick() => watch.look(&gate).await,
            _ = save.tick(), if store.path.is_some() => {
                let outcome = aside(&gate, |gate| gate.save().map_err(|error| error.to_string())).await?;
                saver.told(outcome);
            }
        }
    }
}

/// Runs blocking work where it holds no request up.
async fn aside<T: Send + 'static>(gate: &Gate, work: impl FnOnce(&Gate) -> T + Send + 'static) -> Result<T, String> {
    let gate = gate.clone();
    let done = tokio::task::spawn_blocking(move || work(&gate)).await;
    done.map_err(|error| format!("error: housekeeping failed: {error}; start again and report this"))
}

/// Tells of failures when they begin, now and then while they last, and when they are over.
struct Saver {
    failing_since_told: Option<Instant>,
}

impl Saver {
    fn told(&mut self, outcome: Result<(), String>) {
        match (outcome, self.failing_since_told) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                info!("state is saved again");
                self.failing_since_told = None;
            }
            (Err(_), Some(told)) if told.elapsed() < TELL_EVERY => {}
            (Err(error), _) => {
                error!("state is not saved: {error}; it is tried again, and decisions go on");
                self.failing_since_told = Some(Instant::now());
            }
        }
    }
}
