//! The event streams: in the store of the file, or in this process, from their journals where there is a path.

use crate::config::Config;
use crate::human;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Gate, Micros};
use tidegate_events::{Now, Opening, Streams};
use tokio::sync::watch;
use tracing::{error, info, warn};

/// How often it is looked whether a stream fails.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Says in the log when a stream's journal or store cannot be used, and when it can be again. Ends with the stop.
pub(super) async fn watch(streams: Arc<Streams>, mut stopped: watch::Receiver<bool>) -> Result<(), String> {
    let mut failing: Vec<&str> = Vec::new();
    while tokio::time::timeout(LOOK_EVERY, stopped.wait_for(|stop| *stop)).await.is_err() {
        for stream in streams.all() {
            let name = stream.spec().name.as_str();
            match (stream.failure(), failing.iter().position(|known| *known == name)) {
                (Some(failure), None) => {
                    error!(stream = name, "the stream takes and shows nothing: {failure}");
                    failing.push(name);
                }
                (None, Some(index)) => {
                    info!(stream = name, "the stream goes on");
                    failing.swap_remove(index);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

pub(super) async fn open(config: &Config, gate: &Gate) -> Result<Streams, String> {
    if !gate.is_embedded() && !config.streams.is_empty() {
        let opened = Streams::on_store(config.streams.clone(), gate.store(), &clock(gate, Micros::ZERO)).await;
        return opened.map_err(|error| format!("error: streams: {error}"));
    }
    let folder = config.store.path.as_ref().map(|path| path.join("streams"));
    let opening =
        Opening::read(config.streams.clone(), folder.as_deref()).map_err(|error| format!("error: streams: {error}"))?;
    opening.notes().for_each(|note| warn!("{note}"));
    let ahead = opening.horizon().saturating_sub(gate.now());
    if ahead <= AHEAD_MAX {
        // What is in the journals must not come from the future.
        gate.clock().not_before(opening.horizon());
    } else {
        warn!(
            "the streams' journals are {} ahead of the clock, which was wrong when they were written or is wrong now. The streams go on \
             from their own time, so that events last as long as ever and their times are this much ahead; to begin anew, stop and \
             move {} away",
            human::duration_ms(ahead.as_millis_ceil()),
            folder.as_deref().unwrap_or_else(|| Path::new("the folder")).display()
        );
    }
    let ahead = if ahead <= AHEAD_MAX { Micros::ZERO } else { ahead };
    let started = opening.start(&clock(gate, ahead));
    started.map_err(|error| format!("error: streams: no thread can be started: {error}; start again"))
}

/// How far journals may be ahead of the clock for the whole process to go on from there.
const AHEAD_MAX: Micros = Micros::from_secs(60);

/// The gate's clock, for streams that are so much ahead of it.
fn clock(gate: &Gate, ahead: Micros) -> Now {
    let gate = gate.clone();
    Arc::new(move || gate.now().saturating_add(ahead))
}
