//! What all requests of the door share.

use super::metrics::Metrics;
use super::server::HttpSettings;
use crate::stomp::House;
use crate::stomp::time::TimeTopic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tidegate::Gate;
use tokio::sync::watch;

pub(crate) struct Door {
    pub(crate) gate: Gate,
    pub(crate) settings: HttpSettings,
    pub(crate) metrics: Metrics,
    /// True once the door was told to stop.
    pub(crate) draining: AtomicBool,
    /// Turns true with it, for those who wait.
    pub(crate) closing: watch::Sender<bool>,
    /// Who listens to the time.
    pub(crate) time: Arc<TimeTopic>,
    /// Counts up with every round of the watchdog.
    pub(crate) tick: AtomicU64,
}

impl Door {
    pub(crate) fn new(gate: Gate, settings: HttpSettings) -> Door {
        let time = Arc::new(TimeTopic::new(gate.clone()));
        Door {
            gate,
            settings,
            metrics: Metrics::default(),
            draining: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            time,
            tick: AtomicU64::new(0),
        }
    }
    /// What STOMP sessions share.
    pub(crate) fn house(&self) -> House {
        House {
            streams: Arc::clone(&self.settings.streams),
            time: Arc::clone(&self.time),
            closing: self.closing.subscribe(),
        }
    }
}
