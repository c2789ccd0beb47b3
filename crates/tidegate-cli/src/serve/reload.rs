//! Reloading: a new policy on the same states, or the old policy and a word on what is wrong.

use crate::config::{self, Config};
use crate::human;
use crate::watch::Watch;
use std::path::PathBuf;
use tidegate::Gate;
use tidegate_doors::udp::Responder;
use tidegate_proxy::Proxy;
use tracing::{error, info, warn};

/// Reads the file again when asked to, or when it has changed.
pub(super) struct Reloader {
    file: PathBuf,
    watch: Watch,
}

impl Reloader {
    /// Made before the file is first read, so that a change in between is seen.
    pub(super) fn new(file: PathBuf) -> Reloader {
        Reloader { watch: Watch::new(file.clone()), file }
    }

    /// Has the file another time of change or another length than when it was last read?
    pub(super) fn has_changed(&mut self) -> bool {
        self.watch.has_changed()
    }

    /// Reads the file and puts its policy in force. `running` is what the process started with.
    pub(super) async fn reload(&mut self, gate: &Gate, responder: &Responder, proxy: Option<&Proxy>, running: &Config) {
        // Whoever asked for it, what is there now is about to be read.
        let _ = self.watch.has_changed();
        let file = self.file.clone();
        let engine = gate.clone();
        // Both are blocking: a file, and tables that go over to another layout.
        let read = tokio::task::spawn_blocking(move || {
            let config = config::load(&file, config::from_environment()).map_err(|problems| problems.to_string())?;
            let reloaded = engine.reload(&config.policy).map_err(|error| format!("error: {error}"))?;
            Ok::<_, String>((config, reloaded))
        });
        match read.await {
            Ok(Ok((config, reloaded))) => {
                // The configuration has checked the routes against its own policy.
                if let Err(problem) = responder.reload(&config.udp) {
                    error!("the UDP routes stay as they were: {problem}");
                }
                info!("reloaded {}: {}; {}", self.file.display(), human::policy(&config), kept(&reloaded.afresh));
                if let ((Some(proxy), Some(running)), Some(new)) = ((proxy, &running.proxy), &config.proxy) {
                    crate::proxy::reload(running, new, proxy, gate);
                }
                for limiter in reloaded.afresh {
                    warn!("limiter {limiter} has another algorithm: its counters start afresh, its blocks are kept");
                }
                for setting in needing_restart(running, &config) {
                    warn!("{setting} has changed; it takes effect at the next start");
                }
            }
            Ok(Err(problems)) => {
                error!("{} is refused, and the policy stays as it was:\n{problems}", self.file.display());
            }
            Err(failed) => {
                error!("{} could not be read, and the policy stays as it was: {failed}", self.file.display())
            }
        }
    }
}

/// What became of the counters.
fn kept(afresh: &[String]) -> String {
    match afresh {
        [] => "counters kept".to_owned(),
        afresh => format!("counters kept, but for {}", afresh.join(", ")),
    }
}

/// Settings that a running process cannot change.
fn needing_restart(running: &Config, new: &Config) -> Vec<&'static str> {
    let changed = [
        ("[store] max_memory", running.store.max_memory != new.store.max_memory),
        ("[store] path", running.store.path != new.store.path),
        (
            "[store] kind, url, endpoints, on_failure, local_share, deadline or required",
            running.store.remote != new.store.remote,
        ),
        ("[store] snapshot_every", running.store.snapshot_every != new.store.snapshot_every),
        ("[doors] http", running.doors.http != new.doors.http),
        ("[[stream]]", running.streams != new.streams),
        ("[doors] udp", running.doors.udp != new.doors.udp),
        ("[proxy] as a whole", running.proxy.is_some() != new.proxy.is_some()),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
}
