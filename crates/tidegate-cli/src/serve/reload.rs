//! Reloading: a new policy on the same states, or the old policy and a word on what is wrong.

use super::access::AccessReloader;
use super::certificates::Certificates;
use super::{audit, told_to_stop};
use crate::config::{self, Config};
use crate::human;
use crate::watch::Watch;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Gate, panic_point};
use tidegate_doors::audit::{Audit, Change};
use tidegate_doors::resp;
use tidegate_doors::udp::Responder;
use tidegate_proxy::Proxy;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

/// How often the file is looked at for a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a reload changes.
pub(super) struct Running {
    pub(super) gate: Gate,
    pub(super) responder: Arc<Responder>,
    pub(super) resp: Option<Arc<resp::Door>>,
    pub(super) proxy: Option<Arc<Proxy>>,
    pub(super) access: AccessReloader,
    pub(super) certificates: Certificates,
    pub(super) audit: Arc<Audit>,
    /// What the process started with.
    pub(super) config: Arc<Config>,
}

/// Reloads when it is asked to (SIGHUP) and when the file has changed, until the server stops. A task of its own: the one that
/// stops and saves must not panic.
pub(super) async fn run(
    mut reloader: Option<Reloader>,
    mut running: Running,
    asked: Arc<Notify>,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = pin!(told_to_stop(stopped));
    loop {
        let asked_by = tokio::select! {
            () = &mut stop => return Ok(()),
            () = asked.notified() => Some("SIGHUP"),
            _ = look.tick() => reloader.as_mut().is_some_and(Reloader::has_changed).then_some("change of the file"),
        };
        panic_point("reload");
        running.access.look();
        running.certificates.look(running.gate.now());
        match (&mut reloader, asked_by) {
            (Some(reloader), Some(who)) => reloader.reload(&mut running, who).await,
            (None, Some(_)) => {
                info!("no policy to reload: started without a file");
                running.certificates.read_again(running.gate.now());
            }
            (_, None) => {}
        }
        if let Some(detail) = running.access.take_changes() {
            let who = asked_by.unwrap_or("change of the file").to_owned();
            let change = Change { who, what: "tokens", detail, ..Change::default() };
            running.audit.note(running.gate.now(), &change).await;
        }
    }
}

/// Reads the file again when asked to, or when it has changed.
pub(super) struct Reloader {
    file: PathBuf,
    watch: Watch,
    /// What is in force, if that is not what the process started with.
    in_force: Option<Config>,
}

impl Reloader {
    /// Made before the file is first read, so that a change in between is seen.
    pub(super) fn new(file: PathBuf) -> Reloader {
        Reloader { watch: Watch::new(file.clone()), file, in_force: None }
    }

    /// Has the file another time of change or another length than when it was last read?
    fn has_changed(&mut self) -> bool {
        self.watch.has_changed()
    }

    /// Reads the file and puts its policy in force; `who` asked for it.
    async fn reload(&mut self, running: &mut Running, who: &str) {
        let Running { gate, responder, resp, proxy, access, certificates, audit, config: started } = running;
        // Whoever asked for it, what is there now is about to be read.
        let _ = self.watch.has_changed();
        let file = self.file.clone();
        // Those that are open; what a new file says of them takes effect at the next start.
        let (engine, doors) = (gate.clone(), started.doors.clone());
        // Both are blocking: a file, and tables that go over to another layout.
        let read = tokio::task::spawn_blocking(move || {
            let config =
                config::load_again(&file, config::from_environment()).map_err(|problems| problems.to_string())?;
            let reloaded = engine.reload(&config.policy_in_force(&doors)).map_err(|error| format!("error: {error}"))?;
            Ok::<_, String>((config, reloaded))
        });
        match read.await {
            Ok(Ok((config, reloaded))) => {
                // The configuration has checked the routes against its own policy.
                if let Err(problem) = responder.reload(&config.udp) {
                    error!("the UDP routes stay as they were: {problem}");
                }
                if let Some(resp) = resp {
                    resp.reload();
                }
                if access.replace(&config) {
                    responder.allow(config.allow.clone());
                }
                info!("reloaded {}: {}; {}", self.file.display(), human::policy(&config), kept(&reloaded.afresh));
                if let ((Some(proxy), Some(started)), Some(new)) = ((proxy, &started.proxy), &config.proxy) {
                    crate::proxy::reload(started, new, proxy, gate);
                }
                let detail = audit::difference(self.in_force.as_ref().unwrap_or(started), &config);
                let change = Change { who: who.to_owned(), what: "reload", detail, ..Change::default() };
                audit.note(gate.now(), &change).await;
                certificates.reload(&config.certificates(), gate.now());
                for limiter in reloaded.afresh {
                    warn!("limiter {limiter} has another algorithm: its counters start afresh, its blocks are kept");
                }
                for setting in needing_restart(started, &config) {
                    warn!("{setting} has changed; it takes effect at the next start");
                }
                self.in_force = Some(config);
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
        ("[doors] resp", running.doors.resp != new.doors.resp),
        ("[[stream]]", running.streams != new.streams),
        ("[audit]", running.audit != new.audit),
        ("[record]", running.record != new.record),
        ("[limits]", running.limits != new.limits),
        ("[doors] udp", running.doors.udp != new.doors.udp),
        ("[doors] grpc", running.doors.grpc != new.doors.grpc),
        ("[grpc]", running.grpc != new.grpc),
        ("[proxy] as a whole", running.proxy.is_some() != new.proxy.is_some()),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
}
