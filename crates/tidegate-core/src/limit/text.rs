//! A limit as people write it, read and written: `COUNT per [N]UNIT [burst B] [block DURATION]`.

use super::{Limit, LimitError, TextProblem};
use crate::{Micros, text};
use std::{fmt, str::FromStr};

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
}
