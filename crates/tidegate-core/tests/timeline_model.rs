//! Timelines against a model that knows the whole history, and subscribers that know messages only.
//!
//! `TIDEGATE_STEPS=200000 TIDEGATE_SEED=1` by default: submissions for each mode.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::{BTreeMap, BTreeSet};
use tidegate_core::Micros;
use tidegate_core::timeline::{Mode, Outcome, Step, StreamRules, Timeline};
use tidegate_testkit::{Random, number};

#[test]
fn e1_e2_e3_e4_c3_only_once_equals_the_model() {
    check(Mode::OnlyOnce);
}

#[test]
fn e1_e2_e3_e4_c3_strictly_once_equals_the_model() {
    check(Mode::StrictlyOnce);
}

fn check(mode: Mode) {
    let (steps, seed) = (number("TIDEGATE_STEPS", 200_000), number("TIDEGATE_SEED", 1));
    let mut random = Random(seed);
    let mut done = 0;
    while done < steps {
        let rules = StreamRules {
            mode,
            duration_ms: 1 + random.below(50),
            max_events: [3, 20, 10_000][random.index(3)],
            snapshot_every_ms: 1 + random.below(100),
        };
        let submissions = (1 + random.below(4_000)).min(steps - done);
        run(rules, submissions, &mut random)
            .unwrap_or_else(|error| panic!("{error}\nagain: TIDEGATE_SEED={seed} TIDEGATE_STEPS={steps} ({rules:?})"));
        done += submissions;
    }
}

fn run(rules: StreamRules, submissions: u64, random: &mut Random) -> Result<(), String> {
    let (mut timeline, mut model, mut seen) = (Timeline::default(), Model::new(rules), Seen::new(rules));
    let texts = [2, 10, 200][random.index(3)];
    let mut now_us = random.below(10_000);
    timeline.start(&rules, Default::default(), Micros::saturating(now_us), &mut |step, t| seen.see(step, t));
    for _ in 0..submissions {
        now_us += [0, 300, 1_000, 20_000, 200_000][random.index(5)] * random.below(3);
        let now = Micros::saturating(now_us);
        if random.below(8) == 0 {
            timeline.advance(&rules, now, &mut |step, t| seen.see(step, t));
        }
        let text = format!("t{}", random.below(texts));
        let outcome = timeline.submit(&rules, &text, now, &mut |step, t| seen.see(step, t));
        let expected = model.submit(&text, now_us / 1_000);
        if outcome_word(outcome) != expected {
            return Err(format!("{text} at {now_us}: {outcome:?}, the model says {expected}"));
        }
        seen.model_says(&timeline, now_us / 1_000)?;
    }
    let end = Micros::saturating(now_us + 1_000 * rules.duration_ms);
    timeline.advance(&rules, end, &mut |step, t| seen.see(step, t));
    assert_eq!(timeline.snapshot().len(), 0, "E1: events without an end");
    seen.compare(&model.ends())
}

fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Submitted { .. } => "submitted",
        Outcome::Conflict { .. } => "conflict",
        Outcome::Full { .. } => "full",
    }
}

/// Every receipt there ever was; nothing is forgotten and nothing is clever.
struct Model {
    rules: StreamRules,
    /// By text: time, and whether it was accepted.
    receipts: BTreeMap<String, Vec<(u64, bool)>>,
}

impl Model {
    fn new(rules: StreamRules) -> Model {
        Model { rules, receipts: BTreeMap::new() }
    }

    fn submit(&mut self, text: &str, now: u64) -> &'static str {
        let held = self.receipts.values().filter(|receipts| self.is_held(receipts, now)).count();
        let conflict = self.receipts.get(text).is_some_and(|receipts| self.is_held(receipts, now));
        if !conflict && held >= self.rules.max_events {
            return "full";
        }
        self.receipts.entry(text.to_owned()).or_default().push((now, !conflict));
        if conflict { "conflict" } else { "submitted" }
    }

    /// Whether a receipt that counts lies less than D back. Receipts are in order, so that the last one does.
    fn is_held(&self, receipts: &[(u64, bool)], now: u64) -> bool {
        let counts = |accepted: bool| accepted || self.rules.mode == Mode::StrictlyOnce;
        let last = receipts.iter().rev().find(|(_, accepted)| counts(*accepted));
        last.is_some_and(|(time, _)| time + self.rules.duration_ms > now)
    }

    /// Text and time of every accepted event, and whether it must have been published: worked out from the whole
    /// history, as E4 says it.
    fn ends(&self) -> BTreeMap<(String, u64), bool> {
        let mut ends = BTreeMap::new();
        for (text, receipts) in &self.receipts {
            for (index, (time, _)) in receipts.iter().enumerate().filter(|(_, (_, accepted))| *accepted) {
                let next = receipts.get(index + 1).map_or(u64::MAX, |(next, _)| *next);
                let alone = next >= time + self.rules.duration_ms;
                ends.insert((text.clone(), *time), alone || self.rules.mode == Mode::OnlyOnce);
            }
        }
        ends
    }
}

/// What a subscriber makes of the messages.
struct Seen {
    rules: StreamRules,
    clock: u64,
    /// In the order of submission: text, time, valid.
    state: Vec<(String, u64, bool)>,
    submitted: BTreeSet<(String, u64)>,
    ends: BTreeMap<(String, u64), bool>,
}

impl Seen {
    fn new(rules: StreamRules) -> Seen {
        Seen { rules, clock: 0, state: Vec::new(), submitted: BTreeSet::new(), ends: BTreeMap::new() }
    }

    fn see(&mut self, step: &Step, timeline: &Timeline) {
        let Some(clock) = step.clock() else { return };
        self.clock += 1;
        assert_eq!(clock, self.clock, "C1, C2: {step:?}");
        match step {
            Step::Submitted { event, time_ms, .. } => {
                assert!(self.submitted.insert((event.to_string(), *time_ms)), "submitted twice: {step:?}");
                self.state.push((event.to_string(), *time_ms, true));
            }
            Step::Published { event, time_ms, .. } => {
                assert!(timeline.horizon_ms() >= time_ms + self.rules.duration_ms, "E3: {step:?}");
                self.end(event, *time_ms, true);
                self.state.retain(|(text, _, valid)| !(*valid && text.as_str() == &**event));
            }
            Step::Invalidated { event, time_ms, .. } => {
                self.end(event, *time_ms, false);
                let it = self.state.iter_mut().find(|(text, time, _)| text.as_str() == &**event && time == time_ms);
                it.unwrap().2 = false;
            }
            Step::KeyFrame { time_ms, .. } => self.compare_states(timeline, *time_ms).unwrap(),
            Step::Rearmed { .. } => {}
        }
    }

    fn end(&mut self, event: &str, time_ms: u64, published: bool) {
        let event = (event.to_owned(), time_ms);
        assert!(self.submitted.contains(&event), "ended before it was submitted: {event:?}");
        assert!(self.ends.insert(event, published).is_none(), "E2: a second end");
    }

    /// C3: the first snapshot (empty) and the deltas since are the state.
    fn model_says(&mut self, timeline: &Timeline, now_ms: u64) -> Result<(), String> {
        self.compare_states(timeline, now_ms)
    }

    fn compare_states(&mut self, timeline: &Timeline, now_ms: u64) -> Result<(), String> {
        let duration_ms = self.rules.duration_ms;
        self.state.retain(|(_, time_ms, valid)| *valid || time_ms + duration_ms > now_ms);
        let same = timeline.snapshot().len() == self.state.len()
            && timeline.snapshot().zip(&self.state).all(|(ours, (text, time_ms, valid))| {
                (&*ours.event, ours.time_ms, ours.valid) == (text.as_str(), *time_ms, *valid)
            });
        if same { Ok(()) } else { Err(format!("C3 at clock {}: {:?}", self.clock, self.state)) }
    }

    fn compare(&self, expected: &BTreeMap<(String, u64), bool>) -> Result<(), String> {
        if self.ends == *expected {
            return Ok(());
        }
        let wrong: Vec<_> = expected.iter().filter(|(event, end)| self.ends.get(event) != Some(end)).take(3).collect();
        Err(format!("E1, E4: {} ends, {} expected; for example {wrong:?}", self.ends.len(), expected.len()))
    }
}
