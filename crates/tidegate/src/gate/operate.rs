//! What people do with a gate: look at limiters and keys, switch, block and unblock.
//!
//! These calls are for the embedded store; [`crate::Actions`] and [`crate::Action`] do the same on every store.

use super::{Gate, Limiter};
use crate::{AskError, LimiterSpec};
use std::sync::Arc;
use std::{fmt, str::FromStr};
use tidegate_core::{Micros, check_key};
use tidegate_store::{Counts, KeyStats, Which};

/// A limiter as it stands.
#[derive(Clone, Debug)]
pub struct LimiterInfo {
    /// Its definition.
    pub spec: Arc<LimiterSpec>,
    /// False: disabled.
    pub enabled: bool,
    /// Keys held, idle ones included.
    pub entries: usize,
    /// Memory held.
    pub bytes: usize,
    /// How decisions went.
    pub counts: Counts,
}

/// Memory and keys of all limiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Memory held.
    pub bytes: usize,
    /// Memory that may be held.
    pub max_bytes: usize,
    /// Keys held, idle ones included.
    pub entries: usize,
    /// Keys that the memory held now has room for.
    pub capacity: usize,
}

/// Where a listing goes on: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(pub(super) u64);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Cursor {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Cursor, Self::Err> {
        u64::from_str_radix(text, 16).map(Cursor)
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Key names, sorted within the page.
    pub keys: Vec<Vec<u8>>,
    /// Where the next page starts; `None`: this was the last.
    pub next: Option<Cursor>,
}

impl Gate {
    /// All limiters, in definition order.
    #[must_use]
    pub fn limiters(&self) -> Vec<LimiterInfo> {
        self.0.live.load().limiters.iter().map(Limiter::info).collect()
    }

    /// One limiter.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn limiter_info(&self, name: &str) -> Result<LimiterInfo, AskError> {
        Ok(self.0.live.load().limiter(name)?.info())
    }

    /// What a key did since start; zeros for one that is not known, or when the limiter keeps no
    /// statistics. Asking is not a use.
    #[must_use]
    pub fn key_stats_on(&self, limiter: &Limiter, key: &[u8]) -> KeyStats {
        limiter.table.key_stats(key, self.now())
    }

    /// Enables or disables a limiter. A disabled one allows everything and counts nothing.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn set_enabled(&self, limiter: &str, enabled: bool) -> Result<(), AskError> {
        self.here()?;
        self.0.live.load().limiter(limiter)?.table.set_disabled(!enabled);
        Ok(())
    }

    /// False while a limiter is disabled.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn is_enabled(&self, limiter: &str) -> Result<bool, AskError> {
        Ok(!self.0.live.load().limiter(limiter)?.table.is_disabled())
    }

    /// Names of a limiter's keys, about `most` at a time.
    ///
    /// # Errors
    /// When there is no such limiter, or it keeps no names.
    pub fn keys(&self, limiter: &str, which: Which, after: Option<Cursor>, most: usize) -> Result<Page, AskError> {
        self.here_for(limiter)?;
        let live = self.0.live.load();
        let Limiter { spec, table, .. } = live.limiter(limiter)?;
        if !spec.names {
            return Err(AskError::NoNames(spec.name.clone()));
        }
        let listing = table.list(&spec.rules, which, after.map(|cursor| cursor.0), most.max(1), || self.now());
        Ok(Page { keys: listing.keys, next: listing.next.map(Cursor) })
    }

    /// Blocks a key for `span` from now, and says until when.
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, or a full table has no place for it.
    pub fn block(&self, limiter: &str, key: &[u8], span: Micros) -> Result<Micros, AskError> {
        self.here_for(limiter)?;
        check_key(key)?;
        let live = self.0.live.load();
        let Limiter { spec, table, .. } = live.limiter(limiter)?;
        let until = table.block(&spec.rules, key, span, || self.now());
        until.ok_or_else(|| AskError::Full { limiter: spec.name.clone() })
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// When there is no such limiter, or the key is bad.
    pub fn unblock(&self, limiter: &str, key: &[u8]) -> Result<bool, AskError> {
        self.here_for(limiter)?;
        check_key(key)?;
        let live = self.0.live.load();
        let Limiter { spec, table, .. } = live.limiter(limiter)?;
        Ok(table.unblock(&spec.rules, key, || self.now()))
    }

    /// Forgets all blocked keys of a limiter; how many were there?
    ///
    /// # Errors
    /// When there is no such limiter.
    pub fn unblock_all(&self, limiter: &str) -> Result<u64, AskError> {
        self.here_for(limiter)?;
        let live = self.0.live.load();
        let Limiter { spec, table, .. } = live.limiter(limiter)?;
        Ok(table.unblock_all(&spec.rules, || self.now()))
    }

    /// Memory and keys of all limiters.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let store = &self.0.store;
        Usage {
            bytes: store.bytes(),
            max_bytes: store.max_bytes(),
            entries: store.entries(),
            capacity: store.capacity(),
        }
    }
}

impl Limiter {
    fn info(&self) -> LimiterInfo {
        LimiterInfo {
            spec: Arc::clone(&self.spec),
            enabled: !self.table.is_disabled(),
            entries: self.table.entries(),
            bytes: self.table.bytes(),
            counts: self.table.counts(),
        }
    }
}
