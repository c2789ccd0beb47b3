//! A limit: how much per period, with an optional burst and an optional block.
//!
//! The limit is a parameter of every decision and never part of a state, so that a changed limit
//! applies from the next call. It is checked once, here; past this border code trusts it. Its text and its errors have files of their own.

mod error;
mod text;

pub use error::{LimitError, TextProblem};

use crate::Micros;
use crate::replicas::{Schedule, Shares};
use crate::weekday::{DAY_US, WEEK, Weekday};
use crate::windows::Windows;

/// `COUNT per [N]UNIT [burst B] [block DURATION]`, checked.
///
/// ```
/// use tidegate_core::{Limit, Micros};
/// let limit: Limit = "20 per minute burst 40 block 1h".parse()?;
/// assert_eq!((limit.count(), limit.burst()), (20, 40));
/// assert_eq!(limit.block(), Some(Micros::from_secs(3600)));
/// assert_eq!(limit.to_string(), "20 per 1m burst 40 block 1h");
/// # Ok::<(), tidegate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limit {
    count: u32,
    period: Micros,
    burst: Option<u32>,
    block: Option<Micros>,
    bucket: Bucket,
    /// How many days before a multiple of the period since the epoch an aligned window begins.
    lead_days: u8,
    /// What of it this process holds, if replicas share it; see [`Limit::shared`].
    shares: Option<Shares>,
}

/// The limit as a token bucket sees it, worked out once: divisions are most of a decision's cost.
/// See [`crate::token_bucket`] for what ticks are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// How much fits at once: the burst, or the count without one.
    pub size: u32,
    /// Ticks in a microsecond: the count, reduced. At least 1, also for a count of 0.
    pub per_micro: u32,
    /// Ticks that a cost of 1 takes: the period, reduced.
    pub interval: u64,
    /// Ticks that a full bucket owes.
    pub full: u64,
    /// Microseconds that a full bucket takes to drain, rounded up.
    pub full_micros: u64,
}

impl Bucket {
    fn new(count: u32, period: Micros, burst: u32) -> Bucket {
        let common = gcd(u64::from(count), period.get()).max(1);
        let per_micro = u32::try_from(u64::from(count) / common).unwrap_or(count).max(1);
        let interval = period.get() / common;
        let full = u64::from(burst).saturating_mul(interval);
        Bucket { size: burst, per_micro, interval, full, full_micros: full.div_ceil(u64::from(per_micro)) }
    }
}

/// Longest period of a limit. A year and a day: yearly quotas fit, mistakes in units do not.
pub const PERIOD_MAX: Micros = Micros::from_secs(366 * 86_400);
/// Shortest period of a limit.
pub const PERIOD_MIN: Micros = Micros::from_millis(1);

impl Limit {
    /// `count` per `period`, nothing else. A count of 0 means: never.
    ///
    /// # Errors
    /// When the period is outside [`PERIOD_MIN`]..=[`PERIOD_MAX`].
    pub fn new(count: u32, period: Micros) -> Result<Limit, LimitError> {
        if period < PERIOD_MIN || period > PERIOD_MAX {
            return Err(LimitError::Period(period));
        }
        let (bucket, lead_days) = (Bucket::new(count, period, count), Weekday::Monday.lead_days(period));
        Ok(Limit { count, period, burst: None, block: None, bucket, lead_days, shares: None })
    }

    /// The same limit, whose aligned windows begin on this day if its period is whole weeks; otherwise on Mondays.
    #[must_use]
    pub const fn with_weeks_from(self, day: Weekday) -> Limit {
        Limit { lead_days: day.lead_days(self.period), ..self }
    }

    /// The same limit, with the aligned windows of another one of the same period.
    #[must_use]
    pub const fn with_weeks_of(self, other: &Limit) -> Limit {
        Limit { lead_days: other.lead_days, ..self }
    }

    /// True when its period is whole weeks, so that the day matters on which they begin.
    #[must_use]
    pub const fn has_weeks(&self) -> bool {
        self.period.get().is_multiple_of(WEEK.get())
    }

    /// How long before a multiple of the period since the epoch its aligned windows begin.
    #[must_use]
    #[inline]
    pub const fn lead(&self) -> Micros {
        Micros::saturating(self.lead_days as u64 * DAY_US)
    }

    /// Its aligned windows.
    #[must_use]
    #[inline]
    pub const fn windows(&self) -> Windows {
        Windows::of(self.period).sooner(self.lead())
    }

    /// The start of the aligned window that holds `at`.
    #[inline]
    pub(crate) const fn window_start(&self, at: Micros) -> Micros {
        let into = (at.get() + self.lead().get()) % self.period.get();
        at.saturating_sub(Micros::saturating(into))
    }

    /// The same limit with room for `burst` at once.
    ///
    /// # Errors
    /// When the burst is 0, or the count is (a bucket that never refills).
    pub fn with_burst(self, burst: u32) -> Result<Limit, LimitError> {
        if burst == 0 || self.count == 0 {
            return Err(LimitError::Burst { count: self.count, burst });
        }
        Ok(Limit { burst: Some(burst), bucket: Bucket::new(self.count, self.period, burst), ..self })
    }

    /// The same limit, which blocks a key for `block` when it denies it.
    ///
    /// # Errors
    /// When the block is 0 or longer than [`PERIOD_MAX`].
    pub fn with_block(self, block: Micros) -> Result<Limit, LimitError> {
        if block.is_zero() || block > PERIOD_MAX {
            return Err(LimitError::Block(block));
        }
        Ok(Limit { block: Some(block), ..self })
    }

    /// The same limit of all replicas, of which this process holds a part in each aligned window. Only aligned windows
    /// look at it.
    #[must_use]
    pub(crate) fn shared(self, schedule: &Schedule) -> Limit {
        Limit { shares: Some(Shares::of(schedule)), ..self }
    }

    /// How much of it this process may take in the aligned window that holds `now`.
    #[must_use]
    pub fn share_at(&self, now: Micros) -> u32 {
        self.count_from(now)
    }

    /// How much of it this process may take in the aligned window that begins at `start`.
    #[inline]
    pub(crate) fn count_from(&self, start: Micros) -> u32 {
        match &self.shares {
            None => self.count,
            Some(shares) => shares.share(self.count, self.windows().number(start)),
        }
    }

    /// The same limit with what this process may take in every window, as a sketch knows none.
    pub(crate) fn at_least(self) -> Limit {
        match self.shares {
            None => self,
            Some(shares) => Limit { count: shares.least(self.count), ..self },
        }
    }

    /// How much per period.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// How much at once; the count unless a burst was given.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.bucket.size
    }

    /// True when a burst was given.
    #[must_use]
    pub const fn has_burst(&self) -> bool {
        self.burst.is_some()
    }

    /// How long a denial blocks the key, if it does.
    #[must_use]
    pub const fn block(&self) -> Option<Micros> {
        self.block
    }

    /// Another count over another period, which may be longer than a limit's own can be.
    pub(crate) const fn over(self, count: u32, period: Micros) -> Limit {
        Limit { count, period, ..self }
    }

    /// As a token bucket sees it.
    #[must_use]
    pub const fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Fits a token bucket: burst × reduced period stays below 2^52, so that no product of the
    /// bucket's arithmetic leaves the integers that a double holds.
    pub(crate) fn check_bucket(&self) -> Result<(), LimitError> {
        let full = u128::from(self.burst()) * u128::from(self.bucket.interval);
        if full <= u128::from(Micros::MAX.get()) {
            return Ok(());
        }
        Err(LimitError::TooFine(*self))
    }
}
fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_in_lowest_terms() {
        let limit: Limit = "6000 per second".parse().unwrap();
        assert_eq!((limit.bucket().per_micro, limit.bucket().interval), (3, 500));
    }
}
