//! A store elsewhere: opening it, and telling people how it does.

use crate::config::{Config, Elsewhere};
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, StoreError, StoreSettings};
use tracing::{info, warn};

/// Opens the gate; without the store only if that is not required.
pub(super) async fn open(config: &Config, store: &Elsewhere) -> Result<Gate, String> {
    let settings = StoreSettings {
        url: store.url.clone(),
        on_failure: store.on_failure,
        local_share: store.local_share,
        deadline: store.deadline,
        max_memory: config.store.max_memory,
    };
    let gate = Gate::on_store(&config.policy, settings, Clock::process()).await;
    match gate.store_error() {
        Some(error) if store.required => {
            return Err(format!("error: [store] required = true, and {error}"));
        }
        Some(error) => {
            warn!("{error}; until then decisions are made by on_failure = \"{}\"", store.on_failure.as_str())
        }
        None => warn_of_eviction(&gate).await,
    }
    Ok(gate)
}

/// A Redis that drops keys when it is full lifts limits.
async fn warn_of_eviction(gate: &Gate) {
    if let Some(policy) = gate.evicts().await {
        warn!(
            "the store has maxmemory-policy {policy}: when its memory is full it drops counts, which lifts limits; \
             set it to noeviction"
        );
    }
}

/// Tells when the store goes away, and when it is back.
#[derive(Default)]
pub(super) struct Watch {
    /// What was told of it, and when.
    away: Option<(&'static str, Instant)>,
}

/// How often the same failure is told of again while it comes and goes.
const TELL_EVERY: Duration = Duration::from_secs(60);

impl Watch {
    pub(super) async fn look(&mut self, gate: &Gate) {
        let Some(health) = gate.store_health() else { return };
        match (&self.away, health.error) {
            (None, Some(error)) => self.tell(&error),
            (Some((kind, told)), Some(error)) if *kind != error.label() || told.elapsed() >= TELL_EVERY => {
                self.tell(&error);
            }
            (Some(_), None) => {
                info!("the store at {} answers again; {} decisions were made without it", health.url, health.degraded);
                self.away = None;
                // It may be another, or have been set up anew.
                warn_of_eviction(gate).await;
            }
            _ => {}
        }
    }

    fn tell(&mut self, error: &StoreError) {
        warn!("{error}; decisions are made without it");
        self.away = Some((error.label(), Instant::now()));
    }
}
