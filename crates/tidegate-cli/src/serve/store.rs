//! The store: opening it, once for the process, and telling people how it does.

use crate::config::{Config, Remote};
use crate::human;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, Micros, Settings, StoreError, StoreSettings, private_file};
use tokio::time::sleep;
use tracing::{info, warn};

/// A clock that is less behind the saved state is not logged: clocks are set right by small steps all the time.
const TELL_BEHIND: Micros = Micros::from_secs(1);
/// The process's clock is logged when it is so far ahead of the wall clock.
const TELL_AHEAD: Micros = Micros::from_secs(60);

/// A store that is required and fails sooner than this is not waited for.
const FIRST_ATTEMPT: Duration = Duration::from_millis(450);
/// When attempts to connect have come to the longest time that they get.
const ALL_ATTEMPTS: Duration = Duration::from_secs(16);
/// How often a store that is required is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The gate of a process: its policy on its store, by its clock; and the watch that knows what was logged of it. `path`: where the
/// embedded store keeps its state.
///
/// # Errors
/// A message for stderr, when the state cannot be read, or the store is required and does not answer.
pub(crate) async fn open(config: &Config, path: Option<PathBuf>) -> Result<(Gate, Watch), String> {
    let clock = Clock::process();
    if let Some(remote) = &config.store.remote {
        return open_remote(config, remote, clock).await;
    }
    let settings = Settings { max_memory: config.store.max_memory, path };
    let gate = Gate::open(config.policy_in_force(&config.doors), &settings, clock)
        .map_err(|error| format!("error: {error}"))?;
    tell_loaded(&gate, &settings);
    Ok((gate, Watch::default()))
}

/// What people should know of the state that was loaded.
fn tell_loaded(gate: &Gate, settings: &Settings) {
    if let Some(exposed) = settings.path.as_deref().and_then(private_file::exposure) {
        warn!("{exposed}");
    }
    let carried = gate.carried();
    if !carried.by.is_zero() {
        warn!(
            keys = carried.keys,
            "the saved state is {} ahead of the clock, so one of the two clocks was wrong. Its keys are carried to now: their counts \
             count as of now, and blocks last as long as they had left. If the clock is wrong now, stop, correct it and start again",
            human::duration_ms(carried.by.as_millis_ceil())
        );
    }
    if gate.was_behind() >= TELL_BEHIND {
        warn!(
            "the clock is {} behind the saved state; time goes on from there, so that windows end early by this much until the \
             clock has caught up; correct the clock",
            human::duration_ms(gate.was_behind().as_millis_ceil())
        );
    }
    if gate.displaced() > 0 {
        warn!(
            keys = gate.displaced(),
            max_memory = settings.max_memory,
            "saved keys found no place in max_memory: no limit is lifted, but they may be denied early for up to two \
             periods; raise max_memory to give them places"
        );
    }
}

/// Without the store only if that is not required.
async fn open_remote(config: &Config, remote: &Remote, clock: Clock) -> Result<(Gate, Watch), String> {
    let Remote { on_failure, local_share, deadline, .. } = *remote;
    let settings = StoreSettings { on_failure, local_share, deadline, max_memory: config.store.max_memory };
    let begun = Instant::now();
    let gate = Gate::connect(&config.policy_in_force(&config.doors), remote.url.clone(), settings, clock).await;
    let mut watch = Watch::default();
    while remote.required && gate.store().down().is_some() && is_slow(begun) {
        sleep(LOOK_EVERY).await;
    }
    match gate.store().down() {
        Some(error) if remote.required => return Err(format!("error: [store] required = true, and {error}")),
        Some(error) => {
            watch.tell(&error, &format!("until then decisions are made by on_failure = \"{}\"", on_failure.as_str()));
        }
        None => tell_warning(&gate).await,
    }
    Ok((gate, watch))
}

/// May the store be there, over a slow way? The first attempt to connect has half a second, and each further one twice as long,
/// up to eight; what fails at once is not there.
fn is_slow(begun: Instant) -> bool {
    (FIRST_ATTEMPT..ALL_ATTEMPTS).contains(&begun.elapsed())
}

async fn tell_warning(gate: &Gate) {
    if let Some(warning) = gate.store().warning().await {
        warn!("{warning}");
    }
}

/// Tells when the store goes away, and when it is back; and when the wall clock was set back.
#[derive(Default)]
pub(crate) struct Watch {
    /// The last warning about the store, and when.
    away: Option<(&'static str, Instant)>,
    /// The clock was logged.
    ahead: bool,
}

/// How often the same failure is logged again while it comes and goes.
const TELL_EVERY: Duration = Duration::from_secs(60);

impl Watch {
    pub(super) async fn look(&mut self, gate: &Gate) {
        self.look_at_clock(gate);
        let Some(health) = gate.store_health() else { return };
        match (&self.away, health.error) {
            (None, Some(error)) => self.tell(&error, "decisions are made without it"),
            (Some((kind, told)), Some(error)) if *kind != error.label() || told.elapsed() >= TELL_EVERY => {
                self.tell(&error, "decisions are made without it");
            }
            (Some(_), None) => {
                info!("the store at {} answers again; {} decisions were made without it", health.url, health.degraded);
                self.away = None;
                // It may be another, or have been set up anew.
                tell_warning(gate).await;
            }
            _ => {}
        }
    }

    fn look_at_clock(&mut self, gate: &Gate) {
        let ahead = gate.clock().ahead_of_wall();
        let is_ahead = ahead > TELL_AHEAD;
        if is_ahead && !self.ahead {
            warn!(
                "the clock was set back: time goes on from where it was, {} ahead, so that nothing is counted twice or voided; a start \
                 with the clock as it is now carries all counts to it",
                human::duration_ms(ahead.as_millis_ceil())
            );
        }
        self.ahead = is_ahead;
    }

    fn tell(&mut self, error: &StoreError, meanwhile: &str) {
        warn!("{error}; {meanwhile}");
        self.away = Some((error.label(), Instant::now()));
    }
}
