//! Several keys of one request, and the answer that each of them gets.

use super::*;
use crate::Algorithm;

struct Key {
    rules: Rules,
    blocked_until: Micros,
    states: Vec<State>,
}

fn key(algorithm: Algorithm, limits: &[&str]) -> Key {
    let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let rules = Rules::new(algorithm, &limits).unwrap();
    let states = rules.fresh();
    Key { rules, blocked_until: Micros::ZERO, states }
}

impl Key {
    fn request(&mut self, at_s: u64, cost: u32, intent: Intent) -> Ruling {
        let mut copy = self.states.clone();
        let mut subject = Subject {
            rules: &self.rules,
            blocked_until: self.blocked_until,
            states: if intent == Intent::Hit { &mut self.states } else { &mut copy },
            room: Room::Free,
            role: Role::Enforced,
            own: None,
        };
        let ruling = decide(&mut subject, Micros::from_secs(at_s), cost, intent);
        self.blocked_until = subject.blocked_until;
        ruling
    }

    fn back(&mut self, at_s: u64, cost: u32) -> Ruling {
        let Key { rules, blocked_until, states } = self;
        let (role, own) = (Role::Enforced, None);
        let mut subject = Subject { rules, blocked_until: *blocked_until, states, room: Room::Free, role, own };
        give_back(&mut subject, Micros::from_secs(at_s), cost)
    }
}

/// `AT hit|peek COST -> REASON [retry=S] [left=N] [at=LIMIT]`
#[track_caller]
fn check(mut key: Key, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let intent = if words[1] == "hit" { Intent::Hit } else { Intent::Peek };
        let ruling = key.request(words[0].parse().unwrap(), words[2].parse().unwrap(), intent);
        let retry = match ruling.decision.verdict {
            Verdict::Deny { retry_after: Some(wait) } => wait.get() / 1_000_000,
            _ => 0,
        };
        let facts = [
            format!("{:?}", ruling.reason).to_lowercase(),
            format!("retry={retry}"),
            format!("left={}", ruling.decision.remaining),
            format!("reset={}", ruling.decision.reset_after.get() / 1_000_000),
            format!("at={}", ruling.limit_index),
        ];
        for word in &words[4..] {
            assert!(facts.iter().any(|fact| fact == word), "{line}\n   but got {facts:?}");
        }
    }
}

#[test]
fn a5_limits_are_charged_together_or_not_at_all() {
    check(
        key(Algorithm::SlidingLog, &["2 per minute", "3 per hour"]),
        "
        0   hit 2 -> ok left=0 at=0
        0   hit 1 -> limited retry=60 at=0
        60  hit 2 -> limited retry=3540 left=1 at=1
        60  hit 1 -> ok left=0 at=1
        61  hit 1 -> limited retry=3539 at=1
        61  hit 3 -> costabovelimit at=0",
    );
}

/// `AT hit|back COST -> left=N reset=S`: the same for every algorithm of windows, where a minute's worth is charged within a minute.
#[test]
fn windows_give_back_what_they_hold_the_latest_first() {
    let play = |algorithm: Algorithm, limits: &[&str], script: &str| {
        let mut key = key(algorithm, limits);
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (at_s, cost) = (words[0].parse().unwrap(), words[2].parse().unwrap());
            let ruling = if words[1] == "hit" { key.request(at_s, cost, Intent::Hit) } else { key.back(at_s, cost) };
            let decision = ruling.decision;
            let facts =
                [format!("left={}", decision.remaining), format!("reset={}", decision.reset_after.get() / 1_000_000)];
            assert_eq!(facts[..words.len() - 4], words[4..], "{algorithm:?}: {line}");
            assert!(ruling.is_allowed(), "{algorithm:?}: {line}");
        }
    };
    let fixed = "
        60   hit 2  -> left=3 reset=60
        70   hit 3  -> left=0 reset=50
        80   back 4 -> left=4 reset=40
        80   hit 4  -> left=0 reset=40
        90   back 9 -> left=5 reset=0
        125  hit 3  -> left=2
        181  back 2 -> left=LATER";
    for (algorithm, later) in [(Algorithm::AlignedWindow, "5"), (Algorithm::FixedWindow, "4")] {
        play(algorithm, &["5 per minute"], &fixed.replace("LATER", later));
    }
    let logged = "
        60   hit 2  -> left=3 reset=60
        70   hit 1  -> left=2 reset=60
        71   hit 2  -> left=0 reset=60
        80   back 1 -> left=1 reset=51
        80   back 2 -> left=3 reset=40
        80   hit 3  -> left=0 reset=60
        120  back 1 -> left=3 reset=20
        120  back 9 -> left=5 reset=0
        121  hit 5  -> left=0 reset=60";
    play(Algorithm::SlidingLog, &["5 per minute"], logged);
    let faded = "
        60   hit 4  -> left=1 reset=120
        90   back 3 -> left=4 reset=90
        90   hit 3  -> left=1 reset=90
        150  back 4 -> left=3
        150  hit 2  -> left=1
        150  back 2 -> left=3";
    play(Algorithm::SlidingWindow, &["5 per minute"], faded);
    let blocks = "
        0     hit 2  -> left=3
        700   hit 3  -> left=0
        700   back 4 -> left=4
        700   hit 4  -> left=0
        1300  back 9 -> left=5 reset=0";
    play(Algorithm::Buckets, &["5 per hour"], blocks);
    // Each limit gets back what it was charged.
    let two = "
        0    hit 2  -> left=0
        60   hit 1  -> left=1
        60   back 2 -> left=2
        60   hit 2  -> left=0";
    play(Algorithm::SlidingLog, &["2 per minute", "9 per hour"], two);
    // An average does not know what it is made of.
    for algorithm in [Algorithm::StrictAverage, Algorithm::LeakyAverage] {
        let mut average = key(algorithm, &["5 per minute"]);
        let before = average.request(0, 3, Intent::Hit).decision.remaining;
        assert_eq!(average.back(0, 3).decision.remaining, before, "{algorithm:?}");
    }
}

#[test]
fn what_is_given_back_is_there_again_and_no_more() {
    let mut bucket = key(Algorithm::TokenBucket, &["3 per second"]);
    let mut at = |at_us: u64, cost: u32, back: bool| {
        let Key { rules, states, .. } = &mut bucket;
        let (role, own) = (Role::Enforced, None);
        let mut subject = Subject { rules, blocked_until: Micros::ZERO, states, room: Room::Free, role, own };
        let at = Micros::saturating(at_us);
        let ruling = if back { give_back(&mut subject, at, cost) } else { decide(&mut subject, at, cost, Intent::Hit) };
        (ruling.is_allowed(), ruling.decision.remaining, ruling.decision.reset_after.get())
    };
    assert_eq!(at(0, 3, false), (true, 0, 1_000_000));
    assert_eq!(at(0, 1, false), (false, 0, 1_000_000));
    assert_eq!(at(0, 1, true), (true, 1, 666_667), "to the tick: two thirds of a second");
    assert_eq!(at(0, 1, false), (true, 0, 1_000_000));
    assert_eq!(at(333_334, 9, true), (true, 3, 0), "never more than a full bucket");
    assert_eq!(at(333_334, u32::MAX, true), (true, 3, 0));
    assert_eq!(at(333_334, 3, false), (true, 0, 1_000_000));
}

#[test]
fn a5_keys_are_charged_together_or_not_at_all() {
    let mut user = key(Algorithm::SlidingLog, &["2 per minute"]);
    let mut ip = key(Algorithm::TokenBucket, &["3 per minute"]);
    let mut both = |cost| {
        let mut subjects = [&mut user, &mut ip].map(|key| Subject {
            rules: &key.rules,
            blocked_until: Micros::ZERO,
            states: &mut key.states,
            room: Room::Free,
            role: Role::Enforced,
            own: None,
        });
        let rulings = decide_all(&mut subjects, Micros::ZERO, cost, Intent::Hit);
        let left = rulings.iter().map(|r| r.decision.remaining).collect::<Vec<_>>();
        (Ruling::deciding(&rulings), left)
    };
    assert_eq!(both(2), (Some(0), vec![0, 1]));
    assert_eq!(both(1), (Some(0), vec![0, 1]), "the user's denial leaves the address alone");
    assert_eq!(both(2), (Some(0), vec![0, 1]));
}

#[test]
fn a5_keys_with_costs_of_their_own_are_charged_together_or_not_at_all() {
    let mut all = ["2 per minute", "30 per minute", "5 per minute"].map(|limit| key(Algorithm::FixedWindow, &[limit]));
    let mut ask = |costs: [(u32, Intent); 3]| {
        let mut subjects: Vec<Subject<'_>> = all
            .iter_mut()
            .zip(costs)
            .map(|(key, (cost, intent))| Subject {
                rules: &key.rules,
                blocked_until: Micros::ZERO,
                states: &mut key.states,
                room: Room::Free,
                role: Role::Enforced,
                own: Some(Demand { cost, intent }),
            })
            .collect();
        let rulings = decide_all(&mut subjects, Micros::ZERO, 1_000, Intent::Hit);
        rulings.iter().map(|r| (r.is_allowed(), r.decision.remaining)).collect::<Vec<_>>()
    };
    let (hit, peek) = (Intent::Hit, Intent::Peek);
    assert_eq!(ask([(1, hit), (10, hit), (5, peek)]), [(true, 1), (true, 20), (true, 5)]);
    assert_eq!(ask([(1, hit), (21, hit), (0, hit)]), [(true, 1), (false, 20), (true, 5)], "nothing is charged");
    assert_eq!(ask([(1, hit), (20, hit), (6, peek)]), [(true, 1), (true, 20), (false, 5)], "a peek has its say");
    assert_eq!(ask([(1, hit), (20, hit), (5, hit)]), [(true, 0), (true, 0), (true, 0)]);
}

#[test]
fn a10_a_denied_hit_blocks_for_exactly_its_time() {
    check(
        key(Algorithm::FixedWindow, &["1 per minute block 10m"]),
        "
        0    hit  1 -> ok left=0
        0    peek 1 -> limited retry=60
        0    hit  0 -> ok
        0    hit  2 -> costabovelimit
        0    hit  1 -> limited retry=600 left=0 reset=600
        100  hit  1 -> blocked retry=500 left=0 reset=500
        599  peek 1 -> blocked retry=1
        599  hit  0 -> blocked retry=1
        600  hit  1 -> ok left=0",
    );
}

#[test]
fn the_longest_block_of_those_that_deny_counts() {
    check(
        key(Algorithm::FixedWindow, &["1 per minute block 2m", "5 per hour block 1d"]),
        "
        0    hit 1 -> ok
        1    hit 1 -> limited retry=120
        121  hit 1 -> ok",
    );
}

#[test]
fn the_least_remaining_is_told_in_definition_order() {
    check(
        key(Algorithm::TokenBucket, &["5 per minute", "5 per hour", "3 per day"]),
        "
        0 hit 1 -> ok left=2 at=2
        0 peek 0 -> ok left=2 at=2",
    );
    check(
        key(Algorithm::TokenBucket, &["5 per minute", "5 per hour"]),
        "
        0 hit 1 -> ok left=4 at=0",
    );
}

/// What each says by itself, with its role, and which of them are charged.
#[test]
fn a12_a_candidate_is_charged_if_the_others_and_it_allow_and_changes_nothing_for_them() {
    const E: Role = Role::Enforced;
    const NEW: Role = Role::Candidate { replaces: None };
    const FIRST: Role = Role::Candidate { replaces: Some(0) };
    for (subjects, charged) in [
        (&[(E, true), (E, true)][..], &[true, true][..]),
        (&[(E, true), (E, false)], &[false, false]),
        (&[(E, true), (NEW, true)], &[true, true]),
        (&[(E, true), (NEW, false)], &[true, false]),
        (&[(E, false), (NEW, true)], &[false, false]),
        (&[(E, false), (FIRST, true)], &[false, true]),
        (&[(E, false), (FIRST, true), (E, true)], &[false, true, false]),
        (&[(E, false), (FIRST, true), (E, false)], &[false, false, false]),
        (&[(E, true), (FIRST, false), (NEW, true)], &[true, false, true]),
        (&[(NEW, true)], &[true]),
    ] {
        let (roles, allowed): (Vec<Role>, Vec<bool>) = subjects.iter().copied().unzip();
        let found: Vec<bool> = (0..roles.len()).map(|index| all_allow(&roles, &allowed, index)).collect();
        assert_eq!(found, charged, "{subjects:?}");
    }
}

#[test]
fn a5_one_of_the_alternatives_has_to_allow_and_those_that_do_are_charged() {
    const E: Role = Role::Enforced;
    const A: Role = Role::Alternative;
    const NEW: Role = Role::Candidate { replaces: None };
    for (subjects, charged) in [
        (&[(A, true)][..], &[true][..]),
        (&[(A, false)], &[false]),
        (&[(A, true), (A, true)], &[true, true]),
        (&[(A, true), (A, false)], &[true, false]),
        (&[(A, false), (A, false)], &[false, false]),
        (&[(E, true), (A, true), (A, false)], &[true, true, false]),
        (&[(E, true), (A, false), (A, false)], &[false, false, false]),
        (&[(E, false), (A, true)], &[false, false]),
        (&[(A, false), (A, true), (NEW, true)], &[false, true, true]),
        (&[(A, false), (NEW, true)], &[false, false]),
    ] {
        let (roles, allowed): (Vec<Role>, Vec<bool>) = subjects.iter().copied().unzip();
        let found: Vec<bool> = (0..roles.len()).map(|index| all_allow(&roles, &allowed, index)).collect();
        assert_eq!(found, charged, "{subjects:?}");
        assert_eq!(pass(subjects.iter().copied()), charged.contains(&true), "{subjects:?}");
    }
}
