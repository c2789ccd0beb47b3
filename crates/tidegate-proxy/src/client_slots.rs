//! What one client has waiting and under way, over all of its connections and all streams on them.
//!
//! A client is an address behind the trusted hops, and an IPv6 /64 is one, as in a key. Its connections are capped by the
//! listener, but a hundred streams of HTTP/2 are one connection: ten of those could take every slot that there is.
//! Invariant: a client that has as many under way as it may holds no slot while it waits for one of its own to end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tidegate::layer::key_of_address;
use tokio::sync::Notify;

/// All clients that there are.
#[derive(Default)]
pub(crate) struct Clients {
    by_name: Mutex<HashMap<String, Weak<ClientSlots>>>,
    /// Requests that wait, of all clients.
    waiting: AtomicU32,
}

/// One client's requests. It is forgotten with its last connection.
pub(crate) struct ClientSlots {
    all: Arc<Clients>,
    name: String,
    waiting: AtomicU32,
    under_way: AtomicU32,
    ended: Notify,
}

/// A request that waits, until this is dropped.
pub(crate) struct Waits(Arc<ClientSlots>);

/// A request under way, until this is dropped.
pub(crate) struct UnderWay(Arc<ClientSlots>);

/// Why a request may not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineFull {
    /// As many wait as may, of all clients.
    OfAll,
    /// As many of this client's wait as may of one.
    OfClient,
}

impl Clients {
    /// The client at an address.
    pub(crate) fn at(self: &Arc<Clients>, address: IpAddr) -> Arc<ClientSlots> {
        let name = key_of_address(address);
        let mut by_name = self.by_name();
        if let Some(known) = by_name.get(&name).and_then(Weak::upgrade) {
            return known;
        }
        let client = Arc::new(ClientSlots {
            all: Arc::clone(self),
            name: name.clone(),
            waiting: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
            ended: Notify::new(),
        });
        by_name.insert(name, Arc::downgrade(&client));
        client
    }

    fn by_name(&self) -> MutexGuard<'_, HashMap<String, Weak<ClientSlots>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSlots {
    /// A place among those that wait, of which `of_all` and of this client `of_client` may.
    pub(crate) fn wait(self: &Arc<ClientSlots>, of_client: u32, of_all: u32) -> Result<Waits, LineFull> {
        if !count_up(&self.all.waiting, of_all) {
            return Err(LineFull::OfAll);
        }
        if !count_up(&self.waiting, of_client) {
            self.all.waiting.fetch_sub(1, Relaxed);
            return Err(LineFull::OfClient);
        }
        Ok(Waits(Arc::clone(self)))
    }

    /// One more under way, if fewer than `most` are.
    pub(crate) fn start(self: &Arc<ClientSlots>, most: u32) -> Option<UnderWay> {
        count_up(&self.under_way, most).then(|| UnderWay(Arc::clone(self)))
    }

    /// The same, as soon as one has ended. `most` is asked each time: a reload may change it.
    pub(crate) async fn start_later(self: &Arc<ClientSlots>, most: impl Fn() -> u32) -> UnderWay {
        loop {
            // Made before the look: one that ends between the two wakes it.
            let ended = self.ended.notified();
            if let Some(under_way) = self.start(most()) {
                return under_way;
            }
            ended.await;
        }
    }
}

fn count_up(count: &AtomicU32, most: u32) -> bool {
    count.fetch_update(Relaxed, Relaxed, |count| (count < most).then_some(count + 1)).is_ok()
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
        self.0.all.waiting.fetch_sub(1, Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
        self.0.ended.notify_one();
    }
}

impl Drop for ClientSlots {
    fn drop(&mut self) {
        let mut by_name = self.all.by_name();
        // Another connection may have come since, and have a new one under the name.
        if by_name.get(&self.name).is_some_and(|client| client.strong_count() == 0) {
            by_name.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn p6_one_client_is_its_address_and_leaves_nothing_behind() {
        let clients = Arc::<Clients>::default();
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|text| clients.at(text.parse().unwrap()));
        let waits: Vec<Waits> = [&one, &same].into_iter().map(|client| client.wait(2, 3).ok().unwrap()).collect();
        assert_eq!(one.wait(2, 3).err(), Some(LineFull::OfClient));
        let others = other.wait(2, 3).ok().unwrap();
        assert_eq!(other.wait(2, 3).err(), Some(LineFull::OfAll));
        drop((waits, others, one, same, other));
        assert!(clients.by_name().is_empty() && clients.waiting.load(Relaxed) == 0);
    }

    #[test]
    fn p6_a_client_at_its_cap_goes_on_when_one_of_its_own_has_ended() {
        let client = Arc::<Clients>::default().at("192.0.2.1".parse().unwrap());
        let (first, mut cx) = (client.start(1).unwrap(), Context::from_waker(Waker::noop()));
        assert!(client.start(1).is_none());
        let mut later = pin!(client.start_later(|| 1));
        assert!(later.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(matches!(later.as_mut().poll(&mut cx), Poll::Ready(_)));
    }
}
