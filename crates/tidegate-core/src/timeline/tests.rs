//! Scenarios as text: `AT EVENT -> OUTCOME MESSAGES…`, times in milliseconds.
//!
//! `+taco@2` submitted, `!taco@2` invalidated, `*taco@2` published, each with the event's time;
//! `#1` a key frame of one event. `tick` advances only. Clock values are checked to be contiguous.

use super::*;

const STRICT: StreamRules =
    StreamRules { mode: Mode::StrictlyOnce, duration_ms: 3, max_events: 100, snapshot_every_ms: 1_000_000 };
const ONLY: StreamRules = StreamRules { mode: Mode::OnlyOnce, ..STRICT };

struct Line {
    rules: StreamRules,
    timeline: Timeline,
    clock: u64,
}

impl Line {
    fn new(rules: StreamRules) -> Line {
        Line { rules, timeline: Timeline::default(), clock: 0 }
    }

    fn run(&mut self, at: u64, event: &str) -> String {
        let (rules, now) = (self.rules, Micros::from_millis(at));
        let (mut steps, mut clock) = (Vec::new(), self.clock);
        let mut witness = |step: &Step, timeline: &Timeline| {
            if let Some(value) = step.clock() {
                clock += 1;
                assert_eq!((value, timeline.clock()), (clock, clock), "C2: {step:?}");
                steps.push(shown(step, timeline));
            }
        };
        let outcome = match event {
            "tick" => {
                self.timeline.advance(&rules, now, &mut witness);
                "tick".to_owned()
            }
            event => match self.timeline.submit(&rules, event, now, &mut witness) {
                Outcome::Submitted { .. } => "submitted".to_owned(),
                Outcome::Conflict { next } => format!("conflict next={}", next.get() / 1_000),
                Outcome::Full { next } => format!("full next={}", next.get() / 1_000),
            },
        };
        self.clock = clock;
        std::iter::once(outcome).chain(steps).collect::<Vec<_>>().join(" ")
    }
}

fn shown(step: &Step, timeline: &Timeline) -> String {
    match step {
        Step::Submitted { event, time_ms, .. } => format!("+{event}@{time_ms}"),
        Step::Published { event, time_ms, .. } => format!("*{event}@{time_ms}"),
        Step::Invalidated { event, time_ms, .. } => format!("!{event}@{time_ms}"),
        Step::KeyFrame { .. } => format!("#{}", timeline.snapshot().len()),
        Step::Rearmed { .. } => String::new(),
    }
}

#[track_caller]
fn check(rules: StreamRules, script: &str) {
    let mut line = Line::new(rules);
    for row in script.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (request, expected) = row.split_once("->").unwrap();
        let (at, event) = request.trim().split_once(' ').unwrap();
        let got = line.run(at.parse().unwrap(), event.trim());
        assert_eq!(got, expected.trim(), "{row}");
    }
}

#[test]
fn only_once_as_in_the_example() {
    check(
        ONLY,
        "1 apple -> submitted +apple@1
         2 taco  -> submitted +taco@2
         3 taco  -> conflict next=5
         4 taco  -> conflict next=5 *apple@1
         7 taco  -> submitted *taco@2 +taco@7
         10 tick -> tick *taco@7",
    );
}

#[test]
fn e4_strictly_once_as_in_the_example() {
    check(
        STRICT,
        "1 apple -> submitted +apple@1
         2 taco  -> submitted +taco@2
         3 taco  -> conflict next=6 !taco@2
         4 taco  -> conflict next=7 *apple@1
         7 taco  -> submitted +taco@7
         10 tick -> tick *taco@7",
    );
}

#[test]
fn e4_rejected_attempts_re_arm() {
    check(
        STRICT,
        "2 taco  -> submitted +taco@2
         4 taco  -> conflict next=7 !taco@2
         6 taco  -> conflict next=9
         9 taco  -> submitted +taco@9
         12 tick -> tick *taco@9",
    );
}

#[test]
fn exactly_the_duration_apart_both_publish() {
    check(STRICT, "2 a -> submitted +a@2\n 5 a -> submitted *a@2 +a@5\n 8 tick -> tick *a@5");
    check(ONLY, "2 a -> submitted +a@2\n 5 a -> submitted *a@2 +a@5\n 8 tick -> tick *a@5");
}

#[test]
fn e4_the_same_instant_kills_both() {
    check(
        STRICT,
        "2 a -> submitted +a@2
         2 a -> conflict next=5 !a@2
         4 tick -> tick
         5 a -> submitted +a@5
         8 tick -> tick *a@5",
    );
    check(ONLY, "2 a -> submitted +a@2\n 2 a -> conflict next=5\n 5 tick -> tick *a@2");
}

#[test]
fn e2_three_duplicates_give_one_invalidation() {
    check(
        STRICT,
        "2 a -> submitted +a@2
         3 a -> conflict next=6 !a@2
         3 a -> conflict next=6
         4 a -> conflict next=7
         9 tick -> tick",
    );
}

#[test]
fn t1_out_of_order_attempts() {
    // Within D of the last attempt: a conflict like any other, but the window stays where it is.
    check(
        STRICT,
        "10 a -> submitted +a@10
         8 a  -> conflict next=13 !a@10
         13 a -> submitted +a@13",
    );
    // D or more before it: rejected, and nothing changes.
    check(
        STRICT,
        "10 a -> submitted +a@10
         7 a  -> conflict next=13
         13 tick -> tick *a@10",
    );
    // A text without a record is taken as received at the latest time seen: its record may be gone.
    check(
        STRICT,
        "10 a -> submitted +a@10
         13 tick -> tick *a@10
         11 a -> submitted +a@13
         15 tick -> tick
         16 tick -> tick *a@13",
    );
}

#[test]
fn full_comes_after_conflict_and_rejected_attempts_count() {
    let small = StreamRules { max_events: 2, ..STRICT };
    check(
        small,
        "1 a -> submitted +a@1
         2 b -> submitted +b@2
         2 c -> full next=4
         3 a -> conflict next=6 !a@1
         4 c -> full next=5
         5 c -> submitted *b@2 +c@5
         5 d -> full next=6
         6 d -> submitted +d@6",
    );
}

#[test]
fn key_frames_come_at_their_time_and_once_after_a_pause() {
    let often = StreamRules { snapshot_every_ms: 10, ..ONLY };
    let mut line = Line::new(often);
    line.timeline.start(&often, Overdue::Publish, Micros::from_millis(5), &mut |step, _| {
        assert_eq!(step, &Step::KeyFrame { clock: 1, time_ms: 5 });
    });
    line.clock = 1;
    for (at, event, expected) in [
        (14, "a", "submitted +a@14"),
        (15, "tick", "tick #1"),
        (24, "tick", "tick *a@14"),
        (25, "b", "submitted #0 +b@25"),
        (28, "tick", "tick *b@25"),
        (99, "tick", "tick #0"),
        (108, "tick", "tick"),
        (109, "tick", "tick #0"),
    ] {
        assert_eq!(line.run(at, event), expected, "at {at}");
    }
}

#[test]
fn large_key_frames_are_left_out_and_the_clock_stays_contiguous() {
    let often = StreamRules { snapshot_every_ms: 1, max_events: 100_000, duration_ms: 1_000, ..ONLY };
    let mut line = Line::new(often);
    line.timeline.start(&often, Overdue::Publish, Micros::ZERO, &mut |_, _| {});
    line.clock = 1;
    for i in 0..=KEY_FRAME_EVENTS_MAX {
        line.run(0, &format!("{i}"));
    }
    assert_eq!(line.run(1, "tick"), "tick");
    assert_eq!(line.run(2, "one more"), "submitted +one more@2");
}

#[test]
fn e1_overdue_events_end_at_start() {
    for (overdue, expected) in
        [(Overdue::Publish, ["*a@1", "*b@2", "#1"]), (Overdue::Invalidate, ["!a@1", "!b@2", "#1"])]
    {
        let mut line = Line::new(STRICT);
        for (at, event) in [(1, "a"), (2, "b"), (4, "c")] {
            // As a journal would bring them back.
            let clock = line.timeline.clock() + 1;
            line.timeline.apply(&Step::Submitted { clock, event: event.into(), time_ms: at });
        }
        let mut steps = Vec::new();
        line.timeline.start(&STRICT, overdue, Micros::from_millis(6), &mut |step, timeline| {
            steps.push(shown(step, timeline));
        });
        assert_eq!(steps, expected);
        assert_eq!(line.timeline.clock(), 6);
    }
}

#[test]
fn times_are_floored_to_milliseconds() {
    let mut timeline = Timeline::default();
    let outcome = timeline.submit(&STRICT, "a", Micros::saturating(2_999), &mut |step, _| {
        assert_eq!(step, &Step::Submitted { clock: 1, event: "a".into(), time_ms: 2 });
    });
    assert_eq!(outcome, Outcome::Submitted { clock: 1 });
    timeline.advance(&STRICT, Micros::saturating(4_999), &mut |step, _| panic!("too early: {step:?}"));
    assert_eq!(timeline.wake_at(&STRICT), Some(Micros::saturating(5_000)));
}
