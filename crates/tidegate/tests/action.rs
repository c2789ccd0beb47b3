//! Actions: several checks over one history, as applications use them. Every scenario is data through
//! one `check`, on every store that [`stores`] has.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod stores;

use stores::Store;
use tidegate::{
    Algorithm, Analyzed, AskError, Clock, Gate, Grid, LimiterSpec, Micros, Policy, Rules, Settings, Status, Unless,
};

/// The two checks of most scenarios, with blocks of 10 s that are kept for 60 s.
const TWO: [&str; 2] = ["5 per 20s block 40s", "7 per 40s block 40s"];
/// When scenarios take place: a multiple of ten seconds long after the epoch.
const T: u64 = 1_700_000_000;

fn spec(name: &str, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap();
    LimiterSpec::new(name, Rules::buckets(grid, &limits).unwrap())
}

fn stores(limiters: &[LimiterSpec]) -> Vec<Store> {
    stores::all(limiters, Micros::from_secs(T))
}

/// One line a call, on limiter `a`; times are seconds from [`T`].
///
/// `AT ID increment N [TIME] -> counted|dropped`
/// `AT ID analyze|recompute -> ok | limited SUM of LIMIT until TIME | blocked until TIME`
/// `AT ID ok|is_limited -> true|false` · `AT ID hit N -> true|false` · `AT ID block_for S -> TIME`
/// `AT ID unblock -> true|false` · `AT all tracked|blocked -> ID ID…` · `AT all unblock_all -> N`
#[track_caller]
fn check(limits: &[&str], script: &str) {
    for store in stores(&[spec("a", limits)]) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (call, expected) = line.split_once("->").unwrap();
            let words: Vec<&str> = call.split_whitespace().collect();
            store.gate.clock().set(at(words[0]));
            let told = store.wait(act(&store.gate, &words[1..]));
            if words[2] == "tracked" && !store.lists_tracked {
                assert!(told.unwrap_err().to_string().starts_with("operation not supported: tracked keys"));
                continue;
            }
            assert_eq!(told.unwrap().trim(), expected.trim(), "{}: {line}", store.name);
        }
    }
}

async fn act(gate: &Gate, words: &[&str]) -> Result<String, AskError> {
    let (action, all) = (gate.action("a", words[0]), gate.actions("a"));
    let number = || words[2].parse::<u32>().unwrap();
    Ok(match words[1] {
        "increment" => {
            let counted = action.increment(number(), words.get(3).map(|word| at(word))).await?;
            if counted { "counted" } else { "dropped" }.to_owned()
        }
        "analyze" => shown(&action.analyze().await?.status),
        "recompute" => {
            let told = action.if_limited(|event| async move { shown(&Status::Limited(event)) }).await?;
            told.unwrap_or_else(|| "nothing".to_owned())
        }
        "ok" => action.ok().await?.to_string(),
        "is_limited" => action.is_limited().await?.to_string(),
        "hit" => action.hit(number()).await?.allowed.to_string(),
        "block_for" => relative(action.block_for(Micros::from_secs(number().into())).await?),
        "unblock" => action.unblock().await?.to_string(),
        "unblock_all" => all.unblock_all().await?.to_string(),
        "tracked" => names(all.tracked().await?),
        "blocked" => names(all.blocked().await?),
        other => panic!("unknown call {other}"),
    })
}

fn at(word: &str) -> Micros {
    let (whole, part) = word.split_once('.').unwrap_or((word, "0"));
    let seconds = T.checked_add_signed(whole.parse().unwrap()).unwrap();
    Micros::saturating(seconds * 1_000_000 + format!("{part:0<6}").parse::<u64>().unwrap())
}

fn relative(time: Micros) -> String {
    (time.get() / 1_000_000 - T).to_string()
}

fn shown(status: &Status) -> String {
    match status {
        Status::Ok => "ok".to_owned(),
        Status::Denied => "denied".to_owned(),
        Status::Blocked { until } => format!("blocked until {}", relative(*until)),
        Status::Limited(event) => {
            format!("limited {} of {} until {}", event.sum, event.check, relative(event.blocked_until))
        }
    }
}

fn names(names: Vec<Vec<u8>>) -> String {
    names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn limited_from_the_fifth_for_a_period_and_a_block() {
    check(
        &TWO,
        "
        0    u increment 4 -> counted
        0    u analyze     -> ok
        0    u increment 1 -> counted
        0    u analyze     -> limited 5 of 5 per 20s block 40s until 40
        0    u analyze     -> blocked until 40
        1    u is_limited  -> true",
    );
    for (time, told) in [("0", "false"), ("19", "false"), ("29.999999", "false"), ("30", "true")] {
        check(&["5 per 20s"], &format!("0 u increment 5 -> counted\n{time} u ok -> {told}"));
    }
}

#[test]
fn the_second_check_sees_further_back() {
    check(
        &TWO,
        "
        0    u increment 4 -30 -> counted
        0    u increment 2     -> counted
        0    u analyze         -> ok
        0    u increment 1     -> counted
        0    u analyze         -> limited 7 of 7 per 40s block 40s until 40",
    );
}

#[test]
fn a10_free_exactly_at_the_end_of_a_block_and_not_listed_then() {
    check(
        &TWO,
        "
        0          u increment 5 -> counted
        0          u ok          -> false
        39.999999  u ok          -> false
        39.999999  all blocked   -> u
        40         all blocked   ->
        40         u ok          -> true
        40         all tracked   -> u",
    );
}

#[test]
fn blocks_again_while_the_history_exceeds() {
    check(
        &["5 per 40s block 10s"],
        "
        0    u increment 5 -> counted
        5    u analyze     -> limited 5 of 5 per 40s block 10s until 15
        14   u analyze     -> blocked until 15
        15   u analyze     -> limited 5 of 5 per 40s block 10s until 25
        49   u analyze     -> limited 5 of 5 per 40s block 10s until 59
        59   u analyze     -> ok",
    );
}

#[test]
fn increments_never_block_and_analyses_never_count() {
    check(
        &["2 per 20s"],
        "
        0    u analyze     -> ok
        0    all tracked   ->
        0    u increment 9 -> counted
        0    all blocked   ->
        0    u analyze     -> limited 9 of 2 per 20s until 20
        0    all blocked   -> u
        0    u increment 1 -> counted
        0    u recompute   -> limited 10 of 2 per 20s until 20
        20   u recompute   -> limited 10 of 2 per 20s until 40
        30   u recompute   -> nothing
        30   u analyze     -> blocked until 40",
    );
}

#[test]
fn a_count_of_nothing_is_fine_without_a_history() {
    check(
        &["0 per 20s"],
        "
        0    u ok          -> true
        0    u hit 1       -> false
        0    u ok          -> true
        0    u increment 1 -> counted
        0    u ok          -> false",
    );
}

#[test]
fn what_is_older_than_the_history_is_not_counted() {
    check(
        &["1 per 60s"],
        "
        0    u increment 1 -61 -> dropped
        0    u ok              -> true
        0    u increment 1 -60 -> counted
        0    u ok              -> false",
    );
}

#[test]
fn a5_a_hit_asks_and_counts_in_one_step() {
    check(
        &TWO,
        "
        0    u hit 4       -> true
        0    u hit 2       -> false
        0    u analyze     -> blocked until 40
        40   u hit 3       -> true
        40   u hit 5       -> false
        80   u hit 4       -> true",
    );
}

#[test]
fn unblocking_all_forgets_the_blocked_and_keeps_the_others() {
    check(
        &TWO,
        "
        0    a increment 5 -> counted
        0    b increment 6 -> counted
        0    c increment 4 -> counted
        0    a ok          -> false
        0    b ok          -> false
        0    c ok          -> true
        0    all tracked   -> a b c
        0    all unblock_all -> 2
        0    all unblock_all -> 0
        0    all tracked   -> c
        0    a ok          -> true
        0    c increment 1 -> counted
        0    c ok          -> false
        0    c unblock     -> true
        0    c unblock     -> false
        0    c ok          -> true
        0    d block_for 9 -> 9
        0    d recompute   -> nothing
        0    d analyze     -> blocked until 9
        9    d ok          -> true",
    );
}

#[test]
fn any_identifier_survives_listing_and_scopes_stay_apart() {
    let ids: Vec<Vec<u8>> = vec![
        b"|".to_vec(),
        b"a|b|".to_vec(),
        b"a:b:".to_vec(),
        b"two words ".to_vec(),
        "h\u{fc}te \u{1F40C}".into(),
        vec![b'x'; 512],
    ];
    for store in stores(&[spec("a", &TWO), spec("other", &TWO).in_scope("a:b")]) {
        let gate = &store.gate;
        store.wait(async {
            for id in &ids {
                assert!(gate.action("a", id).increment(5, None).await.unwrap());
                assert!(!gate.action("a", id).ok().await.unwrap());
            }
            assert!(gate.action("other", "only here").increment(1, None).await.unwrap());
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            if store.lists_tracked {
                assert_eq!(gate.actions("a").tracked().await.unwrap(), sorted, "{}", store.name);
                assert_eq!(gate.actions("other").tracked().await.unwrap(), [b"only here"]);
            }
            assert_eq!(gate.actions("a").blocked().await.unwrap(), sorted);
            assert!(gate.action("a", vec![b'x'; 513]).ok().await.is_err());
        });
    }
}

#[test]
fn work_is_done_unless_limited_and_counted_when_it_succeeds() {
    for store in stores(&[spec("a", &["2 per 20s"])]) {
        let gate = &store.gate;
        store.wait(async {
            let action = gate.actions("a").of("u");
            for _ in 0..5 {
                let failed = action.unless_limited(async { Err::<(), _>("no network") }).await.unwrap();
                assert_eq!(failed, Unless::Failed("no network"));
            }
            for n in 0..2 {
                let done = action.unless_limited(async { Ok::<_, ()>(n) }).await.unwrap();
                assert_eq!(done, Unless::Done { value: n, counted: Ok(true) });
            }
            let begun = std::cell::Cell::new(false);
            let work = async {
                begun.set(true);
                Ok::<_, ()>(())
            };
            let limited = action.unless_limited(work).await.unwrap();
            let Unless::Limited(Analyzed { status: Status::Limited(event), .. }) = limited else {
                panic!("{limited:?}")
            };
            assert_eq!((event.identifier.as_slice(), event.sum, begun.get()), (&b"u"[..], 2, false));
            assert_eq!((event.timestamp, event.check.to_string()), (gate.now(), "2 per 20s".to_owned()));
        });
    }
}

#[test]
fn a_disabled_limiter_is_always_fine_and_counts_nothing() {
    let ignoring = LimiterSpec { honour_disable: false, ..spec("ignoring", &["1 per 20s"]) };
    for store in stores(&[spec("a", &["1 per 20s"]), ignoring]) {
        let gate = &store.gate;
        store.wait(async {
            for (limiter, fine) in [("a", true), ("ignoring", false)] {
                let (all, action) = (gate.actions(limiter), gate.action(limiter, "u"));
                assert!(all.is_enabled().await.unwrap());
                all.disable().await.unwrap();
                assert!(!all.is_enabled().await.unwrap());
                assert_eq!(action.increment(1, None).await.unwrap(), !fine);
                assert_eq!(action.ok().await.unwrap(), fine);
                all.enable().await.unwrap();
                assert_eq!(action.ok().await.unwrap(), fine);
            }
        });
    }
}

#[test]
fn other_algorithms_name_the_remedy() {
    let rules = Rules::new(Algorithm::SlidingLog, &["1 per day".parse().unwrap()]).unwrap();
    let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("log", rules)]).unwrap());
    let error = gate.at_once(gate.increment("log", b"u", 1, None)).unwrap_err().to_string();
    assert!(
        error.contains("increment needs algorithm = \"buckets\", and limiter \"log\" has \"sliding-log\""),
        "{error}"
    );
    let error = gate.at_once(gate.analyze("log", b"u", tidegate::IfBlocked::Tell)).unwrap_err().to_string();
    assert!(error.contains("analyze needs algorithm = \"buckets\""), "{error}");
}

/// Counts and blocks outlive a restart, and a renamed limiter that keeps its scope keeps them too.
#[test]
fn a10_a_restart_and_a_new_name_keep_counts_and_blocks() {
    let files = tempfile::tempdir().unwrap();
    let settings = Settings { path: Some(files.path().to_owned()), ..Settings::default() };
    let open = |name: &str| {
        let policy = Policy::new(vec![spec(name, &TWO).in_scope("kept")]).unwrap();
        Gate::open(policy, &settings, Clock::manual(Micros::from_secs(T))).unwrap()
    };
    let gate = open("before");
    gate.at_once(gate.increment("before", b"blocked", 5, None)).unwrap();
    gate.at_once(gate.increment("before", b"counted", 4, None)).unwrap();
    assert!(!gate.at_once(gate.analyze("before", b"blocked", tidegate::IfBlocked::Tell)).unwrap().is_ok());
    gate.save().unwrap();
    drop(gate);
    let gate = open("after");
    let until = Micros::from_secs(T + 40);
    let analyzed = gate.at_once(gate.analyze("after", b"blocked", tidegate::IfBlocked::Tell)).unwrap();
    assert_eq!(analyzed, Analyzed { at: gate.now(), status: Status::Blocked { until }, degraded: None });
    gate.at_once(gate.increment("after", b"counted", 1, None)).unwrap();
    let analyzed = gate.at_once(gate.analyze("after", b"counted", tidegate::IfBlocked::Tell)).unwrap();
    assert!(matches!(analyzed.status, Status::Limited(event) if event.sum == 5));
}
