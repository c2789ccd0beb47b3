//! Suggestions against traffic made from known distributions, and against what `simulate` finds.

use super::super::progress::Progress;
use super::super::tests::replay;
use super::super::{Format, Input};
use super::*;
use std::fmt::Write as _;
use std::io::Cursor;
use tidegate_testkit::Random;

/// A trace of requests: second and key, with a cost.
fn trace(mut requests: Vec<(u64, u64, u32)>) -> String {
    requests.sort_by_key(|(ms, ..)| *ms);
    let mut out = String::new();
    for (ms, key, cost) in requests {
        let _ = writeln!(
            out,
            "{{\"at\":{}.{:03},\"attributes\":{{\"user\":\"u{key}\"}},\"cost\":{cost}}}",
            ms / 1_000,
            ms % 1_000
        );
    }
    out
}

fn subject() -> Subject {
    let rules = Rules::new(Algorithm::default(), &["1 per minute".parse().unwrap()]).unwrap();
    Subject { spec: LimiterSpec::new("suggested", rules).by(None, &["user"]), limiter: None, skip_bad_lines: false }
}

fn read_trace(text: &str) -> Traffic {
    let input = Input::of("t".to_owned(), Box::new(Cursor::new(text.to_owned().into_bytes())), true, Progress::none());
    read(input.unwrap(), Format::Ndjson, Order::Strict, &subject()).unwrap().0
}

const MINUTE: Micros = Micros::from_secs(60);

/// What is suggested is what `simulate` then finds: the affected keys and the denied requests, one by one.
#[track_caller]
fn check_against_simulate(text: &str, per: Micros, shares: &[Share]) -> Vec<Suggestion> {
    let traffic = read_trace(text);
    let suggestions = suggest(&traffic, &ALGORITHMS, per, shares, 2);
    assert_eq!(suggestions.len(), ALGORITHMS.len() * shares.len());
    for one in &suggestions {
        let (_, outcome) = replay(&[&subject().toml(one)], Format::Ndjson, text.as_bytes(), 2);
        let tally = &outcome.unwrap().0.policies[0].tally;
        let keys = tally.limiters[0].keys.len() as u64;
        assert_eq!((keys, tally.denied), (one.keys_affected, one.requests_denied), "{one:?}");
        assert!(one.keys_affected <= one.share.of(traffic.keys() as u64), "{one:?}");
        // It is the smallest: one less affects more keys than may be.
        let count = one.rules.limits()[0].count();
        if count > 1 {
            let smaller = one.limit().replacen(&count.to_string(), &(count - 1).to_string(), 1);
            let config = subject().toml(one).replace(&one.limit(), &smaller);
            let (_, outcome) = replay(&[&config], Format::Ndjson, text.as_bytes(), 2);
            let keys = outcome.unwrap().0.policies[0].tally.limiters[0].keys.len() as u64;
            assert!(keys > one.share.of(traffic.keys() as u64), "{smaller} would do for {one:?}");
        }
    }
    suggestions
}

/// 1,000 keys; the n-th makes n requests within one second, alone in its hour: for every counting algorithm a limit of N per minute
/// affects 1,000 − N keys.
#[test]
fn a_known_distribution_gives_the_known_limit() {
    let requests = (1..=200_u64).flat_map(|key| (0..key).map(move |i| (key * 3_600_000 + i, key, 1))).collect();
    let text = trace(requests);
    let shares = [Share(10_000), Share(100_000), Share(0)];
    for one in check_against_simulate(&text, MINUTE, &shares) {
        let counts = one.rules.limits()[0].count();
        let bearable = one.share.of(200);
        match one.algorithm {
            // Within a burst of a fifth of a second a bucket refills by less than a token.
            Algorithm::TokenBucket
            | Algorithm::FixedWindow
            | Algorithm::SlidingLog
            | Algorithm::SlidingWindow
            | Algorithm::Buckets => {
                assert_eq!(u64::from(counts), 200 - bearable, "{one:?}");
                assert_eq!(one.keys_affected, bearable, "{one:?}");
            }
            // The average of n requests at once is n − 1 and a little less, and at the limit is over it.
            _ => assert!((200 - bearable - 2..=200 - bearable).contains(&u64::from(counts)), "{one:?}"),
        }
    }
}

/// A steady key at r requests a minute is never denied by r per minute, and always by less in the long run.
#[test]
fn steady_keys_get_their_own_rate() {
    // 100 keys at one request every 10 s, and one at every second, for ten minutes.
    let slow = (0..100_u64).flat_map(|key| (0..60).map(move |i| (key * 7 + i * 10_000, key, 1)));
    let busy = (0..600_u64).map(|i| (i * 1_000, 1_000, 1));
    let text = trace(slow.chain(busy).collect());
    for one in check_against_simulate(&text, MINUTE, &[Share(10_000), Share(0)]) {
        let count = one.rules.limits()[0].count();
        if matches!(one.algorithm, Algorithm::SlidingLog | Algorithm::FixedWindow) {
            assert_eq!(count, if one.share == Share(0) { 60 } else { 6 }, "{one:?}");
        }
    }
}

#[test]
fn random_traffic_is_denied_as_simulate_finds() {
    let mut random = Random(21);
    let mut requests = Vec::new();
    for _ in 0..4_000 {
        let busy = random.below(120) + 1;
        let cost = if random.below(20) == 0 { random.small(5) } else { 1 };
        requests.push((random.below(900_000), random.below(busy), cost));
    }
    let text = trace(requests);
    for per in [Micros::from_secs(1), MINUTE, Micros::from_secs(3_600)] {
        check_against_simulate(&text, per, &[Share(50_000), Share(1_000)]);
    }
}

#[test]
fn the_picture_counts_every_key_once() {
    let text = trace((1..=100_u64).flat_map(|key| (0..key).map(move |i| (key * 3_600_000 + i, key, 1))).collect());
    let traffic = read_trace(&text);
    let picture = Picture::of(&traffic, MINUTE);
    assert_eq!(
        picture.ranges,
        [(1, 1, 1), (2, 2, 1), (3, 4, 2), (5, 8, 4), (9, 16, 8), (17, 32, 16), (33, 64, 32), (65, 128, 36)]
    );
    assert_eq!(picture.quantiles.map(|(_, count)| count), [50, 90, 99, 100]);
    assert_eq!(picture.most, 100);
    // A window is half-open: what is a period apart does not come together.
    let apart = read_trace(&trace(vec![(0, 1, 1), (60_000, 1, 1), (119_999, 1, 1)]));
    assert_eq!(Picture::of(&apart, MINUTE).most, 2);
}

#[test]
fn shares_are_read_and_written() {
    for (text, shown) in
        [("1%", "1 %"), ("0.1%", "0.1 %"), ("0.0001 %", "0.0001 %"), ("0%", "0 %"), ("99.9999%", "99.9999 %")]
    {
        assert_eq!(read_share(text).unwrap().to_string(), shown);
    }
    assert!(read_share("100%").is_err() && read_share("1").is_err());
}

#[test]
fn what_is_told_is_whole_and_escaped() {
    let text = trace(vec![(0, 1, 1), (1, 1, 1), (2, 2, 1)]);
    let (traffic, subject) = (read_trace(&text), subject());
    let found = [Found {
        per: MINUTE,
        picture: Picture::of(&traffic, MINUTE),
        suggestions: suggest(&traffic, &[Algorithm::TokenBucket], MINUTE, &[Share(0)], 1),
    }];
    let findings = text::Findings { input: "<x>", subject: &subject, traffic: &traffic, found: &found, skipped: 0 };
    let page = page::html(&findings);
    assert!(page.contains("&lt;x&gt;") && !page.contains("<x>") && !page.contains("<script"), "{page}");
    assert!(
        findings.text().contains("0 %  token-bucket  2 per 1m              0     0 %                0     0 %"),
        "{}",
        findings.text()
    );
    let json: serde_json::Value = serde_json::from_str(&findings.json()).unwrap();
    assert_eq!((&json["keys"], &json["suggestions"][0]["limit"]), (&2.into(), &"2 per 1m".into()));
}
