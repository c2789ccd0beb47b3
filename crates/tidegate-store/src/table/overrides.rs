//! Limits of single keys, set by hand: kept with the table, and saved with it. Nothing here decides by them: the engine asks
//! for all of them when they have changed.

use super::Table;
use crate::store::{NewOverride, Override, Overrides, Placed};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use tidegate_core::Micros;

/// Most overrides of one limiter.
pub const OVERRIDES_MAX: usize = 1_000;

/// The overrides of a table, and how often they changed.
#[derive(Debug, Default)]
pub(super) struct Held {
    version: u64,
    by_key: BTreeMap<Vec<u8>, Override>,
}

impl Table {
    /// Gives one key other limits.
    pub fn set_override(&self, key: &[u8], new: &NewOverride, now: Micros) -> Placed {
        let mut held = self.overrides();
        let Held { version, by_key } = &mut *held;
        if !by_key.contains_key(key) && by_key.len() >= OVERRIDES_MAX {
            by_key.retain(|_, one| one.holds_at(now));
            if by_key.len() >= OVERRIDES_MAX {
                return Placed::Full;
            }
        }
        let until = new.span.map(|span| now.saturating_add(span));
        *version += 1;
        by_key.insert(key.to_vec(), Override { limits: new.limits.clone(), until, reason: new.reason.clone() });
        Placed::Until(until)
    }

    /// Takes them back; were there any?
    pub fn clear_override(&self, key: &[u8], now: Micros) -> bool {
        let mut held = self.overrides();
        held.version += 1;
        held.by_key.remove(key).is_some_and(|one| one.holds_at(now))
    }

    /// All overrides, if they have changed since this version.
    #[must_use]
    pub fn overrides_since(&self, version: Option<u64>, now: Micros) -> Option<Overrides> {
        let mut held = self.overrides();
        held.by_key.retain(|_, one| one.holds_at(now));
        let keys = || held.by_key.iter().map(|(key, one)| (key.clone(), one.clone())).collect();
        (version != Some(held.version)).then(|| Overrides { version: held.version, at: now, keys: keys() })
    }

    /// Takes in what was saved.
    pub(crate) fn import_override(&self, key: Vec<u8>, one: Override) {
        let mut held = self.overrides();
        held.version += 1;
        held.by_key.insert(key, one);
    }

    fn overrides(&self) -> MutexGuard<'_, Held> {
        self.overrides.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
