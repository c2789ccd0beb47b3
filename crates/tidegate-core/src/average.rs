//! Exponential average: a rate that remembers less and less of the past.
//!
//! **Idea.** A key has a rate, in requests per period. Each request mixes the rate of the gap before
//! it with the rate so far, the more of the gap the longer it was; a request is over when the mixed
//! rate reaches the limit. What happens with one that is over makes two algorithms. [`Strict`]: it
//! counts, so that a client that hammers on stays over until it slows down. [`Leaky`]: it does not, so
//! that about the limit gets through whatever is asked.
//!
//! **Units.** This is the one algorithm that decides with floats: it replaces a server whose
//! recorded answers must come out to the digit. Times are whole microseconds and become seconds in one
//! division; the arithmetic is `mixed`, in exactly this order:
//! ```text
//! new key:  rate = 0
//! else:     i = now - last; if i <= 0 then i = 1e-9
//!           x = i / period; a = exp(-x); rate = (1 - a) / x + a * rate
//! over = rate >= limit
//! ```
//! A cost above 1 stands for as many requests at one instant: each after the first adds 1.
//!
//! **Example.** 22 per 20 s, 25 requests at once: the rates are 0, 1, 2, …, so that the 23rd is the
//! first that is over. One request a second tends to 20.5 and is never over. Two a second are
//! over from the 33rd on; strict, they stay so.
//!
//! **A denial is remembered** by [`Strict`] alone, through [`Meter::note_denial`]; a cost above the
//! limit, which no waiting cures, is not, but for a single request at a limit of 0.
//!
//! **When a key is forgotten.** The rate of a silent key falls towards 0 and never gets there. After
//! [`FORGOTTEN_AFTER`] periods its next request would show a rate of at most 0.01, which prints as
//! 0.0, what a new key shows. From then on an entry may be dropped: a store that did differs
//! afterwards by a hundredth of a request, fading, a tenth of what is printed. An entry that is still
//! there goes on by the formula.
//!
//! **A changed limit** keeps the rate. **Weakness**: the rate of a strict key has no bound, and a key
//! that reached R needs about `period × ln(R / limit)` of silence, which can be more than a period.
//! Source: the UDP rate limiter that the `over_limit` protocol comes from.

use crate::meter::{Step, step};
use crate::{Compact, Limit, Meter, Micros, Rate, Status, Verdict};

/// Requests that are over count, too.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Strict(Average);

/// Only requests that are not over count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Leaky(Average);

/// Periods of silence after which a key is as good as new.
pub const FORGOTTEN_AFTER: u64 = 100;

/// Rates as bits ([`Rate`]), so that states can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Average {
    /// When the rate was last mixed; `None`: a new key.
    last: Option<Micros>,
    rate: Rate,
    /// The rate that one request at the time of settling has; not kept in words.
    next: Rate,
    /// The rate that an answer shows: of the request that was charged, else `next`; not kept either.
    shown: Rate,
}

/// Shortest gap between two requests, in seconds.
const GAP_MIN_S: f64 = 1e-9;
/// Rates of a damaged store are cut here; at e^-100 of it nothing is left.
const RATE_MAX: f64 = 1e30;

/// The rate after a request that comes `gap_s` after the last.
#[inline]
fn mixed(gap_s: f64, period_s: f64, rate: f64) -> f64 {
    let i = if gap_s <= 0.0 { GAP_MIN_S } else { gap_s };
    let x = i / period_s;
    let a = (-x).exp();
    (1.0 - a) / x + a * rate
}

#[expect(clippy::cast_precision_loss, reason = "below 2^52: exact")]
#[inline]
fn seconds(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}

impl Average {
    #[inline]
    fn settle(&mut self, limit: &Limit, now: Micros) {
        if let Some(last) = self.last
            && step(last, now, limit.period()) == Step::Reanchor
        {
            self.last = Some(now);
        }
        self.next = Rate::new(self.at(limit, now));
        self.shown = self.next;
    }

    /// The rate that one request at `now` has.
    #[inline]
    fn at(&self, limit: &Limit, now: Micros) -> f64 {
        match self.last {
            Some(last) => mixed(seconds(now.saturating_sub(last)), seconds(limit.period()), self.rate.get()),
            None => 0.0,
        }
    }

    #[inline]
    fn after(&self, cost: u32) -> f64 {
        self.next.get() + f64::from(cost.saturating_sub(1))
    }

    #[inline]
    fn is_over(&self, limit: &Limit, cost: u32) -> bool {
        self.after(cost) >= f64::from(limit.count())
    }

    #[inline]
    fn store(&mut self, limit: &Limit, now: Micros, cost: u32) {
        self.rate = Rate::new(self.after(cost));
        self.last = Some(self.last.map_or(now, |last| last.max(now)));
        self.shown = self.rate;
        self.next = Rate::new(self.at(limit, now));
    }

    /// How long until `cost` passes, if nothing else comes: rounded up, never too short.
    fn wait(&self, limit: &Limit, now: Micros, cost: u32) -> Micros {
        let Some(last) = self.last else { return Micros::ZERO };
        let room = f64::from(limit.count()) - f64::from(cost.saturating_sub(1));
        let elapsed = seconds(now.saturating_sub(last)) / seconds(limit.period());
        let periods = crossing(self.rate.get(), room, elapsed);
        let mut at = last.saturating_add(rounded_up(periods, limit.period())).max(now);
        // The crossing is a root found in floats: the arithmetic itself has the last word.
        let passes = |at: Micros| self.at(limit, at) + f64::from(cost.saturating_sub(1)) < f64::from(limit.count());
        let mut stride = 1;
        while !passes(at) && at < Micros::MAX {
            at = at.saturating_add(Micros::saturating(stride));
            stride *= 2;
        }
        at.saturating_sub(now)
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        let left = (f64::from(limit.count()) - self.next.get()).ceil().max(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
        let remaining = (left as u32).min(limit.count());
        let gone = Micros::saturating(limit.period().get().saturating_mul(FORGOTTEN_AFTER));
        let reset_after = self.last.map_or(Micros::ZERO, |last| last.saturating_add(gone).saturating_sub(now));
        Status { remaining, reset_after }
    }

    /// The time plus one, so that a rate of 0 at the epoch is not a new key.
    fn to_words(self) -> [u64; 2] {
        [self.last.map_or(0, |last| last.get() + 1), self.rate.get().to_bits()]
    }

    fn from_words([last, rate]: [u64; 2]) -> Average {
        let rate = f64::from_bits(rate);
        let rate = if rate >= 0.0 { rate.min(RATE_MAX) } else { 0.0 };
        let last = last.checked_sub(1).map(Micros::saturating);
        Average { last, rate: Rate::new(rate), ..Average::default() }
    }
}

/// The first gap, in periods and at least `from`, after which a rate has come below `room`.
///
/// The mixed rate is a convex, falling function of the gap, so that Newton's steps from the left
/// approach the crossing and never pass it.
fn crossing(rate: f64, room: f64, from: f64) -> f64 {
    // Not a request could pass then; answered before, as a cost above the limit.
    if room <= 0.0 {
        return from;
    }
    let mut x = from.max((rate / room).ln()).max(1e-9);
    for _ in 0..NEWTON_STEPS_MAX {
        let a = (-x).exp();
        let over = (1.0 - a) / x + a * rate - room;
        // Near 0 the exact slope of the first term loses all digits; its limit is -1/2.
        let slope = if x < 1e-4 { -0.5 } else { (a * (x + 1.0) - 1.0) / (x * x) } - a * rate;
        let more = over / -slope;
        if more.is_nan() || more <= x * 1e-12 {
            break;
        }
        x += more;
    }
    x
}

/// A bound on the work; eight are enough for all but the smallest room.
const NEWTON_STEPS_MAX: usize = 64;

#[expect(clippy::cast_precision_loss, reason = "below 2^52: exact")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
fn rounded_up(periods: f64, period: Micros) -> Micros {
    Micros::saturating((periods * period.get() as f64).ceil() as u64)
}

/// What both kinds share: all but the memory of a denial.
macro_rules! average {
    ($kind:ident { $($special:item)* }) => {
        impl Compact for $kind {
            #[inline]
            fn to_words(self) -> [u64; 2] {
                self.0.to_words()
            }

            #[inline]
            fn from_words(words: [u64; 2]) -> $kind {
                $kind(Average::from_words(words))
            }
        }

        impl Meter for $kind {
            #[inline]
            fn settle(&mut self, limit: &Limit, now: Micros) {
                self.0.settle(limit, now);
            }

            fn charge(&mut self, limit: &Limit, now: Micros, cost: u32) {
                self.0.store(limit, now, cost);
            }

            fn status(&self, limit: &Limit, now: Micros) -> Status {
                self.0.status(limit, now)
            }

            fn rate(&self, _: &Limit, _: u32) -> Rate {
                self.0.shown
            }

            $($special)*
        }
    };
}

average!(Leaky {
    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        if self.0.is_over(limit, cost) {
            return Verdict::Deny { retry_after: Some(self.0.wait(limit, now, cost)) };
        }
        Verdict::Allow
    }
});

average!(Strict {
    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        if self.0.is_over(limit, cost) {
            // This very request counts, and has to be outlived as well.
            let mut counted = self.0;
            counted.store(limit, now, cost);
            return Verdict::Deny { retry_after: Some(counted.wait(limit, now, cost)) };
        }
        Verdict::Allow
    }

    fn note_denial(&mut self, limit: &Limit, now: Micros, cost: u32) {
        if cost <= limit.count().max(1) {
            self.0.store(limit, now, cost);
        }
    }
});

impl Strict {
    /// True once it holds anything; a fresh one that a denial was noted in has to be kept.
    pub(crate) fn is_used(&self) -> bool {
        self.0.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Leaky, Strict};
    use crate::scenario::check;
    use crate::{Limit, Meter, Micros};

    /// Hits at these milliseconds: the answers of the protocol, `Y` or `N` and the rate.
    fn trace<M: Meter + Default>(limit: &str, at_ms: impl IntoIterator<Item = u64>) -> Vec<String> {
        let limit: Limit = limit.parse().unwrap();
        let mut state = M::default();
        let mut answers = |at| {
            let decision = state.decide(&limit, Micros::from_millis(at), 1);
            let over = if decision.verdict.is_allowed() { 'N' } else { 'Y' };
            format!("{over} {:.1}", decision.rate.get())
        };
        at_ms.into_iter().map(&mut answers).collect()
    }

    fn over(answers: &[String]) -> (Option<usize>, usize) {
        let first = answers.iter().position(|one| one.starts_with('Y')).map(|index| index + 1);
        (first, answers.iter().filter(|one| one.starts_with('Y')).count())
    }

    #[test]
    fn a_burst_is_over_at_the_limit() {
        let answers = trace::<Strict>("22 per 20s", [0; 25]);
        assert_eq!(over(&answers), (Some(23), 3));
        assert_eq!((answers[0].as_str(), answers[1].as_str(), answers[22].as_str()), ("N 0.0", "N 1.0", "Y 22.0"));
        assert_eq!(answers[24], "Y 24.0");
        let answers = trace::<Leaky>("22 per 20s", [0; 25]);
        assert_eq!(answers[22..], ["Y 22.0", "Y 22.0", "Y 22.0"]);
    }

    #[test]
    fn one_a_second_never_and_two_a_second_at_the_33rd() {
        assert_eq!(over(&trace::<Strict>("22 per 20s", (0..60).map(|s| s * 1_000))), (None, 0));
        let twice = || (0..80).map(|s| s * 500);
        assert_eq!(over(&trace::<Strict>("22 per 20s", twice())), (Some(33), 48));
        assert_eq!(over(&trace::<Leaky>("22 per 20s", twice())), (Some(33), 22));
    }

    #[test]
    fn a_limit_of_0_is_over_at_once() {
        assert_eq!(trace::<Leaky>("0 per 10s", [0, 0, 5_000]), ["Y 0.0", "Y 0.0", "Y 0.0"]);
        assert_eq!(trace::<Strict>("0 per 10s", [0, 0, 0]), ["Y 0.0", "Y 1.0", "Y 2.0"]);
    }

    #[test]
    fn the_first_of_a_key_at_the_epoch_is_remembered() {
        use crate::Compact as _;
        let limit: Limit = "2 per 10s".parse().unwrap();
        let mut state = Leaky::default();
        assert!(state.decide(&limit, Micros::ZERO, 1).verdict.is_allowed());
        let state = Leaky::from_words(state.to_words());
        assert_ne!(state.to_words(), Leaky::default().to_words());
    }

    #[test]
    fn a_cost_is_as_many_requests_at_once() {
        check::<Leaky>(
            "5 per 10s",
            "
            0        0 -> allow left=5 reset=0
            0        5 -> allow left=0 reset=1000000000
            0        1 -> deny left=0
            0        6 -> deny retry=never
            10000000 3 -> allow",
        );
    }

    #[test]
    fn retry_after_is_exact_and_counts_the_strict_denial() {
        let limit: Limit = "5 per 10s".parse().unwrap();
        fn check<M: Meter + Default + Copy>(limit: &Limit, hits: usize) {
            let mut state = M::default();
            let mut last = None;
            for _ in 0..hits {
                last = Some(state.decide(limit, Micros::from_secs(9), 1).verdict);
            }
            let Some(crate::Verdict::Deny { retry_after: Some(wait) }) = last else { panic!("{last:?}") };
            let at = |us: u64| Micros::saturating(9_000_000 + us);
            // A leaky burst stands at the limit to the digit: the next microsecond is enough.
            let early = wait.get().saturating_sub(3);
            assert!(early == 0 || !{ state }.decide(limit, at(early), 1).verdict.is_allowed(), "{wait:?}");
            assert!({ state }.decide(limit, at(wait.get()), 1).verdict.is_allowed(), "{wait:?}");
        }
        for hits in [6, 7, 20, 1_000] {
            check::<Strict>(&limit, hits);
            check::<Leaky>(&limit, hits);
        }
    }

    #[test]
    fn t1_steps_back_hold_or_carry_over() {
        check::<Leaky>(
            "2 per minute",
            "
            9000000000 2 -> allow left=0
            8990000000 1 -> deny
            5000000    1 -> deny left=0 reset=6000000000",
        );
    }
}
