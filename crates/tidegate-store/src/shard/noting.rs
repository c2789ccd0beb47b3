//! Which hits of a shard are noted for people: two countdowns, of hits and of denials.

use super::{Frame, PIECE_SLOTS, Shard};
use crate::layout::{BLOCKED_UNTIL, Shape};
use tidegate_core::Micros;
use tidegate_core::top_keys::Sampling;

/// How hits are chosen.
#[derive(Debug, Default)]
pub(super) struct Noting {
    hits: Chosen,
    denials: Chosen,
}

#[derive(Debug, Default)]
struct Chosen {
    sampling: Sampling,
    /// For how many the one that is noted next stands, apart from itself.
    passed: u16,
}

/// What a hit that is noted stands for.
pub(crate) struct Due {
    pub(crate) hit: Option<u16>,
    pub(crate) denial: Option<u16>,
}

/// A countdown that has run out.
const RUN_OUT: u16 = u16::MAX;

impl Shard {
    /// Counts a hit down; true: it is to be noted.
    #[inline(always)]
    pub(crate) fn count_down(&mut self, is_allowed: bool) -> bool {
        self.hits_left = self.hits_left.wrapping_sub(1);
        let mut is_due = self.hits_left == RUN_OUT;
        if !is_allowed {
            self.denials_left = self.denials_left.wrapping_sub(1);
            is_due |= self.denials_left == RUN_OUT;
        }
        is_due
    }

    /// What the hit that has just been counted down stands for; the countdowns begin again.
    pub(crate) fn due(&mut self, hash: u64, now: Micros) -> Due {
        let Noting { hits, denials } = &mut self.rest.noting;
        Due { hit: hits.due(&mut self.hits_left, hash, now), denial: denials.due(&mut self.denials_left, hash, now) }
    }

    /// The next hit is noted instead, and stands for this one, too.
    pub(crate) fn postpone_noting(&mut self) {
        let Noting { hits, denials } = &mut self.rest.noting;
        for (chosen, left) in [(hits, &mut self.hits_left), (denials, &mut self.denials_left)] {
            if *left == RUN_OUT {
                *left = 0;
                chosen.passed = chosen.passed.saturating_add(1);
            }
        }
    }

    /// Nothing is noted; the countdowns are as long as they can be.
    pub(crate) fn rest_from_noting(&mut self) {
        for left in [&mut self.hits_left, &mut self.denials_left] {
            *left = (*left).min(RUN_OUT - 1);
        }
    }

    /// The next hit is noted and stands for itself. Otherwise, after many hits, the first of few would be passed over.
    pub(crate) fn restart_noting(&mut self) {
        if Shape::of_layout(self.layout).names {
            self.note_next();
        }
    }

    /// The same whether names are kept or not.
    pub(crate) fn note_next(&mut self) {
        (self.hits_left, self.rest.noting.hits.passed) = (0, 0);
        (self.denials_left, self.rest.noting.denials.passed) = (0, 0);
    }

    /// Appends the names of the blocked entries in the next piece of a walk by hash, and until when they are blocked.
    pub(crate) fn blocked_piece(
        &self,
        frame: &Frame<'_>,
        after: u64,
        found: &mut Vec<(Micros, Vec<u8>)>,
    ) -> Option<u64> {
        let (first, last) = self.slots.piece(after, PIECE_SLOTS)?;
        let entries = self.slots.up_to(first, last).map(|index| self.slots.entry(index));
        let blocked = entries.filter(|entry| entry[BLOCKED_UNTIL] > frame.now.get());
        found.extend(
            blocked
                .map(|entry| (Micros::saturating(entry[BLOCKED_UNTIL]), self.name(&frame.shape, entry).to_vec()))
                .filter(|(_, name)| !name.is_empty()),
        );
        Some(last)
    }
}

impl Chosen {
    fn due(&mut self, left: &mut u16, hash: u64, now: Micros) -> Option<u16> {
        if *left != RUN_OUT {
            return None;
        }
        let weight = self.passed.saturating_add(1);
        let gap = self.sampling.gap(hash, now);
        *left = gap - 1;
        self.passed = gap - 1;
        Some(weight)
    }
}
