//! T3: no time, cost, limit or state makes the core panic, over the full range of each.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate_core::all_or_nothing::{self, IfBlocked, Intent, Room, Subject};
use tidegate_core::buckets::{self, Grid};
use tidegate_core::sketch::Sketch;
use tidegate_core::{Algorithm, Compact, Limit, Micros, PERIOD_MAX, PERIOD_MIN, Rules, State};
use tidegate_core::{average, fixed_window, sliding_window, token_bucket};
use tidegate_testkit::Random;

const STEPS: u64 = 300_000;

#[test]
fn t3_no_input_panics() {
    let mut random = Draws(Random(7));
    for algorithm in Algorithm::ALL {
        let mut rules = random.rules(algorithm);
        let mut states = rules.fresh();
        let mut blocked_until = Micros::ZERO;
        for _ in 0..STEPS / 5 {
            if random.below(50) == 0 {
                rules = random.rules(algorithm);
                states.resize_with(rules.fresh().len(), || State::fresh(algorithm));
            }
            if random.below(20) == 0 {
                states.iter_mut().for_each(|state| *state = random.state(algorithm));
                blocked_until = random.time();
            }
            let intent = if random.below(3) == 0 { Intent::Peek } else { Intent::Hit };
            let room = if random.below(2) == 0 { Room::Free } else { Room::Exhausted };
            let (now, cost) = (random.time(), random.number());
            let mut subject = Subject {
                rules: &rules,
                blocked_until,
                states: &mut states,
                room,
                role: Default::default(),
                own: None,
            };
            let counted = all_or_nothing::increment(&mut subject, now, random.time(), random.number());
            let analysis = all_or_nothing::analyze(&mut subject, random.time(), IfBlocked::Recompute);
            assert_eq!((counted.is_some(), analysis.is_some()), (algorithm == Algorithm::Buckets, counted.is_some()));
            let ruling = all_or_nothing::decide(&mut subject, now, cost, intent);
            blocked_until = subject.blocked_until;
            let decision = ruling.decision;
            assert!(decision.remaining <= decision.limit, "{algorithm:?} {decision:?}");
            assert!(cost == 0 || cost <= decision.limit || !ruling.is_allowed(), "{cost} passed {decision:?}");
        }
    }
}

#[test]
fn t3_no_input_panics_in_the_sketch() {
    let mut random = Draws(Random(8));
    let mut sketch = Sketch::new(3);
    for _ in 0..STEPS / 5 {
        let rules = random.rules(Algorithm::TokenBucket);
        let (hash, now, cost) = (random.next(), random.time(), random.number());
        let mut states = [State::Sketched(sketch.estimate(hash, &rules.limits()[0], now))];
        let one = Rules::new(Algorithm::TokenBucket, &rules.limits()[..1]).unwrap();
        let mut subject = Subject {
            rules: &one,
            blocked_until: Micros::ZERO,
            states: &mut states,
            room: Room::Free,
            role: Default::default(),
            own: None,
        };
        let ruling = all_or_nothing::decide(&mut subject, now, cost, Intent::Hit);
        if ruling.is_allowed() {
            sketch.add(hash, &rules.limits()[0], now, cost);
        }
    }
}

#[test]
fn t3_no_text_panics() {
    let mut random = Draws(Random(9));
    let words = [
        "5",
        "per",
        "minute",
        "burst",
        "block",
        "0",
        "18446744073709551616",
        "-1",
        "\u{1F40C}",
        "2h",
        "ms",
        "",
        "per\0",
    ];
    for _ in 0..STEPS / 3 {
        let text: Vec<&str> = (0..random.below(8)).map(|_| words[random.index(words.len())]).collect();
        let joined = text.join([" ", "", "  "][random.index(3)]);
        if let Ok(limit) = joined.parse::<Limit>() {
            assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit), "{joined}");
        }
        if let Ok(span) = tidegate_core::text::duration(&joined) {
            assert_eq!(tidegate_core::text::duration(&span.to_string()), Ok(span), "{joined}");
        }
    }
}

/// Draws of every value that a caller may pass.
struct Draws(Random);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn index(&mut self, len: usize) -> usize {
        self.0.index(len)
    }

    /// Any magnitude, the ends included.
    fn wide(&mut self, max: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => max,
            2 => max - self.below(3).min(max),
            _ => (self.next() >> self.below(64)).min(max),
        }
    }

    fn time(&mut self) -> Micros {
        Micros::new(self.wide(Micros::MAX.get())).unwrap()
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.wide(u32::MAX.into())).unwrap()
    }

    fn rules(&mut self, algorithm: Algorithm) -> Rules {
        loop {
            let limits: Vec<Limit> = (0..self.below(3) + 1).map(|_| self.limit(algorithm)).collect();
            let rules = match algorithm {
                Algorithm::Buckets => Rules::buckets(self.grid(), &limits),
                _ => Rules::new(algorithm, &limits),
            };
            if let Ok(rules) = rules {
                return rules;
            }
        }
    }

    fn grid(&mut self) -> Grid {
        loop {
            let span = |wide| Micros::new(wide).unwrap().max(PERIOD_MIN);
            let (resolution, history) = (span(self.wide(PERIOD_MAX.get())), span(self.wide(PERIOD_MAX.get())));
            if let Ok(grid) = Grid::new(resolution, history) {
                return grid;
            }
        }
    }

    fn limit(&mut self, algorithm: Algorithm) -> Limit {
        loop {
            let period = Micros::new(self.wide(PERIOD_MAX.get())).unwrap().max(PERIOD_MIN);
            let mut limit = Limit::new(self.number(), period).unwrap();
            if algorithm == Algorithm::TokenBucket && self.below(2) == 0 {
                let Ok(with_burst) = limit.with_burst(self.number()) else { continue };
                limit = with_burst;
            }
            if self.below(3) == 0 {
                limit = limit.with_block(period).unwrap();
            }
            return limit;
        }
    }

    /// Words as a damaged store might hold them; logs come from hits only, histories from any bytes.
    fn state(&mut self, algorithm: Algorithm) -> State {
        let words = [self.next(), self.next()];
        match algorithm {
            Algorithm::TokenBucket => State::TokenBucket(token_bucket::State::from_words(words)),
            Algorithm::FixedWindow => State::FixedWindow(fixed_window::FirstHit::from_words(words)),
            Algorithm::AlignedWindow => State::AlignedWindow(fixed_window::Aligned::from_words(words)),
            Algorithm::SlidingWindow => State::SlidingWindow(sliding_window::State::from_words(words)),
            Algorithm::StrictAverage => State::StrictAverage(average::Strict::from_words(words)),
            Algorithm::LeakyAverage => State::LeakyAverage(average::Leaky::from_words(words)),
            Algorithm::SlidingLog => State::fresh(algorithm),
            Algorithm::Buckets => {
                let bytes: Vec<u8> = (0..self.below(4) * 12).map(|_| (self.next() & 1) as u8).collect();
                State::Buckets(Box::new(buckets::State::decode(&bytes).unwrap_or_default()))
            }
        }
    }
}
