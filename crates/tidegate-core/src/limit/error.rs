//! Why a limit was refused, in a text that names the value, the bound and the remedy: for a limit that is too fine, the nearest count
//! that is not.

use super::{Limit, PERIOD_MAX, PERIOD_MIN, gcd};
use crate::Micros;
use std::fmt;

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
}
