//! Scenarios as text, through one `check`.
//!
//! `AT STEP… -> REQUEST…`: at this second the steps are done, and exactly these get a permit, in this order.
//! `a1` is the first request of key a: it passes or waits. `-a1` leaves the line (or leaves when called),
//! `.a1` has ended, `<a1` gives its permit back unused, `^a1` wants to use it too late and lines up
//! again. `!` only lets time pass; `bounds TEXT` changes the limit.

use super::*;
use crate::replicas::{ReplicaId, Tally, Terms};
use std::collections::HashMap;

struct Scene {
    turnstile: Turnstile<String>,
    tickets: HashMap<String, Ticket>,
    permits: HashMap<String, Permit>,
}

#[track_caller]
fn check(limit: &str, in_flight: u32, total: u32, script: &str) {
    let bounds = bounds(limit, in_flight, total);
    let (tickets, permits) = (HashMap::new(), HashMap::new());
    let mut scene = Scene { turnstile: Turnstile::new(bounds), tickets, permits };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(limit) = line.strip_prefix("limit ") {
            let (at, limit) = limit.split_once(' ').unwrap();
            let bounds = Bounds { limit: limit.parse().unwrap(), ..scene.turnstile.bounds };
            scene.turnstile.set_bounds(bounds, Micros::from_secs(at.parse().unwrap()));
            continue;
        }
        let (steps, expected) = line.split_once("->").unwrap();
        let mut steps = steps.split_whitespace();
        let now = Micros::from_secs(steps.next().unwrap().parse().unwrap());
        let got: Vec<String> = steps.flat_map(|step| scene.step(step, now)).collect();
        assert_eq!(got.join(" "), expected.trim(), "{line}");
    }
}

fn bounds(limit: &str, in_flight: u32, total: u32) -> Bounds {
    let limit = limit.parse().unwrap();
    Bounds { limit, in_flight, total, waiting: 5, waiting_weight: 50, keys: 4 }
}

fn key(name: &str) -> KeyHash {
    KeyHash::new(u64::from(name.as_bytes()[0]), 7)
}

impl Scene {
    /// The requests that got a permit by this step.
    fn step(&mut self, step: &str, now: Micros) -> Vec<String> {
        let (turnstile, name) = (&mut self.turnstile, step.trim_start_matches(['-', '.', '<', '^']).to_owned());
        let mut got = Vec::new();
        match &step[..1] {
            "!" => turnstile.turn(now),
            "-" => turnstile.leave(self.tickets.remove(&name).unwrap(), now),
            "." => turnstile.finish(self.permits.remove(&name).unwrap(), now),
            "<" => turnstile.give_back(self.permits.remove(&name).unwrap(), now),
            "^" => {
                let permit = self.permits.remove(&name).unwrap();
                let order = Micros::saturating(u64::from(name.as_bytes()[1]));
                let ticket = turnstile.again(permit, order, 10, name.clone(), now);
                self.tickets.insert(name, ticket);
            }
            _ => match turnstile.pass(key(&name), now) {
                Ok(permit) => {
                    self.permits.insert(name.clone(), permit);
                    got.push(name);
                }
                Err(_) => match turnstile.wait(key(&name), 10, name.clone(), now) {
                    Ok(ticket) => drop(self.tickets.insert(name, ticket)),
                    Err(LineFull) => got.push(format!("full:{name}")),
                },
            },
        }
        // A request whose name ends in `x` is called and does not come.
        for called in turnstile.called() {
            if !called.ends_with('x') {
                let permit = turnstile.claim(self.tickets.remove(&called).unwrap()).unwrap();
                self.permits.insert(called.clone(), permit);
            }
            got.push(called);
        }
        got
    }
}

#[test]
fn p3_waits_for_the_next_window_in_order() {
    check(
        "3 per minute",
        0,
        9,
        "
        10  a1 a2 a3 a4 a5 a6 -> a1 a2 a3
        59  !                 ->
        60  !                 -> a4 a5 a6
        60  a7                ->
        121 !                 -> a7",
    );
}

#[test]
fn p3_keys_take_turns() {
    check(
        "2 per minute",
        0,
        9,
        "
        0   a1 a2 b1 b2       -> a1 a2 b1 b2
        0   a3 a4 b3          ->
        60  !                 -> a3 b3 a4",
    );
    check(
        "9 per minute",
        0,
        2,
        "
        0   a1 a2 a3 a4 b1 c1 -> a1 a2
        1   .a1               -> a3
        1   .a2               -> b1
        1   .a3               -> c1
        1   .b1               -> a4",
    );
}

#[test]
fn p1_who_left_takes_no_slot_and_a_given_slot_goes_to_the_next() {
    check(
        "3 per minute",
        0,
        9,
        "
        0   a1 a2 a3 a4 a5 a6 a7 a8 -> a1 a2 a3
        1   -a4 -a5                 ->
        60  !                       -> a6 a7 a8",
    );
    check(
        "1 per minute",
        0,
        9,
        "
        0   a1 a2x a3         -> a1
        60  !                 -> a2x
        61  -a2x              -> a3
        62  a4                ->
        120 !                 -> a4",
    );
}

#[test]
fn p4_an_unused_permit_is_exchanged_in_front_of_the_line() {
    check(
        "2 per minute",
        0,
        9,
        "
        0   a1 a2 a3 a4       -> a1 a2
        60  ^a2               -> a2 a3
        61  ^a3               -> a3
        120 ^a2               -> a2 a4",
    );
    check(
        "2 per minute",
        0,
        9,
        "
        0   a1 a2 a3          -> a1 a2
        1   <a1               -> a3
        1   a4                ->
        61  <a2               -> a4",
    );
}

#[test]
fn in_flight_holds_what_the_window_would_allow() {
    check(
        "9 per minute",
        2,
        9,
        "
        0   a1 a2 a3 a4       -> a1 a2
        1   .a1               -> a3
        61  !                 ->
        61  .a2 .a3           -> a4",
    );
    check(
        "1 per minute",
        1,
        9,
        "
        0   a1 a2             -> a1
        60  !                 ->
        61  .a1               -> a2",
    );
}

#[test]
fn p6_the_line_is_bounded() {
    check(
        "1 per minute",
        0,
        9,
        "
        0   a1 a2 a3 a4 b1 b2 -> a1 b1
        0   b3 a5             -> full:a5
        60  !                 -> a2 b2
        60  a6                ->",
    );
}

#[test]
fn nothing_per_minute_is_never() {
    check(
        "0 per minute",
        0,
        9,
        "
        0   a1                ->
        600 !                 ->
        600 -a1               ->",
    );
}

#[test]
fn t1_a_step_back_lets_nobody_in_again() {
    check(
        "1 per minute",
        0,
        9,
        "
        70  a1 a2             -> a1
        10  !                 ->
        10  a3                ->
        120 !                 -> a2",
    );
}

#[test]
fn a_changed_limit_counts_on_in_the_current_window() {
    check(
        "3 per minute",
        0,
        9,
        "
        70  a1 a2 a3 a4       -> a1 a2 a3
        limit 71 4 per minute
        71  a5                -> a4
        limit 72 5 per 30s
        72  a6                -> a5
        90  !                 -> a6",
    );
}

#[test]
fn m2_past_the_places_keys_share_and_never_start_too_often() {
    // Four keys have places; the fifth and sixth share one (their hashes are alike in the shared part).
    let mut turnstile = Turnstile::<()>::new(bounds("2 per minute", 0, 99));
    let now = Micros::from_secs(1);
    let start = |turnstile: &mut Turnstile<()>, key: u64, now| turnstile.pass(KeyHash::new(key, 0), now).is_ok();
    assert_eq!((0..4).filter(|key| start(&mut turnstile, *key, now)).count(), 4);
    assert!(start(&mut turnstile, 9, now) && start(&mut turnstile, 9 + 4096, now));
    assert!(!start(&mut turnstile, 9, now), "what the other started counts for both");
    assert!(start(&mut turnstile, 10, now), "others share another place");
    assert_eq!(turnstile.keys(), 6);
}

#[test]
fn idle_keys_are_forgotten_after_their_window() {
    let mut turnstile = Turnstile::<()>::new(Bounds { keys: 1_000_000, ..bounds("2 per minute", 0, 99) });
    for key in 0..10_000 {
        let permit = turnstile.pass(KeyHash::new(key, key), Micros::from_secs(1)).unwrap();
        turnstile.finish(permit, Micros::from_secs(1));
    }
    assert_eq!(turnstile.keys(), 10_000);
    let under_way = turnstile.pass(KeyHash::new(7, 7), Micros::from_secs(59)).unwrap();
    let left_at = |turnstile: &mut Turnstile<()>, at| {
        (0..turnstile.tends()).for_each(|_| turnstile.tend(Micros::from_secs(at)));
        turnstile.keys()
    };
    assert_eq!(left_at(&mut turnstile, 59), 10_000, "their window has not passed");
    assert_eq!(left_at(&mut turnstile, 60), 1, "one is under way");
    turnstile.finish(under_way, Micros::from_secs(61));
    assert_eq!(left_at(&mut turnstile, 61), 0);
    assert_eq!(turnstile.tends(), 0, "the memory went back");
    assert_eq!(turnstile.places.with_a_line(), []);
}

/// Windows were numbered from the epoch on, a Thursday. Weeks begin on Mondays: from Thursday to Sunday the store took the
/// number for that of another window, and nothing started.
#[test]
fn p4_weeks_have_one_number_at_replicas_and_at_the_store() {
    for day in 0..14 {
        // From 2026-11-16, a Monday, on; the last moment of each day.
        let now = Micros::from_secs(1_794_787_200 + day * 86_400 + 86_399);
        let mut turnstile = Turnstile::<u32>::new(bounds("5 per week", 2, 9));
        turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(3), call_all: false });
        let _ticket = turnstile.wait_as(key("a"), Name::default(), 1, 1, now).unwrap();
        let pending = turnstile.next_request(now).unwrap();
        let grant = Tally::default().answer(ReplicaId(1), 1, &pending.request, now);
        assert_eq!(grant.map(|grant| grant.granted), Some(1), "day {day}");
        // Shares are assigned by the same numbers.
        let terms = Terms::of(bounds("5 per week", 2, 9).limit.windows());
        assert_eq!((pending.request.window, terms.window(now)), (2_968 + day / 7, 2_968 + day / 7));
        turnstile.answered(pending, grant.unwrap(), now);
    }
}

/// What was under way was reported for windows of the old length only, so that replicas had twice as many in flight.
#[test]
fn p4_another_period_carries_over_what_is_under_way() {
    let mut turnstile = Turnstile::<u32>::new(bounds("5 per minute", 2, 9));
    turnstile.count_at_store(StoreTerms { outage_max: Micros::from_secs(3), call_all: false });
    let now = Micros::from_secs(120);
    let ticket = turnstile.wait_as(key("a"), Name::default(), 1, 1, now).unwrap();
    let pending = turnstile.next_request(now).unwrap();
    turnstile.answered(pending, Grant { granted: 1, outlook: Outlook::Open }, now);
    let permit = turnstile.claim(ticket).unwrap();
    assert!(turnstile.next_request(now).is_none(), "the store knows of it");
    turnstile.set_bounds(bounds("5 per 30s", 2, 9), now);
    let pending = turnstile.next_request(now.saturating_add(Micros::from_secs(1))).unwrap();
    let request = pending.request;
    assert_eq!((request.windows.period(), request.held, request.want), (Micros::from_secs(30), 1, 0));
    turnstile.answered(pending, Grant { granted: 0, outlook: Outlook::Open }, now);
    turnstile.finish(permit, now);
}

#[test]
fn a8_a_part_of_the_limit_rotates_and_what_is_not_promised_waits() {
    use crate::replicas::{Schedule, Stretch};
    // 2 per minute over three: this one, the last, has 0, 1 and 1 in the windows 0, 1 and 2, and after that it is not known.
    let mut turnstile = Turnstile::<u32>::new(bounds("2 per minute", 0, 9));
    let assigned = |end| Schedule::new(vec![Stretch { first: 0, end, rank: 2, of: 3 }]);
    turnstile.set_share(assigned(3), Micros::ZERO);
    for who in 0..5 {
        assert_eq!(turnstile.pass(key("a"), Micros::ZERO), Err(Closed::Limited(Some(Micros::from_secs(60)))));
        let _ = turnstile.wait(key("a"), 1, who, Micros::ZERO).unwrap();
    }
    let called_at = |turnstile: &mut Turnstile<u32>, at| {
        turnstile.turn(Micros::from_secs(at));
        turnstile.called()
    };
    let called: Vec<Vec<u32>> = [0, 60, 61, 120, 180, 200].map(|at| called_at(&mut turnstile, at)).into();
    assert_eq!(called, [vec![], vec![0], vec![], vec![1], vec![], vec![]]);
    assert_eq!((turnstile.share(), turnstile.waiting()), (None, 3));
    turnstile.set_share(assigned(5), Micros::from_secs(201));
    assert_eq!((turnstile.called(), turnstile.share()), (vec![], Some(0)));
    assert_eq!(called_at(&mut turnstile, 240), [2]);
}
