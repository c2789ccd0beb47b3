//! Keys blocked by hand at the limiter whose starts replicas of a proxy count together: their turnstiles ask the store for
//! starts, and never for a key's state. So these blocks are looked up beside the flags, and reach every replica within a second.
//!
//! Invariant: a block that the replicas would not see is refused.

use super::{Gate, Inner};
use crate::{AskError, LimiterSpec};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::Intent;
use tidegate_store::{Asked, PageOf, Question, StoreError, When, Which};
use tokio::time::Instant;

/// So many keys may be blocked at once: all of them are looked up each time.
const BLOCKED_MAX: usize = 1_000;
/// How long looking them up may take.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SharedBlocks {
    /// The limiter's name.
    limiter: OnceLock<String>,
    /// Each blocked key, and until when it is blocked by the store's clock.
    keys: ArcSwap<HashMap<Vec<u8>, Micros>>,
}

impl Gate {
    /// Replicas of a proxy count the starts of this limiter together, where its keys' own states are not looked at: from now on
    /// [`Gate::blocked_together`] knows the keys of it that are blocked by hand.
    pub fn count_together(&self, limiter: &str) {
        // One proxy runs in a process, and its limiter is fixed at the start.
        let _ = self.0.shared_blocks.limiter.set(limiter.to_owned());
    }

    /// Until when a key of the limiter that replicas count together is blocked, by the store's clock; a block or its end is
    /// known here within a second. Costs next to nothing.
    #[must_use]
    pub fn blocked_together(&self, key: &[u8]) -> Option<Micros> {
        let keys = self.0.shared_blocks.keys.load();
        if keys.is_empty() { None } else { keys.get(key).copied() }
    }
}

impl SharedBlocks {
    /// Can a key of this limiter be blocked, so that the block holds?
    pub(super) fn check(&self, spec: &LimiterSpec) -> Result<(), AskError> {
        if !self.are_of(spec) {
            return Ok(());
        }
        let why = match (spec.names, self.keys.load().len() < BLOCKED_MAX) {
            (true, true) => return Ok(()),
            (false, _) => {
                "keeps no names, by which replicas of the proxy find blocked keys; set names = true".to_owned()
            }
            (_, false) => {
                format!("has {BLOCKED_MAX} blocked keys, as many as replicas of the proxy look up; unblock some")
            }
        };
        Err(StoreError::Unsupported(format!("limiter \"{}\" {why}", spec.name)).into())
    }

    /// A key was blocked here: this process need not look it up.
    pub(super) fn insert(&self, spec: &LimiterSpec, key: &[u8], until: Micros) {
        self.change(spec, |keys| {
            keys.insert(key.to_vec(), until);
        });
    }

    pub(super) fn remove(&self, spec: &LimiterSpec, key: &[u8]) {
        self.change(spec, |keys| {
            keys.remove(key);
        });
    }

    pub(super) fn clear(&self, spec: &LimiterSpec) {
        self.change(spec, HashMap::clear);
    }

    fn are_of(&self, spec: &LimiterSpec) -> bool {
        self.limiter.get() == Some(&spec.name)
    }

    fn change(&self, spec: &LimiterSpec, change: impl Fn(&mut HashMap<Vec<u8>, Micros>)) {
        if self.are_of(spec) {
            self.keys.rcu(|keys| {
                let mut keys = HashMap::clone(keys);
                change(&mut keys);
                keys
            });
        }
    }
}

impl Inner {
    /// Looks the blocked keys up; when the store does not answer they stay as they were.
    pub(super) async fn look_up_shared_blocks(&self) -> Result<(), StoreError> {
        let Some(name) = self.shared_blocks.limiter.get() else { return Ok(()) };
        let live = self.live.load_full();
        let found = live.limiter(name).ok().filter(|limiter| limiter.spec.names);
        let Some(limiter) = found.filter(|limiter| limiter.store.capabilities().blocks) else { return Ok(()) };
        let (spec, now, by) = (limiter.in_force(), self.clock.manual_now(), Instant::now() + LOOK_UP_WITHIN);
        let page = PageOf { which: Which::Blocked, after: None, most: BLOCKED_MAX };
        let listing = limiter.store.list(&limiter.question(&spec, b""), page, When { now, by }).await?;
        let asked = Asked { now, intent: Intent::Peek, explain: true, by };
        let until = async |key: Vec<u8>| {
            let (_, told) =
                limiter.store.decide(&[Question { cost: 0, ..limiter.question(&spec, &key) }], &asked).await?;
            Ok::<_, StoreError>((key, told.first().map_or(Micros::ZERO, |told| told.blocked_until)))
        };
        let keys = futures_util::future::try_join_all(listing.keys.into_iter().map(until)).await?;
        if !(keys.is_empty() && self.shared_blocks.keys.load().is_empty()) {
            self.shared_blocks.keys.store(keys.into_iter().collect::<HashMap<_, _>>().into());
        }
        Ok(())
    }
}
