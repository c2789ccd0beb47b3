//! The turnstile's keys: what each counted, and where it stands among the others.
//!
//! A place that is as if it had never been used is forgotten: two are looked at for each new key, and a
//! [`SLICE`] in quiet times, so that no call takes long however many keys there are. When there are more keys in use than the bound, new keys
//! share: a few thousand places, chosen by hash, count for all of them.
//! Invariant: within a window all that a key does is counted in one place, its own or a shared one.

use super::KeyHash;
use super::line::{Line, Linked, Links, at};
use crate::Micros;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::{Index, IndexMut};

/// What a key counted.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) key: KeyHash,
    /// The window in which `started` was counted.
    pub(super) window: Micros,
    pub(super) started: u32,
    pub(super) in_flight: u32,
    /// Its account at the store is not settled.
    pub(super) has_open_account: bool,
    /// The requests that wait.
    pub(super) line: Line,
    pub(super) standing: Standing,
    links: Links,
}

/// In which line a place stands itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// No key: the place is free.
    Free,
    /// In none.
    Aside,
    /// A request can start as soon as the total allows.
    Ready,
    /// A request can start in the next window.
    Parked,
}

impl Place {
    /// Nothing to remember: as if the key had never come.
    fn is_idle(&self, window: Micros) -> bool {
        let unused = self.in_flight == 0 && self.line.is_empty() && (self.started == 0 || self.window != window);
        unused && !self.has_open_account
    }
}

impl Linked for Place {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug)]
pub(super) struct Places {
    all: Vec<Place>,
    by_key: HashMap<KeyHash, u32, BuildHasherDefault<AlreadyHashed>>,
    free: Line,
    ready: Line,
    parked: Line,
    /// Where forgetting goes on.
    hand: u32,
    /// How many of the places are shared ones.
    shared: u32,
}

/// Places for keys that have none of their own.
const SHARED: u64 = 4096;
/// How many places are looked at for a new key: more than it adds.
const FOR_A_NEWCOMER: usize = 2;
/// How many places are looked at, at a time, in quiet times: some ten microseconds.
const SLICE: usize = 256;
/// Free places that are kept when no key is left.
const KEPT: usize = 1024;

impl Default for Places {
    fn default() -> Places {
        let (all, by_key) = (Vec::new(), HashMap::default());
        Places { all, by_key, free: Line::EMPTY, ready: Line::EMPTY, parked: Line::EMPTY, hand: 0, shared: 0 }
    }
}

impl Places {
    /// The key's place. One is made if there is none; past `max`, it is a shared one.
    pub(super) fn of(&mut self, key: KeyHash, window: Micros, max: u32) -> u32 {
        if let Some(own) = self.by_key.get(&key) {
            return *own;
        }
        // For a new key more places are looked at than it takes.
        self.forget_some(FOR_A_NEWCOMER, window);
        let key_of_shared = KeyHash([u64::MAX, key.0[0] % SHARED]);
        let shared = if self.shared > 0 { self.by_key.get(&key_of_shared).copied() } else { None };
        match shared {
            // What the key did in this window, if anything, was counted there.
            Some(place) if !self[place].is_idle(window) => place,
            _ if self.by_key.len() < at(max) => self.make(key),
            Some(place) => place,
            None => {
                self.shared += 1;
                self.make(key_of_shared)
            }
        }
    }

    /// Is it this key's own place, and not a shared one?
    pub(super) fn is_own(&self, number: u32, key: KeyHash) -> bool {
        self[number].key == key
    }

    fn make(&mut self, key: KeyHash) -> u32 {
        let place = Place {
            key,
            window: Micros::ZERO,
            started: 0,
            in_flight: 0,
            has_open_account: false,
            line: Line::EMPTY,
            standing: Standing::Aside,
            links: Links::ALONE,
        };
        let number = self.free.pop_front(&mut self.all).unwrap_or_else(|| {
            // Keys are bounded by a u32, and so are places.
            u32::try_from(self.all.len()).unwrap_or(super::line::NONE)
        });
        match self.all.get_mut(at(number)) {
            Some(free) => *free = place,
            None => self.all.push(place),
        }
        self.by_key.insert(key, number);
        number
    }

    /// Looks at the next slice of the places, and frees those that are idle.
    pub(super) fn tend(&mut self, window: Micros) {
        self.forget_some(SLICE.min(self.all.len()), window);
    }

    /// How many slices there are.
    pub(super) fn slices(&self) -> usize {
        self.all.len().div_ceil(SLICE)
    }

    fn forget_some(&mut self, looks: usize, window: Micros) {
        for _ in 0..looks {
            self.hand = if at(self.hand) + 1 < self.all.len() { self.hand + 1 } else { 0 };
            let Some(place) = self.all.get(at(self.hand)) else { return };
            if place.standing != Standing::Free && place.is_idle(window) {
                self.forget(self.hand);
            }
        }
        if self.by_key.is_empty() && self.all.len() > KEPT {
            // Quiet: the memory of a busy time goes back.
            *self = Places::default();
        }
    }

    fn forget(&mut self, number: u32) {
        let key = self[number].key;
        self.shared -= u32::from(key.0[0] == u64::MAX && key.0[1] < SHARED);
        self.by_key.remove(&key);
        self.stand(number, Standing::Aside);
        self[number].standing = Standing::Free;
        self.free.push_back(&mut self.all, number);
    }

    /// Puts a place at the end of another line; in its own it stays where it is.
    pub(super) fn stand(&mut self, number: u32, standing: Standing) {
        let was = std::mem::replace(&mut self[number].standing, standing);
        if was == standing {
            return;
        }
        match was {
            Standing::Ready => self.ready.remove(&mut self.all, number),
            Standing::Parked => self.parked.remove(&mut self.all, number),
            Standing::Aside | Standing::Free => {}
        }
        match standing {
            Standing::Ready => self.ready.push_back(&mut self.all, number),
            Standing::Parked => self.parked.push_back(&mut self.all, number),
            Standing::Aside | Standing::Free => {}
        }
    }

    /// Takes the first of the ready places aside.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        let number = self.ready.first()?;
        self.stand(number, Standing::Aside);
        Some(number)
    }

    /// A new window: the places that waited for it are ready.
    pub(super) fn release_parked(&mut self) {
        while let Some(number) = self.parked.first() {
            self.stand(number, Standing::Ready);
        }
    }

    pub(super) fn any_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// The window that began at `old` is from now on the one that began at `new`.
    pub(super) fn rename_window(&mut self, old: Micros, new: Micros) {
        self.all.iter_mut().filter(|place| place.window == old).for_each(|place| place.window = new);
    }

    /// The places with requests in line.
    pub(super) fn with_a_line(&self) -> Vec<u32> {
        let numbers = (0..).zip(&self.all).filter(|(_, place)| !place.line.is_empty());
        numbers.map(|(number, _)| number).collect()
    }

    /// The places with requests under way.
    pub(super) fn with_any_under_way(&self) -> Vec<u32> {
        let numbers = (0..).zip(&self.all).filter(|(_, place)| place.in_flight > 0);
        numbers.map(|(number, _)| number).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}

impl Index<u32> for Places {
    type Output = Place;

    fn index(&self, number: u32) -> &Place {
        &self.all[at(number)]
    }
}

impl IndexMut<u32> for Places {
    fn index_mut(&mut self, number: u32) -> &mut Place {
        &mut self.all[at(number)]
    }
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0] ^ self.0[1].rotate_left(32));
    }
}

/// Takes a key's hash as it is: it is one already, and seeded.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `KeyHash` is hashed here, with one `write_u64`.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
