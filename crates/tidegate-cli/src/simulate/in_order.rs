//! Access logs are written when requests end, so their times are almost in order. Here they are put
//! in order, within a bound.
//!
//! A line waits until one comes that is [`WINDOW`] later; by then any that belong before it are in.
//! One that comes later still is given the time that the replay has reached, and counted.

use super::access_log::Entry;
use std::collections::BTreeMap;
use tidegate::Micros;

/// How far apart two lines may be out of order.
pub(super) const WINDOW: Micros = Micros::from_secs(60);
/// Most lines that wait; with more, the earliest goes on.
const WAITING_MAX: usize = 1_000_000;

/// Lines that wait for those before them.
#[derive(Default)]
pub(super) struct InOrder {
    /// By time, then by their place in the log.
    waiting: BTreeMap<(Micros, u64), (u64, Entry)>,
    newest: Micros,
    released: Micros,
    taken: u64,
    /// Lines that came too late to be put in order.
    pub(super) late: u64,
}

impl InOrder {
    /// Takes the `number`-th line of the log in.
    pub(super) fn push(&mut self, number: u64, mut entry: Entry) {
        if entry.at < self.released {
            self.late += 1;
            entry.at = self.released;
        }
        self.newest = self.newest.max(entry.at);
        self.taken += 1;
        self.waiting.insert((entry.at, self.taken), (number, entry));
    }

    /// The next line whose turn has come, with its number.
    pub(super) fn pop(&mut self) -> Option<(u64, Entry)> {
        let due = self.newest.saturating_sub(WINDOW);
        let crowded = self.waiting.len() > WAITING_MAX;
        let first = self.waiting.first_entry()?;
        if !crowded && first.key().0 > due {
            return None;
        }
        self.released = first.key().0;
        Some(first.remove())
    }

    /// What is still waiting, in order.
    pub(super) fn rest(self) -> impl Iterator<Item = (u64, Entry)> {
        self.waiting.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_in_order_and_late_ones_are_moved() {
        let entry = |second: u64| {
            let (minute, second) = (second / 60, second % 60);
            let line = format!("h - - [01/Jan/2026:00:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1");
            super::super::access_log::read(line.as_bytes()).unwrap()
        };
        let start = entry(0).at;
        let (mut order, mut seen) = (InOrder::default(), Vec::new());
        for (number, second) in (1..).zip([10, 5, 10, 70, 69, 200, 3]) {
            order.push(number, entry(second));
            while let Some((number, entry)) = order.pop() {
                seen.push((number, entry.at.saturating_sub(start).get() / 1_000_000));
            }
        }
        assert_eq!(order.late, 1);
        seen.extend(order.rest().map(|(number, entry)| (number, entry.at.saturating_sub(start).get() / 1_000_000)));
        assert_eq!(seen, [(2, 5), (1, 10), (3, 10), (5, 69), (4, 70), (7, 70), (6, 200)]);
    }
}
