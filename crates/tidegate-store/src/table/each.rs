//! Many requests at once, each decided by itself: their entries are fetched side by side.

use super::Table;
use crate::shard::Door;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{Micros, Rules};

/// A request of one key, which is decided by itself.
#[derive(Clone, Copy, Debug)]
pub struct Single<'a> {
    /// The rules that it is decided by.
    pub rules: &'a Rules,
    /// The key.
    pub key: &'a [u8],
    /// How much.
    pub cost: u32,
    /// Hit or peek.
    pub intent: Intent,
    /// Where it came in.
    pub door: Door,
}

impl<'a> Single<'a> {
    /// A request of this process.
    #[must_use]
    #[inline]
    pub const fn new(rules: &'a Rules, key: &'a [u8], cost: u32, intent: Intent) -> Single<'a> {
        Single { rules, key, cost, intent, door: Door::Library }
    }

    /// The same, which came in at this door.
    #[must_use]
    #[inline]
    pub const fn at(self, door: Door) -> Single<'a> {
        Single { door, ..self }
    }
}

/// How many keys ahead a batch fetches entries. Far ahead: the fetches are then issued one right after
/// another, so that the processor looks up their addresses side by side. Between two decisions it
/// would wait for each, as the lock in between lets nothing pass.
const AHEAD: usize = 64;
/// How far a batch's clock reading may be behind its shard before it counts as a clock step.
const BATCH_AGE_MAX: Micros = Micros::from_secs(1);

impl Table {
    /// Decides many requests, each on its own, at one time. `each` gets the rulings in the order of the requests.
    #[inline]
    pub fn decide_each<'k>(
        &self,
        requests: impl ExactSizeIterator<Item = Single<'k>> + Clone,
        now: Micros,
        mut each: impl FnMut(Ruling),
    ) {
        let mut hashes = [0; AHEAD];
        for (hash, request) in hashes.iter_mut().zip(requests.clone()) {
            *hash = self.announce(request.key);
        }
        let mut later = requests.clone().skip(AHEAD);
        for (index, request) in requests.enumerate() {
            let hash = hashes[index % AHEAD];
            if let Some(later) = later.next() {
                hashes[index % AHEAD] = self.announce(later.key);
            }
            let cell = self.cell(hash);
            let mut shard = self.locked(cell);
            let behind = shard.latest.saturating_sub(now);
            let now = if behind <= BATCH_AGE_MAX { now.max(shard.latest) } else { now };
            let ruling = self.decide_locked(cell, &mut shard, hash, &request, now);
            drop(shard);
            each(ruling);
        }
    }
}
