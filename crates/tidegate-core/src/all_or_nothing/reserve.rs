//! Charges with the right to give back: what a reservation remembers, and what its commit makes of a state.
//!
//! **Idea.** A reservation is an ordinary charge, and a [`Mark`] of where each limit counted it: the window, the entry of the log, the block,
//! or for a token bucket the debt as the charge left it. When the real cost is known, what was charged too much is taken off there, if it is
//! still there, and nowhere else; what was charged too little is charged now, whatever the limits say.
//!
//! **Never over** (R1). A state that something was given back to counts at least what it would count if the smaller cost had been
//! charged in the first place, so that nothing passes that would not have passed then. For counts this is plain: the same window holds
//! less. A token bucket drains its oldest debt first: of a charge that left the bucket empty at `e`, at `now` at most `e - now` is still
//! owed, and later charges lie on top of it. No more than that is given back. *Example:* 10 per 10 s, a reservation of 10 at 0 s. At
//! 8 s 2 of it are still owed; somebody hits 3, so that 5 are owed. Canceled now, it gives back 2: the 3 stay.
//!
//! **Bounds.** An excess takes a token bucket down to empty and no further, so that no key waits for longer than its burst takes (A9);
//! counts stop at 2^32 - 1. A token bucket whose limit was changed gives nothing back, as its debt is another one. Nor does a reservation
//! give back while the clock stands before the time at which it was made.
//!
//! **Weakness.** A mark does not know of a clock that stepped back after it was made and of charges in between: then up to the reserved cost
//! may be given back that had drained before. The embedded store's clock never steps back; a Redis server's may.

use super::{Room, Ruling, Subject};
use crate::{Algorithm, Check, Micros, State, token_bucket};

/// Where a charge was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The bucket as the charge left it.
    TokenBucket(token_bucket::Mark),
    /// The window's start.
    FixedWindow(Micros),
    /// The window's start.
    AlignedWindow(Micros),
    /// The entry's time.
    SlidingLog(Micros),
    /// The window's start.
    SlidingWindow(Micros),
    /// The block's start.
    Buckets(Micros),
}

/// What was agreed when a reservation was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// When it was charged.
    pub made_at: Micros,
    /// From then on the charge stays as it is.
    pub until: Micros,
    /// How much was charged.
    pub cost: u32,
}

/// What a commit does to the states; at most one of the two is not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// Charged too much.
    pub give_back: u32,
    /// Charged too little.
    pub excess: u32,
}

impl Terms {
    /// What a commit of `cost` does now. `None`: it is too late, and the charge stays.
    #[must_use]
    pub fn settlement(&self, now: Micros, cost: u32) -> Option<Settlement> {
        let give_back = if now < self.made_at { 0 } else { self.cost.saturating_sub(cost) };
        (now < self.until).then_some(Settlement { give_back, excess: cost.saturating_sub(self.cost) })
    }
}

/// Where a charge that was made right now has been counted, for each state. Empty: it cannot be given back, as for averages and for keys that
/// the sketch answers for.
#[must_use]
pub fn marks(subject: &mut Subject<'_>, now: Micros) -> Vec<Mark> {
    subject.states_mut().filter_map(|(check, state)| state.mark(check, now)).collect()
}

/// Does what a commit has to: returns how much was given back, to the limit that got back most, and how the key stands then.
pub fn settle(subject: &mut Subject<'_>, now: Micros, marks: &[Mark], settlement: Settlement) -> (u32, Ruling) {
    subject.settle(now);
    let Settlement { give_back, excess } = settlement;
    let (room, mut given_back) = (subject.room, 0);
    for (index, (check, state)) in subject.states_mut().enumerate() {
        if let Some(mark) = marks.get(index) {
            given_back = state.give_back_of(check, now, mark, give_back).max(given_back);
        }
        if excess > 0 {
            state.overdraw(check, room, now, excess);
        }
    }
    (given_back, subject.look(now, 0))
}

impl Algorithm {
    /// Can a charge be given back?
    #[must_use]
    pub const fn gives_back(self) -> bool {
        !matches!(self, Algorithm::StrictAverage | Algorithm::LeakyAverage)
    }
}

impl State {
    fn mark(&self, check: Check<'_>, now: Micros) -> Option<Mark> {
        Some(match self {
            State::TokenBucket(state) => Mark::TokenBucket(state.mark(check.limit())),
            State::FixedWindow(state) => Mark::FixedWindow(state.start()),
            State::AlignedWindow(state) => Mark::AlignedWindow(state.start()),
            State::SlidingLog(state) => Mark::SlidingLog(state.newest_at()),
            State::SlidingWindow(state) => Mark::SlidingWindow(state.start()),
            State::Buckets(state) => Mark::Buckets(state.counted_at(check.grid(), check.shortest_period(), now)?),
            State::StrictAverage(_) | State::LeakyAverage(_) | State::Sketched(_) => return None,
        })
    }

    /// Takes `cost` off where it was counted, as far as it is still there; how much that was.
    fn give_back_of(&mut self, check: Check<'_>, now: Micros, mark: &Mark, cost: u32) -> u32 {
        match (self, mark) {
            (State::TokenBucket(state), Mark::TokenBucket(mark)) => state.give_back_of(check.limit(), now, mark, cost),
            (State::FixedWindow(state), Mark::FixedWindow(start)) => state.give_back_of(*start, cost),
            (State::AlignedWindow(state), Mark::AlignedWindow(start)) => state.give_back_of(*start, cost),
            (State::SlidingLog(state), Mark::SlidingLog(at)) => state.give_back_of(*at, cost),
            (State::SlidingWindow(state), Mark::SlidingWindow(start)) => {
                state.give_back_of(check.limit(), *start, cost)
            }
            (State::Buckets(state), Mark::Buckets(start)) => state.give_back_of(*start, cost),
            // The limiter counts in another way by now.
            _ => 0,
        }
    }

    /// Charges whatever the limit says, as far as the state can count.
    fn overdraw(&mut self, check: Check<'_>, room: Room, now: Micros, cost: u32) {
        let most = check.limit().burst();
        match self {
            State::TokenBucket(state) => state.overdraw(check.limit(), now, cost),
            State::SlidingLog(log) => {
                let cost = cost.min(u32::MAX - log.used());
                self.charge_by(check, room, now, cost);
            }
            State::StrictAverage(_) | State::LeakyAverage(_) => self.charge_by(check, room, now, cost.min(most)),
            // Their counts stop at the largest by themselves.
            _ => self.charge_by(check, room, now, cost),
        }
    }

    fn charge_by(&mut self, check: Check<'_>, room: Room, now: Micros, cost: u32) {
        match room {
            _ if cost == 0 => {}
            Room::Free => self.charge(check, now, cost),
            Room::Exhausted => self.charge_coarsely(check, now, cost),
        }
    }
}

#[cfg(test)]
mod tests;
