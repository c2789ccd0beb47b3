//! The store's errors: how often each kind came, and why the store refuses, while it does.
//!
//! A store may be connected and refuse every question, out of memory for example. Operators must see that, and a
//! question that is answered clears it. Invariant: an answer costs one look at a flag here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_store::StoreError;
use tokio::time::Instant;

/// The store's errors so far.
#[derive(Debug, Default)]
pub(super) struct ErrorStats {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    refusal: Mutex<Option<(Instant, StoreError)>>,
    refuses: AtomicBool,
}

/// For how long a refusal is reported when no request followed it.
const REFUSAL_HOLDS: Duration = Duration::from_secs(5);

impl ErrorStats {
    /// Notes a question's outcome.
    #[inline]
    pub(super) fn note<T>(&self, outcome: &Result<T, StoreError>) {
        match outcome {
            Ok(_) if self.refuses.load(Relaxed) => self.set(None),
            Ok(_) => {}
            Err(error) => {
                self.count(error);
                if matches!(error, StoreError::Refused { .. } | StoreError::Garbled { .. }) {
                    self.set(Some((Instant::now(), error.clone())));
                }
            }
        }
    }

    /// Counts an error of a background request.
    pub(super) fn count(&self, error: &StoreError) {
        *locked(&self.counts).entry(error.label()).or_default() += 1;
    }

    /// How often each kind came.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        locked(&self.counts).iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Why the store refuses decisions, if it does.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let refusal = locked(&self.refusal);
        refusal.as_ref().filter(|(at, _)| at.elapsed() < REFUSAL_HOLDS).map(|(_, error)| error.clone())
    }

    fn set(&self, refusal: Option<(Instant, StoreError)>) {
        self.refuses.store(refusal.is_some(), Relaxed);
        *locked(&self.refusal) = refusal;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
