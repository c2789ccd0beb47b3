//! The gate as its users see it: policies, keys of attributes, explanations, people's commands,
//! restarts.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate::{
    Algorithm, AskError, Clock, Condition, Gate, Grid, LimiterSpec, Match, Micros, OVERRIDES_MAX, OpenError, Outcome,
    Policy, Reason, Request, Rules, Schedule, Settings, Value, Which, Windows,
};

fn spec(name: &str, algorithm: Algorithm, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(86_400)).unwrap();
    let rules = match algorithm {
        Algorithm::Buckets => Rules::buckets(grid, &limits),
        _ => Rules::new(algorithm, &limits),
    };
    LimiterSpec::new(name, rules.unwrap())
}

/// The design note's hybrid: by user, by address, both or neither.
fn login() -> Vec<LimiterSpec> {
    vec![
        spec("login-user", Algorithm::SlidingLog, &["2 per minute"]).by(Some("login"), &["user"]),
        spec("login-ip", Algorithm::FixedWindow, &["3 per minute"]).by(Some("login"), &["ip"]),
    ]
}

fn gate(limiters: Vec<LimiterSpec>) -> Gate {
    Gate::with_clock(Policy::new(limiters).unwrap(), Clock::manual(Micros::from_secs(1_000_000)))
}

/// `[+SECONDS] [user=U] [ip=I] -> allow|deny [by LIMITER] [left=N]`
#[track_caller]
fn check_login(script: &str) {
    let gate = gate(login());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (request, expected) = line.split_once("->").unwrap();
        let mut attributes: Vec<(&str, &[u8])> = Vec::new();
        for word in request.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) => attributes.push((name, value.as_bytes())),
                None => {
                    let seconds = word.strip_prefix('+').unwrap().parse().unwrap();
                    gate.clock().set(gate.now().saturating_add(Micros::from_secs(seconds)));
                }
            }
        }
        let answer = gate.decide(&Request::of(Some("login"), &attributes)).unwrap();
        let limiter = answer.limiter.map_or("none".to_owned(), |limiter| limiter.name.clone());
        let left = answer.remaining.map_or("none".to_owned(), |left| left.to_string());
        let got = format!("{} by {limiter} left={left}", if answer.allowed { "allow" } else { "deny" });
        assert_eq!(got, expected.trim(), "{line}");
    }
}

#[test]
fn a5_hybrid_charges_both_or_neither() {
    check_login(
        "
        user=u1 ip=a -> allow by login-user left=1
        user=u1 ip=a -> allow by login-user left=0
        user=u1 ip=a -> deny by login-user left=0
        user=u1 ip=b -> deny by login-user left=0
        user=u2 ip=a -> allow by login-ip left=0
        user=u2 ip=a -> deny by login-ip left=0
        user=u2 ip=b -> allow by login-user left=0
        ip=b         -> allow by login-ip left=1
        user=u3      -> allow by login-user left=1
        zone=7       -> allow by none left=none
        +60 user=u1 ip=a -> allow by login-user left=1",
    );
}

#[test]
fn explains_who_matched_and_who_decided() {
    let gate = gate(login());
    let attributes: [(&str, &[u8]); 2] = [("user", b"u1"), ("ip", b"a")];
    let request = Request::of(Some("login"), &attributes).explained();
    let answer = gate.decide(&request.cost(2)).unwrap();
    let told: Vec<_> = answer.explanation.iter().map(|e| (e.limiter.name.as_str(), e.decided)).collect();
    assert_eq!(told, [("login-user", true), ("login-ip", false)]);
    assert_eq!(answer.explanation[0].key, b"u1");
    let (limit, decision) = answer.explanation[1].limits[0];
    assert_eq!((limit.to_string().as_str(), decision.remaining), ("3 per 1m", 1));
    let denied = gate.decide(&request).unwrap();
    assert!(!denied.allowed && denied.explanation[1].limits[0].1.verdict.is_allowed());
    assert_eq!(denied.explanation[1].limits[0].1.remaining, 1, "the denial left the address alone");
    let counts = |limiter| gate.limiter_info(limiter).unwrap().counts;
    assert_eq!((counts("login-user").allowed, counts("login-user").denied), (1, 1));
    assert_eq!((counts("login-ip").allowed, counts("login-ip").denied), (1, 0), "it neither allowed nor denied");
}

#[test]
fn a_peek_says_what_a_hit_would_and_changes_nothing() {
    let gate = gate(vec![spec("api", Algorithm::FixedWindow, &["1 per minute block 1h"])]);
    for _ in 0..3 {
        assert!(gate.peek("api", "k").unwrap().allowed);
    }
    assert!(gate.hit("api", "k").unwrap().allowed);
    for _ in 0..3 {
        let answer = gate.peek("api", "k").unwrap();
        assert_eq!((answer.allowed, answer.reason), (false, Reason::Limited));
        assert_eq!(answer.retry_after, Some(Micros::from_secs(60)), "a peek starts no block");
    }
}

#[test]
fn a_disabled_limiter_allows_and_counts_nothing() {
    let mut stubborn = spec("stubborn", Algorithm::FixedWindow, &["1 per minute"]);
    stubborn.honour_disable = false;
    let gate = gate(vec![spec("api", Algorithm::FixedWindow, &["1 per minute"]), stubborn]);
    gate.at_once(gate.set_enabled("api", false)).unwrap();
    gate.at_once(gate.set_enabled("stubborn", false)).unwrap();
    for _ in 0..5 {
        let answer = gate.hit("api", "k").unwrap();
        assert_eq!((answer.allowed, answer.reason, answer.limit), (true, Reason::Disabled, None));
        assert_eq!(answer.limiter.unwrap().name, "api");
    }
    assert!(
        gate.decide_many("api", &[&b"k"[..]; 3], 1).unwrap().iter().all(|answer| answer.reason == Reason::Disabled)
    );
    assert!(gate.hit("stubborn", "k").unwrap().allowed);
    assert!(!gate.hit("stubborn", "k").unwrap().allowed, "honour_disable = false keeps limiting");
    gate.at_once(gate.set_enabled("api", true)).unwrap();
    assert_eq!(gate.hit("api", "k").unwrap().remaining, Some(0));
}

#[test]
fn a10_people_block_unblock_and_list() {
    let gate = gate(vec![spec("api", Algorithm::TokenBucket, &["5 per minute"])]);
    let names = |which| gate.at_once(gate.keys("api", which, None, 100)).unwrap().keys;
    let until = gate.at_once(gate.block("api", b"bad", Micros::from_secs(600))).unwrap();
    assert_eq!(until, gate.now().saturating_add(Micros::from_secs(600)));
    let answer = gate.hit("api", "bad").unwrap();
    assert_eq!((answer.reason, answer.retry_after), (Reason::Blocked, Some(Micros::from_secs(600))));
    assert!(gate.hit("api", "good").unwrap().allowed);
    assert_eq!(names(Which::Blocked), [b"bad"]);
    assert_eq!(names(Which::Tracked), [&b"bad"[..], b"good"]);
    assert!(gate.at_once(gate.unblock("api", b"bad")).unwrap());
    assert!(!gate.at_once(gate.unblock("api", b"bad")).unwrap());
    assert!(gate.hit("api", "bad").unwrap().allowed);
    gate.at_once(gate.block("api", b"x", Micros::from_secs(10))).unwrap();
    gate.at_once(gate.block("api", b"y", Micros::from_secs(10))).unwrap();
    assert_eq!(gate.at_once(gate.unblock_all("api")).unwrap(), 2);
    assert_eq!(gate.at_once(gate.unblock_all("api")).unwrap(), 0);
    gate.at_once(gate.block("api", b"z", Micros::from_secs(10))).unwrap();
    gate.clock().set(gate.now().saturating_add(Micros::from_secs(10)));
    assert_eq!(names(Which::Blocked), Vec::<Vec<u8>>::new(), "over at exactly its end");
    assert!(gate.hit("api", "z").unwrap().allowed);
}

#[test]
fn listings_come_in_pages_that_miss_nothing() {
    let gate = gate(vec![spec("api", Algorithm::FixedWindow, &["5 per minute"])]);
    for key in 0..1_000 {
        let _ = gate.hit("api", format!("key {key}")).unwrap();
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = gate.at_once(gate.keys("api", Which::Tracked, after, 7)).unwrap();
        assert!(page.keys.len() <= 7);
        all.extend(page.keys);
        after = page.next;
        if after.is_none() {
            break;
        }
        assert_eq!(after.unwrap().to_string().parse(), Ok(after.unwrap()));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 1_000);
}

#[test]
fn refusals_charge_nothing() {
    let hashes = LimiterSpec { names: false, ..spec("hashes", Algorithm::TokenBucket, &["5 per minute"]) };
    let gate = gate(vec![spec("api", Algorithm::TokenBucket, &["5 per minute"]), hashes]);
    let said = |result: Result<_, AskError>| result.err().unwrap().to_string();
    assert!(said(gate.hit("apy", "k").map(drop)).contains("no limiter is named \"apy\"; there are: api, hashes"));
    assert!(said(gate.hit("api", "").map(drop)).contains("the key is empty"));
    assert!(said(gate.hit("api", [7; 513]).map(drop)).contains("513 bytes, more than 512"));
    assert!(gate.hit("api", [7; 512]).unwrap().allowed);
    assert!(said(gate.at_once(gate.keys("hashes", Which::Tracked, None, 9)).map(drop)).contains("set names = true"));
    assert!(said(gate.decide_many("api", &[b"a", b""], 1).map(drop)).contains("the key is empty"));
    assert_eq!(gate.peek("api", "a").unwrap().remaining, Some(5), "the batch with a bad key charged nothing");
    let denied = gate.decide(&Request::hit("api", b"a").cost(6)).unwrap();
    assert_eq!((denied.reason, denied.retry_after), (Reason::CostAboveLimit, None));
}

#[test]
fn a_reload_keeps_states_and_applies_at_once() {
    let one = |limits: &[&str]| Policy::new(vec![spec("api", Algorithm::SlidingLog, limits)]).unwrap();
    let gate = Gate::with_clock(one(&["5 per minute"]), Clock::manual(Micros::from_secs(100)));
    let _ = gate.decide(&Request::hit("api", b"k").cost(4)).unwrap();
    gate.at_once(gate.block("api", b"bad", Micros::from_secs(60))).unwrap();
    gate.at_once(gate.set_enabled("api", true)).unwrap();
    gate.reload(&one(&["9 per minute"])).unwrap();
    assert_eq!(gate.peek("api", "k").unwrap().remaining, Some(5));
    gate.reload(&one(&["3 per minute"])).unwrap();
    assert!(!gate.hit("api", "k").unwrap().allowed);
    gate.reload(&one(&["9 per minute", "2 per second"])).unwrap();
    assert_eq!(gate.hit("api", "k").unwrap().remaining, Some(1), "a second limit starts fresh, the first goes on");
    assert_eq!(gate.hit("api", "bad").unwrap().reason, Reason::Blocked);
    gate.reload(&Policy::default()).unwrap();
    assert!(matches!(gate.hit("api", "k"), Err(AskError::UnknownLimiter { .. })));
}

#[test]
fn a_reload_that_does_not_fit_changes_nothing() {
    let policy = |n: usize| {
        Policy::new((0..n).map(|i| spec(&format!("l{i}"), Algorithm::FixedWindow, &["1 per day"])).collect())
    };
    let settings = Settings { path: None, max_memory: 1 << 20 };
    let gate = Gate::open(policy(1).unwrap(), &settings, Clock::manual(Micros::ZERO)).unwrap();
    assert!(gate.hit("l0", "k").unwrap().allowed);
    let error = gate.reload(&policy(500).unwrap()).unwrap_err().to_string();
    assert!(error.contains("more than max_memory = 1.0 MiB"), "{error}");
    assert!(!gate.hit("l0", "k").unwrap().allowed);
    let other = Policy::new(vec![spec("l0", Algorithm::SlidingLog, &["1 per day"])]).unwrap();
    assert_eq!(gate.reload(&other).unwrap().afresh, ["l0"]);
}

#[test]
fn a_restart_goes_on_where_it_was() {
    let files = tempfile::tempdir().unwrap();
    let settings = Settings { path: Some(files.path().join("data")), ..Settings::default() };
    let policy = || {
        let algorithms = Algorithm::ALL.into_iter().enumerate();
        let specs = algorithms.map(|(i, a)| spec(&format!("l{i}"), a, &["5 per minute", "8 per hour block 2h"]));
        Policy::new(specs.collect()).unwrap()
    };
    let open = |at| Gate::open(policy(), &settings, Clock::manual(Micros::from_secs(at)));
    let gate = open(1_000).unwrap();
    assert!(open(1_000).is_err_and(|error| error.to_string().contains("another process holds")));
    for index in [0, 1, 2, 3, 4, 7] {
        let _ = gate.decide(&Request::hit(&format!("l{index}"), b"k").cost(3)).unwrap();
        gate.at_once(gate.block(&format!("l{index}"), b"bad", Micros::from_secs(600))).unwrap();
    }
    gate.at_once(gate.set_enabled("l2", false)).unwrap();
    gate.save().unwrap();
    drop(gate);

    // A clock that was set back while it was down, by less than what is carried to now: no state comes from the future.
    let gate = open(950).unwrap();
    assert_eq!(gate.now(), Micros::from_secs(1_000));
    for index in [0, 1, 3, 4, 7] {
        let limiter = format!("l{index}");
        assert_eq!(gate.peek(&limiter, "k").unwrap().remaining, Some(2), "{limiter}");
        assert_eq!(gate.hit(&limiter, "bad").unwrap().retry_after, Some(Micros::from_secs(600)), "{limiter}");
    }
    assert_eq!(gate.hit("l2", "bad").unwrap().reason, Reason::Disabled);
}

#[test]
fn a_damaged_snapshot_is_reported_and_never_empty() {
    let files = tempfile::tempdir().unwrap();
    let settings = Settings { path: Some(files.path().to_owned()), ..Settings::default() };
    let policy = || Policy::new(vec![spec("api", Algorithm::SlidingLog, &["5 per minute"])]).unwrap();
    let open = || Gate::open(policy(), &settings, Clock::manual(Micros::from_secs(1_000)));
    let gate = open().unwrap();
    for key in 0..20 {
        let _ = gate.hit("api", format!("k{key}")).unwrap();
    }
    gate.save().unwrap();
    drop(gate);
    let path = files.path().join("snapshot");
    let whole = std::fs::read(&path).unwrap();
    let cases = (0..whole.len()).step_by(37).flat_map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        [flipped, whole[..at].to_vec()]
    });
    for bytes in cases {
        std::fs::write(&path, bytes).unwrap();
        match open() {
            Err(OpenError::Snapshot(error)) => assert!(error.to_string().contains("is damaged"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    std::fs::write(&path, whole).unwrap();
    assert_eq!(open().unwrap().peek("api", "k7").unwrap().remaining, Some(4));
}

#[test]
fn f5_state_loads_under_any_budget_that_the_limiters_fit() {
    let files = tempfile::tempdir().unwrap();
    let settings = |max_memory| Settings { path: Some(files.path().to_owned()), max_memory };
    let policy = || Policy::new(vec![spec("api", Algorithm::FixedWindow, &["5 per day"])]).unwrap();
    let open = |max| Gate::open(policy(), &settings(max), Clock::manual(Micros::from_secs(1_000)));
    let gate = open(64 << 20).unwrap();
    for key in 0..100_000 {
        let _ = gate.hit("api", format!("key {key}")).unwrap();
    }
    gate.save().unwrap();
    drop(gate);
    let small = open(1 << 20).unwrap();
    let (placed, displaced) = (small.usage().entries, small.displaced());
    assert!(displaced > 0 && placed > 0, "{placed}, {displaced}");
    assert_eq!(u64::try_from(placed).unwrap() + displaced, 100_000);
    drop(small);
    let large = open(64 << 20).unwrap();
    assert_eq!((large.usage().entries, large.displaced()), (100_000, 0));
    let many = (0..100).map(|i| spec(&format!("l{i}"), Algorithm::FixedWindow, &["5 per day"])).collect();
    let settings = Settings { path: None, max_memory: 1 << 20 };
    let error = Gate::open(Policy::new(many).unwrap(), &settings, Clock::manual(Micros::ZERO)).unwrap_err();
    assert!(matches!(error, OpenError::TooSmall { .. }), "{error}");
}

/// Three processes that hold a part each: together the limit in every window, and who has what is left over changes.
#[test]
fn a8_limiters_held_in_parts_add_up_to_the_limit() {
    let rules = Rules::new(Algorithm::AlignedWindow, &["10 per minute".parse().unwrap()]).unwrap();
    let gates: Vec<Gate> = (0..3)
        .map(|rank| {
            let spec = LimiterSpec::new("api", rules.clone()).shared(Some((rank, 3)));
            Gate::with_clock(Policy::new(vec![spec]).unwrap(), Clock::manual(Micros::from_secs(600)))
        })
        .collect();
    let mut parts = Vec::new();
    for window in 10..16 {
        let taken: Vec<usize> = gates
            .iter()
            .map(|gate| {
                gate.clock().set(Micros::from_secs(window * 60 + 59));
                let answers = (0..20).map(|_| gate.hit("api", "u").unwrap());
                let (allowed, denied): (Vec<_>, Vec<_>) = answers.partition(|answer| answer.allowed);
                assert!(denied.iter().all(|answer| answer.retry_after == Some(Micros::from_secs(1))), "{denied:?}");
                assert_eq!(gate.share_now("api"), Some(u32::try_from(allowed.len()).unwrap()));
                allowed.len()
            })
            .collect();
        assert_eq!(taken.iter().sum::<usize>(), 10, "window {window}: {taken:?}");
        parts.push(taken);
    }
    assert!(
        parts.contains(&vec![4, 3, 3]) && parts.contains(&vec![3, 4, 3]) && parts.contains(&vec![3, 3, 4]),
        "{parts:?}"
    );
}

/// What is not promised is denied, until it is; what was taken stays taken over a change and a reload.
#[test]
fn a8_a_limiter_that_waits_to_be_told_its_part() {
    let rules = Rules::new(Algorithm::AlignedWindow, &["6 per minute".parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules).shared(None)]).unwrap();
    let gate = Gate::with_clock(policy.clone(), Clock::manual(Micros::from_secs(600)));
    let take = |gate: &Gate| (0..9).filter(|_| gate.hit("api", "u").unwrap().allowed).count();
    assert_eq!((take(&gate), gate.unassigned()), (0, vec![("api".to_owned(), Windows::of(Micros::from_secs(60)))]));
    let stretch = |first, end, rank, of| tidegate_core::replicas::Stretch { first, end, rank, of };
    gate.assign("api", Schedule::new(vec![stretch(10, 11, 0, 3), stretch(11, 12, 0, 2)]));
    assert_eq!(take(&gate), 2);
    gate.reload(&policy).unwrap();
    assert_eq!(take(&gate), 0, "the part of this window is used up");
    gate.clock().set(Micros::from_secs(660));
    assert_eq!(take(&gate), 3, "two are left of three replicas");
    gate.clock().set(Micros::from_secs(720));
    assert_eq!(take(&gate), 0, "this window is not promised");
}

/// Housekeeping once judged all keys by the limiter's own limits: a count of an hour was dropped after ten seconds.
#[test]
fn a11_m2_a_key_with_a_longer_window_is_not_taken_for_idle() {
    let own = spec("api", Algorithm::FixedWindow, &["2 per 10s"]);
    let slow = own.rules.with_limits(&["2 per hour".parse().unwrap()]).unwrap();
    let values = vec![Value::of("key", "slow*").unwrap()];
    let conditions = vec![Condition { attribute: "key".to_owned(), values }];
    let gate = gate(vec![LimiterSpec {
        matches: vec![Match { conditions, together: Vec::new(), outcome: Outcome::Limits(slow), metadata: None }],
        ..own
    }]);
    for key in ["a", "slow"] {
        assert!(gate.decide(&Request::hit("api", key.as_bytes()).cost(2)).unwrap().allowed);
    }
    gate.clock().set(gate.now().saturating_add(Micros::from_secs(3_599)));
    (0..16).for_each(|_| gate.tend());
    assert!(gate.hit("api", "a").unwrap().allowed);
    assert!(!gate.hit("api", "slow").unwrap().allowed);
    gate.clock().set(gate.now().saturating_add(Micros::from_secs(3_600)));
    (0..16).for_each(|_| gate.tend());
    assert_eq!(gate.usage().entries, 0);
}

/// Each replica has its share of a match's limit, too.
#[test]
fn a8_a11_shares_of_limits_by_value() {
    let own = spec("api", Algorithm::AlignedWindow, &["4 per hour"]);
    let gold = own.rules.with_limits(&["10 per hour".parse().unwrap()]).unwrap();
    let conditions = vec![Condition { attribute: "key".to_owned(), values: vec![Value::of("key", "gold").unwrap()] }];
    let matches = vec![Match { conditions, together: Vec::new(), outcome: Outcome::Limits(gold), metadata: None }];
    let admitted = |rank, key: &str| {
        let gate = gate(vec![LimiterSpec { matches: matches.clone(), ..own.clone() }.shared(Some((rank, 2)))]);
        (0..20).filter(|_| gate.hit("api", key).unwrap().allowed).count()
    };
    assert_eq!(admitted(0, "plain") + admitted(1, "plain"), 4);
    assert_eq!((admitted(0, "gold"), admitted(1, "gold")), (5, 5));
}

#[test]
fn a11_overrides_survive_a_restart_and_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { path: Some(folder.path().to_owned()), ..Settings::default() };
    let open = |limits: &[&str]| {
        let policy = Policy::new(vec![spec("api", Algorithm::FixedWindow, limits)]).unwrap();
        Gate::open(policy, &settings, Clock::manual(Micros::from_secs(1_000_000))).unwrap()
    };
    let limits = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let gate = open(&["2 per 10s"]);
    let hour = Some(Micros::from_secs(3_600));
    gate.at_once(gate.set_override("api", b"vip", &limits(&["9 per hour"]), hour, Some("ticket 7"))).unwrap();
    gate.at_once(gate.set_override("api", b"long", &limits(&["3 per hour"]), None, None)).unwrap();
    assert_eq!(gate.hit("api", "vip").unwrap().remaining, Some(8));
    for (limits, part) in [
        (limits(&[]), "0 limits cannot stand in for the limiter's 1"),
        (limits(&["1 per day"; 2]), "2 limits cannot stand in"),
        (limits(&["1 per day burst 2"]), "fixed-window has no burst"),
    ] {
        let error = gate.at_once(gate.set_override("api", b"x", &limits, None, None)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    gate.save().unwrap();
    drop(gate);

    let gate = open(&["2 per 10s"]);
    let all = gate.overrides("api").unwrap();
    assert_eq!(all.iter().map(|info| info.key.as_slice()).collect::<Vec<_>>(), [&b"long"[..], b"vip"]);
    assert_eq!((all[1].reason.as_deref(), all[1].until), (Some("ticket 7"), Some(Micros::from_secs(1_003_600))));
    assert_eq!(gate.hit("api", "vip").unwrap().remaining, Some(7));
    // Limits that do not suit another policy are kept, told, and not in force.
    let two = spec("api", Algorithm::FixedWindow, &["2 per 10s", "5 per hour"]);
    gate.reload(&Policy::new(vec![two]).unwrap()).unwrap();
    assert!(gate.overrides("api").unwrap().iter().all(|info| !info.fits));
    assert_eq!(gate.peek("api", "vip").unwrap().limiter.unwrap().rules.limits()[0].to_string(), "2 per 10s");
    gate.reload(&Policy::new(vec![spec("api", Algorithm::FixedWindow, &["2 per 10s"])]).unwrap()).unwrap();
    assert_eq!(gate.hit("api", "vip").unwrap().limit, Some(9));
    // A key with a longer window by hand is not idle when its limiter's own is over.
    for left in [2, 1, 0] {
        assert_eq!(gate.hit("api", "long").unwrap().remaining, Some(left));
    }
    gate.clock().set(gate.now().saturating_add(Micros::from_secs(3_599)));
    (0..16).for_each(|_| gate.tend());
    assert!(!gate.hit("api", "long").unwrap().allowed);
    gate.clock().set(gate.now().saturating_add(Micros::from_secs(1)));
    gate.tend();
    assert_eq!(gate.overrides("api").unwrap().len(), 1, "an hour has passed");
    for key in 1..OVERRIDES_MAX {
        gate.at_once(gate.set_override("api", key.to_string().as_bytes(), &limits(&["1 per day"]), None, None))
            .unwrap();
    }
    let full = gate.at_once(gate.set_override("api", b"one more", &limits(&["1 per day"]), None, None)).unwrap_err();
    assert!(full.to_string().contains("has 1000 overrides, which is all it may have"), "{full}");
    gate.at_once(gate.set_override("api", b"1", &limits(&["2 per day"]), None, None)).unwrap();
    assert!(gate.at_once(gate.clear_override("api", b"1")).unwrap());
    gate.at_once(gate.set_override("api", b"one more", &limits(&["1 per day"]), None, None)).unwrap();
}

/// Of alternatives one has to allow, and a limiter may stand in for another: by attributes as for descriptors, and told in explanations.
#[test]
fn a5_alternatives_and_replaced_limiters_in_one_request() {
    let of = |name: &str, limit: &str, by: &str| {
        LimiterSpec::new(name, Rules::new(Algorithm::FixedWindow, &[limit.parse().unwrap()]).unwrap())
            .by(Some("d"), &[by])
    };
    let gate = gate(vec![
        LimiterSpec { alternative: true, ..of("monthly", "1 per hour", "user") },
        LimiterSpec { alternative: true, ..of("bought", "2 per 2h", "account") },
        of("all", "9 per minute", "ip"),
        LimiterSpec { replaces: vec!["all".to_owned()], ..of("vip", "1 per minute", "plan") },
    ]);
    let ask = |attributes: &[(&str, &[u8])]| {
        let answer = gate.decide(&Request::of(Some("d"), attributes).explained()).unwrap();
        let role = |name: &str| answer.explanation.iter().find(|one| one.limiter.name == name).map(|one| one.replaced);
        let limiter = answer.limiter.as_ref().map(|spec| spec.name.clone()).unwrap_or_default();
        let wait = answer.retry_after.map(|wait| wait.get() / 1_000_000);
        (answer.allowed, limiter, answer.remaining, wait, role("all"))
    };
    let both: &[(&str, &[u8])] = &[("user", b"u"), ("account", b"a"), ("ip", b"192.0.2.1")];
    let told = |allowed, limiter: &str, left, wait| (allowed, limiter.to_owned(), Some(left), wait, Some(false));
    assert_eq!(ask(both), told(true, "monthly", 0, None));
    assert_eq!(ask(both), told(true, "bought", 0, None), "one that denies says nothing beside one that allows");
    assert_eq!(ask(both), told(false, "monthly", 0, Some(3_600)), "the shortest of their waits");
    assert_eq!(ask(&both[2..]), told(true, "all", 6, None), "a denial charged nothing");
    let vip: &[(&str, &[u8])] = &[("plan", b"gold"), ("ip", b"192.0.2.1")];
    assert_eq!(ask(vip), (true, "vip".to_owned(), Some(0), None, Some(true)));
    assert_eq!(ask(vip), (false, "vip".to_owned(), Some(0), Some(60), Some(true)));
    gate.at_once(gate.set_enabled("vip", false)).unwrap();
    assert_eq!(ask(vip), told(true, "all", 5, None), "a limiter that is disabled replaces nobody");
}
