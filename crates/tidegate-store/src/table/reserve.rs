//! Reservations: charges that may be given back for a time. What giving back has to know of the open ones is kept beside the
//! shards, by hash, and in memory alone: after a restart the charges stay.
//!
//! Invariant: a reservation is taken out under the lock of its key's shard, before anything is given back; and it is forgotten there when its
//! key's charges are.

use super::separate::put_back;
use super::{PartAnswer, Single, Table, subject};
use crate::shard::{Making, Place};
use crate::store::{Reserve, Reserved, Settled};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::all_or_nothing::{self, Demand, Intent, Mark, Ruling, Terms};
use tidegate_core::{Micros, Rules};

/// Reservations that a limiter may have open at once; about 250 bytes each.
pub const RESERVATIONS_MAX: usize = 1_000_000;
/// Reservations that have ended and are dropped in one go, while nobody else can reserve: a bound on the work under a lock.
const DROPPED_AT_ONCE: usize = 8;

/// Why nothing was reserved, nor charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotReserved {
    /// The table is full, and the sketch answers for the key: it cannot give back.
    Sketched,
    /// There are [`RESERVATIONS_MAX`].
    Full,
}

/// The open ones of a table.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// By the key's hash and the reservation's number.
    open: BTreeMap<Id, Open>,
    /// The same in the order of their ends.
    ends: BTreeSet<(Micros, Id)>,
}

type Id = (u64, u128);

#[derive(Debug)]
struct Open {
    terms: Terms,
    marks: Vec<Mark>,
}

impl Table {
    /// Hits a key, and keeps what is needed to give the charge back.
    ///
    /// # Errors
    /// When the key's state cannot give back, or there are too many; nothing is charged then.
    pub fn reserve(
        &self,
        rules: &Rules,
        key: &[u8],
        reserve: &Reserve,
        clock: impl FnOnce() -> Micros,
    ) -> Result<Reserved, NotReserved> {
        let (hash, Reserve { nonce, cost, span, door }) = (self.hash(key), *reserve);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let now = frame.now;
            self.reservations.make_room(now)?;
            let demand = Demand { cost, intent: Intent::Hit };
            let mut prepared = shard.prepare(frame, hash, key, demand, Making::Room);
            if prepared.place == Place::Sketched {
                shard.put_away(prepared);
                return Err(NotReserved::Sketched);
            }
            let mut subject = subject(frame.rules, &mut prepared);
            let ruling = all_or_nothing::decide(&mut subject, now, cost, Intent::Hit);
            let marks = if ruling.is_allowed() { all_or_nothing::marks(&mut subject, now) } else { Vec::new() };
            let (blocked_until, allowed) = (subject.blocked_until, ruling.is_allowed());
            prepared.blocked_until = blocked_until;
            let single = Single { door, ..Single::new(frame.rules, key, cost, Intent::Hit) };
            self.conclude(self.cell(hash), shard, frame, hash, &single, prepared, &ruling, allowed);
            let terms = Terms { made_at: now, until: now.saturating_add(span), cost };
            if allowed {
                self.reservations.book().add((hash, nonce), Open { terms, marks });
            }
            Ok(Reserved { at: now, answer: answer(ruling, blocked_until), until: allowed.then_some(terms.until) })
        })
    }

    /// Ends a reservation at its real cost. `None`: it is not open.
    pub fn settle(
        &self,
        rules: &Rules,
        key: &[u8],
        nonce: u128,
        cost: u32,
        clock: impl FnOnce() -> Micros,
    ) -> Option<Settled> {
        let hash = self.hash(key);
        self.with_shard(rules, hash, clock, |shard, frame| {
            let Open { terms, marks } = self.reservations.book().take((hash, nonce))?;
            let settlement = terms.settlement(frame.now, cost)?;
            let excess = settlement.excess;
            let demand = Demand { cost: excess, intent: Intent::Hit };
            let mut prepared = shard.prepare(frame, hash, key, demand, Making::Room);
            let mut subject = subject(frame.rules, &mut prepared);
            let (given_back, ruling) = all_or_nothing::settle(&mut subject, frame.now, &marks, settlement);
            let answer = answer(ruling, subject.blocked_until);
            put_back(shard, frame, hash, key, excess, prepared, excess > 0);
            Some(Settled { at: frame.now, answer, given_back, excess })
        })
    }

    /// How many are kept; some of them may have ended.
    #[must_use]
    pub fn reservations(&self) -> usize {
        self.reservations.book().open.len()
    }
}

impl Reservations {
    /// Forgets all of a key: its charges are forgotten, too. Its shard is locked.
    pub(super) fn forget(&self, hash: u64) {
        let mut book = self.book();
        while let Some((&id, _)) = book.open.range((hash, 0)..=(hash, u128::MAX)).next() {
            drop(book.take(id));
        }
    }

    /// Drops those that have ended without a commit.
    pub(super) fn drop_ended(&self, now: Micros) {
        while self.book().drop_some(now) == DROPPED_AT_ONCE {}
    }

    fn make_room(&self, now: Micros) -> Result<(), NotReserved> {
        let mut book = self.book();
        book.drop_some(now);
        if book.open.len() < RESERVATIONS_MAX { Ok(()) } else { Err(NotReserved::Full) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn add(&mut self, id: Id, open: Open) {
        self.ends.insert((open.terms.until, id));
        self.open.insert(id, open);
    }

    fn take(&mut self, id: Id) -> Option<Open> {
        let open = self.open.remove(&id)?;
        self.ends.remove(&(open.terms.until, id));
        Some(open)
    }

    /// Drops a few that have ended; how many.
    fn drop_some(&mut self, now: Micros) -> usize {
        let mut dropped = 0;
        while dropped < DROPPED_AT_ONCE
            && let Some(&(until, id)) = self.ends.first()
            && until <= now
        {
            drop(self.take(id));
            dropped += 1;
        }
        dropped
    }
}

fn answer(ruling: Ruling, blocked_until: Micros) -> PartAnswer {
    PartAnswer { ruling, blocked_until, is_known: true, ..PartAnswer::UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has ended is dropped without a commit, so that what is kept is bounded by what is open.
    #[test]
    fn m6_those_that_have_ended_are_dropped() {
        let book = Reservations::default();
        for number in 0..10_000_u64 {
            let now = Micros::from_secs(number);
            book.make_room(now).unwrap();
            let terms = Terms { made_at: now, until: now.saturating_add(Micros::from_secs(10)), cost: 1 };
            book.book().add((number % 7, u128::from(number)), Open { terms, marks: Vec::new() });
            assert!(book.book().open.len() <= 10);
        }
        book.drop_ended(Micros::from_secs(10_003));
        assert_eq!(book.book().open.len(), 6);
        (0..7).for_each(|hash| book.forget(hash));
        let book = book.book();
        assert_eq!((book.open.len(), book.ends.len()), (0, 0));
    }
}
