//! Redis against the core: the same random requests at the same chosen times, number for number.
//!
//! `TIDEGATE_SEED=7 TIDEGATE_STEPS=100000 cargo nextest run -p tidegate-store --test redis_model`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod servers;

use servers::Server;
use tidegate_core::all_or_nothing::{self, Intent, Room, Ruling, Subject};
use tidegate_core::{Algorithm, Limit, Micros, Rules, State, Verdict};
use tidegate_store::redis::{Question, Redis};

/// Steps of each algorithm, on each server.
const STEPS: u64 = 20_000;
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
        _ => &[
            &["3 per minute"],
            &["5 per 97s block 30s"],
            &["10 per 20s", "40 per hour block 2m", "100 per day"],
            &["0 per hour"],
            &["4294967295 per 366d"],
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

async fn compare(server: &Server) {
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let seed = setting("TIDEGATE_SEED").unwrap_or(1);
    let steps = setting("TIDEGATE_STEPS").unwrap_or(STEPS);
    for algorithm in Algorithm::ALL {
        let all = limits_of(algorithm);
        for (index, texts) in all.iter().enumerate() {
            let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let Ok(rules) = Rules::new(algorithm, &limits) else { continue };
            let name = format!("{algorithm:?}-{index}");
            let mut run = Run::new(&name, rules, seed ^ (index as u64) << 32);
            for step in 0..steps / all.len() as u64 + 1 {
                run.step(&redis, &format!("TIDEGATE_SEED={seed}, {name}, step {step}")).await;
            }
        }
    }
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new(), "A9");
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// One limiter: what the core holds, and the dice.
struct Run {
    name: String,
    rules: Rules,
    keys: Vec<Key>,
    now: u64,
    dice: Dice,
}

struct Key {
    name: Vec<u8>,
    states: Vec<State>,
    blocked_until: Micros,
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
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
            keys: (0..KEYS).map(key).collect(),
            rules,
            now: 1_700_000_000_000_000,
            dice: Dice(seed),
        }
    }

    async fn step(&mut self, redis: &Redis, what: &str) {
        self.pass_time();
        let dice = &mut self.dice;
        let capacity = u64::from(self.rules.limits()[0].burst());
        let cost = match dice.roll(10) {
            0 => 0,
            1 => dice.roll(capacity + 2),
            2 => dice.roll(capacity / 3 + 2),
            _ => 1,
        };
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let intent = if dice.roll(6) == 0 { Intent::Peek } else { Intent::Hit };
        let explain = dice.roll(5) == 0;
        let index = usize::try_from(dice.roll(KEYS)).unwrap();
        let now = Micros::new(self.now).unwrap();
        let key = &mut self.keys[index];
        if dice.roll(400) == 0 {
            key.states = self.rules.fresh();
            let question = Question { limiter: &self.name, rules: &self.rules, names: true, key: &key.name };
            let was = std::mem::replace(&mut key.blocked_until, Micros::ZERO) > now;
            assert_eq!(redis.unblock(Some(now), &question).await.unwrap(), was, "{what}");
        }
        let (ruling, until) = key.decide(&self.rules, now, cost, intent);
        let question = Question { limiter: &self.name, rules: &self.rules, names: true, key: &key.name };
        let (at, answers) = redis.decide(Some(now), &[question], cost, intent, explain).await.unwrap();
        assert_eq!((at, answers.len()), (now, 1), "{what}");
        let told = &answers[0];
        let context = format!("{what}: at {now:?} {intent:?} of {cost}");
        assert_eq!(facts(&told.ruling, &self.rules), facts(&ruling, &self.rules), "{context}");
        if explain {
            assert_eq!(told.decisions.len(), self.rules.limits().len());
            assert_eq!(told.blocked_until > now, until > now, "{context}");
        }
    }

    /// Mostly onward by some of a period; sometimes not at all, or a jump, or back.
    fn pass_time(&mut self) {
        let periods: Vec<u64> = self.rules.limits().iter().map(|limit| limit.period().get()).collect();
        let period = periods[usize::try_from(self.dice.roll(periods.len() as u64)).unwrap()];
        let dice = &mut self.dice;
        match dice.roll(40) {
            0..8 => {}
            8..30 => self.now += dice.roll(period / 3),
            30..34 => self.now += dice.roll(period * 2),
            34..36 => self.now += period,
            36 => self.now = self.now - self.now % period + period,
            37 => self.now = self.now.saturating_sub(dice.roll(period)),
            38 => self.now = self.now.saturating_sub(dice.roll(period * 3)),
            _ => self.now = self.now.saturating_sub(period),
        }
        // Not above what a time may be, whatever the periods.
        self.now %= 1 << 51;
    }
}

impl Key {
    fn decide(&mut self, rules: &Rules, now: Micros, cost: u32, intent: Intent) -> (Ruling, Micros) {
        let mut copy = self.states.clone();
        let states = if intent == Intent::Hit { &mut self.states } else { &mut copy };
        let mut subject = Subject { rules, blocked_until: self.blocked_until, states, room: Room::Free };
        let ruling = all_or_nothing::decide(&mut subject, now, cost, intent);
        let until = subject.blocked_until;
        if intent == Intent::Hit {
            self.blocked_until = until;
            self.forget_if_fresh(rules, now);
        }
        (ruling, until)
    }

    /// As every store does: an entry equal to a fresh key is dropped. A clock that steps back later
    /// finds nothing of it.
    fn forget_if_fresh(&mut self, rules: &Rules, now: Micros) {
        let mut pairs = rules.limits().iter().zip(&self.states);
        if self.blocked_until <= now && pairs.all(|(limit, state)| state.status(limit, now).reset_after.is_zero()) {
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
