//! What one replica has been assigned: its rank among how many, by window.

use std::num::NonZeroU16;

/// The share of `count` that rank `rank` of `of` has in window `window` (promise A8).
///
/// What cannot be divided goes to the next ranks in each window, so that another replica has none each time.
///
/// ```
/// use tidegate_core::replicas::share;
/// assert_eq!([0, 1, 2].map(|rank| share(2, rank, 3, 600)), [1, 1, 0]);
/// assert_eq!([0, 1, 2].map(|rank| share(2, rank, 3, 601)), [1, 0, 1]);
/// ```
#[must_use]
pub const fn share(count: u32, rank: u32, of: u32, window: u64) -> u32 {
    if rank >= of {
        return 0;
    }
    // Below `of`, which is a u32: nothing is lost by adding in 64 bits.
    let turn = (rank as u64 + window % of as u64) % of as u64;
    let more = turn < (count % of) as u64;
    count / of + more as u32
}

/// Windows from `first` until before `end`, in which this replica is `rank` of `of`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The first window's number.
    pub first: u64,
    /// The number of the window after the last.
    pub end: u64,
    /// Which one it is, from 0; `of` or more: none of them.
    pub rank: u32,
    /// How many there are.
    pub of: u32,
}

/// What a replica may start, window by window.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Schedule {
    stretches: Vec<Stretch>,
}

impl Schedule {
    /// Nothing is assigned.
    pub const NONE: Schedule = Schedule { stretches: Vec::new() };

    /// These stretches, which must not overlap.
    #[must_use]
    pub fn new(stretches: Vec<Stretch>) -> Schedule {
        Schedule { stretches }
    }

    /// The same rank for ever: replicas whose number is fixed.
    #[must_use]
    pub fn fixed(rank: u32, of: u32) -> Schedule {
        Schedule { stretches: vec![Stretch { first: 0, end: u64::MAX, rank, of }] }
    }

    /// The share of `count` in this window. `None`: it is not known yet, and nothing may be started.
    #[must_use]
    pub fn share(&self, count: u32, window: u64) -> Option<u32> {
        let stretch = self.at(window)?;
        Some(share(count, stretch.rank, stretch.of, window))
    }

    /// The stretch that holds this window.
    #[must_use]
    pub fn at(&self, window: u64) -> Option<&Stretch> {
        self.stretches.iter().find(|stretch| (stretch.first..stretch.end).contains(&window))
    }

    /// The first window of which nothing is known; 0: of none.
    #[must_use]
    pub fn horizon(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.end).max().unwrap_or(0)
    }
}

/// A schedule as a limit carries it: its latest two stretches, before and after the last change, in few bytes. In a
/// window of which nothing is known the share is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shares {
    first: u64,
    /// Windows from `first` on until the change, and until the end.
    change: u32,
    end: u32,
    before: Standing,
    after: Standing,
}

/// The end of a stretch that has none.
const FOR_EVER: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Standing {
    rank: u16,
    of: NonZeroU16,
}

impl Standing {
    /// A rank above what can be counted is none of them.
    fn of(stretch: &Stretch) -> Standing {
        let counted = u16::try_from(stretch.of).ok().and_then(NonZeroU16::new);
        let Some(of) = counted else { return Standing { rank: u16::MAX, of: NonZeroU16::MIN } };
        Standing { rank: u16::try_from(stretch.rank).unwrap_or(u16::MAX), of }
    }

    const fn share(self, count: u32, window: u64) -> u32 {
        share(count, self.rank as u32, self.of.get() as u32, window)
    }
}

impl Shares {
    /// Those of a schedule.
    #[must_use]
    pub fn of(schedule: &Schedule) -> Shares {
        const NOTHING: Stretch = Stretch { first: 0, end: 0, rank: 0, of: 0 };
        let mut latest = schedule.stretches.iter().rev();
        let after = latest.next().unwrap_or(&NOTHING);
        // What does not end where the other begins is not known any more.
        let before = latest.next().filter(|before| before.end == after.first).unwrap_or(after);
        let windows = |until: u64| u32::try_from(until.saturating_sub(before.first)).unwrap_or(FOR_EVER);
        Shares {
            first: before.first,
            change: windows(after.first),
            end: windows(after.end),
            before: Standing::of(before),
            after: Standing::of(after),
        }
    }

    /// The share of `count` in this window.
    #[must_use]
    pub const fn share(&self, count: u32, window: u64) -> u32 {
        let Some(since) = window.checked_sub(self.first) else { return 0 };
        if since < self.change as u64 {
            self.before.share(count, window)
        } else if since < self.end as u64 || self.end == FOR_EVER {
            self.after.share(count, window)
        } else {
            0
        }
    }

    /// What the share of `count` is at least, in every window to come: nothing where the assignment has an end.
    #[must_use]
    pub const fn least(&self, count: u32) -> u32 {
        let Standing { rank, of } = self.after;
        if self.end == FOR_EVER && rank < of.get() { count / of.get() as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_carries_what_was_assigned_and_nothing_else() {
        let stretch = |first, end, rank, of| Stretch { first, end, rank, of };
        let schedule = Schedule::new(vec![stretch(10, 12, 0, 2), stretch(12, 14, 0, 3)]);
        let shares = Shares::of(&schedule);
        for window in 9..15 {
            assert_eq!(shares.share(8, window), schedule.share(8, window).unwrap_or(0), "{window}");
        }
        assert_eq!((shares.least(8), Shares::of(&Schedule::NONE).least(8)), (0, 0));
        assert_eq!(Shares::of(&Schedule::fixed(2, 3)).least(8), 2);
        assert_eq!(Shares::of(&Schedule::fixed(0, 0)).share(8, 1), 0, "one of none has nothing");
        assert_eq!(Shares::of(&Schedule::NONE).share(8, 0), 0);
        let with_hole = Shares::of(&Schedule::new(vec![stretch(10, 11, 0, 2), stretch(12, 14, 0, 3)]));
        assert_eq!([10, 11, 12].map(|window| with_hole.share(9, window)), [0, 0, 3], "nothing where it has a hole");
        let none = Shares::of(&Schedule::new(vec![stretch(10, 12, 3, 3)]));
        assert_eq!((none.share(9, 10), none.least(9)), (0, 0), "a process that is none of them has nothing");
        assert_eq!(Shares::of(&Schedule::fixed(1, 3)).share(3, 7), 1);
    }

    #[test]
    fn a8_shares_add_up_to_the_limit_in_every_window() {
        for count in [0, 1, 2, 3, 7, 100, u32::MAX] {
            for of in [1, 2, 3, 5, 8, 101] {
                for window in [0, 1, 2, 29_000_000, u64::MAX - 1, u64::MAX] {
                    let sum: u64 = (0..of).map(|rank| u64::from(share(count, rank, of, window))).sum();
                    assert_eq!(sum, u64::from(count), "{count} over {of} in {window}");
                }
            }
        }
    }

    #[test]
    fn a8_two_for_three_rotate() {
        let row = |window| [0, 1, 2].map(|rank| share(2, rank, 3, window));
        assert_eq!([row(0), row(1), row(2), row(3)], [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0]]);
    }

    #[test]
    fn a_larger_limit_never_makes_a_share_smaller() {
        // So while a changed limit reaches one replica after the other, the sum is at most the larger limit.
        for (of, window) in (1..9).flat_map(|of| (0..9).map(move |window| (of, window))) {
            for (count, rank) in (0..40).flat_map(|count| (0..of).map(move |rank| (count, rank))) {
                assert!(share(count, rank, of, window) <= share(count + 1, rank, of, window));
            }
        }
    }

    #[test]
    fn nothing_is_started_past_what_is_known() {
        let stretch = |first, end, rank, of| Stretch { first, end, rank, of };
        let schedule = Schedule::new(vec![stretch(5, 7, 0, 1), stretch(7, 8, 1, 2)]);
        let shares: Vec<_> = (4..9).map(|window| schedule.share(10, window)).collect();
        assert_eq!(shares, [None, Some(10), Some(10), Some(5), None]);
        assert_eq!((schedule.horizon(), Schedule::NONE.horizon()), (8, 0));
        assert_eq!(Schedule::fixed(2, 2).share(10, 1), Some(0), "not one of them");
    }
}
