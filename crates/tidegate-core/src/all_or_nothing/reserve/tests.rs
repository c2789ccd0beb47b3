//! Scenarios of reservations as text, times in seconds:
//!
//! `AT hit COST -> allow|deny [left=N]`
//! `AT reserve NAME COST FOR -> allow|deny [left=N]`
//! `AT commit NAME COST -> back=N [left=N] | late`
//! `limits TEXT, TEXT`: other limits from there on

use super::*;
use crate::all_or_nothing::{Intent, decide};
use crate::buckets::Grid;
use crate::{Limit, Rules};
use std::collections::HashMap;

struct Key {
    algorithm: Algorithm,
    rules: Rules,
    states: Vec<State>,
    room: Room,
    open: HashMap<String, (Terms, Vec<Mark>)>,
}

fn rules(algorithm: Algorithm, limits: &str) -> Rules {
    let limits: Vec<Limit> = limits.split(", ").map(|text| text.parse().unwrap()).collect();
    match algorithm {
        Algorithm::Buckets => {
            Rules::buckets(Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap(), &limits).unwrap()
        }
        algorithm => Rules::new(algorithm, &limits).unwrap(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of scenarios are small")]
fn seconds(word: &str) -> Micros {
    Micros::saturating((word.parse::<f64>().unwrap() * 1e6).round() as u64)
}

impl Key {
    fn new(algorithm: Algorithm, limits: &str) -> Key {
        let rules = rules(algorithm, limits);
        Key { algorithm, states: rules.fresh(), rules, room: Room::Free, open: HashMap::new() }
    }

    fn act(&mut self, words: &[&str]) -> Vec<String> {
        let (now, rules) = (seconds(words[0]), self.rules.clone());
        let mut subject = Subject {
            rules: &rules,
            blocked_until: Micros::ZERO,
            states: &mut self.states,
            room: self.room,
            role: Default::default(),
            own: None,
        };
        match words[1] {
            "hit" => told(&decide(&mut subject, now, words[2].parse().unwrap(), Intent::Hit)),
            "reserve" => {
                let cost = words[3].parse().unwrap();
                let ruling = decide(&mut subject, now, cost, Intent::Hit);
                if ruling.is_allowed() {
                    let terms = Terms { made_at: now, until: now.saturating_add(seconds(words[4])), cost };
                    self.open.insert(words[2].to_owned(), (terms, marks(&mut subject, now)));
                }
                told(&ruling)
            }
            "commit" => {
                let (terms, marks) = self.open.remove(words[2]).unwrap();
                match terms.settlement(now, words[3].parse().unwrap()) {
                    None => vec!["late".to_owned()],
                    Some(settlement) => {
                        let (back, ruling) = settle(&mut subject, now, &marks, settlement);
                        [vec![format!("back={back}")], told(&ruling)].concat()
                    }
                }
            }
            other => panic!("unknown step {other}"),
        }
    }
}

fn told(ruling: &Ruling) -> Vec<String> {
    let verdict = if ruling.is_allowed() { "allow" } else { "deny" };
    let (left, reset) = (ruling.decision.remaining, ruling.decision.reset_after.get() as f64 / 1e6);
    vec![verdict.to_owned(), format!("left={left}"), format!("reset={reset}")]
}

#[track_caller]
fn check(algorithm: Algorithm, limits: &str, script: &str) {
    play(&mut Key::new(algorithm, limits), script);
}

#[track_caller]
fn play(key: &mut Key, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(limits) = line.strip_prefix("limits ") {
            key.rules = rules(key.algorithm, limits);
            continue;
        }
        let (step, expected) = line.split_once("->").unwrap();
        let got = key.act(&step.split_whitespace().collect::<Vec<_>>());
        let missing = expected.split_whitespace().find(|word| !got.iter().any(|fact| fact == word));
        assert_eq!(missing, None, "{line}\n   but got {got:?}");
    }
}

const COUNTING: [Algorithm; 5] = [
    Algorithm::FixedWindow,
    Algorithm::AlignedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::Buckets,
];

#[test]
fn r1_a_commit_of_less_gives_the_rest_back_and_of_more_charges_it() {
    for algorithm in COUNTING.into_iter().chain([Algorithm::TokenBucket]) {
        check(
            algorithm,
            "10 per 20s",
            "
            100 reserve a 6 30 -> allow left=4
            100 hit 5          -> deny
            100 commit a 2     -> back=4 left=8
            100 reserve b 3 30 -> allow left=5
            100 commit b 7     -> back=0 left=1
            100 hit 2          -> deny
            100 reserve c 1 30 -> allow left=0
            100 commit c 50    -> back=0 left=0
            100 hit 1          -> deny",
        );
    }
}

#[test]
fn r1_what_was_reserved_and_canceled_leaves_a_fresh_key() {
    for algorithm in COUNTING.into_iter().chain([Algorithm::TokenBucket]) {
        check(
            algorithm,
            "10 per 20s",
            "
            100 reserve a 10 30 -> allow left=0
            101 commit a 0      -> allow left=10 reset=0",
        );
    }
}

#[test]
fn r1_after_its_time_the_charge_stays() {
    for algorithm in COUNTING.into_iter().chain([Algorithm::TokenBucket]) {
        check(
            algorithm,
            "10 per 50s",
            "
            100 reserve a 10 20 -> allow left=0
            100 reserve b 1 20  -> deny
            120 commit a 0      -> late
            120 hit 9           -> deny",
        );
    }
}

#[test]
fn r1_nothing_goes_into_another_window() {
    check(
        Algorithm::FixedWindow,
        "10 per 20s",
        "
        100 reserve a 4 90 -> allow left=6
        120 hit 10         -> allow left=0
        121 commit a 0     -> back=0 left=0",
    );
    check(
        Algorithm::AlignedWindow,
        "10 per 20s",
        "
        119 reserve a 4 90 -> allow left=6
        119 reserve b 4 90 -> allow left=2
        119.5 commit b 0   -> back=4 left=6
        120 hit 10         -> allow left=0
        121 commit a 0     -> back=0 left=0",
    );
    check(
        Algorithm::Buckets,
        "10 per 20s",
        "
        100 reserve a 4 90 -> allow left=6
        110 hit 3          -> allow left=3
        111 commit a 1     -> back=3 left=6
        112 reserve b 2 90 -> allow left=4
        190 commit b 0     -> back=0 left=10",
    );
}

/// The window before still counts in part, and what it holds can be lowered; the one before that is gone.
#[test]
fn r1_a_sliding_window_gives_back_to_the_window_that_counted() {
    check(
        Algorithm::SlidingWindow,
        "10 per 20s",
        "
        119 reserve a 8 90 -> allow left=2
        119 reserve b 1 90 -> allow left=1
        120 hit 1          -> allow left=0
        120 commit a 0     -> back=8 left=8
        140 hit 9          -> allow
        140 commit b 0     -> back=0 left=0",
    );
}

#[test]
fn r1_a_log_lowers_the_entry_and_no_other() {
    check(
        Algorithm::SlidingLog,
        "10 per 20s",
        "
        100 hit 2          -> allow left=8
        101 reserve a 3 90 -> allow left=5
        102 hit 1          -> allow left=4
        103 reserve b 4 90 -> allow left=0 reset=20
        104 commit a 1     -> back=2 left=2 reset=19
        104 commit b 0     -> back=4 left=6 reset=18
        120 hit 1          -> allow left=7
        121 reserve c 1 90 -> allow left=7
        142 commit c 0     -> back=0 left=10",
    );
}

/// Ten a ten seconds: at 8 s two of the ten that were reserved are still owed.
#[test]
fn r1_a_token_bucket_gives_back_what_is_still_owed() {
    check(
        Algorithm::TokenBucket,
        "10 per 10s",
        "
        100 reserve a 10 90 -> allow left=0
        108 hit 3           -> allow left=5
        108 commit a 0      -> back=2 left=7
        108 reserve b 5 90  -> allow left=2
        110 commit b 3      -> back=2 left=6
        110 reserve c 6 90  -> allow left=0
        120 hit 10          -> allow left=0
        120 commit c 0      -> back=0 left=0",
    );
}

#[test]
fn r1_a_token_bucket_of_another_limit_keeps_the_charge() {
    check(
        Algorithm::TokenBucket,
        "10 per 10s",
        "
        100 reserve a 8 90 -> allow left=2
        limits 20 per 10s
        100 commit a 0     -> back=0 left=4
        limits 10 per 10s burst 8
        100 reserve b 0 90 -> allow left=0",
    );
}

#[test]
fn r1_several_limits_each_give_back_what_they_hold() {
    check(
        Algorithm::FixedWindow,
        "5 per 10s, 8 per minute",
        "
        100 reserve a 5 90 -> allow left=0
        110 hit 2          -> allow left=1
        111 commit a 1     -> back=4 left=3
        112 hit 3          -> allow left=0",
    );
}

/// A step back of the clock before the reservation gives nothing back; nor into windows that it has moved.
#[test]
fn t1_r1_a_clock_before_the_reservation_gives_nothing_back() {
    for algorithm in COUNTING.into_iter().chain([Algorithm::TokenBucket]) {
        check(
            algorithm,
            "10 per 20s",
            "
            100 reserve a 10 90 -> allow left=0
            99  commit a 0      -> back=0 left=0
            99  hit 1           -> deny",
        );
    }
}

/// Without memory a charge joins the newest entry, and is given back from there.
#[test]
fn r1_what_was_charged_coarsely_comes_back_too() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::Buckets] {
        let mut key = Key { room: Room::Exhausted, ..Key::new(algorithm, "10 per 20s") };
        play(
            &mut key,
            "
            100 hit 1          -> allow left=9
            105 reserve a 4 30 -> allow left=5
            106 commit a 1     -> back=3 left=8",
        );
    }
}

/// Counts stop at the largest number; a bucket at a full debt, so that nobody waits for longer than the burst takes.
#[test]
fn a9_r1_no_excess_locks_a_key_out() {
    for algorithm in COUNTING.into_iter().chain([Algorithm::TokenBucket]) {
        check(
            algorithm,
            "10 per 20s",
            "
            100 reserve a 1 30        -> allow left=9
            100 commit a 4294967295   -> left=0
            100.5 hit 1               -> deny
            160 hit 10                -> allow left=0",
        );
    }
}
