//! Bytes that clients were answered and have not read yet: bounded in all, and for each address (promise M6).
//!
//! A client that reads nothing is cut after a while; until then what it was answered lies in memory. Only large texts are counted, as
//! what else a connection keeps is bounded by itself. A text that many clients are sent, such as a stream's snapshot, lies in memory
//! once and counts once: it is known by its place in memory, where no other can be while it is held.

use super::census::network;
use bytes::Bytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A text of more bytes is counted. Every connection may keep one of fewer.
pub(crate) const LARGE: usize = 16 << 10;

/// What all clients of a door have not read.
#[derive(Debug)]
pub(crate) struct Backlog {
    max_bytes: usize,
    unread: Mutex<Unread>,
    refused: AtomicU64,
}

#[derive(Default, Debug)]
struct Unread {
    bytes: usize,
    by_network: HashMap<IpAddr, usize>,
    /// How many clients hold the text at this place in memory: in all, and of each network.
    holders: HashMap<usize, usize>,
    network_holders: HashMap<(IpAddr, usize), usize>,
}

/// A text that a client has not read; dropping it says that it has.
#[derive(Debug)]
pub(crate) struct Held {
    backlog: Arc<Backlog>,
    network: IpAddr,
    text: Bytes,
}

/// As much is unread as may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooMuchUnread;

impl fmt::Display for TooMuchUnread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too slow: clients have not read as many bytes as may lie here; read faster, and subscribe again")
    }
}

impl Backlog {
    pub(crate) fn new(max_bytes: usize) -> Backlog {
        Backlog { max_bytes, unread: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// Holds a text for a client at this address until the client has read it; `None`: the text is small.
    ///
    /// # Errors
    /// When too much is unread already. One text is held in any case, however large it is.
    pub(crate) fn hold(self: &Arc<Backlog>, text: &Bytes, address: IpAddr) -> Result<Option<Held>, TooMuchUnread> {
        if text.len() <= LARGE {
            return Ok(None);
        }
        let network = network(address);
        if !self.unread().add(network, text, self.max_bytes) {
            self.refused.fetch_add(1, Relaxed);
            return Err(TooMuchUnread);
        }
        Ok(Some(Held { backlog: Arc::clone(self), network, text: text.clone() }))
    }

    /// The same for several texts: those of them that are large.
    ///
    /// # Errors
    /// When too much is unread already; then none is held.
    pub(crate) fn hold_all<'t>(
        self: &Arc<Backlog>,
        texts: impl Iterator<Item = &'t Bytes>,
        address: IpAddr,
    ) -> Result<Vec<Held>, TooMuchUnread> {
        texts.filter_map(|text| self.hold(text, address).transpose()).collect()
    }

    /// Bytes unread now.
    pub(crate) fn bytes(&self) -> usize {
        self.unread().bytes
    }

    /// Answers, feeds and sessions that were refused for want of room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unread {
    /// Counts a text, if there is room for it in all and for this network, or nothing else is held there.
    fn add(&mut self, network: IpAddr, text: &Bytes, max_bytes: usize) -> bool {
        let place = text.as_ptr().addr();
        let of_network = self.by_network.get(&network).copied().unwrap_or(0);
        let is_new = !self.holders.contains_key(&place);
        let is_new_there = !self.network_holders.contains_key(&(network, place));
        let fits = |is_new: bool, bytes: usize, max: usize| !is_new || bytes == 0 || bytes + text.len() <= max;
        // One network leaves a tenth to others.
        if !fits(is_new, self.bytes, max_bytes) || !fits(is_new_there, of_network, max_bytes - max_bytes / 10) {
            return false;
        }
        if is_new {
            self.bytes += text.len();
        }
        if is_new_there {
            self.by_network.insert(network, of_network + text.len());
        }
        *self.holders.entry(place).or_default() += 1;
        *self.network_holders.entry((network, place)).or_default() += 1;
        true
    }

    fn remove(&mut self, network: IpAddr, text: &Bytes) {
        let place = text.as_ptr().addr();
        if is_last(&mut self.holders, place) {
            self.bytes -= text.len();
        }
        if is_last(&mut self.network_holders, (network, place))
            && let Some(bytes) = self.by_network.get_mut(&network)
        {
            *bytes -= text.len();
            if *bytes == 0 {
                self.by_network.remove(&network);
            }
        }
    }
}

/// Takes one holder away; true: it was the last.
fn is_last<Place: Eq + Hash>(holders: &mut HashMap<Place, usize>, place: Place) -> bool {
    match holders.entry(place) {
        Entry::Occupied(mut holders) if *holders.get() > 1 => {
            *holders.get_mut() -= 1;
            false
        }
        Entry::Occupied(last) => {
            last.remove();
            true
        }
        Entry::Vacant(_) => false,
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.backlog.unread().remove(self.network, &self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m6_unread_bytes_are_bounded_in_all_and_by_address() {
        let backlog = Arc::new(Backlog::new(10 * LARGE));
        let [one, two, three] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| address.parse::<IpAddr>().unwrap());
        let text = |larges: usize| Bytes::from(vec![b'x'; larges * LARGE]);
        assert!(backlog.hold(&text(1), one).unwrap().is_none(), "small texts do not count");
        let shared = text(4);
        let first = backlog.hold(&shared, one).unwrap().unwrap();
        let again = backlog.hold(&shared, one).unwrap();
        let other = backlog.hold(&shared, two).unwrap();
        assert_eq!(backlog.bytes(), 4 * LARGE, "a text lies in memory once");
        let five = backlog.hold(&text(5), one).unwrap();
        assert_eq!(backlog.bytes(), 9 * LARGE);
        assert!(backlog.hold(&text(2), two).is_err(), "in all");
        drop((five, first));
        assert_eq!(backlog.bytes(), 4 * LARGE, "others hold it");
        assert!(backlog.hold(&text(6), one).is_err(), "one address leaves a tenth to others");
        let six = backlog.hold(&text(6), three).unwrap();
        drop((again, other, six));
        assert_eq!((backlog.bytes(), backlog.refused()), (0, 2));
        assert!(backlog.hold(&text(50), one).is_ok(), "one text is held however large it is");
        let unread = backlog.unread();
        assert!(unread.by_network.is_empty() && unread.holders.is_empty() && unread.network_holders.is_empty());
    }
}
