//! The memory that all tables of a store share, and how much of it is taken.

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

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
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
