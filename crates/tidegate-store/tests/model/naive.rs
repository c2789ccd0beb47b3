//! The model of one limit: lists of admissions and exact fractions, by the rules as they are stated.

use tidegate_core::{Algorithm, Limit, Micros, Rules};

/// One limit's past: admissions with their times, or for a bucket the exact time it will be empty.
#[derive(Clone, Default, Debug)]
pub(crate) struct Naive {
    pub(crate) admissions: Vec<(i128, i128)>,
    /// Two counters: the window's start, the sum before it and its own.
    pub(crate) windows: (i128, i128, i128),
    /// An average's last time and rate.
    pub(crate) average: Option<(i128, f64)>,
    /// A bucket's emptying time as a fraction of microseconds: numerator and denominator.
    pub(crate) empty_at: Option<(i128, i128)>,
}

/// A limit's opinion: `Ok` or the wait (`None`: never), and what is left.
pub(crate) struct Opinion {
    pub(crate) wait: Result<(), Option<i128>>,
    pub(crate) capacity: i128,
    pub(crate) remaining: i128,
    pub(crate) reset_after: i128,
    /// An average's rate; the others' follows from what remains.
    pub(crate) rate: Option<f64>,
}

impl Naive {
    pub(crate) fn opinion(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) -> Opinion {
        let algorithm = rules.algorithm();
        let (count, period) = (i128::from(limit.count()), i128::from(limit.period().get()));
        let capacity = i128::from(limit.burst());
        let (used, reset_after) = match algorithm {
            Algorithm::TokenBucket => return self.bucket(limit, now, cost),
            Algorithm::FixedWindow => self.first_hit(period, now),
            Algorithm::AlignedWindow => self.aligned(period, now),
            Algorithm::SlidingLog => self.log(period, now),
            Algorithm::SlidingWindow => return self.two_counters(count, period, now, cost),
            Algorithm::Buckets => return self.blocks(rules, limit, now, cost),
            Algorithm::StrictAverage | Algorithm::LeakyAverage => {
                return self.exponential(algorithm, count, period, now, cost);
            }
        };
        let wait = match cost {
            0 => Ok(()),
            _ if cost > count => Err(None),
            _ if used + cost <= count => Ok(()),
            _ if algorithm == Algorithm::SlidingLog => Err(Some(self.log_frees(used + cost - count) + period - now)),
            _ => Err(Some(reset_after)),
        };
        Opinion { wait, capacity, remaining: (count - used).max(0), reset_after, rate: None }
    }

    pub(crate) fn admit(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) {
        let algorithm = rules.algorithm();
        if algorithm == Algorithm::Buckets {
            assert!(self.count_at(rules, now, now, cost));
            return;
        }
        if algorithm == Algorithm::TokenBucket {
            let (rate, period) = reduced(limit);
            let (top, bottom) = self.empty_at.filter(|(top, bottom)| *top > now * bottom).unwrap_or((now * rate, rate));
            let top = if bottom == rate { top } else { div_ceil(top, bottom) * rate };
            self.empty_at = Some((top + cost * period, rate));
            return;
        }
        if algorithm == Algorithm::SlidingWindow {
            self.windows.2 += cost;
            return;
        }
        if matches!(algorithm, Algorithm::StrictAverage | Algorithm::LeakyAverage) {
            let period = i128::from(limit.period().get());
            let rate = self.rate_of(period, now, cost);
            self.average = Some((self.average.map_or(now, |(last, _)| last.max(now)), rate));
            return;
        }
        let newest = self.admissions.iter().map(|(at, _)| *at).max().unwrap_or(now);
        let period = i128::from(limit.period().get());
        let at = match algorithm {
            // The windows of a clock that is being waited for stay where they are.
            Algorithm::AlignedWindow => now.max(newest - newest % period),
            Algorithm::FixedWindow => now.max(self.admissions.first().map_or(now, |(at, _)| *at)),
            _ => now.max(newest),
        };
        self.admissions.push((at, cost));
    }

    pub(crate) fn cost_of(&self, keep: impl Fn(i128) -> bool) -> i128 {
        self.admissions.iter().filter(|(at, _)| keep(*at)).map(|(_, cost)| cost).sum()
    }

    /// Starts at the first admission. More than a period ahead of the clock: carried over to now.
    pub(crate) fn first_hit(&mut self, period: i128, now: i128) -> (i128, i128) {
        if let Some((start, _)) = self.admissions.first().copied() {
            if start - now > period {
                self.admissions.iter_mut().for_each(|(at, _)| *at = now);
            } else if now - start >= period {
                self.admissions.clear();
            }
        }
        let start = self.admissions.first().map_or(now, |(at, _)| *at);
        let used = self.cost_of(|_| true);
        (used, if used == 0 { 0 } else { start + period - now })
    }

    pub(crate) fn aligned(&mut self, period: i128, now: i128) -> (i128, i128) {
        let start = self.window_start(period, now);
        self.admissions.retain(|(at, _)| *at >= start);
        let used = self.cost_of(|_| true);
        self.rewrite(&[(start, used)]);
        (used, if used == 0 { 0 } else { start + period - now })
    }

    /// The window that holds the clock, or the newest admission's while the clock catches up.
    pub(crate) fn window_start(&mut self, period: i128, now: i128) -> i128 {
        let newest = self.admissions.iter().map(|(at, _)| *at).max().unwrap_or(0);
        if newest - now > period {
            let shift = newest - (now - now % period);
            self.admissions.iter_mut().for_each(|(at, _)| *at -= shift);
            return now - now % period;
        }
        let effective = now.max(newest);
        effective - effective % period
    }

    /// Replaces the list by its sums per window, each at the window's start.
    pub(crate) fn rewrite(&mut self, sums: &[(i128, i128)]) {
        self.admissions = sums.iter().copied().filter(|(_, sum)| *sum > 0).collect();
    }

    pub(crate) fn log(&mut self, period: i128, now: i128) -> (i128, i128) {
        let Some(newest) = self.admissions.iter().map(|(at, _)| *at).max() else {
            return (0, 0);
        };
        let effective = if newest - now > period { newest } else { now.max(newest) };
        self.admissions.retain(|(at, _)| effective - at < period);
        if newest - now > period {
            let shift = newest - now;
            self.admissions.iter_mut().for_each(|(at, _)| *at -= shift);
        }
        let newest = self.admissions.iter().map(|(at, _)| *at).max();
        (self.cost_of(|_| true), newest.map_or(0, |newest| newest + period - now))
    }

    pub(crate) fn log_frees(&self, needed: i128) -> i128 {
        let mut freed = 0;
        let mut sorted = self.admissions.clone();
        sorted.sort_unstable();
        sorted
            .into_iter()
            .find(|(_, cost)| {
                freed += cost;
                freed >= needed
            })
            .unwrap()
            .0
    }

    pub(crate) fn two_counters(&mut self, count: i128, period: i128, now: i128, cost: i128) -> Opinion {
        let (start, previous, current) = self.two_windows(period, now);
        // How much of the sliding period lies in the previous window, at `ahead` from now.
        let covered = |previous: i128, ahead: i128| {
            let passed = (now + ahead - start).max(0);
            div_ceil(previous * (period - passed), period)
        };
        let used = current + covered(previous, 0);
        let wait = match cost {
            0 => Ok(()),
            _ if cost > count => Err(None),
            _ if used + cost <= count => Ok(()),
            _ => Err(Some(self.two_counters_wait(count - cost, current, previous, start, period, now))),
        };
        let reset_after = match (current, previous) {
            (0, 0) => 0,
            (0, _) => start + period - now,
            _ => start + 2 * period - now,
        };
        Opinion { wait, capacity: count, remaining: (count - used).max(0), reset_after, rate: None }
    }

    /// By search: the first moment at which the estimate leaves `room`.
    pub(crate) fn two_counters_wait(
        &self,
        room: i128,
        current: i128,
        previous: i128,
        start: i128,
        period: i128,
        now: i128,
    ) -> i128 {
        let fits = |wait: i128| {
            let at = now + wait;
            if at < start + period {
                let passed = (at - start).max(0);
                current * period + previous * (period - passed) <= room * period
            } else if at < start + 2 * period {
                current * (start + 2 * period - at) <= room * period
            } else {
                true
            }
        };
        let (mut low, mut high) = (0, start + 2 * period - now);
        while low < high {
            let middle = (low + high) / 2;
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// The window in force with the sum before it and its own; both keep their part when the period changes.
    pub(crate) fn two_windows(&mut self, period: i128, now: i128) -> (i128, i128, i128) {
        let (stored, mut previous, mut current) = self.windows;
        if previous + current == 0 {
            self.windows = (now - now % period, 0, 0);
            return self.windows;
        }
        let effective = if stored - now > period { now } else { now.max(stored) };
        let start = effective - effective % period;
        let behind = start - stored;
        if behind > period {
            (previous, current) = (0, 0);
        } else if behind > 0 {
            (previous, current) = (current, 0);
        }
        self.windows = (start, previous, current);
        self.windows
    }

    /// Counts per block, in `admissions`: each limit has the whole list, as all read one history.
    pub(crate) fn blocks(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) -> Opinion {
        self.settle_blocks(rules, now);
        let (count, counted) = (i128::from(limit.count()), self.counted(rules, limit, now));
        let used: i128 = counted.iter().map(|(_, count)| count).sum();
        // By search over block starts: the first at which what is still counted leaves room.
        let (resolution, period) = (span(rules.grid().resolution()), span(limit.period()));
        let fits = |at: i128, room: i128| {
            let still = counted.iter().filter(|(start, _)| *start >= floor(at, resolution) - period);
            still.map(|(_, count)| count).sum::<i128>() <= room
        };
        let first_that_fits = |room: i128| {
            let mut at = now;
            while !fits(at, room) {
                at = floor(at, resolution) + resolution;
            }
            at - now
        };
        let wait = match cost {
            0 => Ok(()),
            _ if cost > count => Err(None),
            _ if used + cost <= count => Ok(()),
            _ => Err(Some(first_that_fits(count - cost))),
        };
        let reset_after = first_that_fits(0);
        Opinion { wait, capacity: count, remaining: (count - used).max(0), reset_after, rate: None }
    }

    /// Carries blocks that are too far ahead over, and forgets what is older than the history.
    pub(crate) fn settle_blocks(&mut self, rules: &Rules, now: i128) {
        let (grid, shortest) = (rules.grid(), shortest(rules));
        let (resolution, history) = (span(grid.resolution()), span(grid.history()));
        let present = floor(now, resolution);
        let newest = self.admissions.iter().map(|(start, _)| *start).max().unwrap_or(0);
        if newest - now > shortest {
            for (start, _) in &mut self.admissions {
                if *start > present {
                    *start -= newest - present;
                }
            }
        }
        self.admissions.retain(|(start, _)| *start >= present - history);
        self.keep_newest(usize::try_from(history / resolution).unwrap());
    }

    pub(crate) fn keep_newest(&mut self, most: usize) {
        let mut sums: std::collections::BTreeMap<i128, i128> = std::collections::BTreeMap::new();
        for (start, count) in &self.admissions {
            *sums.entry(*start).or_default() += count;
        }
        let sums: Vec<(i128, i128)> = sums.into_iter().collect();
        self.rewrite(&sums[sums.len().saturating_sub(most)..]);
    }

    pub(crate) fn count_at(&mut self, rules: &Rules, now: i128, at: i128, count: i128) -> bool {
        let (resolution, history) = (span(rules.grid().resolution()), span(rules.grid().history()));
        let present = floor(now, resolution);
        let mut start = floor(at, resolution);
        if start - now > shortest(rules) {
            start = present;
        }
        let most = usize::try_from(history / resolution).unwrap();
        let oldest = self.admissions.iter().map(|(start, _)| *start).min().unwrap_or(start);
        if self.admissions.len() == most && start < oldest {
            if start < present {
                return false;
            }
            start = oldest;
        }
        if start < present - history {
            return false;
        }
        self.admissions.push((start, count));
        self.keep_newest(most);
        true
    }

    /// What a check counts: from the present block's start less its period on; oldest first.
    pub(crate) fn counted(&self, rules: &Rules, limit: &Limit, now: i128) -> Vec<(i128, i128)> {
        let first = floor(now, span(rules.grid().resolution())) - span(limit.period());
        self.admissions.iter().copied().filter(|(start, _)| *start >= first).collect()
    }

    /// The protocol's formula, as it is stated; a time more than a period ahead is carried over to now.
    pub(crate) fn exponential(
        &mut self,
        algorithm: Algorithm,
        count: i128,
        period: i128,
        now: i128,
        cost: i128,
    ) -> Opinion {
        if let Some((last, rate)) = self.average
            && last - now > period
        {
            self.average = Some((now, rate));
        }
        let limit = count as f64;
        let wait = match cost {
            0 => Ok(()),
            _ if cost > count => Err(None),
            _ if self.rate_of(period, now, cost) < limit => Ok(()),
            _ => {
                // A strict average counts the denied request before it waits.
                let mut from = self.clone();
                if algorithm == Algorithm::StrictAverage {
                    let last = self.average.map_or(now, |(last, _)| last.max(now));
                    from.average = Some((last, self.rate_of(period, now, cost)));
                }
                let passes = |wait: i128| from.rate_of(period, now + wait, cost) < limit;
                let (mut low, mut high) = (0, 200 * period);
                while low < high {
                    let middle = (low + high) / 2;
                    if passes(middle) { high = middle } else { low = middle + 1 }
                }
                Err(Some(low))
            }
        };
        let next = self.rate_of(period, now, 1);
        #[expect(clippy::cast_possible_truncation, reason = "a float's cast saturates")]
        let remaining = ((limit - next).ceil() as i128).clamp(0, count);
        let reset_after = self.average.map_or(0, |(last, _)| (last + 100 * period - now).max(0));
        Opinion { wait, capacity: count, remaining, reset_after, rate: Some(next) }
    }

    pub(crate) fn rate_of(&self, period: i128, now: i128, cost: i128) -> f64 {
        let one = match self.average {
            None => 0.0,
            Some((last, old_rate)) => {
                let mut i = (now - last) as f64 / 1e6;
                if i <= 0.0 {
                    i = 1e-9;
                }
                let x = i / (period as f64 / 1e6);
                let a = (-x).exp();
                (1.0 - a) / x + a * old_rate
            }
        };
        one + (cost - 1).max(0) as f64
    }

    pub(crate) fn bucket(&mut self, limit: &Limit, now: i128, cost: i128) -> Opinion {
        let capacity = i128::from(limit.burst());
        if limit.count() == 0 {
            let reset_after = 0;
            self.empty_at = None;
            let wait = if cost == 0 { Ok(()) } else { Err(None) };
            return Opinion { wait, capacity, remaining: 0, reset_after, rate: None };
        }
        let (rate, period) = reduced(limit);
        if let Some((top, bottom)) = self.empty_at {
            // Another rate: rounded up to whole microseconds. Never more than a full bucket owes.
            let top = if bottom == rate { top } else { div_ceil(top, bottom) * rate };
            let longest = div_ceil(capacity * period, rate);
            let capped = if div_ceil(top, rate) - now > longest { now * rate + capacity * period } else { top };
            self.empty_at = (capped > now * rate).then_some((capped, rate));
        }
        let owed = self.empty_at.map_or(0, |(top, _)| (top - now * rate).min(capacity * period));
        let over = owed + cost * period - capacity * period;
        let wait = match cost {
            0 => Ok(()),
            _ if cost > capacity => Err(None),
            _ if over <= 0 => Ok(()),
            _ => Err(Some(div_ceil(over, rate))),
        };
        let reset_after = self.empty_at.map_or(0, |(top, _)| div_ceil(top, rate) - now);
        Opinion { wait, capacity, remaining: (capacity * period - owed) / period, reset_after, rate: None }
    }
}

pub(crate) fn reduced(limit: &Limit) -> (i128, i128) {
    let (mut a, mut b) = (i128::from(limit.count()), i128::from(limit.period().get()));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (i128::from(limit.count()) / a, i128::from(limit.period().get()) / a)
}

pub(crate) fn floor(at: i128, resolution: i128) -> i128 {
    at - at.rem_euclid(resolution)
}

pub(crate) fn span(span: Micros) -> i128 {
    span.get().into()
}

pub(crate) fn shortest(rules: &Rules) -> i128 {
    rules.limits().iter().map(|limit| span(limit.period())).min().unwrap()
}

pub(crate) fn div_ceil(a: i128, b: i128) -> i128 {
    a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0)
}

pub(crate) fn micros(at: i128) -> Micros {
    Micros::new(u64::try_from(at).unwrap()).unwrap()
}
