//! Shared counting in etcd: [`tidegate_core::replicas::grant`], with compare-and-swap.
//!
//! `…/w/WINDOW` holds how many have started in a window, and `…/f/REPLICA` how many a replica has under way, with a
//! `+` behind it if it wants more. The first is under a lease that only cleans up: another window is another key, so
//! that nothing a lease does can restart or extend a count. The second goes with the lease of its replica: that is how
//! a dead one gives up its slots.
//!
//! A request is one transaction, by what was last seen of its key. It holds if no other replica has written meanwhile;
//! otherwise it reads what is there, and is tried again by that.

use super::lease_pool::LeasePool;
use super::{Condition, Etcd, LeaseId, Meaning, Operation, Outcome, Pair, StoreError, Txn, locked};
use crate::remote::unreachable;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_core::replicas::{Others, ReplicaId, SLOTS_LEASE, grant};
use tidegate_core::turnstile::{Grant, Name, Outlook, QuotaRequest};
use tokio::time::Instant;

/// One replica's counts and slots in etcd.
#[derive(Debug)]
pub struct Tallies {
    etcd: Etcd,
    /// Where all of it is: `tidegate/exact/NAME`.
    place: String,
    me: ReplicaId,
    /// Under which slots are held.
    slots: Mutex<SlotsLease>,
    /// For counts.
    leases: LeasePool,
    /// What was last seen of each key. Only to save a round trip.
    seen: Mutex<HashMap<Name, Seen>>,
    round_trips: AtomicU64,
}

#[derive(Clone, Copy, Default, Debug)]
struct SlotsLease {
    current: Option<LeaseId>,
    /// One has ended, and with it what was held under it: that must be said again.
    was_lost: bool,
}

/// What is known of a key.
#[derive(Clone, Default, Debug)]
struct Seen {
    window: u64,
    started: u32,
    /// The count's last change; 0: there is none.
    counted: i64,
    /// What the other replicas hold, and as of which revision that is known.
    others: Others,
    as_of: i64,
    /// The last change of what this replica holds; 0: there is none.
    mine: i64,
}

/// Keys that are remembered. Past it all are forgotten: the next question of each takes a round trip more.
const SEEN_MAX: usize = 100_000;
/// Counts live for so many windows at least.
const COUNTS_LIVE: u32 = 2;
/// A request that takes several round trips, because another replica wrote meanwhile or a lease is new, begins none after
/// so many times of what one may take.
const ROUND_TRIPS_TIME: u32 = 3;

impl Tallies {
    /// Those of a replica of the limit with this name.
    #[must_use]
    pub fn new(etcd: Etcd, name: &str, me: ReplicaId) -> Tallies {
        Tallies {
            etcd,
            place: format!("tidegate/exact/{name}"),
            me,
            slots: Mutex::default(),
            leases: LeasePool::default(),
            seen: Mutex::default(),
            round_trips: AtomicU64::new(0),
        }
    }

    /// How many transactions were sent.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Relaxed)
    }

    /// Asks for starts of one key. One round trip, `within` which etcd must answer, if no other replica asked since this one
    /// last did. Each further one has as long again: with what is left of the first, an etcd over a slow way would be taken for
    /// a silent one.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses. It may have counted all the same.
    pub async fn buy(&self, request: &QuotaRequest, within: Duration) -> Result<Grant, StoreError> {
        let (begun, mut tries) = (Instant::now(), 0);
        let known = locked(&self.seen).remove(&request.name).unwrap_or_default();
        let mut seen = known.in_window(request.window);
        let (mut is_fresh, mut lost_a_lease) = (false, false);
        loop {
            if begun.elapsed() >= within * ROUND_TRIPS_TIME {
                let why = format!("other replicas wrote the same key {tries} times meanwhile");
                return Err(unreachable(&self.etcd.url().to_string(), why));
            }
            tries += 1;
            let (started, grant) = grant(seen.started, &seen.others, request);
            // Slots that ended with their lease are no change that a comparison notices: that needs a look.
            let sure = is_fresh || grant.outlook != Outlook::Full || grant.granted == request.want;
            let txn = match sure {
                true => self.swap(request, &seen, started, grant, within).await?,
                false => Txn { then: self.look(request), ..Txn::default() },
            };
            let outcome = match self.send(&txn, within).await {
                Err(StoreError::Refused { meaning: Meaning::NoLease, .. }) if !lost_a_lease => {
                    lost_a_lease = true;
                    self.leases.forget();
                    self.look_after_slots(within).await?;
                    continue;
                }
                outcome => outcome?,
            };
            if outcome.held && sure {
                self.remember(request, seen.after(started, grant, request, outcome.revision));
                let outlook = match grant.outlook {
                    // Not looked at.
                    _ if request.want == 0 => Outlook::Open,
                    // Not looked at whether slots were given back meanwhile.
                    Outlook::Full if !is_fresh => Outlook::Open,
                    outlook => outlook,
                };
                return Ok(Grant { outlook, ..grant });
            }
            (seen, is_fresh) = (self.found(request, &outcome)?, true);
        }
    }

    /// Keeps this replica's slots from being given up. If they were, the slots of `held` are taken again.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses.
    pub async fn keep(&self, held: &[QuotaRequest], within: Duration) -> Result<(), StoreError> {
        self.look_after_slots(within).await?;
        if !locked(&self.slots).was_lost {
            return Ok(());
        }
        let mut outcome = Ok(());
        for request in held {
            outcome = self.hold_again(request, within).await.and(outcome);
        }
        // What was not said is said at the next beat.
        locked(&self.slots).was_lost = outcome.is_err();
        outcome
    }

    /// Renews the lease of the slots, or notes that it is gone.
    async fn look_after_slots(&self, within: Duration) -> Result<(), StoreError> {
        let Some(lease) = locked(&self.slots).current else { return Ok(()) };
        self.round_trips.fetch_add(1, Relaxed);
        if self.etcd.keep_alive(lease, within).await?.is_zero() {
            let mut slots = locked(&self.slots);
            // Another may have noticed it before, and have a new one.
            if slots.current == Some(lease) {
                *slots = SlotsLease { current: None, was_lost: true };
            }
        }
        Ok(())
    }

    /// Says again what is held of a key, unless etcd knows it.
    async fn hold_again(&self, request: &QuotaRequest, within: Duration) -> Result<(), StoreError> {
        let key = self.slot_key(request);
        let value = request.held.to_string().into_bytes();
        let put = Operation::Put { key: key.clone(), value, lease: Some(self.slots_lease(within).await?) };
        let txn = Txn { when: vec![Condition::Revision { key, is: 0 }], then: vec![put], otherwise: vec![] };
        self.send(&txn, within).await.map(drop)
    }

    /// The transaction that answers a question by what was last seen, if that is still so.
    async fn swap(
        &self,
        request: &QuotaRequest,
        seen: &Seen,
        started: u32,
        grant: Grant,
        within: Duration,
    ) -> Result<Txn, StoreError> {
        let mut txn = Txn { otherwise: self.look(request), ..Txn::default() };
        let counts = request.want > 0 || request.unused > 0;
        if counts {
            txn.when.push(Condition::Revision { key: self.count_key(request), is: seen.counted });
        }
        if started != seen.started {
            let lives = Duration::from_micros(request.windows.period().get()).saturating_mul(COUNTS_LIVE);
            let lease = Some(self.leases.lease(&self.etcd, lives, 1, Instant::now() + within).await?);
            let value = started.to_string().into_bytes();
            txn.then.push(Operation::Put { key: self.count_key(request), value, lease });
        }
        if request.in_flight > 0 {
            let (key, held) = (self.slot_key(request), request.held + grant.granted);
            txn.when.push(match request.want {
                0 => Condition::Revision { key: key.clone(), is: seen.mine },
                _ => Condition::UnchangedSince { prefix: self.slots_prefix(request), revision: seen.as_of },
            });
            let more = if grant.is_short_of(request.want) { "+" } else { "" };
            txn.then.push(if held == 0 && more.is_empty() {
                Operation::Delete { key }
            } else {
                let (value, lease) = (format!("{held}{more}").into_bytes(), Some(self.slots_lease(within).await?));
                Operation::Put { key, value, lease }
            });
        }
        Ok(txn)
    }

    fn look(&self, request: &QuotaRequest) -> Vec<Operation> {
        let (key, prefix) = (self.count_key(request), self.slots_prefix(request));
        vec![Operation::Get { key }, Operation::GetPrefix { prefix }]
    }

    /// What a look found.
    fn found(&self, request: &QuotaRequest, outcome: &Outcome) -> Result<Seen, StoreError> {
        let [count, slots] = outcome.found.as_slice() else {
            return Err(self.etcd.senseless("a look with other answers than were asked for"));
        };
        let mine = self.slot_key(request);
        let number = |pair: &Pair| {
            let text =
                std::str::from_utf8(&pair.value).ok().map(|text| (text.trim_end_matches('+'), text.ends_with('+')));
            let number = text.and_then(|(number, more)| Some((number.parse::<u32>().ok()?, more)));
            number.ok_or_else(|| {
                let key = String::from_utf8_lossy(&pair.key).into_owned();
                self.etcd.senseless(&format!("{key} holds no count; delete it"))
            })
        };
        let mut seen = Seen { window: request.window, as_of: outcome.revision, ..Seen::default() };
        if let Some(pair) = count.first() {
            (seen.started, seen.counted) = (number(pair)?.0, pair.revision);
        }
        for pair in slots {
            let (held, is_short) = number(pair)?;
            match pair.key == mine {
                true => (seen.mine, seen.others.me_too) = (pair.revision, is_short),
                false => seen.others.add(held, is_short),
            }
        }
        Ok(seen)
    }

    async fn send(&self, txn: &Txn, within: Duration) -> Result<Outcome, StoreError> {
        self.round_trips.fetch_add(1, Relaxed);
        self.etcd.transact(txn, within).await
    }

    fn remember(&self, request: &QuotaRequest, known: Seen) {
        let mut seen = locked(&self.seen);
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(request.name, known);
    }

    async fn slots_lease(&self, within: Duration) -> Result<LeaseId, StoreError> {
        let known = locked(&self.slots).current;
        if let Some(lease) = known {
            return Ok(lease);
        }
        let lease = self.etcd.grant_lease(Duration::from_micros(SLOTS_LEASE.get()), within).await?;
        // Of two that were granted at the same time one is not used, and runs out.
        Ok(*locked(&self.slots).current.get_or_insert(lease))
    }

    fn key(&self, request: &QuotaRequest) -> String {
        // Windows of another length are other windows.
        format!("{}/{}/{}", self.place, request.windows.period().get(), request.name)
    }

    fn count_key(&self, request: &QuotaRequest) -> Vec<u8> {
        format!("{}/w/{}", self.key(request), request.window).into_bytes()
    }

    fn slots_prefix(&self, request: &QuotaRequest) -> Vec<u8> {
        format!("{}/f/", self.key(request)).into_bytes()
    }

    fn slot_key(&self, request: &QuotaRequest) -> Vec<u8> {
        format!("{}/f/{}", self.key(request), self.me).into_bytes()
    }
}

impl Seen {
    /// In another window nothing has started, as far as is known.
    fn in_window(self, window: u64) -> Seen {
        if self.window == window { self } else { Seen { window, started: 0, counted: 0, ..self } }
    }

    /// What is known after an answer.
    fn after(self, started: u32, grant: Grant, request: &QuotaRequest, revision: i64) -> Seen {
        let counted = if started == self.started { self.counted } else { revision };
        let looked = request.in_flight > 0 && request.want > 0;
        let is_there = request.held + grant.granted > 0 || grant.is_short_of(request.want);
        let mine = if is_there { revision } else { 0 };
        // A request that only reports its slots did not read those of the others.
        let as_of = if looked { revision } else { self.as_of };
        let others = Others { me_too: grant.is_short_of(request.want), ..self.others };
        Seen { window: self.window, started, counted, others, mine, as_of }
    }
}
