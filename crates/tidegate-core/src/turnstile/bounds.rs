//! What a turnstile lets through, and the key that it counts.

use crate::{Limit, Micros};

/// The key that a turnstile counts: 128 bits of a seeded hash, made by the caller. Names are not kept, so
/// that a key costs the same however long its name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(pub(super) [u64; 2]);

impl KeyHash {
    /// Two independent seeded hashes of one key.
    #[must_use]
    pub const fn new(one: u64, other: u64) -> KeyHash {
        KeyHash([one, other])
    }
}

/// What a turnstile lets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Starts per key and window. Its burst and block have no meaning here.
    pub limit: Limit,
    /// Under way per key; 0: no bound.
    pub in_flight: u32,
    /// Under way over all keys.
    pub total: u32,
    /// In line over all keys.
    pub waiting: u32,
    /// The sum of the weights of all requests in line.
    pub waiting_weight: u64,
    /// Keys with a place of their own. Past it new keys share places, which can make them wait too
    /// long and never lets one start too often.
    pub keys: u32,
}

impl Bounds {
    pub(super) fn window(&self, now: Micros) -> Micros {
        self.limit.window_start(now)
    }
}
