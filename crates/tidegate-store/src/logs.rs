//! States that do not fit a slot, sliding logs and the histories of buckets: kept beside the slots and
//! known by number.
//!
//! Invariant: `heap` is what the states that are here hold; one that is taken out is not counted.

use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Check, Meter, Micros, State, buckets, sliding_log};

/// What grows, by number: an entry's word is a state's number plus one, or 0 for none. A table has
/// states of one kind at a time.
#[derive(Debug, Default)]
pub(crate) enum Logs {
    #[default]
    Empty,
    Sliding(Numbered<sliding_log::State>),
    Buckets(Numbered<buckets::State>),
}

impl Logs {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Logs::Empty => 0,
            Logs::Sliding(logs) => logs.bytes(),
            Logs::Buckets(histories) => histories.bytes(),
        }
    }

    /// What a state takes, with its number.
    pub(crate) fn bytes_for(state: &State) -> usize {
        // The list of numbers grows by doubling.
        const NUMBER: usize = 2 * size_of::<Option<Box<()>>>();
        match state {
            State::SlidingLog(log) => NUMBER + footprint(&**log),
            State::Buckets(history) => NUMBER + footprint(&**history),
            _ => 0,
        }
    }

    /// Takes a state out, until [`Logs::put`] brings it back under the same word; or copies it for a peek.
    pub(crate) fn lend(&mut self, algorithm: Algorithm, word: u64, intent: Intent) -> State {
        match (self, intent) {
            (Logs::Sliding(logs), Intent::Hit) => State::SlidingLog(logs.take(word)),
            (Logs::Buckets(histories), Intent::Hit) => State::Buckets(histories.take(word)),
            (logs, _) => logs.copy(algorithm, word),
        }
    }

    pub(crate) fn copy(&self, algorithm: Algorithm, word: u64) -> State {
        match self {
            Logs::Empty => State::fresh(algorithm),
            Logs::Sliding(logs) => State::SlidingLog(logs.copy(word)),
            Logs::Buckets(histories) => State::Buckets(histories.copy(word)),
        }
    }

    /// True when the limit is as if never used.
    pub(crate) fn is_unused(&self, word: u64, check: Check<'_>, now: Micros) -> bool {
        let status = match self {
            Logs::Empty => None,
            Logs::Sliding(logs) => logs.get(word).map(|log| log.status(check.limit(), now)),
            Logs::Buckets(all) => all.get(word).map(|history| history.status(check.limit(), check.grid(), now)),
        };
        status.is_none_or(|status| status.reset_after.is_zero())
    }

    /// Stores a state under its word, or a new one; an empty one gives its word back.
    pub(crate) fn put(&mut self, word: u64, state: State) -> u64 {
        match (&mut *self, state) {
            (Logs::Sliding(logs), State::SlidingLog(log)) => logs.put(word, log),
            (Logs::Buckets(histories), State::Buckets(history)) => histories.put(word, history),
            (_, State::SlidingLog(log)) => {
                let (logs, word) = Numbered::of(log);
                *self = Logs::Sliding(logs);
                word
            }
            (_, State::Buckets(history)) => {
                let (histories, word) = Numbered::of(history);
                *self = Logs::Buckets(histories);
                word
            }
            _ => 0,
        }
    }

    pub(crate) fn free(&mut self, word: u64) {
        match self {
            Logs::Empty => {}
            Logs::Sliding(logs) => logs.free(word),
            Logs::Buckets(histories) => histories.free(word),
        }
    }

    pub(crate) fn shrink(&mut self) {
        let unused = match self {
            Logs::Empty => true,
            Logs::Sliding(logs) => logs.is_unused(),
            Logs::Buckets(histories) => histories.is_unused(),
        };
        if unused {
            *self = Logs::Empty;
        }
    }
}

/// What the room of a state needs to know of it.
pub(crate) trait Grows: Default + Clone + PartialEq {
    fn heap_bytes(&self) -> usize;
}

impl Grows for sliding_log::State {
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl Grows for buckets::State {
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

/// States of one kind.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    states: Vec<Option<Box<T>>>,
    vacant: Vec<u32>,
    heap: usize,
}

impl<T: Grows> Numbered<T> {
    /// The first of its kind, and its word.
    fn of(state: Box<T>) -> (Numbered<T>, u64) {
        let mut all = Numbered { states: Vec::new(), vacant: Vec::new(), heap: 0 };
        let word = all.put(0, state);
        (all, word)
    }

    fn bytes(&self) -> usize {
        self.states.capacity() * size_of::<Option<Box<T>>>() + self.vacant.capacity() * size_of::<u32>() + self.heap
    }

    fn get(&self, word: u64) -> Option<&T> {
        self.states.get(usize::try_from(word).ok()?.checked_sub(1)?)?.as_deref()
    }

    fn copy(&self, word: u64) -> Box<T> {
        Box::new(self.get(word).cloned().unwrap_or_default())
    }

    fn take(&mut self, word: u64) -> Box<T> {
        let index = usize::try_from(word).unwrap_or(0).wrapping_sub(1);
        let state = self.states.get_mut(index).and_then(Option::take);
        self.heap -= state.as_ref().map_or(0, |state| footprint(&**state));
        state.unwrap_or_default()
    }

    fn put(&mut self, word: u64, state: Box<T>) -> u64 {
        if *state == T::default() {
            self.free(word);
            return 0;
        }
        let index = match usize::try_from(word).unwrap_or(0).checked_sub(1) {
            Some(index) => index,
            None => self.vacant.pop().map_or_else(
                || {
                    self.states.push(None);
                    self.states.len() - 1
                },
                |index| index as usize,
            ),
        };
        self.heap += footprint(&*state);
        self.states[index] = Some(state);
        index as u64 + 1
    }

    fn free(&mut self, word: u64) {
        let Some(index) = usize::try_from(word).unwrap_or(0).checked_sub(1) else {
            return;
        };
        let state = self.states.get_mut(index).and_then(Option::take);
        self.heap -= state.map_or(0, |state| footprint(&*state));
        self.vacant.push(u32::try_from(index).unwrap_or(u32::MAX));
    }

    fn is_unused(&self) -> bool {
        self.vacant.len() == self.states.len()
    }
}

/// A state's struct, its buffer, and what the allocator adds to each.
fn footprint<T: Grows>(state: &T) -> usize {
    const ALLOCATION: usize = 16;
    size_of::<T>() + state.heap_bytes() + 2 * ALLOCATION
}
