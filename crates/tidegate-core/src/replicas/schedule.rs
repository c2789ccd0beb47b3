//! What one replica has been promised: its rank among how many, by window.

/// The part of `count` that rank `rank` of `of` has in window `window` (promise A8).
///
/// What cannot be divided goes to the next ranks in each window, so that who has nothing changes.
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
    /// Nothing is promised.
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

    /// The part of `count` in this window. `None`: nobody knows yet, and nothing may be started.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_larger_limit_never_makes_a_part_smaller() {
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
