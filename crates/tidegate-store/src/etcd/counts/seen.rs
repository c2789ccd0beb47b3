//! What was last seen of keys: a guess at what is there, which every transaction checks.

use super::entry::Entry;
use std::collections::HashMap;

/// The latest of them. Two generations: when the younger one is full, the older one is forgotten.
#[derive(Default)]
pub(super) struct Seen {
    young: HashMap<Vec<u8>, Sight>,
    old: HashMap<Vec<u8>, Sight>,
}

/// A key as it was seen.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Sight {
    /// When it was last changed; 0: there was none.
    pub(super) revision: i64,
    pub(super) entry: Entry,
}

/// Most keys of a generation; a key that was forgotten costs one more round trip.
const GENERATION_MAX: usize = 50_000;

impl Seen {
    /// What is taken for there; a key that was never seen is taken for absent.
    pub(super) fn get(&self, key: &[u8]) -> Sight {
        self.young.get(key).or_else(|| self.old.get(key)).cloned().unwrap_or_default()
    }

    pub(super) fn note(&mut self, key: &[u8], sight: Sight) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key.to_vec(), sight);
    }

    pub(super) fn forget(&mut self, key: &[u8]) {
        self.young.remove(key);
        self.old.remove(key);
    }
}
