//! The memory that all tables of a store share, how much of it is taken, and how it is divided among what was saved.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes taken out of bytes allowed. Growth is asked for before memory is allocated and noted after.
#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Budget {
        Budget { max, taken: AtomicUsize::new(0) }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Bytes that may still be taken.
    pub(crate) fn room(&self) -> usize {
        self.max.saturating_sub(self.taken())
    }

    /// Notes bytes that were allocated.
    pub(crate) fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    /// Notes bytes that were freed.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }

    /// May something grow by this much?
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes) <= self.max
    }

    /// Notes that something grew or shrank.
    pub(crate) fn replace(&self, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(more) if more > 0 => self.take(more),
            Some(_) => {}
            None => self.give_back(before - after),
        }
    }
}

/// How a budget is divided among what was saved, which may be more: what was saved under a larger one is.
///
/// It is found out by trying. As long as all fits, all is granted. From the first that does not fit on it is only
/// measured, and then tried again with the same share for everybody: keys of one table or shard must not take the
/// place of another's only because they come first in the file.
#[derive(Debug, Default)]
pub(crate) struct Fit {
    needed: usize,
    /// So many bytes for so many.
    share: Option<(usize, usize)>,
    is_over: bool,
}

impl Fit {
    /// Bytes that something gets which needs so many, with so many left; `None`: it is only measured.
    pub(crate) fn grant(&mut self, bytes: usize, left: usize) -> Option<usize> {
        self.needed += bytes;
        if let Some((part, whole)) = self.share {
            let granted = bytes as u128 * part as u128 / whole.max(1) as u128;
            return Some(usize::try_from(granted).unwrap_or(bytes).min(bytes));
        }
        self.is_over |= bytes > left;
        (!self.is_over).then_some(bytes)
    }

    /// How to divide `room` when this try has shown that not all fits; `None`: it did.
    pub(crate) fn again(&self, room: usize) -> Option<Fit> {
        self.is_over.then_some(Fit { share: Some((room, self.needed)), ..Fit::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f5_what_does_not_fit_gets_equal_shares() {
        let mut fit = Fit::default();
        assert_eq!([fit.grant(60, 100), fit.grant(40, 40)], [Some(60), Some(40)]);
        assert!(fit.again(100).is_none());
        assert_eq!([fit.grant(50, 0), fit.grant(50, 99)], [None, None], "from here on it is measured");
        let mut fit = fit.again(100).unwrap();
        assert_eq!([fit.grant(60, 0), fit.grant(40, 0), fit.grant(50, 7)], [Some(30), Some(20), Some(25)]);
        assert!(fit.again(100).is_none());
    }
}
