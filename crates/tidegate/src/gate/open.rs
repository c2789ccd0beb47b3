//! How a gate comes to be: settings, what was saved before, and saving.

use super::{Gate, TEND_SHARE, Usage};
use crate::{Clock, Policy};
use std::fmt;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_core::Micros;
use tidegate_store::{Directory, Memory, SnapshotError};

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

/// Why a gate could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The path cannot be used, or what was saved there is damaged.
    Snapshot(SnapshotError),
    /// The limiters' empty tables and what was saved are more than the budget.
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
                "the limiters and their keys need {:.1} MiB, more than max_memory = {:.1} MiB; raise it, or have fewer limiters \
                 (if saved keys are in the way: move the snapshot away, and counters start empty)",
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

#[derive(Debug, Default)]
pub(super) struct SaveCounters {
    done: AtomicU64,
    failed: AtomicU64,
    last_at_us: AtomicU64,
}

impl SaveCounters {
    fn note(&self, done: bool, at: Micros) {
        if done {
            self.done.fetch_add(1, Relaxed);
            self.last_at_us.store(at.get(), Relaxed);
        } else {
            self.failed.fetch_add(1, Relaxed);
        }
    }
}

impl Gate {
    /// How saving went.
    #[must_use]
    pub fn saves(&self) -> Saves {
        let SaveCounters { done, failed, last_at_us } = &self.0.saves;
        let last_at = Micros::saturating(last_at_us.load(Relaxed));
        Saves { done: done.load(Relaxed), failed: failed.load(Relaxed), last_at }
    }

    /// A gate with settings of your own. With a path, it goes on from what was saved there.
    ///
    /// # Errors
    /// When the path cannot be used, what was saved is damaged, or it does not fit the budget.
    pub fn open(policy: Policy, settings: &Settings, clock: Clock) -> Result<Gate, OpenError> {
        let directory = settings.path.as_deref().map(Directory::open).transpose()?;
        let saved = match &directory {
            Some(directory) => directory.load(settings.max_memory)?,
            None => None,
        };
        let store = match saved {
            Some((store, taken_at)) => {
                clock.not_before(taken_at);
                store
            }
            None => Memory::new(settings.max_memory, None),
        };
        let gate = Gate::on(store, &policy, clock, directory);
        gate.forget_others(&policy);
        (0..TEND_SHARE).for_each(|_| gate.tend());
        match gate.usage() {
            Usage { bytes, max_bytes, .. } if bytes > max_bytes => Err(OpenError::TooSmall { bytes, max_bytes }),
            _ => Ok(gate),
        }
    }

    /// Writes all state to the path of the settings, if there is one. Blocking file I/O; decisions
    /// go on meanwhile.
    ///
    /// # Errors
    /// When the file cannot be written; what was saved before is then still there.
    pub fn save(&self) -> Result<(), SnapshotError> {
        match &self.0.directory {
            Some(directory) => {
                let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
                let at = self.now();
                let outcome = directory.save(&self.0.store, at);
                self.0.saves.note(outcome.is_ok(), at);
                outcome
            }
            None => Ok(()),
        }
    }
}
