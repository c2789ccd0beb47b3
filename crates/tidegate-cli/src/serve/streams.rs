//! The event streams: in the store of the file, or in this process, from their journals where there is a path.

use crate::config::Config;
use std::sync::Arc;
use std::time::Duration;
use tidegate::Gate;
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
    let time = gate.clone();
    let now: Now = Arc::new(move || time.now());
    if !gate.is_embedded() && !config.streams.is_empty() {
        let opened = Streams::on_store(config.streams.clone(), gate.store(), &now).await;
        return opened.map_err(|error| format!("error: streams: {error}"));
    }
    let folder = config.store.path.as_ref().map(|path| path.join("streams"));
    let opening =
        Opening::read(config.streams.clone(), folder.as_deref()).map_err(|error| format!("error: streams: {error}"))?;
    opening.notes().for_each(|note| warn!("{note}"));
    // What is in the journals must not come from the future.
    gate.clock().not_before(opening.horizon());
    opening.start(&now).map_err(|error| format!("error: streams: no thread can be started: {error}; start again"))
}
