//! The recording: beginning it, and telling people how it does.

use super::told_to_stop;
use crate::config::Config;
use std::pin::pin;
use std::time::Duration;
use tidegate::{Gate, Recording};
use tokio::sync::watch;
use tracing::{error, info, warn};

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Begins to record, if the file says so.
///
/// # Errors
/// A message for stderr, when its files cannot be made.
pub(crate) fn start(config: &Config, gate: &Gate) -> Result<Option<Recording>, String> {
    let Some(settings) = &config.record else { return Ok(None) };
    let recording = gate.record(settings).map_err(|error| {
        let folder = settings.folder.display();
        format!("error: requests cannot be recorded in {folder}: {error}; check [record] path and its owner")
    })?;
    if let Some(exposed) = tidegate::private_file::exposure(&settings.folder) {
        warn!("[record] path: {exposed}");
    }
    Ok(Some(recording))
}

/// Tells when lines cannot be written or find no room, and when that is over. Ends with the stop.
pub(crate) async fn watch(gate: Gate, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let (mut stop, mut failing, mut dropped) = (pin!(told_to_stop(stopped)), false, 0);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let Some(stats) = gate.record_stats() else { continue };
        match (&stats.failure, failing) {
            (Some(failure), false) => {
                error!("requests are not recorded: {failure}; it is tried again, and decisions go on");
            }
            (None, true) => info!("requests are recorded again"),
            _ => {}
        }
        failing = stats.failure.is_some();
        if dropped == 0 && stats.dropped > 0 {
            warn!("some requests found no room to be recorded (tidegate_record_requests_total); lower [record] sample");
        }
        dropped = stats.dropped;
    }
}
