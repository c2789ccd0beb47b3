//! A word in the log when keys over UDP have no route: they are never limited, which may be a mistake.

use super::told_to_stop;
use crate::human;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_doors::udp::Counts;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::info;

/// How often it looks while there is nothing to tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At most one line in this time, whatever comes.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Logs them until the server stops.
pub(super) async fn run(counts: Arc<Counts>, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let (mut stop, mut pause) = (pin!(told_to_stop(stopped)), LOOK_EVERY);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = sleep(pause) => {}
        }
        pause = LOOK_EVERY;
        if let Some(unknown) = counts.report() {
            pause = TELL_EVERY;
            info!(
                "{} over UDP had a key without a route and were not limited, such as \"{}\"; \
                 add a [[udp.route]] for them, or a [[udp.count]] that knows them",
                human::plural(unknown.uses, "request"),
                human::key(&unknown.example)
            );
        }
    }
}
