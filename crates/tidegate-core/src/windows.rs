//! How the aligned windows of a limit lie in time, and their numbers.
//!
//! Replicas and stores name a window by its number. Invariant: numbers of windows are worked out here alone, so that a window of weeks that
//! begins on a Monday has the same number at every replica and at the store.

use crate::Micros;

/// Windows of one length, which begin at its multiples since the epoch, or some time before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Windows {
    period: Micros,
    lead: Micros,
}

impl Windows {
    /// Windows of this length, which is not 0, that begin at its multiples since the epoch.
    #[must_use]
    pub const fn of(period: Micros) -> Windows {
        Windows { period, lead: Micros::ZERO }
    }

    /// The same windows, each of which begins so much sooner.
    #[must_use]
    pub const fn sooner(self, lead: Micros) -> Windows {
        Windows { lead, ..self }
    }

    /// How long one is.
    #[must_use]
    #[inline]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// How long before a multiple of the period they begin.
    #[must_use]
    #[inline]
    pub const fn lead(&self) -> Micros {
        self.lead
    }

    /// The number of the window that holds `at`.
    #[must_use]
    #[inline]
    pub const fn number(&self, at: Micros) -> u64 {
        (at.get() + self.lead.get()) / self.period.get()
    }

    /// When the window of this number begins.
    #[must_use]
    pub const fn begin(&self, number: u64) -> Micros {
        Micros::saturating(number.saturating_mul(self.period.get()).saturating_sub(self.lead.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Weekday};

    const DAY: u64 = 86_400_000_000;

    #[test]
    fn a2_weeks_are_numbered_from_their_own_day() {
        let weeks = |day| "9 per week".parse::<Limit>().unwrap().with_weeks_from(day).windows();
        // The epoch was a Thursday.
        for (day, first_begin) in [(Weekday::Thursday, 7), (Weekday::Monday, 4), (Weekday::Sunday, 3)] {
            let windows = weeks(day);
            let begin = Micros::new(first_begin * DAY).unwrap();
            assert_eq!((windows.number(begin), windows.begin(1)), (1, begin), "{day:?}");
            assert_eq!(windows.number(begin.saturating_sub(Micros::new(1).unwrap())), 0, "{day:?}");
        }
        let minutes = "9 per minute".parse::<Limit>().unwrap().windows();
        assert_eq!((minutes, minutes.number(Micros::from_secs(120))), (Windows::of(Micros::from_secs(60)), 2));
    }
}
