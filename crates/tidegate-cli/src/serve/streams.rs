//! The event streams: in the store of the file, or in this process, from their journals where there is a path.

use crate::config::Config;
use std::sync::Arc;
use tidegate::Gate;
use tidegate_events::{Now, Opening, Streams};
use tracing::warn;

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
