//! Buckets: counts per block of time, which several checks read together.
//!
//! **Idea.** Time is cut into blocks of one `resolution`. A key has one history of (block start,
//! count), and every limit of the limiter sums as much of it as its own period reaches. Counts can
//! be added after the fact and for times that have passed, so that work is counted when it
//! succeeded, and a limit that is reached blocks the key for a time.
//!
//! **What a check counts** at `now`: all blocks from `block(now) - period` on, that one included.
//! A block thus counts for at least a period after its last moment, and for up to a resolution
//! more: it leaves at the first block start that is more than a period after its own. Blocks ahead
//! of the clock count too.
//!
//! **Example.** Resolution 10 s, history 60 s, 5 per 20 s. Five at T = 100: a sixth does not pass at
//! 100 … 129; at 130 the first block counted is 110, and it does.
//!
//! **Two ways to use it.** A *hit* is decided and counted in one step: it passes if every check's
//! sum plus its cost fits the count. *Increment* and *analyze* are separate steps: the first counts
//! without asking, the second asks without counting, in the checks' order, and blocks on a sum that
//! has reached the count. Between the two others may come: only hits never exceed a limit.
//!
//! **History.** The newest history / resolution blocks are kept, and nothing older than the history.
//! A limit whose period is the whole history and whose count is larger than that number of blocks can
//! miss the oldest block when all are in use; a history longer by a resolution excludes it.
//!
//! **Memory**: 16 bytes a block in use, whatever the counts, and about 70 a key beside its entry. A
//! key that is used all day at the defaults (10 m, 1 day) takes 144 blocks, 2.3 KiB.
//!
//! **Clock steps.** A block up to the shortest period ahead of the clock is waited for; if the newest
//! is further ahead, those that are ahead are carried over to `now` with their gaps. What lies behind
//! stays where it is. **A changed limit** keeps the counts, and so does a changed resolution: old
//! blocks stay at their starts.
//!
//! **Weakness**: coarse by up to a resolution, always to the strict side; a decision reads all
//! blocks of the longest period.

mod grid;

pub use grid::{BLOCKS_MAX, Grid, GridError};

use crate::meter::{Step, step};
use crate::{Limit, Micros, Status, Verdict};

/// The counts of one key.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// Oldest first; starts differ, counts are not 0.
    blocks: Vec<Block>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    start: Micros,
    count: u32,
}

impl State {
    /// Memory held outside the struct itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    /// Each block's start and count, oldest first.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = (Micros, u32)> + '_ {
        self.blocks.iter().map(|block| (block.start, block.count))
    }

    /// Forgets what is older than the history; `shortest` is the shortest period of the limits.
    pub(crate) fn settle(&mut self, grid: &Grid, shortest: Micros, now: Micros) {
        let Some(newest) = self.blocks.last() else {
            return;
        };
        if step(newest.start, now, shortest) == Step::Reanchor {
            self.carry_over(newest.start, grid.block(now));
        }
        let oldest = grid.first(grid.history(), now);
        let old = self.blocks.partition_point(|block| block.start < oldest);
        self.drop_oldest(old.max(self.blocks.len().saturating_sub(grid.blocks())));
    }

    /// Moves the blocks that are ahead so that the newest is the present one.
    fn carry_over(&mut self, newest: Micros, present: Micros) {
        let shift = newest.saturating_sub(present);
        let ahead = self.blocks.split_off(self.blocks.partition_point(|block| block.start <= present));
        for Block { start, count } in ahead {
            self.put(start.saturating_sub(shift), count);
        }
    }

    fn drop_oldest(&mut self, how_many: usize) {
        if how_many > 0 {
            self.blocks.drain(..how_many);
            if self.blocks.len() < self.blocks.capacity() / 4 {
                self.blocks.shrink_to(self.blocks.len() * 2);
            }
        }
    }

    pub(crate) fn verdict(&self, limit: &Limit, grid: &Grid, now: Micros, cost: u32) -> Verdict {
        let counted = self.counted(limit, grid, now);
        let after = sum(counted) + u64::from(cost);
        let Some(over @ 1..) = after.checked_sub(u64::from(limit.count())) else {
            return Verdict::Allow;
        };
        let mut freed = 0;
        let last = counted.iter().find(|block| {
            freed += u64::from(block.count);
            freed >= over
        });
        let passes = last.map_or(now, |block| grid.leaves(block.start, limit.period()));
        Verdict::Deny { retry_after: Some(passes.saturating_sub(now)) }
    }

    /// What is left of one limit.
    #[must_use]
    pub fn status(&self, limit: &Limit, grid: &Grid, now: Micros) -> Status {
        let counted = self.counted(limit, grid, now);
        let left = u64::from(limit.count()).saturating_sub(sum(counted));
        let leaves = counted.last().map_or(now, |newest| grid.leaves(newest.start, limit.period()));
        Status { remaining: u32::try_from(left).unwrap_or(u32::MAX), reset_after: leaves.saturating_sub(now) }
    }

    /// The sum, newest first, at which the limit is reached; `None`: it is not. Without a count in
    /// sight no limit is reached, not even one of 0.
    pub(crate) fn crossing(&self, limit: &Limit, grid: &Grid, now: Micros) -> Option<u64> {
        let mut sum = 0;
        let newest_first = self.counted(limit, grid, now).iter().rev();
        newest_first
            .map(|block| {
                sum += u64::from(block.count);
                sum
            })
            .find(|sum| *sum >= u64::from(limit.count()))
    }

    /// The blocks that the limit counts, oldest first.
    fn counted(&self, limit: &Limit, grid: &Grid, now: Micros) -> &[Block] {
        let first = grid.first(limit.period(), now);
        &self.blocks[self.blocks.partition_point(|block| block.start < first)..]
    }

    /// Counts `count` in the block of `at`. False when that is older than what is kept: then nothing
    /// was counted.
    pub(crate) fn add(&mut self, grid: &Grid, shortest: Micros, now: Micros, at: Micros, count: u32) -> bool {
        let Some(start) = self.place(grid, shortest, now, at) else {
            return false;
        };
        if self.find(start).is_err() {
            self.make_room(grid.blocks());
        }
        self.put(start, count);
        true
    }

    /// Takes `cost` off the newest blocks.
    pub(crate) fn give_back(&mut self, mut cost: u32) {
        while let Some(newest) = self.blocks.last_mut().filter(|_| cost > 0) {
            let taken = cost.min(newest.count);
            (newest.count, cost) = (newest.count - taken, cost - taken);
            if newest.count == 0 {
                self.blocks.pop();
            }
        }
    }

    /// Room for one more block, and never for more than are kept.
    fn make_room(&mut self, most: usize) {
        self.drop_oldest((self.blocks.len() + 1).saturating_sub(most));
        if self.blocks.len() == self.blocks.capacity() {
            self.blocks.reserve_exact(self.blocks.len().max(2).min(most - self.blocks.len()));
        }
    }

    /// The same without taking memory, for a store that has none left: a time without a block counts
    /// in the next newer one, or moves the newest one to itself. Counts then leave later than they
    /// should, so that requests may be denied that would fit, and none is admitted that would not.
    pub(crate) fn add_coarsely(&mut self, grid: &Grid, shortest: Micros, now: Micros, at: Micros, count: u32) -> bool {
        let Some(start) = self.place(grid, shortest, now, at) else {
            return false;
        };
        let (Ok(index) | Err(index)) = self.find(start);
        if let Some(block) = self.blocks.get_mut(index) {
            block.count = block.count.saturating_add(count);
        } else if let Some(newest) = self.blocks.last_mut() {
            *newest = Block { start, count: newest.count.saturating_add(count) };
        } else {
            self.put(start, count);
        }
        true
    }

    /// True when counting at this time may need more memory.
    pub(crate) fn must_grow(&self, grid: &Grid, at: Micros) -> bool {
        self.blocks.len() == self.blocks.capacity()
            && self.blocks.len() < grid.blocks()
            && self.find(grid.block(at)).is_err()
    }

    /// The block in which a time counts. One that is further ahead than the shortest period is not of
    /// this clock and counts now; one that is older than what is kept counts nowhere. What is not past
    /// counts in any case, if need be in the oldest of blocks that are all ahead.
    fn place(&self, grid: &Grid, shortest: Micros, now: Micros, at: Micros) -> Option<Micros> {
        let present = grid.block(now);
        let start = match step(grid.block(at), now, shortest) {
            Step::Onward { .. } => grid.block(at),
            Step::Reanchor => present,
        };
        let oldest = match self.blocks.first() {
            Some(oldest) if self.blocks.len() >= grid.blocks() => oldest.start,
            _ => grid.first(grid.history(), now),
        };
        (start >= oldest.min(present)).then_some(start.max(oldest))
    }

    /// The block in which a charge of this very moment was counted: its own, or the one that was there where there was no room for it.
    pub(crate) fn counted_at(&self, grid: &Grid, shortest: Micros, now: Micros) -> Option<Micros> {
        let (Ok(index) | Err(index)) = self.find(self.place(grid, shortest, now, now)?);
        self.blocks.get(index).map(|block| block.start)
    }

    /// Takes `cost` off the block that begins at `start`; how much of it was there.
    pub(crate) fn give_back_of(&mut self, start: Micros, cost: u32) -> u32 {
        let Ok(index) = self.find(start) else { return 0 };
        let back = cost.min(self.blocks[index].count);
        self.blocks[index].count -= back;
        if self.blocks[index].count == 0 {
            self.blocks.remove(index);
        }
        back
    }

    fn find(&self, start: Micros) -> Result<usize, usize> {
        self.blocks.binary_search_by_key(&start, |block| block.start)
    }

    fn put(&mut self, start: Micros, count: u32) {
        match self.find(start) {
            Ok(index) => self.blocks[index].count = self.blocks[index].count.saturating_add(count),
            Err(index) => self.blocks.insert(index, Block { start, count }),
        }
    }

    /// Appends the state to `out`, for a snapshot.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for Block { start, count } in &self.blocks {
            out.extend(start.get().to_le_bytes());
            out.extend(count.to_le_bytes());
        }
    }

    /// The state that [`State::encode`] wrote as exactly these bytes; `None` if they contradict
    /// each other.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<State> {
        let (chunks, []) = bytes.as_chunks::<12>() else {
            return None;
        };
        let mut blocks: Vec<Block> = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let (start, count) = chunk.split_first_chunk()?;
            let start = Micros::new(u64::from_le_bytes(*start))?;
            let count = u32::from_le_bytes(count.try_into().ok()?);
            let follows = blocks.last().is_none_or(|last| last.start < start);
            blocks.push((follows && count > 0).then_some(Block { start, count })?);
        }
        Some(State { blocks })
    }
}

fn sum(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| u64::from(block.count)).sum()
}

#[cfg(test)]
mod tests;
