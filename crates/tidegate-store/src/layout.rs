//! How a key's entry lies in words, and how entries migrate from one layout to another.
//!
//! An entry is its hash, until when it is blocked, the states of its limits, and where its name is kept.

use std::ops::Range;
use tidegate_core::{Algorithm, Compact, Micros, Rules, State};
use tidegate_core::{average, fixed_window, sliding_window, token_bucket};

/// What fixes the layout of a table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How the limiter counts.
    pub algorithm: Algorithm,
    /// How many limits it has.
    pub limits: usize,
    /// Are key names kept?
    pub names: bool,
    /// Are statistics kept?
    pub stats: bool,
}

pub(crate) const HASH: usize = 0;
pub(crate) const BLOCKED_UNTIL: usize = 1;
pub(crate) const STATES: usize = 2;

impl Shape {
    /// True for states that do not fit two words: an entry has their number, see [`crate::logs`].
    #[inline]
    pub(crate) fn grows(&self) -> bool {
        matches!(self.algorithm, Algorithm::SlidingLog | Algorithm::Buckets)
    }

    /// States of an entry.
    #[inline]
    pub(crate) fn states(&self) -> usize {
        self.algorithm.states(self.limits)
    }

    #[inline]
    pub(crate) fn words_per_state(&self) -> usize {
        if self.grows() { 1 } else { 2 }
    }

    /// Where an entry's states lie.
    #[inline]
    pub(crate) fn state_words(&self) -> Range<usize> {
        STATES..self.name_word()
    }

    #[inline]
    pub(crate) fn name_word(&self) -> usize {
        STATES + self.words_per_state() * self.states()
    }

    pub(crate) fn stride(&self) -> usize {
        self.name_word() + usize::from(self.names)
    }

    /// The shape and a generation in one number that can be read without a lock; never 0.
    pub(crate) fn layout(&self, generation: u16) -> u32 {
        let limits = u32::try_from(self.limits).unwrap_or(0);
        let flags = u32::from(self.names) << 8 | u32::from(self.stats) << 9;
        u32::from(generation) << 16 | flags | limits << 4 | self.algorithm as u32
    }

    /// The shape of a [`Shape::layout`].
    #[inline]
    pub(crate) fn of_layout(layout: u32) -> Shape {
        Shape {
            algorithm: ALGORITHMS[(layout & 0xf) as usize],
            limits: (layout >> 4 & 0xf) as usize,
            names: layout >> 8 & 1 == 1,
            stats: layout >> 9 & 1 == 1,
        }
    }

    /// Are entries of this shape entries of these rules?
    #[inline]
    pub(crate) fn fits(&self, rules: &Rules) -> bool {
        rules.algorithm() == self.algorithm && rules.limits().len() == self.limits
    }

    /// Does a layout have entries of one limit by this algorithm, without statistics?
    #[inline]
    pub(crate) fn is_plain(layout: u32, algorithm: Algorithm) -> bool {
        layout & PLAIN_MASK == algorithm as u32 | 1 << 4
    }

    /// The next generation of a layout.
    pub(crate) fn next_generation(layout: u32) -> u16 {
        u16::try_from(layout >> 16).unwrap_or(0).wrapping_add(1)
    }
}

/// Every algorithm at its number, and as many more as four bits count, so that no bound need be checked.
const ALGORITHMS: [Algorithm; 16] = {
    let mut all = [Algorithm::ALL[0]; 16];
    let mut index = 0;
    while index < Algorithm::ALL.len() {
        all[index] = Algorithm::ALL[index];
        index += 1;
    }
    all
};

/// What of a layout says how its entries are decided: the algorithm, the number of limits, statistics.
const PLAIN_MASK: u32 = 0x2ff;

/// Limits fit the four bits that a layout has for them, and so do algorithms.
const _: () = assert!(tidegate_core::LIMITS_MAX < 16 && Algorithm::ALL.len() < 16);

/// How a table's entries are migrated to new rules.
#[derive(Clone, Debug)]
pub(crate) struct Migration {
    pub(crate) old: Shape,
    pub(crate) new: Shape,
    /// For each new limit, the old one whose states it takes over.
    pub(crate) from: Vec<Option<usize>>,
}

/// An entry outside a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) blocked_until: Micros,
    pub(crate) name: Vec<u8>,
    pub(crate) states: Vec<State>,
}

#[inline]
pub(crate) fn to_words(state: &State) -> [u64; 2] {
    match state {
        State::TokenBucket(state) => state.to_words(),
        State::FixedWindow(state) => state.to_words(),
        State::AlignedWindow(state) => state.to_words(),
        State::SlidingWindow(state) => state.to_words(),
        State::StrictAverage(state) => state.to_words(),
        State::LeakyAverage(state) => state.to_words(),
        // None is kept in words: what grows has its own room, and sketched keys have no entry.
        State::SlidingLog(_) | State::Buckets(_) | State::Sketched(_) => [0, 0],
    }
}

#[inline]
pub(crate) fn from_words(algorithm: Algorithm, words: [u64; 2]) -> State {
    match algorithm {
        Algorithm::TokenBucket => State::TokenBucket(token_bucket::State::from_words(words)),
        Algorithm::FixedWindow => State::FixedWindow(fixed_window::FirstHit::from_words(words)),
        Algorithm::AlignedWindow => State::AlignedWindow(fixed_window::Aligned::from_words(words)),
        Algorithm::SlidingWindow => State::SlidingWindow(sliding_window::State::from_words(words)),
        Algorithm::StrictAverage => State::StrictAverage(average::Strict::from_words(words)),
        Algorithm::LeakyAverage => State::LeakyAverage(average::Leaky::from_words(words)),
        Algorithm::SlidingLog | Algorithm::Buckets => State::fresh(algorithm),
    }
}
