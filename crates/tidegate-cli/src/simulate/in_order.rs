//! Access logs are written when requests end, so their times are almost in order. Here they are put
//! in order, within a bound.
//!
//! A line waits until one comes that is [`WINDOW`] later; by then any that belong before it are in.
//! One that comes later still is given the time that the replay has reached, and counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use tidegate::Micros;

/// How far apart two lines may be out of order.
pub(super) const WINDOW: Micros = Micros::from_secs(60);
/// Most lines that wait; with more, the earliest goes on.
const WAITING_MAX: usize = 1_000_000;

/// Lines of one second, the earliest first.
type OfSecond<T> = BinaryHeap<Reverse<(Micros, u64, T)>>;

/// Lines that wait for those before them; `T` is what is known of a line.
///
/// Most lines are later than all before them and wait in a queue, at no cost. The others wait in a heap for each second: one heap
/// for all of them would be a walk through memory for every line of a busy log.
pub(super) struct InOrder<T> {
    queue: VecDeque<(Micros, u64, T)>,
    stragglers: BTreeMap<u64, OfSecond<T>>,
    straggling: usize,
    newest: Micros,
    released: Micros,
    taken: u64,
    /// Lines that came too late to be put in order.
    pub(super) late: u64,
}

impl<T: Ord> InOrder<T> {
    pub(super) fn new() -> InOrder<T> {
        let (queue, stragglers) = (VecDeque::new(), BTreeMap::new());
        let (newest, released) = (Micros::ZERO, Micros::ZERO);
        InOrder { queue, stragglers, straggling: 0, newest, released, taken: 0, late: 0 }
    }

    /// Takes a line in; lines of one time stay in the order in which they came.
    pub(super) fn push(&mut self, mut at: Micros, line: T) {
        if at < self.released {
            self.late += 1;
            at = self.released;
        }
        self.newest = self.newest.max(at);
        self.taken += 1;
        let waiting = (at, self.taken, line);
        if self.queue.back().is_none_or(|last| last.0 <= at) {
            self.queue.push_back(waiting);
        } else {
            self.stragglers.entry(at.get() / 1_000_000).or_default().push(Reverse(waiting));
            self.straggling += 1;
        }
    }

    /// The next line whose turn has come, and the time at which it is taken.
    pub(super) fn pop(&mut self) -> Option<(Micros, T)> {
        let due = self.newest.saturating_sub(WINDOW);
        let crowded = self.queue.len() + self.straggling > WAITING_MAX;
        let first = self.first()?;
        if !crowded && first > due {
            return None;
        }
        self.released = first;
        self.take_first()
    }

    /// The next line that is still waiting, whether its turn has come or not: there are no more to come.
    pub(super) fn pop_rest(&mut self) -> Option<(Micros, T)> {
        self.take_first()
    }

    fn first(&self) -> Option<Micros> {
        let (queued, straggling) = (self.queue.front(), self.first_straggler());
        queued.into_iter().chain(straggling).map(|one| one.0).min()
    }

    fn take_first(&mut self) -> Option<(Micros, T)> {
        let straggler_first = match (self.queue.front(), self.first_straggler()) {
            (Some(queued), Some(straggling)) => (straggling.0, straggling.1) < (queued.0, queued.1),
            (None, straggling) => straggling.is_some(),
            (Some(_), None) => false,
        };
        let (at, _, line) = if straggler_first { self.take_straggler() } else { self.queue.pop_front() }?;
        Some((at, line))
    }

    fn first_straggler(&self) -> Option<&(Micros, u64, T)> {
        self.stragglers.first_key_value()?.1.peek().map(|Reverse(one)| one)
    }

    fn take_straggler(&mut self) -> Option<(Micros, u64, T)> {
        let mut of_second = self.stragglers.first_entry()?;
        let first = of_second.get_mut().pop().map(|Reverse(one)| one);
        if of_second.get().is_empty() {
            of_second.remove();
        }
        self.straggling -= 1;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines as they come out, by second, and how many were late.
    fn ordered(seconds: &[u64]) -> (Vec<(usize, u64)>, u64) {
        let (mut order, mut seen) = (InOrder::new(), Vec::new());
        let second = |at: Micros| at.get() / 1_000_000;
        for (number, at) in seconds.iter().enumerate() {
            order.push(Micros::from_secs(*at), number);
            while let Some((at, number)) = order.pop() {
                seen.push((number, second(at)));
            }
        }
        while let Some((at, number)) = order.pop_rest() {
            seen.push((number, second(at)));
        }
        (seen, order.late)
    }

    #[test]
    fn lines_come_out_in_order_and_late_ones_are_moved() {
        let (seen, late) = ordered(&[10, 5, 10, 70, 69, 200, 3]);
        assert_eq!(late, 1);
        assert_eq!(seen, [(1, 5), (0, 10), (2, 10), (4, 69), (3, 70), (6, 70), (5, 200)]);
    }

    /// The same by one sorted map, which is what the rule says.
    fn naive(seconds: &[u64]) -> (Vec<(usize, u64)>, u64) {
        let (mut waiting, mut seen) = (BTreeMap::new(), Vec::new());
        let (mut newest, mut released, mut late) = (0, 0, 0);
        for (number, at) in seconds.iter().enumerate() {
            late += u64::from(*at < released);
            let at = (*at).max(released);
            newest = newest.max(at);
            waiting.insert((at, number), ());
            while let Some(first) = waiting.first_entry().filter(|first| first.key().0 + 60 <= newest) {
                released = first.key().0;
                let (at, number) = first.remove_entry().0;
                seen.push((number, at));
            }
        }
        seen.extend(waiting.into_keys().map(|(at, number)| (number, at)));
        (seen, late)
    }

    #[test]
    fn any_disorder_is_put_in_order_as_the_rule_says() {
        let mut random = tidegate_testkit::Random(15);
        for round in 0..200 {
            let spread = 1 + round % 100;
            let seconds: Vec<u64> =
                (0..300).map(|i| 200 + i / 3 + random.below(spread) - random.below(spread).min(150)).collect();
            assert_eq!(ordered(&seconds), naive(&seconds), "round {round}");
        }
    }
}
