//! Counting and asking in separate steps, as an application does that counts its work once it is done.
//!
//! Only buckets can: their counts have a time, so that they can be added after the fact. Between the
//! two steps others may come, so that a limit can be exceeded; a hit cannot.
//! Invariant: increments never block, analyses never count.

use super::{Room, Subject};
use crate::{Algorithm, Check, Micros, State};

/// What a key's counts say without a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Analysis {
    /// No limit is reached.
    Ok,
    /// A limit is reached, and this very call has blocked the key; or it was found again, see
    /// [`IfBlocked::Recompute`].
    Limited {
        /// Which limit, from 0: the first in definition order.
        limit_index: u8,
        /// The sum, newest first, at which it was reached.
        sum: u64,
        /// Until when the key is blocked.
        blocked_until: Micros,
    },
    /// The key was blocked before.
    Blocked {
        /// Until when.
        until: Micros,
    },
}

/// What an analysis makes of a key that is blocked already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfBlocked {
    /// Says so.
    Tell,
    /// Looks for the limit that is reached all the same. The block stays as it is.
    Recompute,
}

/// Counts `count` at the time `at`, whatever the limits and blocks say. `at` may have passed, or be a
/// little ahead: by more than the shortest period it counts now. False: nothing was counted, as that
/// time is older than what is kept, or the count is 0. `None`: the limiter is none of buckets.
pub fn increment(subject: &mut Subject<'_>, now: Micros, at: Micros, count: u32) -> Option<bool> {
    if subject.rules.algorithm() != Algorithm::Buckets {
        return None;
    }
    subject.settle(now);
    let room = subject.room;
    let add = |(check, state): (Check<'_>, &mut State)| count > 0 && state.add_at(check, room, now, at, count);
    // Sketched states are one a limit, hence no `any`, which would stop at the first.
    Some(subject.states_mut().map(add).fold(false, |counted, more| counted | more))
}

/// Has a limit been reached? The first that was blocks the key. `None`: the limiter is none of buckets.
///
/// For a key that the sketch answers for, the answer is until when the sketch counts it, and no block is kept.
pub fn analyze(subject: &mut Subject<'_>, now: Micros, if_blocked: IfBlocked) -> Option<Analysis> {
    if subject.rules.algorithm() != Algorithm::Buckets {
        return None;
    }
    let blocked = subject.blocked_until > now;
    let as_it_is = if blocked { Analysis::Blocked { until: subject.blocked_until } } else { Analysis::Ok };
    if blocked && if_blocked == IfBlocked::Tell {
        return Some(as_it_is);
    }
    subject.settle(now);
    let reached = subject.pairs().find_map(|(check, state)| Some((check, state, state.crossing(check, now)?)));
    let Some((check, state, sum)) = reached else {
        return Some(as_it_is);
    };
    let limit_index = u8::try_from(check.index()).unwrap_or(u8::MAX);
    let blocked_until = match state {
        _ if blocked => subject.blocked_until,
        State::Sketched(_) => now.saturating_add(state.status(check, now).reset_after),
        _ => {
            subject.blocked_until = now.saturating_add(check.block().unwrap_or_default());
            subject.blocked_until
        }
    };
    Some(Analysis::Limited { limit_index, sum, blocked_until })
}

impl State {
    /// Counts at a time of the caller's. The sketch has no past: what is in its place counts now.
    fn add_at(&mut self, check: Check<'_>, room: Room, now: Micros, at: Micros, count: u32) -> bool {
        let (grid, shortest) = (check.grid(), check.shortest_period());
        match self {
            State::Buckets(state) if room == Room::Exhausted && state.must_grow(grid, at) => {
                state.add_coarsely(grid, shortest, now, at, count)
            }
            State::Buckets(state) => state.add(grid, shortest, now, at, count),
            _ => grid.keeps(at, now),
        }
    }

    fn crossing(&self, check: Check<'_>, now: Micros) -> Option<u64> {
        match self {
            State::Buckets(state) => state.crossing(check.limit(), check.grid(), now),
            State::Sketched(estimate) => {
                let sum = u64::from(estimate.total());
                (sum > 0 && sum >= u64::from(check.limit().count())).then_some(sum)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
