//! What the door counts, for the metrics.

use super::buffers::LARGE_BYTES;
use super::commands::{COMMAND_COUNT, COMMANDS, Kind};
use crate::budget::Thing;
use crate::listener::{Caps, Census};
use crate::metrics::{Kind as MetricKind, Page};
use std::array::from_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one RESP door.
#[derive(Debug)]
pub struct Counters {
    census: Arc<Census>,
    large: Arc<Census>,
    /// By command, and last those that are none.
    commands: [AtomicU64; COMMAND_COUNT + 1],
    /// Commands that were answered by an error.
    errors: AtomicU64,
}

/// What one batch of commands adds, so that the threads' counters are touched once for many.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    commands: [u32; COMMAND_COUNT + 1],
    pub(super) errors: u32,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { commands: [0; COMMAND_COUNT + 1], errors: 0 }
    }
}

impl Tally {
    /// Notes a command; `None`: it is none.
    pub(super) fn note(&mut self, kind: Option<Kind>) {
        self.commands[kind.map_or(COMMAND_COUNT, |kind| kind as usize)] += 1;
    }
}

impl Counters {
    pub(super) fn new(connections: Caps, buffer_bytes: usize) -> Counters {
        Counters {
            census: Arc::new(Census::new(connections)),
            large: Arc::new(Census::new(Caps::of(buffer_bytes / LARGE_BYTES))),
            commands: from_fn(|_| AtomicU64::new(0)),
            errors: AtomicU64::new(0),
        }
    }

    pub(super) fn census(&self) -> &Arc<Census> {
        &self.census
    }

    /// The connections with large buffers.
    pub(super) fn large(&self) -> &Arc<Census> {
        &self.large
    }

    /// What clients of the door can make grow.
    pub(crate) fn things(&self) -> [Thing; 2] {
        [Thing::counted("resp_connections", &self.census), Thing::counted("resp_buffers", &self.large)]
    }

    pub(super) fn add(&self, tally: &Tally) {
        let counts = self.commands.iter().zip(tally.commands);
        for (count, more) in counts.filter(|(_, more)| *more > 0) {
            count.fetch_add(more.into(), Relaxed);
        }
        if tally.errors > 0 {
            self.errors.fetch_add(tally.errors.into(), Relaxed);
        }
    }

    /// What `/metrics` tells of the door.
    pub(crate) fn fill(&self, page: &mut Page) {
        let help = "Commands by name; command none: not known.";
        let mut commands = page.family("tidegate_resp_commands_total", MetricKind::Counter, help);
        let names = COMMANDS.iter().map(|command| command.name).chain(["none"]);
        for (name, count) in names.zip(&self.commands) {
            let count = count.load(Relaxed);
            if count > 0 {
                commands.sample(&[("command", name)], count);
            }
        }
        let errors = self.errors.load(Relaxed);
        let help = "Commands answered by an error.";
        page.single("tidegate_resp_errors_total", MetricKind::Counter, help, errors);
        let (census, large) = (&self.census, &self.large);
        for (name, help, value) in [
            ("tidegate_resp_buffers", "Connections with large buffers, for long pipelines.", large.open()),
            ("tidegate_resp_max_buffers", "Connections that may have large buffers.", large.caps().all),
            ("tidegate_resp_connections", "Open connections.", census.open()),
            ("tidegate_resp_max_connections", "Connections that may be open.", census.caps().all),
        ] {
            page.single(name, MetricKind::Gauge, help, value);
        }
        for (name, help, value) in [
            (
                "tidegate_resp_buffers_refused_total",
                "How often a connection had to do with small buffers.",
                large.refused(),
            ),
            ("tidegate_resp_connections_total", "Connections accepted.", census.accepted()),
            ("tidegate_resp_connections_refused_total", "Connections refused past a cap.", census.refused()),
            ("tidegate_resp_connections_cut_total", "Connections cut: the client was idle or slow.", census.cut()),
        ] {
            page.single(name, MetricKind::Counter, help, value);
        }
    }
}
