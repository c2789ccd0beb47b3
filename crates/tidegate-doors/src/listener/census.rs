//! How many of something are there: in all, from each address, and with each token. Connections above all, and what else
//! clients can make grow.
//!
//! Whatever is counted has its [`Place`] from the moment it is let in until it is dropped, in whatever thread that is.

use super::account::{Account, Holder};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many there may be at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// In all.
    pub all: usize,
    /// From one address; IPv6: from one /64.
    pub per_address: usize,
    /// With one token or certificate.
    pub per_token: usize,
}

/// Places that one address, and one token, leaves to others unless told otherwise.
const LEFT_TO_OTHERS: usize = 64;

impl Caps {
    /// So many in all. One address, or one token, has all but 64 of them, or but a tenth if that is fewer: so nobody takes every
    /// place, and a reverse proxy in front has nearly all.
    #[must_use]
    pub const fn of(all: usize) -> Caps {
        let left = if all / 10 < LEFT_TO_OTHERS { all / 10 } else { LEFT_TO_OTHERS };
        Caps { all, per_address: all - left, per_token: all - left }
    }
}

/// Things of one kind, counted.
#[derive(Debug)]
pub struct Census {
    caps: Caps,
    open: AtomicUsize,
    by_holder: Mutex<HashMap<Holder, usize>>,
    accepted: AtomicU64,
    refused: AtomicU64,
    pub(super) cut: AtomicU64,
}

/// One of the places that there are; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) census: Arc<Census>,
    /// It is one of all, not only one of a token.
    is_one: bool,
    holders: [Option<Holder>; 2],
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// All are taken.
    All,
    /// The client's address has as many as one may.
    ByAddress,
    /// The client's token has as many as one may.
    ByToken,
}

/// As in "the connections are taken: WHY".
impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Taken::All => "all are taken",
            Taken::ByAddress => "your address has as many as one address may",
            Taken::ByToken => "your token has as many as one token may",
        })
    }
}

impl Census {
    /// So many may be there.
    #[must_use]
    pub fn new(caps: Caps) -> Census {
        Census {
            caps,
            open: AtomicUsize::new(0),
            by_holder: Mutex::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        }
    }

    /// How many may be there.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// How many are there now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// How many were let in.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// How many were refused past a cap.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Connections that were cut because the client was idle or slow.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut.load(Relaxed)
    }

    /// A place that is charged to this account; or why there is none.
    pub(crate) fn enter(self: &Arc<Census>, account: &Account) -> Result<Place, Taken> {
        let holders = account.holders();
        let entered = self.count_in(true, &holders);
        let counter = if entered.is_ok() { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        entered.map(|()| Place { census: Arc::clone(self), is_one: true, holders })
    }

    /// Counts one that has a place already for the token that it has shown since.
    pub(crate) fn show(self: &Arc<Census>, token: &str) -> Result<Place, Taken> {
        let holders = [Some(Holder::Token(token.into())), None];
        let counted = self.count_in(false, &holders);
        self.refused.fetch_add(u64::from(counted.is_err()), Relaxed);
        counted.map(|()| Place { census: Arc::clone(self), is_one: false, holders })
    }

    fn count_in(&self, is_one: bool, holders: &[Option<Holder>]) -> Result<(), Taken> {
        let mut by_holder = self.by_holder();
        if is_one && self.open.load(Relaxed) >= self.caps.all {
            return Err(Taken::All);
        }
        for holder in holders.iter().flatten() {
            let (most, taken) = match holder {
                Holder::Network(_) => (self.caps.per_address, Taken::ByAddress),
                Holder::Token(_) => (self.caps.per_token, Taken::ByToken),
            };
            if by_holder.get(holder).is_some_and(|count| *count >= most) || most == 0 {
                return Err(taken);
            }
        }
        for holder in holders.iter().flatten() {
            *by_holder.entry(holder.clone()).or_default() += 1;
        }
        self.open.fetch_add(usize::from(is_one), Relaxed);
        Ok(())
    }

    fn by_holder(&self) -> MutexGuard<'_, HashMap<Holder, usize>> {
        self.by_holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Charges it to the account's token, too, which its client has shown since it was let in.
    ///
    /// # Errors
    /// When the token has as many as one may: the place is then what it was.
    pub(crate) fn charge(&mut self, account: &Account) -> Result<(), Taken> {
        if let (Some(token), [_, None]) = (account.token(), &self.holders) {
            let counted = self.census.count_in(false, &[Some(token.clone())]);
            self.census.refused.fetch_add(u64::from(counted.is_err()), Relaxed);
            counted?;
            self.holders[1] = Some(token);
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_holder = self.census.by_holder();
        self.census.open.fetch_sub(usize::from(self.is_one), Relaxed);
        for holder in self.holders.iter().flatten() {
            if let Some(count) = by_holder.get_mut(holder) {
                *count -= 1;
                if *count == 0 {
                    by_holder.remove(holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that come one after another and stay, `address` or `address token`, each with what becomes of it.
    #[track_caller]
    fn check(caps: Caps, clients: &[(&str, Option<Taken>)]) {
        let census = Arc::new(Census::new(caps));
        let mut places = Vec::new();
        for (client, expected) in clients {
            let (address, token) =
                client.split_once(' ').map_or((*client, None), |(address, token)| (address, Some(token)));
            let account = Account::of(address.parse().unwrap());
            let entered = census.enter(&token.map_or(account.clone(), |token| account.with(token)));
            assert_eq!(entered.as_ref().err(), expected.as_ref(), "{client}");
            places.extend(entered);
        }
        assert_eq!(census.open(), places.len());
        drop(places);
        assert_eq!((census.open(), census.by_holder().len()), (0, 0), "places are given back");
    }

    const OF_THREE: Caps = Caps { all: 3, per_address: 2, per_token: 2 };

    #[test]
    fn m6_connections_are_capped_in_all_and_by_address() {
        use Taken::{All, ByAddress};
        check(OF_THREE, &[("10.0.0.1", None), ("10.0.0.1", None), ("10.0.0.1", Some(ByAddress)), ("10.0.0.2", None)]);
        check(OF_THREE, &[("10.0.0.1", None), ("10.0.0.2", None), ("10.0.0.3", None), ("10.0.0.4", Some(All))]);
        let mapped = [("10.0.0.1", None), ("::ffff:10.0.0.1", None), ("::ffff:10.0.0.1", Some(ByAddress))];
        check(OF_THREE, &mapped);
        let one_network = [("2001:db8::1", None), ("2001:db8::2:1", None), ("2001:db8::3", Some(ByAddress))];
        check(OF_THREE, &one_network);
        check(OF_THREE, &[("2001:db8::1", None), ("2001:db8::2", None), ("2001:db8:0:1::3", None)]);
    }

    #[test]
    fn m6_and_by_token() {
        use Taken::{ByAddress, ByToken};
        check(
            OF_THREE,
            &[("10.0.0.1 a", None), ("10.0.0.2 a", None), ("10.0.0.3 a", Some(ByToken)), ("10.0.0.3 b", None)],
        );
        check(OF_THREE, &[("10.0.0.1 a", None), ("10.0.0.1 b", None), ("10.0.0.1 c", Some(ByAddress))]);
        let census = Arc::new(Census::new(OF_THREE));
        let shown = [census.show("a"), census.show("a")];
        assert!(shown.iter().all(Result::is_ok) && census.show("a").is_err() && census.show("b").is_ok());
        assert_eq!((census.open(), census.refused()), (0, 1), "whoever shows a token has its place already");
        drop(shown);
        assert!(census.show("a").is_ok());
    }

    #[test]
    fn m6_a_token_that_is_shown_later_is_charged_for_the_place_that_is_there() {
        let census = Arc::new(Census::new(OF_THREE));
        let accounts = [1, 2, 3].map(|last| Account::of([10, 0, 0, last].into()));
        let mut places = accounts.each_ref().map(|account| census.enter(account).unwrap());
        let charged: Vec<_> =
            places.iter_mut().zip(accounts).map(|(place, account)| place.charge(&account.with("a"))).collect();
        assert_eq!(charged, [Ok(()), Ok(()), Err(Taken::ByToken)]);
        assert_eq!((census.open(), census.refused()), (3, 1));
        let again = Account::of([10, 0, 0, 1].into()).with("a");
        assert_eq!(places[0].charge(&again), Ok(()), "once for one token");
        drop(places);
        assert_eq!((census.open(), census.by_holder().len()), (0, 0), "places are given back");
    }

    #[test]
    fn m6_unless_told_otherwise_one_address_leaves_places_to_others() {
        let of_one = [1, 9, 10, 640, 10_000].map(|all| (Caps::of(all).per_address, Caps::of(all).per_token));
        assert_eq!(of_one, [(1, 1), (9, 9), (9, 9), (576, 576), (9_936, 9_936)]);
        check(Caps::of(0), &[("10.0.0.1", Some(Taken::All))]);
    }
}
