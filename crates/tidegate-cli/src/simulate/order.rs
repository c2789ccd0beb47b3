//! Lines in the order in which they are decided, in batches.
//!
//! A trace is in time order, or it is refused; a log is put in order (`in_order`). What comes out does not depend on how the
//! input was cut into blocks.

use super::in_order::InOrder;
use super::parsed::{Asks, Entry, Parsed};
use super::{Notes, Stop, at};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate::Micros;

/// Most lines of a batch that comes out of waiting: their answers are in memory together.
const BATCH_MAX: usize = 16_384;

/// Lines to be decided, in this order.
#[derive(Default)]
pub(super) struct Batch {
    blocks: Vec<Arc<Parsed>>,
    items: Vec<Item>,
}

/// A line of a batch.
#[derive(Clone, Copy)]
struct Item {
    /// When it is decided: its own time, unless it came too late.
    at: Micros,
    block: u32,
    entry: u32,
}

/// A line to be decided.
#[derive(Clone, Copy)]
pub(super) struct Due<'a> {
    pub(super) at: Micros,
    pub(super) block: &'a Parsed,
    pub(super) entry: &'a Entry,
}

impl Due<'_> {
    /// Its number in the input, from 1.
    pub(super) fn number(&self) -> u64 {
        self.block.first_line + u64::from(self.entry.line)
    }
}

impl Batch {
    pub(super) fn lines(&self) -> impl ExactSizeIterator<Item = Due<'_>> {
        self.items.iter().map(|item| {
            let block = &*self.blocks[item.block as usize];
            Due { at: item.at, block, entry: &block.entries[item.entry as usize] }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// Which order lines have to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Their own, by time: a line that goes back is an error.
    Strict,
    /// By time, within a window.
    Sorted { skip_bad_lines: bool },
}

/// Puts lines in order.
pub(super) struct Sequencer {
    order: Order,
    now: Micros,
    waiting: InOrder<(u32, u32)>,
    blocks: Blocks,
    pub(super) notes: Notes,
}

impl Sequencer {
    pub(super) fn new(order: Order) -> Sequencer {
        let (waiting, blocks, notes) = (InOrder::new(), Blocks::default(), Notes::default());
        Sequencer { order, now: Micros::ZERO, waiting, blocks, notes }
    }

    /// Takes a block in and hands out what is due.
    ///
    /// # Errors
    /// A line is at fault, after those before it were handed out; or `each` has failed.
    pub(super) fn take(&mut self, block: Parsed, each: impl FnMut(Batch) -> Result<(), Stop>) -> Result<(), Stop> {
        match self.order {
            Order::Strict => self.take_strict(block, each),
            Order::Sorted { skip_bad_lines } => self.take_sorted(block, skip_bad_lines, each),
        }
    }

    fn take_strict(&mut self, block: Parsed, mut each: impl FnMut(Batch) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut fault = None;
        let mut items = Vec::with_capacity(block.entries.len());
        for (index, entry) in (0..).zip(&block.entries) {
            let problem = match entry.asks {
                Asks::Bad(message) => Some(block.str(message).to_owned()),
                _ if entry.at < self.now => Some(format!(
                    "at: {} is before the line above, at {}; sort the trace by time",
                    block.str(entry.at_text),
                    at::Seconds(self.now)
                )),
                _ => None,
            };
            if let Some(problem) = problem {
                fault = Some(Stop::Line(block.first_line + u64::from(entry.line), problem));
                break;
            }
            self.now = entry.at;
            items.push(Item { at: entry.at, block: 0, entry: index });
        }
        each(Batch { blocks: vec![Arc::new(block)], items })?;
        fault.map_or(Ok(()), Err)
    }

    fn take_sorted(
        &mut self,
        block: Parsed,
        skip_bad_lines: bool,
        mut each: impl FnMut(Batch) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let block = Arc::new(block);
        let number = self.blocks.push(Arc::clone(&block));
        let mut batch = Gathered::default();
        let mut fault = None;
        for (index, entry) in (0..).zip(&block.entries) {
            match entry.asks {
                Asks::Bad(_) if skip_bad_lines => self.notes.skipped += 1,
                Asks::Bad(message) => {
                    let line = block.first_line + u64::from(entry.line);
                    fault = Some(Stop::Line(line, block.str(message).to_owned()));
                    break;
                }
                _ => {
                    self.blocks.wait(number);
                    self.waiting.push(entry.at, (number, index));
                }
            }
            while let Some((at, (block, entry))) = self.waiting.pop() {
                batch.add(&mut self.blocks, at, block, entry);
                if batch.items.len() == BATCH_MAX {
                    each(batch.take())?;
                }
            }
        }
        self.blocks.forget();
        self.notes.late = self.waiting.late;
        each(batch.take())?;
        fault.map_or(Ok(()), Err)
    }

    /// Hands out what is still waiting: there are no more lines.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Batch) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut batch = Gathered::default();
        while let Some((at, (block, entry))) = self.waiting.pop_rest() {
            batch.add(&mut self.blocks, at, block, entry);
            if batch.items.len() == BATCH_MAX {
                each(batch.take())?;
                self.blocks.forget();
            }
        }
        each(batch.take())
    }
}

/// A batch that is being gathered from several blocks.
#[derive(Default)]
struct Gathered {
    batch: Batch,
    /// The numbers of the blocks that it has.
    numbers: Vec<u32>,
    items: Vec<Item>,
}

impl Gathered {
    fn add(&mut self, blocks: &mut Blocks, at: Micros, number: u32, entry: u32) {
        // The last ones first: lines of a time stand together.
        let place = match self.numbers.iter().rposition(|known| *known == number) {
            Some(place) => place,
            None => {
                self.numbers.push(number);
                self.batch.blocks.push(blocks.get(number));
                self.numbers.len() - 1
            }
        };
        blocks.done(number);
        let block = u32::try_from(place).unwrap_or(u32::MAX);
        self.items.push(Item { at, block, entry });
    }

    fn take(&mut self) -> Batch {
        self.numbers.clear();
        Batch { blocks: std::mem::take(&mut self.batch.blocks), items: std::mem::take(&mut self.items) }
    }
}

/// Blocks of which lines are waiting, by their numbers.
#[derive(Default)]
struct Blocks {
    first: u32,
    waiting: VecDeque<(Arc<Parsed>, u32)>,
}

impl Blocks {
    fn push(&mut self, block: Arc<Parsed>) -> u32 {
        self.waiting.push_back((block, 0));
        self.first + u32::try_from(self.waiting.len() - 1).unwrap_or(0)
    }

    fn get(&self, number: u32) -> Arc<Parsed> {
        Arc::clone(&self.waiting[(number - self.first) as usize].0)
    }

    /// One more line of it waits.
    fn wait(&mut self, number: u32) {
        self.waiting[(number - self.first) as usize].1 += 1;
    }

    /// One line fewer.
    fn done(&mut self, number: u32) {
        self.waiting[(number - self.first) as usize].1 -= 1;
    }

    /// Lets go of blocks of which no line is waiting any more, the oldest first.
    fn forget(&mut self) {
        while self.waiting.front().is_some_and(|(_, lines)| *lines == 0) {
            self.waiting.pop_front();
            self.first += 1;
        }
    }
}
