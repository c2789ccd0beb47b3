//! How a gate comes to be: settings, what was saved before, and saving.

use super::housekeeping;
use super::limiter::{Live, Surroundings};
use super::overrides::Book;
use super::shares::Shares;
use super::{Gate, Inner, TEND_SHARE};
use crate::{Clock, OnFailure, Policy};
use arc_swap::ArcSwap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_store::{Carried, Directory, Door, EMPTY_TABLE_BYTES, Loaded, Memory, SnapshotError, Store, StoreUrl};
use tokio::runtime::Handle;

/// What a gate needs besides its policy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that the embedded store may hold.
    pub max_memory: usize,
    /// A directory where state is kept over restarts.
    pub path: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_memory: 256 << 20, path: None }
    }
}

/// What a gate does while a store on other machines does not answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StoreSettings {
    /// What a decision is when the store does not answer in time, where a limiter does not say.
    pub on_failure: OnFailure,
    /// This process's part of each limit while the store is away, for [`OnFailure::Local`]; from 0 to 1.
    pub local_share: f64,
    /// How long a decision may take.
    pub deadline: Duration,
    /// Bytes that this process's own limiters may hold meanwhile.
    pub max_memory: usize,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        let (on_failure, max_memory) = (OnFailure::Local, Settings::default().max_memory);
        StoreSettings { on_failure, local_share: 1.0, deadline: Duration::from_millis(50), max_memory }
    }
}

/// What the engine needs of these settings.
#[derive(Debug)]
pub(super) struct FailureSettings {
    pub(super) on_failure: OnFailure,
    pub(super) local_share: f64,
    /// How long the store may take: less than a decision may, as the answer takes time, too.
    pub(super) store_within: Duration,
}

impl From<StoreSettings> for FailureSettings {
    fn from(settings: StoreSettings) -> FailureSettings {
        let StoreSettings { on_failure, local_share, deadline, .. } = settings;
        FailureSettings { on_failure, local_share, store_within: deadline * 4 / 5 }
    }
}

/// Why a gate could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The path cannot be used, or what was saved there is damaged.
    Snapshot(SnapshotError),
    /// The limiters' empty tables, or on a reload the keys in their new layout, are more than the budget.
    TooSmall {
        /// Bytes needed.
        bytes: usize,
        /// Bytes allowed.
        max_bytes: usize,
    },
}

impl From<SnapshotError> for OpenError {
    fn from(error: SnapshotError) -> OpenError {
        OpenError::Snapshot(error)
    }
}

impl std::error::Error for OpenError {}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Snapshot(error) => error.fmt(f),
            OpenError::TooSmall { bytes, max_bytes } => write!(
                f,
                "the limiters and their keys need {:.1} MiB, more than max_memory = {:.1} MiB; raise it, or have fewer limiters",
                mib(*bytes),
                mib(*max_bytes)
            ),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How saving went since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Saves {
    /// Snapshots that were written.
    pub done: u64,
    /// Those that could not be.
    pub failed: u64,
    /// When the last one was written; the epoch: none was.
    pub last_at: Micros,
}

/// Where state is kept over restarts.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// Locked while a snapshot is written, which is I/O under a lock: so that two saves do not overlap. No decision takes it.
    directory: Mutex<Directory>,
    done: AtomicU64,
    failed: AtomicU64,
    last_at_us: AtomicU64,
    /// How far the clock was behind what was loaded.
    behind_us: AtomicU64,
    /// What was loaded from so far ahead that it was carried to now.
    carried: OnceLock<Carried>,
    /// Why the last snapshot could not be written, until one is.
    failure: Mutex<Option<String>>,
}

impl Snapshots {
    fn new(directory: Directory) -> Snapshots {
        let (done, failed, last_at_us, behind_us, carried, failure) = Default::default();
        Snapshots { directory: Mutex::new(directory), done, failed, last_at_us, behind_us, carried, failure }
    }

    fn note(&self, failure: Option<String>, at: Micros) {
        if failure.is_none() {
            self.done.fetch_add(1, Relaxed);
            self.last_at_us.store(at.get(), Relaxed);
        } else {
            self.failed.fetch_add(1, Relaxed);
        }
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

impl Gate {
    /// A gate on an empty embedded store with the default budget and the process's clock.
    #[must_use]
    pub fn embedded(policy: Policy) -> Gate {
        Gate::with_clock(policy, Clock::process())
    }

    /// The same, with a clock of your own: simulations and tests.
    #[must_use]
    pub fn with_clock(policy: Policy, clock: Clock) -> Gate {
        Gate::on_memory(Memory::new(Settings::default().max_memory, None), &policy, clock, None)
    }

    /// A gate with settings of your own. With a path, it goes on from what was saved there, whatever the budget:
    /// see [`Gate::displaced`].
    ///
    /// # Errors
    /// When the path cannot be used, what was saved is damaged, or the limiters alone do not fit the budget.
    pub fn open(policy: Policy, settings: &Settings, clock: Clock) -> Result<Gate, OpenError> {
        let directory = settings.path.as_deref().map(Directory::open).transpose()?;
        let (mut behind, mut carried) = (Micros::ZERO, Carried::default());
        let saved = match &directory {
            Some(directory) => directory.load(settings.max_memory, clock.now())?,
            None => None,
        };
        let memory = match saved {
            Some(Loaded { store, at, carried: found }) => {
                carried = found;
                behind = at.saturating_sub(clock.now());
                clock.not_before(at);
                store
            }
            None => Memory::new(settings.max_memory, None),
        };
        let gate = Gate::on_memory(memory, &policy, clock, directory);
        if let Some(snapshots) = &gate.0.snapshots {
            snapshots.behind_us.store(behind.get(), Relaxed);
            let _ = snapshots.carried.set(carried);
        }
        gate.forget_others(&policy);
        (0..TEND_SHARE).for_each(|_| gate.tend());
        let tables = policy.limiters().len() + policy.candidates().len();
        let (bytes, max_bytes) = (tables * EMPTY_TABLE_BYTES, settings.max_memory);
        if bytes > max_bytes { Err(OpenError::TooSmall { bytes, max_bytes }) } else { Ok(gate) }
    }

    /// Keys that found no place when they were loaded into a smaller budget, or went over to a larger layout. What
    /// they used is counted by the sketch, which may deny them early and lifts no limit.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.0.memory.displaced()
    }

    /// How far the clock was behind the saved state when the gate was opened, up to a minute. Time goes on from the saved state's, so
    /// that no count comes from the future: until the clock has caught up, aligned windows are early by this much.
    #[must_use]
    pub fn was_behind(&self) -> Micros {
        Micros::saturating(self.0.snapshots.as_ref().map_or(0, |snapshots| snapshots.behind_us.load(Relaxed)))
    }

    /// What was saved by a clock that was far ahead, and was carried to now when the gate was opened: counts count as of now,
    /// and blocks last as long as they had left.
    #[must_use]
    pub fn carried(&self) -> Carried {
        self.0.snapshots.as_ref().and_then(|snapshots| snapshots.carried.get().copied()).unwrap_or_default()
    }

    /// [`Gate::on_store`] for the store at this address.
    pub async fn connect(policy: &Policy, url: StoreUrl, settings: StoreSettings, clock: Clock) -> Gate {
        let store = Store::open(url, &clock).await;
        Gate::on_store(policy, store, settings, clock).await
    }

    /// A gate whose states are in a store that every process with the same store shares. On Redis the server's clock
    /// decides, and a manual one takes its place, for tests; on etcd `clock` does. Needs a running tokio runtime.
    ///
    /// The gate is made whether the store can be reached or not; see [`Gate::store_health`].
    pub async fn on_store(policy: &Policy, store: Store, settings: StoreSettings, clock: Clock) -> Gate {
        let memory = Memory::new(settings.max_memory, None);
        let gate = Gate::new(memory, Some(store), policy, settings, clock, None);
        if !gate.0.store.is_embedded() {
            gate.follow_flags().await;
        }
        gate
    }

    fn on_memory(memory: Memory, policy: &Policy, clock: Clock, directory: Option<Directory>) -> Gate {
        Gate::new(memory, None, policy, StoreSettings::default(), clock, directory)
    }

    /// `store`: where states are, if not in `memory`.
    fn new(
        memory: Memory,
        store: Option<Store>,
        policy: &Policy,
        settings: StoreSettings,
        clock: Clock,
        directory: Option<Directory>,
    ) -> Gate {
        let memory = Arc::new(memory);
        let local = Store::embedded(Arc::clone(&memory), &clock);
        let store = store.unwrap_or_else(|| local.clone());
        let (failure, shares) = (FailureSettings::from(settings), Shares::default());
        let overrides = Book::default();
        let around = Surroundings {
            store: &store,
            local: &local,
            memory: &memory,
            clock: &clock,
            local_share: failure.local_share,
            shares: &shares,
            overrides: &overrides,
        };
        let live = Live::new(policy, &around);
        let runtime = (!store.is_embedded()).then(Handle::current);
        let (tended, ended) = mpsc::channel();
        let inner = Arc::new(Inner {
            any_has_several_limits: live.any_has_several_limits().into(),
            live: ArcSwap::from_pointee(live),
            store,
            memory,
            local,
            clock,
            shares,
            overrides,
            snapshots: directory.map(Snapshots::new),
            failure,
            runtime,
            tend_turn: Default::default(),
            errors: Default::default(),
            lines: Default::default(),
            degraded: Default::default(),
            shared_blocks: Default::default(),
            recorder: Default::default(),
            _tended: tended,
        });
        let gate = Gate(inner, Door::Library);
        housekeeping::begin(&gate, ended);
        gate
    }

    /// How saving went.
    #[must_use]
    pub fn saves(&self) -> Saves {
        let Some(Snapshots { done, failed, last_at_us, .. }) = &self.0.snapshots else { return Saves::default() };
        let last_at = Micros::saturating(last_at_us.load(Relaxed));
        Saves { done: done.load(Relaxed), failed: failed.load(Relaxed), last_at }
    }

    /// Writes all state to the path of the settings, if there is one. Blocking file I/O; decisions
    /// go on meanwhile.
    ///
    /// # Errors
    /// When the file cannot be written; what was saved before is then still there.
    pub fn save(&self) -> Result<(), SnapshotError> {
        let Some(snapshots) = &self.0.snapshots else { return Ok(()) };
        let directory = snapshots.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.now();
        let outcome = directory.save(&self.0.memory, at);
        snapshots.note(outcome.as_ref().err().map(SnapshotError::reason), at);
        outcome
    }

    /// Why the last snapshot could not be written, in a few words without paths, until one is; `None`: all is well.
    #[must_use]
    pub fn save_failure(&self) -> Option<String> {
        let snapshots = self.0.snapshots.as_ref()?;
        snapshots.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
