//! `CL.THROTTLE key max_burst count period [quantity]` as redis-cell answers it: five numbers, whether it is limited, the limit, what
//! remains, in how many seconds to retry (-1: it is not limited, or never can pass), and in how many all is as if never used.
//!
//! Each call brings its limit: a token bucket of `max_burst + 1` that fills by `count` in `period` seconds. A key has one state
//! whatever limit a call brings. A quantity of 0 looks, a negative one gives back.

use super::checks::{By, Round, Waiting, checked_key};
use super::commands::Kind;
use super::door::Live;
use super::session::{Error, Taken, shown};
use std::collections::HashMap;
use tidegate::{Gate, HitAnswer, Limit, Limiter, Micros, Verdict};
use tidegate_wire::resp::answer::Answers;

/// Limits that a connection keeps worked out.
const KEPT_MAX: usize = 64;

/// What a call says of its limit: `max_burst`, `count` and `period`.
type Terms = [i64; 3];

/// The limits that a connection uses, each worked out once, under one policy.
#[derive(Default)]
pub(super) struct Throttles {
    limiters: Vec<Limiter>,
    by_terms: HashMap<Terms, usize>,
    last: Option<(Terms, usize)>,
}

impl Throttles {
    /// The policy is another.
    pub(super) fn forget(&mut self) {
        *self = Throttles::default();
    }

    pub(super) fn limiter(&self, number: usize) -> &Limiter {
        &self.limiters[number]
    }

    /// The most that can pass at once.
    fn burst(&self, number: usize) -> u32 {
        self.limiters[number].spec().rules.limits().first().map_or(0, Limit::burst)
    }

    /// Reads a call, and has it wait for the rest unless it gives back.
    pub(super) fn take<'i>(
        &mut self,
        gate: &Gate,
        live: &Live,
        parts: &[&'i [u8]],
        round: &mut Round<'i>,
    ) -> Result<Taken, Error> {
        if round.has_requests() {
            return Ok(Taken::Full);
        }
        let key = checked_key(parts[1])?;
        let terms = [number("max_burst", parts[2])?, number("count", parts[3])?, number("period", parts[4])?];
        let quantity = parts.get(5).map_or(Ok(1), |text| number("quantity", text))?;
        if self.limiters.len() >= KEPT_MAX && !self.by_terms.contains_key(&terms) {
            if !round.is_empty() {
                return Ok(Taken::Full);
            }
            self.forget();
        }
        let number = self.find(gate, live, terms)?;
        let Ok(cost) = u64::try_from(quantity) else { return Ok(Taken::Other(Kind::Throttle)) };
        // Beyond what a limit can have it is above the limit, whichever it is.
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        round.push(Waiting { by: By::Throttle(number), key, cost, peek: false });
        Ok(Taken::Waits)
    }

    /// Gives back: the quantity is negative.
    pub(super) async fn give_back(
        &mut self,
        gate: &Gate,
        live: &Live,
        parts: &[&[u8]],
        answers: &mut Answers<'_>,
    ) -> Result<(), Error> {
        let terms = [number("max_burst", parts[2])?, number("count", parts[3])?, number("period", parts[4])?];
        let found = self.find(gate, live, terms)?;
        let quantity = parts.get(5).map_or(Ok(1), |text| number("quantity", text))?;
        let cost = u32::try_from(quantity.unsigned_abs()).unwrap_or(u32::MAX);
        let told = gate.give_back(self.limiter(found), parts[1], cost).await?;
        self.push(answers, &told, found);
        Ok(())
    }

    /// The number of the limit with these terms.
    #[inline]
    fn find(&mut self, gate: &Gate, live: &Live, terms: Terms) -> Result<usize, Error> {
        match self.last {
            Some((last, number)) if last == terms => Ok(number),
            _ => self.find_any(gate, live, terms),
        }
    }

    fn find_any(&mut self, gate: &Gate, live: &Live, terms: Terms) -> Result<usize, Error> {
        let number = match self.by_terms.get(&terms) {
            Some(number) => *number,
            None => {
                let limiter = live.throttle.as_ref().ok_or_else(|| Error::new(NOT_COUNTED))?;
                let limit = limit(terms)?;
                let limiter = gate.with_limit(limiter, limit).map_err(|error| Error::new(error.to_string()))?;
                self.limiters.push(limiter);
                self.by_terms.insert(terms, self.limiters.len() - 1);
                self.limiters.len() - 1
            }
        };
        self.last = Some((terms, number));
        Ok(number)
    }

    /// Writes an answer by the limit of this number.
    pub(super) fn push(&self, answers: &mut Answers<'_>, told: &HitAnswer, number: usize) {
        let (limited, limit, remaining, retry, reset) = match told {
            HitAnswer::Ruled { ruling, .. } => {
                let retry = match ruling.decision.verdict {
                    Verdict::Deny { retry_after: Some(wait) } => seconds(wait),
                    _ => -1,
                };
                let decision = &ruling.decision;
                (!ruling.is_allowed(), decision.limit, decision.remaining, retry, seconds(decision.reset_after))
            }
            HitAnswer::Disabled | HitAnswer::Unlimited => {
                let burst = self.burst(number);
                (false, burst, burst, -1, 0)
            }
        };
        answers.numbers([limited.into(), limit.into(), remaining.into(), retry, reset]);
    }
}

const NOT_COUNTED: &str =
    "CL.THROTTLE needs token buckets, and the store has none; use kind = \"memory\" or \"redis\" in [store]";

/// The limit of these terms.
fn limit([max_burst, count, period]: Terms) -> Result<Limit, Error> {
    let within = |what: &str, value: i64, least: i64, most: i64| {
        u32::try_from(value).ok().filter(|_| (least..=most).contains(&value)).ok_or_else(|| {
            Error::new(format!("{what} {value} is out of range; use a whole number from {least} to {most}"))
        })
    };
    let max_burst = within("max_burst", max_burst, 0, i64::from(u32::MAX) - 1)?;
    let count = within("count", count, 1, u32::MAX.into())?;
    let period = within("period", period, 1, PERIOD_MAX_S)?;
    let limit = Limit::new(count, Micros::from_secs(period.into())).and_then(|limit| limit.with_burst(max_burst + 1));
    limit.map_err(|error| Error::new(error.to_string()))
}

/// The longest period of a limit, in seconds.
const PERIOD_MAX_S: i64 = 366 * 86_400;

/// In whole seconds, rounded up: who waits so long passes.
fn seconds(span: Micros) -> i64 {
    i64::try_from(span.get().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// A whole number, which may be negative.
fn number(what: &str, text: &[u8]) -> Result<i64, Error> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    let add = |sum: i64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(byte)?);
    let sum = if digits.is_empty() { None } else { digits.iter().try_fold(0, add) };
    let refusal = || Error::new(format!("{what} '{}' is no whole number, or out of range", shown(text)));
    sum.map(|sum| if negative { -sum } else { sum }).ok_or_else(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, expected) in [
            (&b"0"[..], Some(0)),
            (b"15", Some(15)),
            (b"-3", Some(-3)),
            (b"9223372036854775807", Some(i64::MAX)),
            (b"9223372036854775808", None),
            (b"", None),
            (b"-", None),
            (b"1.5", None),
            (b"+1", None),
            (b" 1", None),
            (b"1e3", None),
        ] {
            assert_eq!(number("n", text).ok(), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn t3_terms_that_make_no_limit_are_refused_with_the_bound() {
        assert_eq!(limit([15, 30, 60]).unwrap().to_string(), "30 per 1m burst 16");
        assert_eq!(limit([0, 1, 1]).unwrap().burst(), 1);
        for (terms, told) in [
            ([-1, 1, 1], "max_burst -1 is out of range; use a whole number from 0 to 4294967294"),
            ([1, 0, 1], "count 0 is out of range; use a whole number from 1 to 4294967295"),
            ([1, 1, 0], "period 0 is out of range; use a whole number from 1 to 31622400"),
            ([2_147_483_648, 1, 1_099_511_627_776], "period 1099511627776 is out of range"),
            ([i64::MAX, i64::MAX, i64::MAX], "max_burst 9223372036854775807 is out of range"),
        ] {
            let error = limit(terms).unwrap_err();
            assert!(error.text.starts_with(told), "{}", error.text);
        }
    }
}
