//! What a gate reports: limiters, memory, pages of keys, and the health of its store.

use crate::LimiterSpec;
use std::sync::Arc;
use std::{fmt, str::FromStr};
use tidegate_store::{Counts, StoreError};

/// A limiter as it stands.
#[derive(Clone, Debug)]
pub struct LimiterInfo {
    /// Its definition.
    pub spec: Arc<LimiterSpec>,
    /// False: disabled.
    pub enabled: bool,
    /// Keys held, idle ones included; `None`: its states are on other machines, which are not asked for this.
    pub entries: Option<usize>,
    /// Memory held in this process; `None`: as above.
    pub bytes: Option<usize>,
    /// How decisions went; of a candidate, how they would have gone.
    pub counts: Counts,
    /// How decisions would have gone by its candidate limits, if it has some.
    pub candidate: Option<Counts>,
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

/// How a store on other machines does.
#[derive(Clone, Debug)]
pub struct StoreHealth {
    /// Where it is; no password.
    pub url: String,
    /// Why it cannot be asked now, or refuses to decide.
    pub error: Option<StoreError>,
    /// Decisions that were made without it.
    pub degraded: u64,
    /// How often it was asked in vain, by kind. While it is known not to answer it is not asked.
    pub errors: Vec<(&'static str, u64)>,
}
