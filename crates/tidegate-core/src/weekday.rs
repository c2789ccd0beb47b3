//! Days of the week: where aligned windows of whole weeks begin.
//!
//! The epoch was a Thursday. No week begins on that day anywhere, so that windows of whole weeks are moved to begin on a Monday, or
//! on the day that a limiter names. All in UTC.

use crate::Micros;

/// A day of the week.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Weekday {
    /// The first day of a week, unless a limiter says otherwise.
    Monday,
    /// The day after.
    Tuesday,
    /// The day after.
    Wednesday,
    /// The day of the epoch.
    Thursday,
    /// The day after.
    Friday,
    /// The day after.
    Saturday,
    /// The first day of a week in some countries.
    Sunday,
}

pub(crate) const DAY_US: u64 = 86_400_000_000;
pub(crate) const WEEK: Micros = Micros::saturating(7 * DAY_US);

impl Weekday {
    /// Every day, from Monday on.
    pub const ALL: [Weekday; 7] = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];

    /// The configuration's word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Weekday::Monday => "monday",
            Weekday::Tuesday => "tuesday",
            Weekday::Wednesday => "wednesday",
            Weekday::Thursday => "thursday",
            Weekday::Friday => "friday",
            Weekday::Saturday => "saturday",
            Weekday::Sunday => "sunday",
        }
    }

    /// How many days before a multiple of the period since the epoch a window begins whose weeks begin on this day.
    pub(crate) const fn lead_days(self, period: Micros) -> u8 {
        if period.get().is_multiple_of(WEEK.get()) { self.days_before_epoch() } else { 0 }
    }

    /// How many days before the epoch the last such day began.
    const fn days_before_epoch(self) -> u8 {
        match self {
            Weekday::Thursday => 0,
            Weekday::Wednesday => 1,
            Weekday::Tuesday => 2,
            Weekday::Monday => 3,
            Weekday::Sunday => 4,
            Weekday::Saturday => 5,
            Weekday::Friday => 6,
        }
    }
}
