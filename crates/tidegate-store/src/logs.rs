//! Sliding logs, the only states that do not fit a slot: kept beside the slots and known by number.
//!
//! Invariant: `heap` is what the logs that are here hold; one that is taken out is not counted.

use tidegate_core::sliding_log;

/// Sliding logs by number: an entry's word is a log's number plus one, or 0 for none.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    logs: Vec<Option<Box<sliding_log::State>>>,
    vacant: Vec<u32>,
    heap: usize,
}

impl Logs {
    pub(crate) fn bytes(&self) -> usize {
        self.logs.capacity() * size_of::<Option<Box<sliding_log::State>>>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.heap
    }

    pub(crate) fn get(&self, word: u64) -> Option<&sliding_log::State> {
        self.logs.get(usize::try_from(word).ok()?.checked_sub(1)?)?.as_deref()
    }

    /// Takes a log out; [`Logs::put`] brings it back under the same word.
    pub(crate) fn take(&mut self, word: u64) -> Box<sliding_log::State> {
        let index = usize::try_from(word).unwrap_or(0).wrapping_sub(1);
        let log = self.logs.get_mut(index).and_then(Option::take);
        self.heap -= log.as_ref().map_or(0, |log| footprint(log));
        log.unwrap_or_default()
    }

    /// Stores a log under its word, or a new one; an empty log gives its word back.
    pub(crate) fn put(&mut self, word: u64, log: Box<sliding_log::State>) -> u64 {
        if *log == sliding_log::State::default() {
            self.free(word);
            return 0;
        }
        let index = match usize::try_from(word).unwrap_or(0).checked_sub(1) {
            Some(index) => index,
            None => self.vacant.pop().map_or_else(
                || {
                    self.logs.push(None);
                    self.logs.len() - 1
                },
                |index| index as usize,
            ),
        };
        self.heap += footprint(&log);
        self.logs[index] = Some(log);
        index as u64 + 1
    }

    pub(crate) fn free(&mut self, word: u64) {
        let Some(index) = usize::try_from(word).unwrap_or(0).checked_sub(1) else {
            return;
        };
        let log = self.logs.get_mut(index).and_then(Option::take);
        self.heap -= log.map_or(0, |log| footprint(&log));
        self.vacant.push(u32::try_from(index).unwrap_or(u32::MAX));
    }

    pub(crate) fn shrink(&mut self) {
        if self.vacant.len() == self.logs.len() {
            *self = Logs::default();
        }
    }
}

/// A log's struct, its buffer, and what the allocator adds to each.
fn footprint(log: &sliding_log::State) -> usize {
    const ALLOCATION: usize = 16;
    size_of::<sliding_log::State>() + log.heap_bytes() + 2 * ALLOCATION
}
