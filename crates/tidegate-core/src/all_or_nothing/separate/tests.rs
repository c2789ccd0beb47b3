//! Scenarios of buckets as text, times in seconds; blocks of 10 s, kept for 60 s unless said otherwise:
//!
//! `AT hit|peek COST -> REASON [left=N] [retry=S] [reset=S] [at=LIMIT]`
//! `AT add COUNT [TIME] -> counted|dropped`
//! `AT analyze|recompute -> ok | limited sum=N limit=I until=S | blocked until=S`

use super::*;
use crate::all_or_nothing::{Intent, decide};
use crate::buckets::Grid;
use crate::{Limit, Rules};

struct Key {
    rules: Rules,
    blocked_until: Micros,
    states: Vec<State>,
    room: Room,
}

fn key(resolution_s: u64, history_s: u64, limits: &[&str]) -> Key {
    let grid = Grid::new(Micros::from_secs(resolution_s), Micros::from_secs(history_s)).unwrap();
    let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let rules = Rules::buckets_of_pause(grid, &limits).unwrap();
    let states = rules.fresh();
    Key { rules, blocked_until: Micros::ZERO, states, room: Room::Free }
}

#[expect(clippy::cast_possible_truncation, reason = "a float's cast saturates")]
fn seconds(word: &str) -> Micros {
    Micros::saturating((word.parse::<f64>().unwrap() * 1e6).round() as u64)
}

fn shown(span: Micros) -> String {
    (span.get() as f64 / 1e6).to_string()
}

impl Key {
    fn act(&mut self, words: &[&str]) -> Vec<String> {
        let (now, rules) = (seconds(words[0]), self.rules.clone());
        let mut subject = Subject {
            rules: &rules,
            blocked_until: self.blocked_until,
            states: &mut self.states,
            room: self.room,
            role: Default::default(),
            own: None,
        };
        let facts = match words[1] {
            "hit" => decided(&mut subject, now, words[2].parse().unwrap(), Intent::Hit),
            "peek" => decided(&mut subject, now, words[2].parse().unwrap(), Intent::Peek),
            "add" => {
                let at = words.get(3).map_or(now, |at| seconds(at));
                let counted = increment(&mut subject, now, at, words[2].parse().unwrap()).unwrap();
                vec![if counted { "counted".into() } else { "dropped".into() }]
            }
            "analyze" => facts_of(analyze(&mut subject, now, IfBlocked::Tell).unwrap()),
            "recompute" => facts_of(analyze(&mut subject, now, IfBlocked::Recompute).unwrap()),
            other => panic!("unknown step {other}"),
        };
        self.blocked_until = subject.blocked_until;
        facts
    }
}

fn decided(subject: &mut Subject<'_>, now: Micros, cost: u32, intent: Intent) -> Vec<String> {
    let ruling = decide(subject, now, cost, intent);
    let mut facts = vec![
        format!("{:?}", ruling.reason).to_lowercase(),
        format!("left={}", ruling.decision.remaining),
        format!("reset={}", shown(ruling.decision.reset_after)),
        format!("at={}", ruling.limit_index),
    ];
    if let crate::Verdict::Deny { retry_after: Some(wait) } = ruling.decision.verdict {
        facts.push(format!("retry={}", shown(wait)));
    }
    facts
}

fn facts_of(analysis: Analysis) -> Vec<String> {
    match analysis {
        Analysis::Ok => vec!["ok".into()],
        Analysis::Blocked { until } => vec!["blocked".into(), format!("until={}", shown(until))],
        Analysis::Limited { limit_index, sum, blocked_until } => vec![
            "limited".into(),
            format!("limit={limit_index}"),
            format!("sum={sum}"),
            format!("until={}", shown(blocked_until)),
        ],
    }
}

#[track_caller]
fn check(mut key: Key, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (step, expected) = line.split_once(" -> ").unwrap();
        let facts = key.act(&step.split_whitespace().collect::<Vec<_>>());
        for word in expected.split_whitespace() {
            assert!(facts.iter().any(|fact| fact == word), "{line}\n   but got {facts:?}");
        }
    }
}

#[test]
fn five_are_limited_for_a_period_and_a_block() {
    let blocking = || key(10, 60, &["5 per 20s block 1ms"]);
    for (at, status) in [("100", "limited"), ("120", "limited"), ("129.999999", "limited"), ("130", "ok")] {
        check(blocking(), &format!("100 add 5 -> counted\n {at} analyze -> {status}"));
    }
}

#[test]
fn the_check_after_the_fifth_is_limited_and_blocks() {
    check(
        key(10, 60, &["5 per 20s block 40s", "7 per 40s block 40s"]),
        "
        100 add 4     -> counted
        100 analyze   -> ok
        100 add 1     -> counted
        100 analyze   -> limited sum=5 limit=0 until=140
        101 analyze   -> blocked until=140
        101 recompute -> limited sum=5 limit=0 until=140
        129 recompute -> limited sum=5 limit=0 until=140
        130 recompute -> blocked until=140
        139.999999 analyze -> blocked until=140
        140 recompute -> ok
        140 analyze   -> ok",
    );
}

/// As Pause does it: what was counted matters until its block is over, however short the period.
#[test]
fn a_period_shorter_than_a_block_counts_the_present_block() {
    check(
        key(600, 86_400, &["5 per 2m block 1m"]),
        "
        600  add 4   -> counted
        1199 add 1   -> counted
        1199 analyze -> limited sum=5 limit=0 until=1259
        1259 analyze -> ok
        1260 hit 5   -> ok left=0
        1799 hit 1   -> limited left=0 retry=60",
    );
}

#[test]
fn a_later_check_sees_further_back() {
    check(
        key(10, 60, &["5 per 20s block 40s", "7 per 40s block 40s"]),
        "
        100 add 4 70  -> counted
        100 add 2     -> counted
        100 analyze   -> ok
        100 add 1     -> counted
        100 analyze   -> limited sum=7 limit=1 until=140",
    );
}

#[test]
fn the_sum_is_that_of_the_crossing_newest_first() {
    check(
        key(10, 60, &["5 per 20s"]),
        "
        100 add 9 80  -> counted
        100 add 3 90  -> counted
        100 add 2     -> counted
        100 analyze   -> limited sum=5 limit=0 until=120",
    );
}

#[test]
fn a_block_is_over_at_its_end_and_starts_again_while_the_history_exceeds() {
    check(
        key(10, 60, &["5 per 40s block 10s"]),
        "
        100 add 5     -> counted
        105 analyze   -> limited sum=5 until=115
        114 analyze   -> blocked until=115
        115 analyze   -> limited sum=5 until=125
        149 analyze   -> limited sum=5 until=159
        159 analyze   -> ok",
    );
}

#[test]
fn a_block_lasts_for_the_period_by_default() {
    check(
        key(10, 60, &["2 per 20s"]),
        "
        100 hit 2     -> ok left=0 reset=30
        105 hit 1     -> limited retry=25 left=0
        124 hit 1     -> blocked
        125 hit 1     -> limited retry=20
        145 hit 1     -> ok left=1",
    );
}

#[test]
fn a_count_of_nothing_is_reached_by_the_first_count() {
    check(
        key(10, 60, &["0 per 20s"]),
        "
        100 analyze   -> ok
        100 hit 1     -> costabovelimit
        100 analyze   -> ok
        100 add 0     -> dropped
        100 analyze   -> ok
        100 add 3     -> counted
        100 analyze   -> limited sum=3 limit=0 until=120",
    );
}

#[test]
fn a5_a_hit_passes_every_check_or_counts_nowhere() {
    check(
        key(10, 60, &["5 per 20s block 1s", "7 per 40s block 2s"]),
        "
        100 hit 5     -> ok left=0 at=0
        100 hit 1     -> limited retry=30 at=0
        129 hit 2     -> limited retry=1 at=0
        130 hit 3     -> limited retry=20 left=0 at=1
        131 hit 1     -> blocked
        132 hit 2     -> ok left=0 at=1
        132 hit 8     -> costabovelimit",
    );
}

#[test]
fn retry_after_is_the_first_moment_that_passes() {
    check(
        key(10, 60, &["5 per 25s block 1ms"]),
        "
        100 hit 2     -> ok left=3 reset=30
        112 hit 2     -> ok left=1 reset=28
        113 hit 3     -> limited retry=17
        113.001 hit 5 -> limited retry=26.999
        129 hit 3     -> limited retry=1
        130 hit 3     -> ok left=0",
    );
}

#[test]
fn only_the_newest_blocks_are_kept() {
    check(
        key(10, 30, &["3 per 30s"]),
        "
        100 add 1 70  -> counted
        100 add 1 60  -> dropped
        100 add 1 80  -> counted
        100 add 1     -> counted
        101 add 9 69  -> dropped
        101 add 1 85  -> counted
        101 analyze   -> limited sum=3 limit=0
        101 add 1 90  -> counted
        101 add 9 70  -> dropped",
    );
    check(
        key(10, 30, &["4 per 30s"]),
        "
        100 add 1 70  -> counted
        100 add 1 80  -> counted
        100 add 1     -> counted
        110 add 1     -> counted
        110 analyze   -> ok",
    );
}

#[test]
fn t1_steps_back_hold_or_carry_over() {
    check(
        key(10, 60, &["2 per 20s block 1ms"]),
        "
        1000 hit 1    -> ok left=1
        985  hit 1    -> ok left=0
        985  peek 1   -> limited retry=25
        1010 hit 1    -> ok left=0
        5    peek 1   -> limited retry=25 left=0
        20   hit 1    -> limited retry=10
        30   hit 2    -> ok left=0",
    );
}

#[test]
fn t1_what_lies_behind_stays_when_the_rest_is_carried_over() {
    check(
        key(10, 900, &["9 per 60s block 1ms"]),
        "
        100  hit 4    -> ok left=5
        900  hit 1    -> ok left=8
        120  hit 1    -> ok left=3
        120  hit 4    -> limited retry=50
        170  hit 4    -> ok left=3",
    );
}

#[test]
fn t1_a_step_back_with_one_block_still_counts() {
    check(
        key(10, 10, &["3 per 10s block 1ms"]),
        "
        100 hit 1     -> ok left=2
        95  hit 1     -> ok left=1
        95  hit 1     -> ok left=0
        95  hit 1     -> limited retry=25",
    );
}

#[test]
fn a_time_far_ahead_counts_now() {
    check(
        key(10, 60, &["5 per 20s block 1ms"]),
        "
        100 add 3 120 -> counted
        100 hit 3     -> limited retry=50
        149 hit 3     -> limited retry=1
        150 hit 2     -> ok left=3
        200 add 3 999 -> counted
        200 hit 3     -> limited retry=30
        230 hit 5     -> ok left=0",
    );
}

#[test]
fn without_memory_it_errs_on_the_safe_side() {
    let mut full = key(10, 60, &["6 per 20s block 1ms"]);
    full.room = Room::Exhausted;
    // Four blocks have room from the start; then the newest makes way.
    check(
        full,
        "
        100 add 1 60  -> counted
        100 add 1 70  -> counted
        100 add 1 90  -> counted
        100 add 1     -> counted
        110 hit 1     -> ok left=3
        110 add 1 80  -> counted
        110 peek 1    -> ok left=2
        130 hit 1     -> ok left=3",
    );
}

#[test]
fn other_algorithms_are_told_apart() {
    let rules = Rules::new(Algorithm::FixedWindow, &["1 per day".parse().unwrap()]).unwrap();
    let mut states = rules.fresh();
    let mut subject = Subject {
        rules: &rules,
        blocked_until: Micros::ZERO,
        states: &mut states,
        room: Room::Free,
        role: Default::default(),
        own: None,
    };
    assert_eq!(increment(&mut subject, Micros::ZERO, Micros::ZERO, 1), None);
    assert_eq!(analyze(&mut subject, Micros::ZERO, IfBlocked::Tell), None);
}
