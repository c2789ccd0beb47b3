//! What all requests of the door share.

use super::metrics::{Metrics, registry};
use super::reserve::Places;
use super::server::HttpSettings;
use crate::access::{Caller, Lasting};
use crate::budget::Budget;
use crate::metrics::Registry;
use crate::stomp::SessionContext;
use crate::stomp::time::TimeTopic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tidegate::Gate;
use tokio::sync::watch;

pub(crate) struct Door {
    pub(crate) gate: Gate,
    pub(crate) settings: HttpSettings,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) registry: Registry,
    pub(crate) budget: Arc<Budget>,
    /// What of the budget the reservations have that were made here.
    pub(crate) reserved: Places,
    /// True once the door is stopping.
    pub(crate) draining: AtomicBool,
    /// Turns true with it, for feeds and sessions that wait.
    pub(crate) closing: watch::Sender<bool>,
    /// The subscribers of `/topic/time`.
    pub(crate) time: Arc<TimeTopic>,
}

impl Door {
    pub(crate) fn new(gate: Gate, settings: HttpSettings) -> Door {
        let gate = gate.at(tidegate::Door::Http);
        let time = Arc::new(TimeTopic::new(gate.clone()));
        let door = Door {
            budget: Arc::new(Budget::new(settings.limits.clone())),
            gate,
            settings,
            metrics: Arc::default(),
            registry: Registry::default(),
            reserved: Places::default(),
            draining: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            time,
        };
        Door { registry: registry(&door), ..door }
    }

    /// Feeds and sessions end, and `/readyz` says so.
    pub(crate) fn close(&self) {
        self.draining.store(true, Relaxed);
        self.closing.send_replace(true);
    }

    /// What a STOMP session of this caller begins with.
    pub(crate) fn session_context(&self, caller: Caller) -> SessionContext {
        SessionContext {
            caller: Lasting::new(&self.settings.access, caller),
            gate: self.gate.clone(),
            streams: Arc::clone(&self.settings.streams),
            time: Arc::clone(&self.time),
            closing: self.closing.subscribe(),
            write_timeout: self.settings.write_timeout,
            idle_timeout: self.settings.idle_timeout,
            budget: Arc::clone(&self.budget),
        }
    }
}
