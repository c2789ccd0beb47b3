//! Redis against the core: the same random requests at the same chosen times, number for number.
//!
//! `TIDEGATE_SEED=7 TIDEGATE_STEPS=100000 cargo nextest run -p tidegate-store --test redis_model`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use tidegate_core::all_or_nothing::{self, Analysis, IfBlocked, Intent, Room, Ruling, Subject};
use tidegate_core::{Algorithm, Limit, Micros, Rules, State, Verdict};
use tidegate_store::redis::Redis;
use tidegate_store::{Asked, Layout, Question, When};
use tidegate_testkit::servers::Server;
use tidegate_testkit::servers::cluster::Cluster;
use tidegate_testkit::{Random, number};

/// Steps of each algorithm, on each server.
const STEPS: u64 = 8_000;
/// Keys of a limiter: few, so that each meets its limits.
const KEYS: u64 = 4;

fn limits_of(algorithm: Algorithm) -> &'static [&'static [&'static str]] {
    match algorithm {
        Algorithm::TokenBucket => &[
            &["3 per minute"],
            &["7 per 90s burst 11"],
            &["20 per hour burst 5 block 2m"],
            &["5 per minute", "40 per hour", "100 per day block 3m"],
            &["4294967295 per 366d"],
        ],
        Algorithm::Buckets => &[
            &["3 per 10m"],
            &["5 per 20m block 5m", "9 per 2h"],
            &["10 per hour", "40 per 12h block 2m", "100 per day"],
            &["0 per hour"],
        ],
        _ => &[
            &["3 per minute"],
            &["5 per 97s block 30s"],
            &["10 per 20s", "40 per hour block 2m", "100 per day"],
            &["0 per hour"],
            &["4294967295 per 366d"],
            &["3 per week", "9 per 2w"],
        ],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn redis_counts_as_the_core_does() {
    compare(&Server::redis(&[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn valkey_counts_as_the_core_does() {
    compare(&Server::valkey()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_cluster_counts_as_the_core_does() {
    let cluster = Cluster::start();
    compare_at(&cluster.url(), STEPS / 5, &cluster.masters()).await;
}

async fn compare(server: &Server) {
    compare_at(&server.url(), STEPS, &[server]).await;
}

async fn compare_at(url: &str, steps: u64, servers: &[&Server]) {
    let redis = Redis::open(url.parse().unwrap()).await;
    let seed = number("TIDEGATE_SEED", 1);
    let steps = number("TIDEGATE_STEPS", steps);
    for algorithm in Algorithm::ALL {
        let all = limits_of(algorithm);
        for (index, texts) in all.iter().enumerate() {
            let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let Ok(rules) = Rules::new(algorithm, &limits) else { continue };
            for layout in ["native", "pause"] {
                if layout == "pause" && algorithm != Algorithm::Buckets {
                    continue;
                }
                let name = format!("{algorithm:?}-{index}-{layout}");
                let mut run = Run::new(&name, rules.clone(), seed ^ (index as u64) << 32);
                for step in 0..steps / all.len() as u64 + 1 {
                    run.step(&redis, &format!("TIDEGATE_SEED={seed}, {name}, step {step}")).await;
                }
            }
        }
    }
    let mut eternal: Vec<String> = servers.iter().flat_map(|server| server.keys_without_expiry()).collect();
    eternal.retain(|key| !key.starts_with("b:|"));
    assert_eq!(eternal, Vec::<String>::new(), "A9: all but Pause's lists of blocks expire");
}

/// One limiter: what the core holds, and the dice.
struct Run {
    name: String,
    rules: Rules,
    keys: Vec<Key>,
    /// Pause's layout: whole seconds, and no clock steps, as its lists of blocks are purged for all keys at once.
    is_pause: bool,
    now: u64,
    dice: Random,
}

struct Key {
    name: Vec<u8>,
    states: Vec<State>,
    blocked_until: Micros,
}

impl Run {
    fn new(name: &str, rules: Rules, seed: u64) -> Run {
        let key = |index| Key {
            name: format!("key {index} | : é").into_bytes(),
            states: rules.fresh(),
            blocked_until: Micros::ZERO,
        };
        Run {
            name: name.to_owned(),
            is_pause: name.ends_with("pause"),
            keys: (0..KEYS).map(key).collect(),
            rules,
            now: 1_700_000_000_000_000,
            dice: Random(seed),
        }
    }

    async fn step(&mut self, redis: &Redis, what: &str) {
        self.pass_time();
        let now = Micros::new(self.now).unwrap();
        let index = usize::try_from(self.dice.below(KEYS)).unwrap();
        let apart = self.rules.algorithm() == Algorithm::Buckets;
        match self.dice.below(400) {
            0..3 => self.unblock(redis, index, now, what).await,
            3..6 => self.block(redis, index, now).await,
            6..60 if apart => self.increment(redis, index, now, what).await,
            60..120 if apart => self.analyze(redis, index, now, what).await,
            _ => self.decide(redis, index, now, what).await,
        }
    }

    async fn decide(&mut self, redis: &Redis, index: usize, now: Micros, what: &str) {
        let dice = &mut self.dice;
        let capacity = u64::from(self.rules.limits()[0].burst());
        let cost = match dice.below(10) {
            0 => 0,
            1 => dice.below(capacity + 2),
            2 => dice.below(capacity / 3 + 2),
            _ => 1,
        };
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let intent = if dice.below(6) == 0 { Intent::Peek } else { Intent::Hit };
        let explain = dice.below(5) == 0;
        let (ruling, until) = self.keys[index].decide(&self.rules, now, cost, intent);
        let by = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        let asked = Asked { now: Some(now), cost, intent, explain, by };
        let (at, answers) = redis.decide(&[self.question(index)], &asked).await.unwrap();
        assert_eq!((at, answers.len()), (now, 1), "{what}");
        if intent == Intent::Hit {
            self.forget_if_fresh(index, now);
        }
        let told = &answers[0];
        let context = format!("{what}: at {now:?} {intent:?} of {cost}");
        assert_eq!(facts(&told.ruling, &self.rules), facts(&ruling, &self.rules), "{context}");
        if explain {
            assert_eq!(told.decisions.len(), self.rules.limits().len());
            assert_eq!(told.blocked_until > now, until > now, "{context}");
        }
    }

    async fn increment(&mut self, redis: &Redis, index: usize, now: Micros, what: &str) {
        let history = self.rules.grid().history().get();
        let at = match self.dice.below(4) {
            0 => now.saturating_sub(Micros::saturating(self.dice.below(history * 2))),
            1 => now.saturating_add(Micros::saturating(self.dice.below(history / 4))),
            _ => now,
        };
        let count = u32::try_from(self.dice.below(4)).unwrap();
        let counted =
            self.keys[index].subject(&self.rules, |subject| all_or_nothing::increment(subject, now, at, count));
        let told = redis.increment(&self.question(index), count, Some(at), at_time(now)).await.unwrap();
        self.forget_if_fresh(index, now);
        assert_eq!(Some(told), counted.map(|counted| (now, counted)), "{what}: {count} at {at:?}, {now:?}");
    }

    async fn analyze(&mut self, redis: &Redis, index: usize, now: Micros, what: &str) {
        let anew = self.dice.below(2) == 0;
        let if_blocked = if anew { IfBlocked::Recompute } else { IfBlocked::Tell };
        let look = |subject: &mut Subject<'_>| all_or_nothing::analyze(subject, now, if_blocked);
        let analysis = self.keys[index].subject(&self.rules, look);
        let told = redis.analyze(&self.question(index), if_blocked, at_time(now)).await.unwrap();
        if anew || !matches!(told.1, Analysis::Blocked { .. }) {
            self.forget_if_fresh(index, now);
        }
        assert_eq!(Some(told), analysis.map(|analysis| (now, analysis)), "{what}: {now:?}");
    }

    async fn unblock(&mut self, redis: &Redis, index: usize, now: Micros, what: &str) {
        let was = redis.unblock(&self.question(index), at_time(now)).await.unwrap();
        let key = &mut self.keys[index];
        key.states = self.rules.fresh();
        assert_eq!(was, std::mem::take(&mut key.blocked_until) > now, "{what}");
    }

    async fn block(&mut self, redis: &Redis, index: usize, now: Micros) {
        let span = Micros::from_secs(1 + self.dice.below(300));
        let until = redis.block(&self.question(index), span, at_time(now)).await.unwrap().unwrap();
        assert_eq!(until, now.saturating_add(span));
        self.keys[index].subject(&self.rules, |subject| {
            // As every operation does on its way.
            let _ = subject.decisions(now, 0);
            subject.blocked_until = until;
        });
    }

    fn forget_if_fresh(&mut self, index: usize, now: Micros) {
        // Pause's layout has no such thing: its counts stay for as long as the history.
        if !self.is_pause {
            self.keys[index].forget_if_fresh(&self.rules, now);
        }
    }

    fn question(&self, index: usize) -> Question<'_> {
        let layout = if self.is_pause { Layout::Pause } else { Layout::Native };
        Question {
            limiter: &self.name,
            rules: &self.rules,
            names: true,
            key: &self.keys[index].name,
            layout,
            role: Default::default(),
            own: None,
        }
    }

    /// Mostly onward by some of a period; sometimes not at all, or a jump, or back.
    fn pass_time(&mut self) {
        let periods: Vec<u64> = self.rules.limits().iter().map(|limit| limit.period().get()).collect();
        let period = periods[usize::try_from(self.dice.below(periods.len() as u64)).unwrap()];
        let dice = &mut self.dice;
        match dice.below(if self.is_pause { 37 } else { 40 }) {
            0..8 => {}
            8..30 => self.now += dice.below(period / 3),
            30..34 => self.now += dice.below(period * 2),
            34..36 => self.now += period,
            36 => self.now = self.now - self.now % period + period,
            37 => self.now = self.now.saturating_sub(dice.below(period)),
            38 => self.now = self.now.saturating_sub(dice.below(period * 3)),
            _ => self.now = self.now.saturating_sub(period),
        }
        // Not above what a time may be, whatever the periods.
        self.now %= 1 << 51;
        if self.is_pause {
            self.now -= self.now % 1_000_000;
        }
    }
}

impl Key {
    fn decide(&mut self, rules: &Rules, now: Micros, cost: u32, intent: Intent) -> (Ruling, Micros) {
        let before = (intent == Intent::Peek).then(|| (self.states.clone(), self.blocked_until));
        let ruling = self.subject(rules, |subject| all_or_nothing::decide(subject, now, cost, intent));
        let until = self.blocked_until;
        if let Some(before) = before {
            (self.states, self.blocked_until) = before;
        }
        (ruling, until)
    }

    fn subject<T>(&mut self, rules: &Rules, act: impl FnOnce(&mut Subject<'_>) -> T) -> T {
        let (blocked_until, states) = (self.blocked_until, &mut self.states);
        let mut subject =
            Subject { rules, blocked_until, states, room: Room::Free, role: Default::default(), own: None };
        let done = act(&mut subject);
        self.blocked_until = subject.blocked_until;
        done
    }

    /// As every store does: an entry equal to a fresh key is dropped. A clock that steps back later
    /// finds nothing of it.
    fn forget_if_fresh(&mut self, rules: &Rules, now: Micros) {
        let last = self.states.len() - 1;
        let mut pairs = rules.checks().map(|check| (check, &self.states[check.index().min(last)]));
        if self.blocked_until <= now && pairs.all(|(check, state)| state.status(check, now).reset_after.is_zero()) {
            self.states = rules.fresh();
            self.blocked_until = Micros::ZERO;
        }
    }
}

/// What must be equal. Averages: the verdict and the printed rate.
fn facts(ruling: &Ruling, rules: &Rules) -> String {
    let decision = &ruling.decision;
    if matches!(rules.algorithm(), Algorithm::StrictAverage | Algorithm::LeakyAverage) {
        return format!("{} {:?} {:.1}", decision.verdict.is_allowed(), ruling.reason, decision.rate.get());
    }
    let retry = match decision.verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Deny { retry_after } => format!("deny {retry_after:?}"),
    };
    let Ruling { limit_index, reason, .. } = ruling;
    format!(
        "{reason:?} by {limit_index}: {retry}, {} of {} left, {:?}",
        decision.remaining, decision.limit, decision.reset_after
    )
}

fn at_time(now: Micros) -> When {
    When { now: Some(now), by: tokio::time::Instant::now() + std::time::Duration::from_secs(10) }
}
