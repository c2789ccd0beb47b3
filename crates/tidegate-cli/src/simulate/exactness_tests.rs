//! Several threads answer as one does, and totals are those of a naive recount.

use super::compare::Comparison;
use super::tally::Tally;
use super::tests::replay;
use super::{Format, Notes, Replayed};
use std::collections::HashMap;
use std::fmt::Write as _;
use tidegate_testkit::Random;

/// Requests of a log: second, address, user.
type Requests = Vec<(u64, String, String)>;

/// Traffic of which a few clients make most, over ten minutes, up to 20 s out of order.
fn traffic(seed: u64, lines: u64) -> Requests {
    let mut random = Random(seed);
    let request = |i: u64| {
        let second = 1_763_200_000 + i * 600 / lines + random.below(20);
        let busy = random.below(400) + 1;
        let (client, user) = (random.below(busy), random.below(60));
        let user = if user < 20 { "-".to_owned() } else { format!("u{user}") };
        (second, format!("10.0.{}.{}", client / 250, client % 250), user)
    };
    (0..lines).map(request).collect()
}

fn as_clf(requests: &Requests) -> String {
    let mut text = String::new();
    for (second, ip, user) in requests {
        let (date, time) = tidegate_wire::calendar::date_and_time(*second);
        let month = if &date[5..7] == "11" { "Nov" } else { panic!("{date}") };
        let (year, day) = (&date[..4], &date[8..]);
        let _ =
            writeln!(text, "{ip} - {user} [{day}/{month}/{year}:{time} +0000] \"GET /p HTTP/1.1\" 200 1 \"-\" \"-\"");
    }
    text
}

fn limiter(name: &str, by: &str, rules: &str) -> String {
    format!("[[limiter]]\nname = \"{name}\"\nby = [\"{by}\"]\n{rules}\n")
}

/// Everything that a summary or a report is made of, as text.
fn everything(tally: &Tally) -> String {
    let mut out =
        format!("{} {} {} {} {:?}\n", tally.allowed, tally.denied, tally.unlimited, tally.keys_limited(), tally.axis);
    for limiter in &tally.limiters {
        let bars = (limiter.allowed_bars.clone().on(&tally.axis), limiter.denied_bars.clone().on(&tally.axis));
        let counts = (limiter.allowed, limiter.denied, &limiter.decided, limiter.blocked);
        let _ = writeln!(out, "{} {counts:?} {bars:?}", limiter.spec.name);
    }
    for (limiter, key, counts) in tally.top(usize::MAX) {
        let bars = counts.bars.clone().on(&tally.axis);
        let _ = writeln!(out, "{} {key:?} {} {} {} {bars:?}", limiter.name, counts.denied, counts.first, counts.last);
    }
    out
}

fn all_told((replayed, notes): &(Replayed, Notes)) -> String {
    let tallies: String =
        replayed.policies.iter().map(|one| everything(&one.tally) + &one.skipped.to_string()).collect();
    let Comparison { both_allow, both_deny, newly_denied, newly_allowed, .. } = replayed.comparison;
    format!("{tallies} {both_allow} {both_deny} {newly_denied} {newly_allowed} {notes:?}")
}

#[track_caller]
fn check_threads(configs: &[&str], format: Format, input: &str) {
    let (one, outcome) = replay(configs, format, input.as_bytes(), 1);
    let expected = all_told(&outcome.unwrap());
    assert!(!one.is_empty());
    for threads in [2, 3, 7] {
        let (several, outcome) = replay(configs, format, input.as_bytes(), threads);
        assert!(one == several, "{threads} threads answer otherwise");
        assert_eq!(all_told(&outcome.unwrap()), expected, "{threads} threads");
    }
}

#[test]
fn several_threads_answer_as_one_where_keys_share_nothing() {
    let log = as_clf(&traffic(1, 40_000));
    for rules in [
        "limits = [\"20 per minute\"]",
        "limits = [\"20 per minute\", \"90 per hour block 2m\"]",
        "algorithm = \"sliding-log\"\nlimits = [\"15 per minute\"]",
        "algorithm = \"sliding-window\"\nlimits = [\"15 per minute\"]",
        "algorithm = \"buckets\"\nresolution = \"10s\"\nhistory = \"1h\"\nlimits = [\"15 per minute\"]",
        "algorithm = \"average\"\nstrict = true\nlimits = [\"15 per minute\"]",
    ] {
        let (by_ip, by_user) = (limiter("api", "ip", rules), limiter("api", "user", rules));
        check_threads(&[&by_ip], Format::Clf, &log);
        check_threads(&[&by_ip, &by_user], Format::Clf, &log);
    }
}

/// A user's requests from two addresses couple the addresses: all of a request's keys are charged, or none.
#[test]
fn a5_several_threads_answer_as_one_where_requests_touch_several_keys() {
    let both =
        limiter("user", "user", "limits = [\"9 per minute\"]") + &limiter("ip", "ip", "limits = [\"20 per minute\"]");
    let log = as_clf(&traffic(2, 30_000));
    check_threads(&[&both], Format::Clf, &log);
    check_threads(&[&both, &limiter("ip", "ip", "limits = [\"20 per minute\"]")], Format::Clf, &log);
    // And users that count together are one key.
    let rules = "limits = [\"9 per minute\"]\n[[limiter.match]]\nuser = \"u3*\"\ntogether = [\"user\"]\nlimits = [\"90 per minute\"]";
    check_threads(&[&limiter("user", "user", rules)], Format::Clf, &log);
}

#[test]
fn several_threads_answer_as_one_for_traces_with_operations() {
    let config = limiter("api", "ip", "algorithm = \"sliding-log\"\nlimits = [\"12 per minute\"]");
    let mut random = Random(3);
    let mut trace = String::new();
    for i in 0..60_000_u64 {
        let (at, key) = (i / 50, random.below(300));
        let _ = match random.below(1_000) {
            0 => writeln!(
                trace,
                "{{\"at\":{at},\"op\":\"block\",\"limiter\":\"api\",\"key\":\"k{key}\",\"for\":\"1m\"}}"
            ),
            1 => writeln!(trace, "{{\"at\":{at},\"op\":\"blocked\",\"limiter\":\"api\"}}"),
            2 => writeln!(trace, "{{\"at\":{at},\"op\":\"unblock_all\",\"limiter\":\"api\"}}"),
            3..300 => writeln!(trace, "{{\"at\":{at},\"attributes\":{{\"ip\":\"k{key}\"}}}}"),
            _ => writeln!(trace, "{{\"at\":{at},\"limiter\":\"api\",\"key\":\"k{key}\"}}"),
        };
    }
    check_threads(&[&config], Format::Ndjson, &trace);
}

/// Answers before the line at fault are written, and none after it, however many threads there are.
#[test]
fn a_line_at_fault_ends_the_replay_at_the_same_place() {
    let config = limiter("api", "ip", "limits = [\"20 per minute\"]");
    let mut requests = traffic(4, 30_000);
    requests.sort_by_key(|(second, ..)| *second);
    requests[25_000].1 = "x".repeat(600);
    requests[27_000].1 = "y".repeat(600);
    let log = as_clf(&requests);
    let (one, outcome) = replay(&[&config], Format::Clf, log.as_bytes(), 1);
    let fault = format!("{:?}", outcome.err());
    assert!(fault.contains("Line(25001, \"") && fault.contains("more than 512"), "{fault}");
    assert_eq!(one.lines().count(), 25_000);
    for threads in [2, 5] {
        let (several, outcome) = replay(&[&config], Format::Clf, log.as_bytes(), threads);
        assert!(several == one, "{threads} threads");
        assert_eq!(format!("{:?}", outcome.err()), fault);
    }
}

/// Fixed windows from the first hit, counted with a map and nothing of ours.
fn recount(requests: &Requests, most: u32, period: u64) -> (Vec<bool>, HashMap<String, u64>) {
    let mut sorted: Vec<&(u64, String, String)> = requests.iter().collect();
    sorted.sort_by_key(|(second, ..)| *second);
    let (mut windows, mut denied) = (HashMap::<&str, (u64, u32)>::new(), HashMap::new());
    let allowed = sorted.into_iter().map(|(second, ip, _)| {
        let window = windows.entry(ip).or_insert((*second, 0));
        if *second >= window.0 + period {
            *window = (*second, 0);
        }
        if window.1 < most {
            window.1 += 1;
            return true;
        }
        *denied.entry(ip.clone()).or_insert(0) += 1;
        false
    });
    (allowed.collect(), denied)
}

#[test]
fn totals_are_those_of_a_naive_recount() {
    let requests = traffic(5, 50_000);
    let fixed = |limit: &str| limiter("api", "ip", &format!("algorithm = \"fixed-window\"\nlimits = [\"{limit}\"]"));
    let (new, old) = (fixed("25 per 1m"), fixed("60 per 5m"));
    let (out, outcome) = replay(&[&new, &old], Format::Clf, as_clf(&requests).as_bytes(), 3);
    let (replayed, _) = outcome.unwrap();
    let ((new, new_keys), (old, old_keys)) = (recount(&requests, 25, 60), recount(&requests, 60, 300));

    let answered: Vec<bool> = out.lines().map(|line| line.contains("\"allowed\":true")).collect();
    assert!(answered == new, "the answers");
    let pairs = || new.iter().zip(&old);
    let count = |a: bool, b: bool| pairs().filter(|pair| *pair == (&a, &b)).count() as u64;
    let Comparison { both_allow, both_deny, newly_denied, newly_allowed, .. } = replayed.comparison;
    assert_eq!(
        [both_allow, both_deny, newly_denied, newly_allowed],
        [count(true, true), count(false, false), count(false, true), count(true, false)]
    );
    assert!([both_allow, both_deny, newly_denied, newly_allowed].iter().all(|n| *n > 100));
    for (outcome, keys, verdicts) in
        [(&replayed.policies[0], &new_keys, &new), (&replayed.policies[1], &old_keys, &old)]
    {
        let tally = &outcome.tally;
        assert_eq!(tally.allowed, verdicts.iter().filter(|allowed| **allowed).count() as u64);
        assert_eq!(tally.requests(), requests.len() as u64);
        let everything: HashMap<String, u64> = tally.limiters[0]
            .keys
            .iter()
            .map(|(key, counts)| (String::from_utf8(key.to_vec()).unwrap(), counts.denied))
            .collect();
        assert_eq!(&everything, keys);
        assert_eq!(tally.deciding_limits().iter().map(|(.., n)| n).sum::<u64>(), tally.denied);
    }
    let (changes, changed) = Comparison::keys(&replayed.policies[0].tally, &replayed.policies[1].tally, usize::MAX);
    let only = |a: &HashMap<String, u64>, b: &HashMap<String, u64>| {
        a.keys().filter(|key| !b.contains_key(*key)).count() as u64
    };
    assert_eq!((changed.newly_limited, changed.no_longer), (only(&new_keys, &old_keys), only(&old_keys, &new_keys)));
    let of =
        |keys: &HashMap<String, u64>, key: &[u8]| keys.get(std::str::from_utf8(key).unwrap()).copied().unwrap_or(0);
    assert!(changes.iter().all(|one| (one.before, one.now) == (of(&old_keys, one.key), of(&new_keys, one.key))));
}

/// Which keys are everything apart is the same, past the bound too: the first that were denied.
#[test]
fn keys_past_the_bound_are_the_same_ones() {
    let config = limiter("api", "ip", "limits = [\"0 per minute\"]");
    let mut log = String::new();
    for i in 0..130_000_u64 {
        let key = (i * 7_919) % 120_000;
        let _ = writeln!(log, "h{key} - - [15/Nov/2025:10:{:02}:{:02} +0000] \"-\" 1 1", i / 60_000, i / 1_000 % 60);
    }
    let (_, one) = replay(&[&config], Format::Clf, log.as_bytes(), 1);
    let (_, four) = replay(&[&config], Format::Clf, log.as_bytes(), 4);
    let (one, four) = (one.unwrap().0, four.unwrap().0);
    let (one, four) = (&one.policies[0].tally, &four.policies[0].tally);
    assert_eq!((one.untold, one.keys_limited()), (20_000, "100000+".to_owned()));
    assert_eq!((four.untold, four.keys_limited()), (20_000, "100000+".to_owned()));
    let names = |tally: &Tally| {
        let mut names: Vec<Box<[u8]>> = tally.limiters[0].keys.keys().cloned().collect();
        names.sort();
        names
    };
    assert!(names(one) == names(four));
}
