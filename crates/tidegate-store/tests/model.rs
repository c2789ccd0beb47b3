//! The store against a naive model that keeps lists of admissions and exact fractions.
//!
//! Random hits, costs, peeks, clock steps both ways, limit changes, blocks, housekeeping, snapshots
//! and restores; every answer must agree number for number. The model is written from the rules as
//! they are stated, not from the code. A failing seed is printed with the command that replays it.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::HashMap;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent, Reason, Ruling};
use tidegate_core::buckets::Grid;
use tidegate_core::{Algorithm, Limit, Micros, Rules, Verdict};
use tidegate_store::{Directory, Memory, Shape, Table};
use tidegate_testkit::{Random, number};

const STEPS: u64 = 120_000;

#[test]
fn token_bucket() {
    run(Algorithm::TokenBucket);
}

#[test]
fn fixed_window() {
    run(Algorithm::FixedWindow);
}

#[test]
fn aligned_window() {
    run(Algorithm::AlignedWindow);
}

#[test]
fn sliding_log() {
    run(Algorithm::SlidingLog);
}

#[test]
fn sliding_window() {
    run(Algorithm::SlidingWindow);
}

#[test]
fn strict_average() {
    run(Algorithm::StrictAverage);
}

#[test]
fn leaky_average() {
    run(Algorithm::LeakyAverage);
}

#[test]
fn buckets() {
    run(Algorithm::Buckets);
}

fn run(algorithm: Algorithm) {
    let seed = number("TIDEGATE_SEED", 20_261_115);
    let steps = number("TIDEGATE_STEPS", STEPS);
    for limits in 1..=3 {
        run_with(algorithm, limits, seed, steps);
    }
}

fn run_with(algorithm: Algorithm, limits: usize, seed: u64, steps: u64) {
    let mut world = World::new(algorithm, limits, seed);
    for step in 0..steps {
        if let Err(difference) = world.step() {
            panic!(
                "step {step}: {difference}\nreplay: TIDEGATE_SEED={seed} cargo nextest run -p tidegate-store --test model"
            );
        }
    }
    assert!(world.allowed > steps / 20 && world.denied > steps / 20, "{} / {}", world.allowed, world.denied);
    println!(
        "{} with {limits} limits: {steps} steps, {} allowed, {} denied, 0 differences",
        algorithm.name(),
        world.allowed,
        world.denied
    );
}

struct World {
    random: Random,
    algorithm: Algorithm,
    /// Those that the table was made with. Changed limits are told with each call, so that each stays in
    /// its place; how a table goes over to other rules has tests of its own.
    first_rules: Rules,
    rules: Rules,
    store: Memory,
    directory: Directory,
    _files: tempfile::TempDir,
    keys: HashMap<u64, Key>,
    now: i128,
    allowed: u64,
    denied: u64,
    /// Each key's hits and denials since start, which nothing but a restart from nothing forgets.
    stats: HashMap<u64, (u64, u64)>,
}

impl World {
    fn new(algorithm: Algorithm, limits: usize, seed: u64) -> World {
        let mut random = Random(seed);
        let files = tempfile::tempdir().unwrap();
        let rules = random_rules(&mut random, algorithm, limits);
        World {
            first_rules: rules.clone(),
            rules,
            random,
            algorithm,
            store: Memory::new(1 << 26, None),
            directory: Directory::open(files.path()).unwrap(),
            _files: files,
            keys: HashMap::new(),
            now: 1_700_000_000_000_000,
            allowed: 0,
            denied: 0,
            stats: HashMap::new(),
        }
    }

    fn table(&self) -> std::sync::Arc<Table> {
        let limits = self.first_rules.limits().len();
        let shape = Shape { algorithm: self.algorithm, limits, names: true, stats: true };
        self.store.table("model", shape, &self.first_rules)
    }

    fn step(&mut self) -> Result<(), String> {
        self.move_clock();
        let clock = micros(self.now);
        let key = self.random.below(12);
        match self.random.below(1_000) {
            0..3 => self.rules = random_rules(&mut self.random, self.algorithm, self.rules.limits().len()),
            3..6 => self.restore(),
            6..20 => self.tend(),
            20..25 => {
                let span = self.random.below(90_000_000) + 1;
                let until = self.table().block(&self.rules, &name(key), Micros::saturating(span), || clock);
                self.keys.entry(key).or_default().blocked_until = self.now + i128::from(span);
                assert_eq!(until, Some(micros(self.now + i128::from(span))));
            }
            25..30 => {
                let was = self.table().unblock(&self.rules, &name(key), || clock);
                let expected = self.keys.remove(&key).is_some_and(|key| key.blocked_until > self.now);
                assert_eq!(was, expected);
            }
            30..150 if self.algorithm == Algorithm::Buckets => self.increment(key),
            150..350 if self.algorithm == Algorithm::Buckets => return self.analyze(key),
            _ => return self.request(key),
        }
        Ok(())
    }

    /// Mostly now, often in the past, at times ahead; enough at once to fill a history of blocks.
    fn increment(&mut self, key: u64) {
        for _ in 0..[1, 1, 1, 30][self.random.index(4)] {
            let ahead = match self.random.below(8) {
                0..3 => 0,
                3 => i128::from(self.random.below(5_000_000)),
                4 => i128::from(self.random.below(500_000_000)),
                _ => -i128::from(self.random.below(90_000_000)),
            };
            let count = u32::try_from(self.random.below(4)).unwrap();
            let at = (ahead != 0).then(|| micros(self.now + ahead));
            let told = self.table().increment(&self.rules, &name(key), count, at, || micros(self.now));
            let counted = self.keys.entry(key).or_default().increment(&self.rules, self.now, self.now + ahead, count);
            assert_eq!(told, Some((micros(self.now), counted)), "{count} at {ahead} from {}", self.now);
        }
    }

    fn analyze(&mut self, key: u64) -> Result<(), String> {
        let if_blocked = [IfBlocked::Tell, IfBlocked::Recompute][self.random.index(2)];
        let told = self.table().analyze(&self.rules, &name(key), if_blocked, || micros(self.now));
        let expected = self.keys.entry(key).or_default().analyze(&self.rules, self.now, if_blocked);
        if told == Some((micros(self.now), expected)) {
            return Ok(());
        }
        Err(format!("at {} analyze key {key} on {:?}\n  store {told:?}\n  model {expected:?}", self.now, self.rules))
    }

    fn request(&mut self, key: u64) -> Result<(), String> {
        let cost = match self.random.below(20) {
            0 => 0,
            1..15 => 1,
            15..19 => u32::try_from(self.random.below(5)).unwrap() + 1,
            _ => u32::try_from(self.random.below(20)).unwrap(),
        };
        let intent = if self.random.below(10) == 0 { Intent::Peek } else { Intent::Hit };
        let got = self.table().decide(&self.rules, &name(key), cost, intent, || micros(self.now));
        let state = self.keys.entry(key).or_default();
        let expected = state.request(&self.rules, self.now, i128::from(cost), intent);
        if intent == Intent::Hit && cost > 0 {
            let stats = self.stats.entry(key).or_default();
            *stats = (stats.0 + 1, stats.1 + u64::from(expected.reason != "ok"));
        }
        self.allowed += u64::from(got.is_allowed());
        self.denied += u64::from(!got.is_allowed());
        if !Told::of(&got).agrees(&expected, self.algorithm) {
            let limits: Vec<String> = self.rules.limits().iter().map(ToString::to_string).collect();
            return Err(format!(
                "at {} {intent:?} key {key} cost {cost} on {limits:?}\n  store {:?}\n  model {expected:?}",
                self.now,
                Told::of(&got)
            ));
        }
        let stats = self.table().key_stats(&name(key), micros(self.now));
        assert_eq!((stats.requests, stats.over), self.stats.get(&key).copied().unwrap_or_default());
        Ok(())
    }

    fn move_clock(&mut self) {
        self.now += match self.random.below(200) {
            0..60 => 0,
            60..100 => i128::from(self.random.below(50)),
            100..170 => i128::from(self.random.below(3_000_000)),
            170..190 => i128::from(self.random.below(40_000_000)),
            190..196 => i128::from(self.random.below(4)) * 10_000_000,
            196..198 => -i128::from(self.random.below(2_000_000)),
            198 => -i128::from(self.random.below(60_000_000)),
            _ => -i128::from(self.random.below(4_000_000_000)),
        };
    }

    /// Drops what equals a fresh key; a clock that steps back later does not bring it back.
    fn tend(&mut self) {
        let (now, clock) = (self.now, micros(self.now));
        (0..4).for_each(|turn| self.table().tend(&self.rules, turn, 4, || clock));
        let rules = &self.rules;
        self.keys.retain(|_, key| {
            let mut settled = key.limits.clone();
            let mut pairs = settled.iter_mut().zip(rules.limits());
            key.blocked_until > now || pairs.any(|(naive, limit)| naive.opinion(rules, limit, now, 0).reset_after > 0)
        });
    }

    fn restore(&mut self) {
        self.directory.save(&self.store, micros(self.now)).unwrap();
        self.store = self.directory.load(1 << 26).unwrap().unwrap().0;
    }
}

fn random_rules(random: &mut Random, algorithm: Algorithm, limits: usize) -> Rules {
    let limits: Vec<Limit> = (0..limits)
        .map(|_| {
            let count = random.below(12);
            let period = [1_000, 7_000, 10_000, 60_000][random.index(4)] + random.below(2) * random.below(999);
            let mut text = format!("{count} per {period}ms");
            if algorithm == Algorithm::TokenBucket && count > 0 && random.below(3) == 0 {
                text += &format!(" burst {}", random.below(20) + 1);
            }
            if random.below(4) == 0 {
                text += &format!(" block {}ms", random.below(20_000) + 1);
            }
            text.parse().unwrap()
        })
        .collect();
    if algorithm == Algorithm::Buckets {
        let longest = limits.iter().map(|limit| limit.period().get()).max().unwrap();
        let resolution = Micros::from_millis([1_000, 250, 70][random.index(3)]);
        let history = Micros::saturating(longest + random.below(3) * random.below(20_000_000));
        return Rules::buckets(Grid::new(resolution, history).unwrap(), &limits).unwrap();
    }
    Rules::new(algorithm, &limits).unwrap()
}

// ---- the model ----

/// What a caller is told, in plain numbers.
#[derive(PartialEq, Debug)]
struct Told {
    reason: &'static str,
    limit_index: usize,
    limit: i128,
    remaining: i128,
    reset_after: i128,
    /// `None`: allowed, or never.
    retry_after: Option<i128>,
    /// The rate as the UDP protocol prints it.
    rate: String,
}

impl Told {
    fn of(ruling: &Ruling) -> Told {
        Told {
            reason: match ruling.reason {
                Reason::Ok => "ok",
                Reason::Limited => "limited",
                Reason::Blocked => "blocked",
                Reason::CostAboveLimit => "never",
            },
            limit_index: ruling.limit_index.into(),
            limit: ruling.decision.limit.into(),
            remaining: ruling.decision.remaining.into(),
            reset_after: ruling.decision.reset_after.get().into(),
            retry_after: match ruling.decision.verdict {
                Verdict::Deny { retry_after } => retry_after.map(|wait| wait.get().into()),
                Verdict::Allow => None,
            },
            rate: format!("{:.1}", ruling.decision.rate.get()),
        }
    }

    /// Number for number, but for an average's wait: where floats cross the limit, a microsecond or
    /// two lie between one rounding and the next.
    fn agrees(&self, other: &Told, algorithm: Algorithm) -> bool {
        let near = |a: i128, b: i128| (a - b).abs() <= 3;
        let waits = match (self.retry_after, other.retry_after, algorithm) {
            (Some(a), Some(b), Algorithm::StrictAverage | Algorithm::LeakyAverage) => near(a, b),
            (a, b, _) => a == b,
        };
        let rest = |told: &Told| {
            (told.reason, told.limit_index, told.limit, told.remaining, told.reset_after, told.rate.clone())
        };
        waits && rest(self) == rest(other)
    }
}

#[derive(Clone, Default, Debug)]
struct Key {
    blocked_until: i128,
    limits: Vec<Naive>,
}

/// One limit's past: admissions with their times, or for a bucket the exact time it will be empty.
#[derive(Clone, Default, Debug)]
struct Naive {
    admissions: Vec<(i128, i128)>,
    /// Two counters: the window's start, the sum before it and its own.
    windows: (i128, i128, i128),
    /// An average's last time and rate.
    average: Option<(i128, f64)>,
    /// A bucket's emptying time as a fraction of microseconds: numerator and denominator.
    empty_at: Option<(i128, i128)>,
}

/// A limit's opinion: `Ok` or the wait (`None`: never), and what is left.
struct Opinion {
    wait: Result<(), Option<i128>>,
    capacity: i128,
    remaining: i128,
    reset_after: i128,
    /// An average's rate; the others' follows from what remains.
    rate: Option<f64>,
}

impl Key {
    fn request(&mut self, rules: &Rules, now: i128, cost: i128, intent: Intent) -> Told {
        let (algorithm, limits) = (rules.algorithm(), rules.limits());
        self.limits.resize_with(limits.len(), Naive::default);
        let saved = self.limits.clone();
        let opinions = |limits_now: &mut Vec<Naive>, cost: i128| -> Vec<Opinion> {
            limits_now.iter_mut().zip(limits).map(|(naive, limit)| naive.opinion(rules, limit, now, cost)).collect()
        };
        let mut before = opinions(&mut self.limits, cost);
        let allowed = before.iter().all(|opinion| opinion.wait.is_ok());
        let blocked = self.blocked_until > now;
        if intent == Intent::Hit && cost > 0 && allowed && !blocked {
            for (naive, limit) in self.limits.iter_mut().zip(limits) {
                naive.admit(rules, limit, now, cost);
            }
            let mut after = opinions(&mut self.limits, 0);
            // The rate that is shown is the request's own, not the next one's.
            after.iter_mut().zip(&self.limits).for_each(|(after, naive)| after.rate = naive.average.map(|(_, r)| r));
            return told("ok", &after);
        }
        if intent == Intent::Hit && cost > 0 && !blocked && algorithm == Algorithm::StrictAverage {
            for ((naive, limit), opinion) in self.limits.iter_mut().zip(limits).zip(&mut before) {
                let counts = opinion.wait.is_err() && cost <= i128::from(limit.count()).max(1);
                if counts {
                    naive.admit(rules, limit, now, cost);
                    let after = naive.opinion(rules, limit, now, 0);
                    let rate = naive.average.map(|(_, rate)| rate);
                    *opinion = Opinion { wait: opinion.wait, rate, ..after };
                }
            }
        }
        if intent == Intent::Peek {
            self.limits = saved;
        }
        let mut told = match before.iter().any(|opinion| opinion.wait == Err(None)) {
            true => told("never", &before),
            false if allowed => told("ok", &before),
            false => told("limited", &before),
        };
        if told.reason == "never" {
            return told;
        }
        let mut hide = |until: i128, reason: &'static str| {
            told.reason = reason;
            told.remaining = 0;
            told.retry_after = Some(told.retry_after.unwrap_or(0).max(until - now));
            told.reset_after = told.reset_after.max(until - now);
        };
        if blocked {
            hide(self.blocked_until, "blocked");
        } else if !allowed && intent == Intent::Hit && cost > 0 {
            let denying = before.iter().zip(limits).filter(|(opinion, _)| opinion.wait.is_err());
            if let Some(block) = denying.filter_map(|(_, limit)| block_of(algorithm, limit)).max() {
                self.blocked_until = now + i128::from(block.get());
                hide(self.blocked_until, "limited");
            }
        }
        told
    }
}

impl Key {
    fn increment(&mut self, rules: &Rules, now: i128, at: i128, count: u32) -> bool {
        self.limits.resize_with(rules.limits().len(), Naive::default);
        self.limits.iter_mut().for_each(|naive| naive.settle_blocks(rules, now));
        let mut all = self.limits.iter_mut();
        count > 0 && all.all(|naive| naive.count_at(rules, now, at, i128::from(count)))
    }

    fn analyze(&mut self, rules: &Rules, now: i128, if_blocked: IfBlocked) -> Analysis {
        let blocked = self.blocked_until > now;
        if blocked && if_blocked == IfBlocked::Tell {
            return Analysis::Blocked { until: micros(self.blocked_until) };
        }
        self.limits.resize_with(rules.limits().len(), Naive::default);
        self.limits.iter_mut().for_each(|naive| naive.settle_blocks(rules, now));
        for (index, (naive, limit)) in self.limits.iter().zip(rules.limits()).enumerate() {
            let mut sum = 0;
            for (_, count) in naive.counted(rules, limit, now).into_iter().rev() {
                sum += count;
                if sum >= i128::from(limit.count()) {
                    if !blocked {
                        self.blocked_until = now + i128::from(limit.block().unwrap_or(limit.period()).get());
                    }
                    return Analysis::Limited {
                        limit_index: u8::try_from(index).unwrap(),
                        sum: u64::try_from(sum).unwrap(),
                        blocked_until: micros(self.blocked_until),
                    };
                }
            }
        }
        if blocked { Analysis::Blocked { until: micros(self.blocked_until) } } else { Analysis::Ok }
    }
}

fn block_of(algorithm: Algorithm, limit: &Limit) -> Option<Micros> {
    let default = (algorithm == Algorithm::Buckets).then_some(limit.period());
    limit.block().or(default)
}

/// The longest wait, or the least remaining; the first of equals.
fn told(reason: &'static str, opinions: &[Opinion]) -> Told {
    let weight = |opinion: &Opinion| match opinion.wait {
        Ok(()) => (0, -opinion.remaining),
        Err(Some(wait)) => (1, wait),
        Err(None) => (2, 0),
    };
    let best = (0..opinions.len()).rev().max_by_key(|i| weight(&opinions[*i])).unwrap();
    let opinion = &opinions[best];
    Told {
        reason,
        limit_index: best,
        limit: opinion.capacity,
        remaining: opinion.remaining,
        reset_after: opinion.reset_after,
        retry_after: opinion.wait.err().flatten(),
        rate: format!("{:.1}", opinion.rate.unwrap_or((opinion.capacity - opinion.remaining) as f64)),
    }
}

impl Naive {
    fn opinion(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) -> Opinion {
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

    fn admit(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) {
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

    fn cost_of(&self, keep: impl Fn(i128) -> bool) -> i128 {
        self.admissions.iter().filter(|(at, _)| keep(*at)).map(|(_, cost)| cost).sum()
    }

    /// Starts at the first admission. More than a period ahead of the clock: carried over to now.
    fn first_hit(&mut self, period: i128, now: i128) -> (i128, i128) {
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

    fn aligned(&mut self, period: i128, now: i128) -> (i128, i128) {
        let start = self.window_start(period, now);
        self.admissions.retain(|(at, _)| *at >= start);
        let used = self.cost_of(|_| true);
        self.rewrite(&[(start, used)]);
        (used, if used == 0 { 0 } else { start + period - now })
    }

    /// The window that holds the clock, or the newest admission's while the clock catches up.
    fn window_start(&mut self, period: i128, now: i128) -> i128 {
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
    fn rewrite(&mut self, sums: &[(i128, i128)]) {
        self.admissions = sums.iter().copied().filter(|(_, sum)| *sum > 0).collect();
    }

    fn log(&mut self, period: i128, now: i128) -> (i128, i128) {
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

    fn log_frees(&self, needed: i128) -> i128 {
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

    fn two_counters(&mut self, count: i128, period: i128, now: i128, cost: i128) -> Opinion {
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
    fn two_counters_wait(
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
    fn two_windows(&mut self, period: i128, now: i128) -> (i128, i128, i128) {
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
    fn blocks(&mut self, rules: &Rules, limit: &Limit, now: i128, cost: i128) -> Opinion {
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
    fn settle_blocks(&mut self, rules: &Rules, now: i128) {
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

    fn keep_newest(&mut self, most: usize) {
        let mut sums: std::collections::BTreeMap<i128, i128> = std::collections::BTreeMap::new();
        for (start, count) in &self.admissions {
            *sums.entry(*start).or_default() += count;
        }
        let sums: Vec<(i128, i128)> = sums.into_iter().collect();
        self.rewrite(&sums[sums.len().saturating_sub(most)..]);
    }

    fn count_at(&mut self, rules: &Rules, now: i128, at: i128, count: i128) -> bool {
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
    fn counted(&self, rules: &Rules, limit: &Limit, now: i128) -> Vec<(i128, i128)> {
        let first = floor(now, span(rules.grid().resolution())) - span(limit.period());
        self.admissions.iter().copied().filter(|(start, _)| *start >= first).collect()
    }

    /// The protocol's formula, as it is stated; a time more than a period ahead is carried over to now.
    fn exponential(&mut self, algorithm: Algorithm, count: i128, period: i128, now: i128, cost: i128) -> Opinion {
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

    fn rate_of(&self, period: i128, now: i128, cost: i128) -> f64 {
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

    fn bucket(&mut self, limit: &Limit, now: i128, cost: i128) -> Opinion {
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

fn reduced(limit: &Limit) -> (i128, i128) {
    let (mut a, mut b) = (i128::from(limit.count()), i128::from(limit.period().get()));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (i128::from(limit.count()) / a, i128::from(limit.period().get()) / a)
}

fn floor(at: i128, resolution: i128) -> i128 {
    at - at.rem_euclid(resolution)
}

fn span(span: Micros) -> i128 {
    span.get().into()
}

fn shortest(rules: &Rules) -> i128 {
    rules.limits().iter().map(|limit| span(limit.period())).min().unwrap()
}

fn div_ceil(a: i128, b: i128) -> i128 {
    a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0)
}

fn micros(at: i128) -> Micros {
    Micros::new(u64::try_from(at).unwrap()).unwrap()
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}
