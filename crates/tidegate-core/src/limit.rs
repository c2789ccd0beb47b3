//! A limit: how much per period, with an optional burst and an optional block.
//!
//! The limit is a parameter of every decision and never part of a state, so that a changed limit
//! applies from the next call. It is checked once, here; past this border code trusts it.

use crate::replicas::{Schedule, Shares};
use crate::weekday::{DAY_US, WEEK, Weekday};
use crate::{Micros, text};
use std::{fmt, str::FromStr};

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
            Some(shares) => shares.share(self.count, (start.get() + self.lead().get()) / self.period.get()),
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

/// Why a limit was refused. The text names the value, the bound and the remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitError {
    /// The period is out of bounds.
    Period(Micros),
    /// The burst is 0, or belongs to a count of 0.
    Burst {
        /// The limit's count.
        count: u32,
        /// The burst asked for.
        burst: u32,
    },
    /// The block is out of bounds.
    Block(Micros),
    /// Burst × reduced period would reach 2^52. The text names the nearest count that fits.
    TooFine(Limit),
    /// The text is not a limit; says which part.
    Text(TextProblem),
}

/// Which part of a limit's text cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextProblem {
    /// It does not start with a count.
    Count,
    /// The word `per` and a period do not follow the count.
    Per,
    /// The period is no number and unit.
    Period,
    /// `burst` has no whole number behind it.
    Burst,
    /// `block` has no duration behind it.
    Block,
    /// Something follows that is neither `burst` nor `block`, or one of them twice.
    Trailing,
}

impl std::error::Error for LimitError {}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitError::Period(period) => {
                write!(f, "period {period} is outside {PERIOD_MIN} to {PERIOD_MAX}; choose one inside")
            }
            LimitError::Burst { count: 0, burst } => {
                write!(
                    f,
                    "burst {burst} on a count of 0 would never refill; leave the burst out (a count of 0 means: never)"
                )
            }
            LimitError::Burst { .. } => {
                write!(f, "burst 0 lets nothing through; use 1 or more, or a count of 0 for: never")
            }
            LimitError::Block(block) => {
                write!(f, "block {block} is outside 1ms to {PERIOD_MAX}; choose one inside, or leave it out")
            }
            LimitError::TooFine(limit) => {
                write!(
                    f,
                    "\"{limit}\" is too fine to be counted exactly in a token bucket (burst × reduced period must stay below 2^52); "
                )?;
                match nearest_count(limit) {
                    Some(count) => write!(f, "the nearest count that fits is {count}"),
                    None => write!(f, "use a smaller burst or a shorter period"),
                }
            }
            LimitError::Text(problem) => {
                let what = match problem {
                    TextProblem::Count => "it does not start with a count from 0 to 4294967295",
                    TextProblem::Per => "\"per\" and a period must follow the count",
                    TextProblem::Period => {
                        "the period after \"per\" must be a unit, or a number and a unit, such as second, 20s, 10m, 2h, day or week"
                    }
                    TextProblem::Burst => "\"burst\" needs a whole number from 1 to 4294967295 behind it",
                    TextProblem::Block => "\"block\" needs a duration such as 30s, 10m or 4h behind it",
                    TextProblem::Trailing => {
                        "after the period only \"burst B\" and \"block DURATION\" may follow, each once"
                    }
                };
                write!(
                    f,
                    "{what}; write COUNT per [N]UNIT [burst B] [block DURATION], such as \"5 per minute\" or \"1 per 2h block 4h\""
                )
            }
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let problem = LimitError::Text;
        let mut words = Words(text.split_whitespace().peekable());
        let count = words.number().ok_or(problem(TextProblem::Count))?;
        if words.0.next() != Some("per") {
            return Err(problem(TextProblem::Per));
        }
        let period = words.duration(Unit::Enough).ok_or(problem(TextProblem::Period))?;
        let mut limit = Limit::new(count, period)?;
        while let Some(word) = words.0.next() {
            limit = match word {
                "burst" if limit.burst.is_none() => {
                    limit.with_burst(words.number().ok_or(problem(TextProblem::Burst))?)?
                }
                "block" if limit.block.is_none() => {
                    limit.with_block(words.duration(Unit::NeedsNumber).ok_or(problem(TextProblem::Block))?)?
                }
                _ => return Err(problem(TextProblem::Trailing)),
            };
        }
        Ok(limit)
    }
}

/// May a unit stand without its number? `5 per minute` reads well, `block hour` is a slip.
#[derive(PartialEq)]
enum Unit {
    Enough,
    NeedsNumber,
}

struct Words<'a>(std::iter::Peekable<std::str::SplitWhitespace<'a>>);

impl Words<'_> {
    fn number(&mut self) -> Option<u32> {
        // `parse` alone would take a leading plus sign.
        self.0.next().filter(|w| w.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
    }

    /// `20s`, `minute`, or a number and a unit in two words (`2 hours`).
    fn duration(&mut self, lone_unit: Unit) -> Option<Micros> {
        let first = self.0.next()?;
        if lone_unit == Unit::Enough
            && let Some(unit) = text::unit(first)
        {
            return Some(unit);
        }
        if first.bytes().all(|b| b.is_ascii_digit()) {
            let unit = self.0.next()?;
            return text::duration(&format!("{first}{unit}")).ok();
        }
        text::duration(first).ok()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}", self.count, self.period)?;
        if let Some(burst) = self.burst {
            write!(f, " burst {burst}")?;
        }
        if let Some(block) = self.block {
            write!(f, " block {block}")?;
        }
        Ok(())
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The count nearest to the limit's that a token bucket can hold exactly with the same period and
/// burst. Counts that share a large divisor with the period reduce well, so it is enough to look at
/// the best multiple of each divisor.
fn nearest_count(limit: &Limit) -> Option<u32> {
    let (count, period) = (u64::from(limit.count), limit.period.get());
    let fits = |count: u64| {
        let burst = limit.burst.map_or(count, u64::from);
        u128::from(burst) * u128::from(period / gcd(count, period)) <= u128::from(Micros::MAX.get())
    };
    let mut best: Option<u64> = None;
    for divisor in divisors(period) {
        let most = match limit.burst {
            Some(_) => u64::from(u32::MAX) / divisor,
            None => Micros::MAX.get() / period,
        };
        for multiple in [count / divisor, count / divisor + 1] {
            let candidate = multiple.clamp(1, most.max(1)).saturating_mul(divisor);
            if candidate <= u64::from(u32::MAX)
                && fits(candidate)
                && best.is_none_or(|b| candidate.abs_diff(count) < b.abs_diff(count))
            {
                best = Some(candidate);
            }
        }
    }
    best.and_then(|count| u32::try_from(count).ok())
}

/// All divisors, by trial division; periods are below 2^45, so this takes milliseconds at worst,
/// and only when a limit is refused.
fn divisors(n: u64) -> Vec<u64> {
    let small = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d));
    small.flat_map(|d| [d, n / d]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Limit>(), expected) {
            (Ok(limit), Ok(canonical)) => {
                assert_eq!(limit.to_string(), canonical, "{text}");
                assert_eq!(canonical.parse::<Limit>(), Ok(limit), "{canonical} does not read back");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn reads_what_people_write() {
        check("5 per minute", Ok("5 per 1m"));
        check("1 per 2h block 4h", Ok("1 per 2h block 4h"));
        check("20 per minute burst 40", Ok("20 per 1m burst 40"));
        check("20 per minute block 1h burst 40", Ok("20 per 1m burst 40 block 1h"));
        check("22 per 20s", Ok("22 per 20s"));
        check("7 per week", Ok("7 per 1w"));
        check("100 per 2 hours", Ok("100 per 2h"));
        check("3 per 500ms", Ok("3 per 500ms"));
        check("  3   per  days ", Ok("3 per 1d"));
        check("0 per second", Ok("0 per 1s"));
    }

    #[test]
    fn refusals_name_the_remedy() {
        check("", Err("does not start with a count"));
        check("-1 per minute", Err("does not start with a count"));
        check("+1 per minute", Err("does not start with a count"));
        check("1.5 per minute", Err("does not start with a count"));
        check("4294967296 per minute", Err("from 0 to 4294967295"));
        check("5 minute", Err("\"per\" and a period"));
        check("5 per", Err("the period after \"per\""));
        check("5 per fortnight", Err("the period after \"per\""));
        check("5 per minute burst", Err("\"burst\" needs"));
        check("5 per minute burst 0", Err("burst 0 lets nothing through"));
        check("0 per minute burst 5", Err("never refill"));
        check("5 per minute block", Err("\"block\" needs"));
        check("5 per minute block hour", Err("\"block\" needs"));
        check("5 per minute block 0s", Err("block 0s is outside"));
        check("5 per minute burst 1 burst 2", Err("each once"));
        check("5 per minute please", Err("each once"));
        check("5 per 0s", Err("period 0s is outside 1ms to 366d"));
        check("5 per 53w", Err("period 53w is outside"));
    }

    #[test]
    fn a_bucket_too_fine_names_the_nearest_count() {
        let nearest = |text: &str| match text.parse::<Limit>().unwrap().check_bucket() {
            Err(LimitError::TooFine(limit)) => {
                let count = nearest_count(&limit).unwrap();
                let again = text.replacen(text.split(' ').next().unwrap(), &count.to_string(), 1);
                assert_eq!(again.parse::<Limit>().unwrap().check_bucket(), Ok(()), "{again}");
                let asked: u32 = text.split(' ').next().unwrap().parse().unwrap();
                let closer = (asked.min(count) + 1)..asked.max(count);
                let closer = closer.filter(|c| c.abs_diff(asked) < count.abs_diff(asked));
                let fits = |c: &u32| Limit::new(*c, "1 per week".parse::<Limit>().unwrap().period()).unwrap();
                if text.ends_with("week") {
                    assert_eq!(closer.filter(|c| fits(c).check_bucket().is_ok()).count(), 0, "{text}");
                }
                count
            }
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!("1000000 per day".parse::<Limit>().unwrap().check_bucket(), Ok(()));
        assert_eq!(nearest("1000003 per week"), 1_000_000);
        assert_eq!(nearest("4294967291 per 366d"), 4_294_400_000);
        assert_eq!(nearest("7 per week burst 4000000000"), 537_600);
    }

    #[test]
    fn the_rate_is_in_lowest_terms() {
        let limit: Limit = "6000 per second".parse().unwrap();
        assert_eq!((limit.bucket().per_micro, limit.bucket().interval), (3, 500));
    }
}
