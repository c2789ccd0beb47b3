//! Bytes that clients were answered and have not read yet: bounded in all, for each address and for each token (promise M6).
//!
//! A client that reads nothing is cut after a while; until then what it was answered lies in memory. Only large texts are counted, as
//! what else a connection keeps is bounded by itself. A text that many clients are sent, such as a stream's snapshot, lies in memory
//! once and counts once: it is known by its place in memory, where no other can be while it is held.

use super::account::{Account, Holder};
use bytes::Bytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
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
    by_holder: HashMap<Holder, usize>,
    /// How many clients have not read the text at this place in memory: in all, and of each holder.
    texts: HashMap<usize, usize>,
    texts_by_holder: HashMap<(Holder, usize), usize>,
}

/// A text that a client has not read; dropping it says that it has.
#[derive(Debug)]
pub(crate) struct Held {
    backlog: Arc<Backlog>,
    holders: [Option<Holder>; 2],
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

    /// Holds a text for a client, charged to its account until the client has read it; `None`: the text is small.
    ///
    /// # Errors
    /// When too much is unread already. One text is held in any case, however large it is.
    pub(crate) fn hold(self: &Arc<Backlog>, text: &Bytes, account: &Account) -> Result<Option<Held>, TooMuchUnread> {
        if text.len() <= LARGE {
            return Ok(None);
        }
        let holders = account.holders();
        if !self.unread().add(&holders, text, self.max_bytes) {
            self.refused.fetch_add(1, Relaxed);
            return Err(TooMuchUnread);
        }
        Ok(Some(Held { backlog: Arc::clone(self), holders, text: text.clone() }))
    }

    /// The same for several texts: those of them that are large.
    ///
    /// # Errors
    /// When too much is unread already; then none is held.
    pub(crate) fn hold_all<'t>(
        self: &Arc<Backlog>,
        texts: impl Iterator<Item = &'t Bytes>,
        account: &Account,
    ) -> Result<Vec<Held>, TooMuchUnread> {
        texts.filter_map(|text| self.hold(text, account).transpose()).collect()
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
    /// Counts a text, if there is room for it in all and for each of these, or nothing else is held there.
    fn add(&mut self, holders: &[Option<Holder>], text: &Bytes, max_bytes: usize) -> bool {
        let place = text.as_ptr().addr();
        let is_new = !self.texts.contains_key(&place);
        let fits = |is_new: bool, bytes: usize, max: usize| !is_new || bytes == 0 || bytes + text.len() <= max;
        // One address, and one token, leaves a tenth to others.
        let fits_one = |holder: &Holder| {
            let is_new = !self.texts_by_holder.contains_key(&(holder.clone(), place));
            fits(is_new, self.by_holder.get(holder).copied().unwrap_or(0), max_bytes - max_bytes / 10)
        };
        if !fits(is_new, self.bytes, max_bytes) || !holders.iter().flatten().all(fits_one) {
            return false;
        }
        if is_new {
            self.bytes += text.len();
        }
        *self.texts.entry(place).or_default() += 1;
        for holder in holders.iter().flatten() {
            let count = self.texts_by_holder.entry((holder.clone(), place)).or_default();
            *count += 1;
            if *count == 1 {
                *self.by_holder.entry(holder.clone()).or_default() += text.len();
            }
        }
        true
    }

    fn remove(&mut self, holders: &[Option<Holder>], text: &Bytes) {
        let place = text.as_ptr().addr();
        if is_last(&mut self.texts, place) {
            self.bytes -= text.len();
        }
        for holder in holders.iter().flatten() {
            if is_last(&mut self.texts_by_holder, (holder.clone(), place))
                && let Some(bytes) = self.by_holder.get_mut(holder)
            {
                *bytes -= text.len();
                if *bytes == 0 {
                    self.by_holder.remove(holder);
                }
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
        self.backlog.unread().remove(&self.holders, &self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m6_unread_bytes_are_bounded_in_all_and_by_address() {
        let backlog = Arc::new(Backlog::new(10 * LARGE));
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| Account::of(address.parse().unwrap()));
        let text = |larges: usize| Bytes::from(vec![b'x'; larges * LARGE]);
        assert!(backlog.hold(&text(1), &one).unwrap().is_none(), "small texts do not count");
        let shared = text(4);
        let first = backlog.hold(&shared, &one).unwrap().unwrap();
        let again = backlog.hold(&shared, &one).unwrap();
        let other = backlog.hold(&shared, &two).unwrap();
        assert_eq!(backlog.bytes(), 4 * LARGE, "a text lies in memory once");
        let five = backlog.hold(&text(5), &one).unwrap();
        assert_eq!(backlog.bytes(), 9 * LARGE);
        assert!(backlog.hold(&text(2), &two).is_err(), "in all");
        drop((five, first));
        assert_eq!(backlog.bytes(), 4 * LARGE, "others hold it");
        assert!(backlog.hold(&text(6), &one).is_err(), "one address leaves a tenth to others");
        let six = backlog.hold(&text(6), &three).unwrap();
        drop((again, other, six));
        assert_eq!((backlog.bytes(), backlog.refused()), (0, 2));
        assert!(backlog.hold(&text(50), &one).is_ok(), "one text is held however large it is");
        let unread = backlog.unread();
        assert!(unread.by_holder.is_empty() && unread.texts.is_empty() && unread.texts_by_holder.is_empty());
    }
    #[test]
    fn m6_unread_bytes_are_bounded_by_token_wherever_it_is_shown() {
        let backlog = Arc::new(Backlog::new(10 * LARGE));
        let greedy = |last: u8| Account::of([10, 0, 0, last].into()).with("token greedy");
        let text = |larges: usize| Bytes::from(vec![b'x'; larges * LARGE]);
        let held = [1, 2, 3].map(|last| backlog.hold(&text(3), &greedy(last)).unwrap());
        assert!(backlog.hold(&text(2), &greedy(4)).is_err(), "one token leaves a tenth to others, from any address");
        drop(held);
        let shared = text(5);
        let held = [1, 2, 3].map(|last| backlog.hold(&shared, &greedy(last)).unwrap());
        assert_eq!(
            backlog.unread().by_holder[&greedy(1).token().unwrap()],
            5 * LARGE,
            "a text counts once for a token"
        );
        drop(held);
        let unread = backlog.unread();
        assert!(unread.by_holder.is_empty() && unread.texts.is_empty() && unread.texts_by_holder.is_empty());
    }
}
