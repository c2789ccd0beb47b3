//! How many connections are open: in all, and from each address.
//!
//! A connection has its [`Place`] from the moment it is accepted until it is dropped, in whatever thread that is.

use super::Bounds;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of one listener, counted.
#[derive(Default, Debug)]
pub struct Census {
    open: AtomicUsize,
    by_network: Mutex<HashMap<IpAddr, usize>>,
    accepted: AtomicU64,
    refused: AtomicU64,
    pub(super) cut: AtomicU64,
}

/// One of the places that there are; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) census: Arc<Census>,
    network: IpAddr,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// All connections are taken.
    All,
    /// The client's address has as many as one may.
    ByAddress,
}

impl Census {
    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Connections that were let in.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Connections that were refused past a cap.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Connections that were cut because the client was idle or slow.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut.load(Relaxed)
    }

    /// A place for a client at this address, or why there is none.
    pub(crate) fn enter(self: &Arc<Census>, address: IpAddr, bounds: &Bounds) -> Result<Place, Taken> {
        let network = network(address);
        let entered = self.count_in(network, bounds);
        let counter = if entered.is_ok() { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        entered.map(|()| Place { census: Arc::clone(self), network })
    }

    fn count_in(&self, network: IpAddr, bounds: &Bounds) -> Result<(), Taken> {
        let mut by_network = self.by_network();
        if self.open.load(Relaxed) >= bounds.max_connections {
            return Err(Taken::All);
        }
        let count = by_network.entry(network).or_default();
        if *count >= bounds.per_address() {
            return Err(Taken::ByAddress);
        }
        *count += 1;
        self.open.fetch_add(1, Relaxed);
        Ok(())
    }

    fn by_network(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_network = self.census.by_network();
        self.census.open.fetch_sub(1, Relaxed);
        if let Some(count) = by_network.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                by_network.remove(&self.network);
            }
        }
    }
}

/// Whoever has an IPv6 address has its whole /64.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn bounds(max_connections: usize, max_per_address: Option<usize>) -> Bounds {
        let second = Duration::from_secs(1);
        Bounds {
            max_connections,
            max_per_address,
            head_timeout: second,
            idle_timeout: second,
            write_timeout: second,
            drain_timeout: second,
            send_buffer_bytes: None,
        }
    }

    /// Clients that come one after another and stay, each with what becomes of it.
    #[track_caller]
    fn check(bounds: &Bounds, clients: &[(&str, Option<Taken>)]) {
        let census = Arc::<Census>::default();
        let mut places = Vec::new();
        for (address, expected) in clients {
            let entered = census.enter(address.parse().unwrap(), bounds);
            assert_eq!(entered.as_ref().err(), expected.as_ref(), "{address}");
            places.extend(entered);
        }
        assert_eq!(census.open(), places.len());
        drop(places);
        assert_eq!((census.open(), census.by_network().len()), (0, 0), "places are given back");
    }

    #[test]
    fn m6_connections_are_capped_in_all_and_by_address() {
        use Taken::{All, ByAddress};
        let of_three = bounds(3, Some(2));
        check(&of_three, &[("10.0.0.1", None), ("10.0.0.1", None), ("10.0.0.1", Some(ByAddress)), ("10.0.0.2", None)]);
        check(&of_three, &[("10.0.0.1", None), ("10.0.0.2", None), ("10.0.0.3", None), ("10.0.0.4", Some(All))]);
        let mapped = [("10.0.0.1", None), ("::ffff:10.0.0.1", None), ("::ffff:10.0.0.1", Some(ByAddress))];
        check(&of_three, &mapped);
        let one_network = [("2001:db8::1", None), ("2001:db8::2:1", None), ("2001:db8::3", Some(ByAddress))];
        check(&of_three, &one_network);
        check(&of_three, &[("2001:db8::1", None), ("2001:db8::2", None), ("2001:db8:0:1::3", None)]);
    }

    #[test]
    fn m6_unless_told_otherwise_one_address_leaves_places_to_others() {
        let per_address = [1, 9, 10, 640, 10_000].map(|all| bounds(all, None).per_address());
        assert_eq!(per_address, [1, 9, 9, 576, 9_936]);
    }
}
