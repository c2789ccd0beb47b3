//! The rules of a limiter: one algorithm and one to eight limits that hold together.
//!
//! Names, domains and keys are not here: they belong to the policy, in the `tidegate` crate.

mod error;

pub use error::RulesError;

use crate::buckets::Grid;
use crate::replicas::Schedule;
use crate::{Limit, Micros, State};

/// How admissions are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Algorithm {
    /// [`crate::token_bucket`], the default.
    #[default]
    TokenBucket,
    /// [`crate::fixed_window::FirstHit`].
    FixedWindow,
    /// [`crate::fixed_window::Aligned`].
    AlignedWindow,
    /// [`crate::sliding_log`].
    SlidingLog,
    /// [`crate::sliding_window`].
    SlidingWindow,
    /// [`crate::average::Strict`].
    StrictAverage,
    /// [`crate::average::Leaky`].
    LeakyAverage,
    /// [`crate::buckets`].
    Buckets,
}

impl Algorithm {
    /// Every algorithm, for tests and tables that must not forget one.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::AlignedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::StrictAverage,
        Algorithm::LeakyAverage,
        Algorithm::Buckets,
    ];

    /// The configuration's word for it; an aligned window and a strict average are
    /// a `fixed-window` and an `average` with a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow | Algorithm::AlignedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::StrictAverage | Algorithm::LeakyAverage => "average",
            Algorithm::Buckets => "buckets",
        }
    }

    /// How many states a key has with so many limits: one each, but for `buckets`, whose limits read
    /// one history.
    #[must_use]
    #[inline]
    pub const fn states(self, limits: usize) -> usize {
        match self {
            Algorithm::Buckets => 1,
            _ => limits,
        }
    }
}

/// How long a key without a place waits at most where each call brings its limit.
const PER_CALL_WAIT_MAX: Micros = Micros::from_secs(3_600);
/// Most limits of one limiter. All are looked at for every request.
pub const LIMITS_MAX: usize = 8;

/// An algorithm and its limits, checked against each other.
///
/// ```
/// use tidegate_core::{Algorithm, Rules};
/// let limits = ["5 per minute".parse()?, "500 per hour".parse()?];
/// let rules = Rules::new(Algorithm::SlidingLog, &limits)?;
/// assert_eq!(rules.limits().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    algorithm: Algorithm,
    limits: Box<[Limit]>,
    /// Only `buckets` reads it.
    grid: Grid,
    /// Each call brings the limit, so that keys of one table have different ones.
    per_call: bool,
}

impl Rules {
    /// The limiter, if its limits suit its algorithm. Buckets get the default [`Grid`].
    ///
    /// # Errors
    /// No limit or too many; a burst on an algorithm without one; a token bucket too fine to count; a
    /// period that the grid of buckets does not suit.
    pub fn new(algorithm: Algorithm, limits: &[Limit]) -> Result<Rules, RulesError> {
        Rules::checked(algorithm, limits, Grid::default(), Periods::Whole)
    }

    /// A limiter that counts in [`crate::buckets`] of this grid.
    ///
    /// # Errors
    /// As [`Rules::new`].
    pub fn buckets(grid: Grid, limits: &[Limit]) -> Result<Rules, RulesError> {
        Rules::checked(Algorithm::Buckets, limits, grid, Periods::Whole)
    }

    /// A limiter as Pause counts it: a period may be shorter than the resolution. What is counted then matters until
    /// the end of its block, which may come sooner than the period's: around a boundary twice the count can pass within
    /// a period. For limiters that share their counts with Pause, and for no other.
    ///
    /// # Errors
    /// As [`Rules::new`], but for such a period.
    pub fn buckets_of_pause(grid: Grid, limits: &[Limit]) -> Result<Rules, RulesError> {
        Rules::checked(Algorithm::Buckets, limits, grid, Periods::AnyLength)
    }

    /// One token bucket by a limit that a call brings. The keys of such a limiter count by limits of different periods, which the cells of a
    /// sketch cannot hold together: of a full table, new keys are denied until there is a place.
    ///
    /// # Errors
    /// As [`Rules::new`].
    pub fn per_call(limit: Limit) -> Result<Rules, RulesError> {
        Ok(Rules { per_call: true, ..Rules::new(Algorithm::TokenBucket, &[limit])? })
    }

    fn checked(algorithm: Algorithm, limits: &[Limit], grid: Grid, periods: Periods) -> Result<Rules, RulesError> {
        if limits.is_empty() || limits.len() > LIMITS_MAX {
            return Err(RulesError::HowMany(limits.len()));
        }
        for (index, limit) in limits.iter().enumerate() {
            if algorithm == Algorithm::TokenBucket {
                limit.check_bucket().map_err(|error| RulesError::Limit { index, error })?;
            } else if limit.has_burst() {
                return Err(RulesError::NoBurst { index, algorithm, limit: *limit });
            }
        }
        if algorithm == Algorithm::Buckets {
            check_periods(limits, &grid, periods)?;
        }
        Ok(Rules { algorithm, limits: limits.into(), grid, per_call: false })
    }

    /// The same way of counting with other limits, as many and by position: they share a key's states.
    ///
    /// # Errors
    /// As [`Rules::new`]; another number of limits; or limits whose periods are those of this limiter in another order, which
    /// would count by each other's states.
    pub fn with_limits(&self, limits: &[Limit]) -> Result<Rules, RulesError> {
        if limits.len() != self.limits.len() {
            return Err(RulesError::OtherNumber { given: limits.len(), wanted: self.limits.len() });
        }
        let period = |limits: &[Limit], at: usize| limits[at].period();
        let differs = |at: &usize| period(limits, *at) != period(&self.limits, *at);
        let moved =
            |at: &usize| (0..limits.len()).filter(differs).any(|own| period(limits, *at) == period(&self.limits, own));
        // Buckets have one history for all limits, so that the order does not matter.
        let is_apart = self.algorithm != Algorithm::Buckets;
        if let Some(index) = (0..limits.len()).filter(|_| is_apart).filter(differs).find(moved) {
            return Err(RulesError::OtherOrder { index, limit: limits[index] });
        }
        // Where the limiter's own periods may be shorter than the resolution, so may these.
        let is_short = |limit: &Limit| limit.period() < self.grid.resolution();
        let periods = if self.limits.iter().any(is_short) { Periods::AnyLength } else { Periods::Whole };
        let lead = self.limits.iter().find(|limit| limit.has_weeks());
        let in_weeks = |limit: &Limit| match lead {
            Some(own) if limit.has_weeks() => limit.with_weeks_of(own),
            _ => *limit,
        };
        let limits: Vec<Limit> = limits.iter().map(in_weeks).collect();
        Ok(Rules { per_call: self.per_call, ..Rules::checked(self.algorithm, &limits, self.grid, periods)? })
    }

    /// The same rules with counts of 0: they let nothing pass.
    #[must_use]
    pub fn never(&self) -> Rules {
        let never = |limit: &Limit| Limit::new(0, limit.period()).map_or(*limit, |made| made.with_weeks_of(limit));
        Rules { limits: self.limits.iter().map(never).collect(), ..self.clone() }
    }

    /// The same rules of all replicas, of which this process holds what the schedule says. `None`: only one limit of
    /// aligned windows, without a block, can be shared.
    #[must_use]
    pub fn shared(&self, schedule: &Schedule) -> Option<Rules> {
        let [limit] = &*self.limits else { return None };
        let fits = self.algorithm == Algorithm::AlignedWindow && limit.block().is_none();
        fits.then(|| Rules { limits: [limit.shared(schedule)].into(), ..self.clone() })
    }

    /// Does each call bring the limit?
    #[must_use]
    pub const fn is_per_call(&self) -> bool {
        self.per_call
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What it allows, in definition order.
    #[must_use]
    pub const fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// How buckets cut time; the other algorithms do not look at it.
    #[must_use]
    pub const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The limits, each with what its state has to know, in definition order.
    #[inline]
    pub fn checks(&self) -> impl DoubleEndedIterator<Item = Check<'_>> + ExactSizeIterator {
        self.limits.iter().enumerate().map(|(index, limit)| Check { rules: self, limit, index })
    }

    /// The states of a key that was never seen.
    #[must_use]
    pub fn fresh(&self) -> Vec<State> {
        vec![State::fresh(self.algorithm); self.algorithm.states(self.limits.len())]
    }

    pub(crate) fn shortest_period(&self) -> Micros {
        self.limits.iter().map(Limit::period).min().unwrap_or_default()
    }
}

/// How long the periods of buckets may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Periods {
    /// As long as a block, or longer: every count matters for its whole period.
    Whole,
    /// Also shorter.
    AnyLength,
}

/// What a check of buckets counts must be at least one block long, and still be there. Of several limits
/// at fault the outermost is named, so that its remedy serves them all.
fn check_periods(limits: &[Limit], grid: &Grid, periods: Periods) -> Result<(), RulesError> {
    let limits = || limits.iter().copied().enumerate();
    let (resolution, history) = (grid.resolution(), grid.history());
    if let Some((index, limit)) = limits().min_by_key(|(_, limit)| limit.period())
        && limit.period() < resolution
        && periods == Periods::Whole
    {
        return Err(RulesError::Resolution { index, limit, resolution });
    }
    if let Some((index, limit)) = limits().max_by_key(|(_, limit)| limit.period())
        && limit.period() > history
    {
        return Err(RulesError::History { index, limit, history });
    }
    Ok(())
}

/// One limit of a limiter, with what its state has to know beside it.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    rules: &'a Rules,
    limit: &'a Limit,
    index: usize,
}

impl<'a> Check<'a> {
    /// The limit.
    #[must_use]
    #[inline]
    pub const fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// Which of the limiter's limits it is, from 0.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Which of a key's states it reads.
    #[must_use]
    #[inline]
    pub const fn state_index(&self) -> usize {
        match self.rules.algorithm {
            Algorithm::Buckets => 0,
            _ => self.index,
        }
    }

    /// How long a denial blocks the key: what the limit says; in buckets its period otherwise.
    #[must_use]
    pub fn block(&self) -> Option<Micros> {
        match self.rules.algorithm {
            Algorithm::Buckets => Some(self.limit.block().unwrap_or(self.limit.period())),
            _ => self.limit.block(),
        }
    }

    /// The limit as the [`crate::sketch`] counts it: for as long as an admission can matter.
    #[must_use]
    pub fn sketched(&self) -> Limit {
        match self.rules.algorithm {
            Algorithm::Buckets => {
                self.limit.over(self.limit.count(), self.limit.period().saturating_add(self.rules.grid.resolution()))
            }
            _ if self.rules.per_call => self.limit.over(0, self.limit.period().min(PER_CALL_WAIT_MAX)),
            _ => self.limit.at_least(),
        }
    }

    /// The same, over a period of at least `longest`: keys with other limits share the cells.
    #[must_use]
    pub fn sketched_over(&self, longest: Micros) -> Limit {
        let limit = self.sketched();
        // A limit that a call brought has no cells.
        if limit.period() < longest && !self.rules.per_call { limit.over(limit.count(), longest) } else { limit }
    }

    /// How buckets cut time.
    #[must_use]
    pub const fn grid(&self) -> &'a Grid {
        &self.rules.grid
    }

    pub(crate) fn shortest_period(&self) -> Micros {
        self.rules.shortest_period()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(algorithm: Algorithm, limits: &[&str], part: &str) {
        let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
        let error = Rules::new(algorithm, &limits).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    /// `own` with `others` in their place: the periods that hold, or a part of the refusal.
    #[track_caller]
    fn check_other(algorithm: Algorithm, own: &[&str], others: &[&str], expected: Result<&str, &str>) {
        let parse = |limits: &[&str]| limits.iter().map(|text| text.parse().unwrap()).collect::<Vec<Limit>>();
        let made = Rules::new(algorithm, &parse(own)).unwrap().with_limits(&parse(others));
        match (made, expected) {
            (Ok(rules), Ok(shown)) => {
                let limits: Vec<String> = rules.limits().iter().map(ToString::to_string).collect();
                assert_eq!(limits.join(", "), shown);
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (made, _) => panic!("{made:?}"),
        }
    }

    #[test]
    fn other_limits_stand_in_by_position() {
        let (log, two) = (Algorithm::SlidingLog, &["5 per minute", "9 per hour"][..]);
        check_other(log, two, &["50 per minute", "90 per day"], Ok("50 per 1m, 90 per 1d"));
        check_other(log, two, &["50 per hour", "90 per hour"], Ok("50 per 1h, 90 per 1h"));
        check_other(log, two, &["50 per minute"], Err("1 limits cannot stand in for the limiter's 2"));
        check_other(log, two, &["9 per hour", "5 per minute"], Err("write the limits in the limiter's order"));
        check_other(log, &["1 per day"], &["1 per day burst 2"], Err("sliding-log has no burst"));
        check_other(Algorithm::Buckets, &["1 per hour"], &["1 per minute"], Err("resolution 10m is longer"));
    }

    #[test]
    fn refusals_name_the_remedy() {
        check(Algorithm::TokenBucket, &[], "at least one limit");
        check(Algorithm::TokenBucket, &["1 per day"; 9], "9 limits are more than a limiter's 8");
        check(
            Algorithm::SlidingLog,
            &["1 per day", "1 per hour burst 2"],
            "\"1 per 1h burst 2\": sliding-log has no burst",
        );
        check(Algorithm::TokenBucket, &["1000003 per week"], "nearest count that fits is 1000000");
        check(Algorithm::Buckets, &["1 per hour burst 2"], "buckets has no burst");
        check(
            Algorithm::Buckets,
            &["1 per hour", "1 per 2m"],
            "\"1 per 2m\": resolution 10m is longer than its period 2m; use resolution = \"2m\" or less",
        );
        check(
            Algorithm::Buckets,
            &["3 per day", "7 per week"],
            "\"7 per 1w\": history 1d is shorter than its period 1w; use history = \"1w\" or more",
        );
    }
}
