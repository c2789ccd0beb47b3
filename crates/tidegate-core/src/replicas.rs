//! Replicas that share a limit with no store on the request's path: which replica may start how often in which window.
//!
//! **The idea.** R replicas split N starts a window. The replicas are written in one *register* of a store,
//! the [`Roster`], by compare-and-swap. It says for each window which replicas take part in it, and it ends at a *horizon*:
//! windows before it are **assigned**, and an assignment is never changed. A replica that joins, leaves or falls
//! silent does so from the horizon on. A replica grants in a window only by an assignment that it has read. So two
//! replicas can know less or more than each other, but never something else, and in no window do the parts of
//! all add up to more than N (promise A8).
//!
//! **What safety rests on.** Not on clocks, not on leases, not on how long a message or a pause takes: only on
//! the register, which must not go back to an older value. A replica that is cut off or paused grants to the end
//! of what it was assigned and no further; it looks at its clock for the window right before each grant.
//! Clocks say which window it is: the time at which a start of window w reaches the upstream is as wrong as the
//! clock of its replica.
//!
//! **Lost registers.** A register may be lost whole (flushed, expired). A new one begins after all that the
//! lost one could have assigned: assignments reach a lease ahead of some replica's clock, so a lease and the margin
//! ahead of the clock of any replica that has seen the new register is late enough, if no two clocks differ by
//! more than [`Terms::margin`]. That is the one place where safety needs clocks.
//!
//! **An example.** 90 per minute, replicas a, b and c have 30 each; the lease is 3 s. b is killed at 12:00:20.
//! The others go on renewing, and the horizon stays at 12:01:00. At 12:00:24 b has been silent for longer than a
//! lease, and a writes: from 12:01:00 on, a and c. Until then no replica has b's 30. Had b died at 12:00:58, then
//! 12:01 would have been assigned already, and the two would have 45 each from 12:02:00.
//!
//! **Known weakness.** The parts of a replica without demand are not used by the others: that is the
//! price of asking no server. One replica whose clock is far ahead pushes the horizon there, and until then the members
//! stay the same. Where N < R, some replicas have no start in a window; which ones changes from window to window.
//!
//! What is not here: the store, timers, randomness.

mod replica;
mod roster;
mod schedule;
#[cfg(test)]
mod simulation;
mod tally;

pub use replica::Replica;
pub use roster::{MEMBERS_MAX, ReplicaId, Roster, RosterError};
pub use schedule::{Schedule, Shares, Stretch, share};
pub use tally::{CLOCKS_DIFFER, Others, SLOTS_LEASE, Tally, grant};

use crate::{Micros, Windows};

/// What all replicas of one limit agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The windows of the limit.
    pub windows: Windows,
    /// How far ahead windows are assigned, and after how much silence a replica is taken for gone.
    pub lease: Micros,
    /// How far two clocks may differ.
    pub margin: Micros,
}

impl Terms {
    /// The longest lease: nothing is gained by assigning further ahead.
    const LEASE_MAX: Micros = Micros::from_secs(3);
    /// The shortest: less is gone with one slow reply.
    const LEASE_MIN: Micros = Micros::from_millis(200);
    /// How far two clocks may differ by default.
    const MARGIN: Micros = Micros::from_millis(250);

    /// The usual terms for these windows: a lease of a quarter window, so that a change is in force two
    /// windows later, but no shorter than a store can bear.
    #[must_use]
    pub fn of(windows: Windows) -> Terms {
        let lease = Micros::saturating(windows.period().get() / 4).clamp(Terms::LEASE_MIN, Terms::LEASE_MAX);
        Terms { windows, lease, margin: Terms::MARGIN }
    }

    /// How often a replica must renew its number: three times in a lease.
    #[must_use]
    pub fn beat(&self) -> Micros {
        Micros::saturating(self.lease.get() / 3)
    }

    /// The number of the window at a time.
    #[must_use]
    pub const fn window(&self, at: Micros) -> u64 {
        self.windows.number(at)
    }
}
