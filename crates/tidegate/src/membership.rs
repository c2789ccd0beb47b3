//! Replicas that share a limit find each other: the register of [`tidegate_core::replicas`], in a store.
//!
//! Here it is only read and written, three times in a lease; what it means is decided in the core. Requests
//! never wait for it.

mod limiter;

use crate::{Clock, Micros, StoreError, Windows};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;
use tidegate_core::replicas::{Replica, ReplicaId, Roster, Schedule, Terms};
use tidegate_store::{Register, Store, Swap};

/// What a replica knows of the others, for operators.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// This replica.
    pub me: String,
    /// The members from the last change on.
    pub members: Vec<String>,
    /// The first window, by number, of which nothing is assigned.
    pub horizon: u64,
    /// When the register was last read.
    pub at: Micros,
    /// Why it could not be read since then, if it could not.
    pub error: Option<String>,
}

/// One replica that renews its membership for as long as this is driven.
pub struct Membership {
    store: Store,
    /// The limit whose members it lists.
    name: String,
    clock: Clock,
    replica: Replica,
    /// The register's text as it was last seen; empty: no register.
    text: String,
    seen: Seen,
}

/// Swaps that are tried at each beat, when others write at the same time.
const TRIES: u32 = 5;

impl Membership {
    /// A new replica of the limit with this name and these windows. `clock` says which window it is.
    #[must_use]
    pub fn new(store: Store, name: &str, windows: Windows, clock: Clock) -> Membership {
        let id = ReplicaId(RandomState::new().hash_one(0_u8));
        let seen = Seen { me: id.to_string(), ..Seen::default() };
        let replica = Replica::new(id, Terms::of(windows));
        Membership { store, name: name.to_owned(), clock, replica, text: String::new(), seen }
    }

    /// How long to wait between two calls of [`Membership::renew`].
    #[must_use]
    pub fn beat(&self) -> Duration {
        Duration::from_micros(self.replica.terms().beat().get())
    }

    /// What it knows of the others.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// What it may start.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        self.replica.schedule()
    }

    /// Is heard by the others, and hears them. One round trip, more when others write at the same time.
    pub async fn renew(&mut self) {
        for _ in 0..TRIES {
            let roster = self.text.parse::<Roster>().ok();
            let opened = roster.as_ref().is_some_and(|roster| roster.horizon().is_some());
            let written = self.replica.renewed(roster.as_ref(), self.clock.now()).to_string();
            match self.swap(&written).await {
                Ok(true) if opened => return,
                Ok(_) => {}
                Err(error) => {
                    self.seen.error = Some(error);
                    return;
                }
            }
        }
    }

    /// Takes itself off the register, so that the others need not wait until it has been silent for long.
    pub async fn leave(&mut self) {
        for _ in 0..TRIES {
            let Ok(roster) = self.text.parse::<Roster>() else { return };
            let Some(written) = self.replica.without_me(&roster) else { return };
            if self.swap(&written.to_string()).await != Ok(false) {
                return;
            }
        }
    }

    /// Writes over what was last seen, and learns what is there. True: it is what was written.
    async fn swap(&mut self, written: &str) -> Result<bool, String> {
        let terms = self.replica.terms();
        let within = Duration::from_micros(terms.lease.get());
        let register = Register { name: &self.name, period: terms.windows.period() };
        // Long after everything that it assigns is over.
        let expiry = Duration::from_micros(terms.windows.period().get()).saturating_mul(4) + Duration::from_secs(60);
        let there = self.store.swap(register, Swap { expected: &self.text, new: written, expiry }, within).await;
        let there = there.map_err(|error: StoreError| error.to_string())?;
        self.text = there;
        if !self.text.is_empty() {
            let roster: Roster = self.text.parse().map_err(|error| format!("the register of the replicas: {error}"))?;
            let now = self.clock.now();
            self.replica.learn(&roster, now);
            self.seen.members = roster.members().map(|id| id.to_string()).collect();
            (self.seen.horizon, self.seen.at) = (self.schedule().horizon(), now);
        }
        self.seen.error = None;
        Ok(self.text == written)
    }
}
