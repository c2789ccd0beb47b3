//! Replays as data: a policy, the lines in, the lines out.

use super::line;
use super::replay::{Replay, ReplayError};
use super::tally::{Charts, Tally};
use crate::config;
use tidegate_doors::udp::Routing;

fn parsed(text: &str) -> config::Config {
    config::parse("t.toml", text.to_owned(), std::path::Path::new(""), Vec::new()).unwrap()
}

/// What is written, and the tally or the message of the line that ended it.
pub(super) fn run(config: &str, trace: &str) -> (String, Result<Tally, String>) {
    let mut out = Vec::new();
    let config = parsed(config);
    let mut replay = Replay::new(config.policy, &config.udp, config.streams, &mut out, Charts::Wanted).unwrap();
    for text in trace.lines().map(str::trim).filter(|text| !text.is_empty()) {
        let done = line::read(text).map_err(ReplayError::Line).and_then(|line| replay.line(&line));
        if let Err(error) = done {
            drop(replay);
            let ReplayError::Line(message) = error else { panic!("{error:?}") };
            return (String::from_utf8(out).unwrap(), Err(message));
        }
    }
    let tally = replay.finish().unwrap();
    (String::from_utf8(out).unwrap(), Ok(tally))
}

/// `input -> output` on each line.
#[track_caller]
fn check(config: &str, lines: &str) {
    let pairs: Vec<(&str, &str)> = lines.lines().filter_map(|line| line.trim().split_once(" -> ")).collect();
    let (input, expected): (Vec<&str>, Vec<&str>) = pairs.into_iter().unzip();
    let (out, outcome) = run(config, &input.join("\n"));
    outcome.unwrap();
    assert!(!expected.is_empty());
    for ((input, expected), got) in input.iter().zip(&expected).zip(out.lines()) {
        assert_eq!(got, *expected, "for {input}");
    }
    assert_eq!(out.lines().count(), expected.len());
}

pub(super) fn limiter(algorithm: &str, limit: &str) -> String {
    format!("[[limiter]]\nname = \"api\"\nalgorithm = \"{algorithm}\"\nlimits = [\"{limit}\"]\n")
}

/// Hits of one key at these times give `y` or `n` each.
#[track_caller]
fn check_hits(config: &str, times: &str, expected: &str) {
    let hit = |at: &str| format!("{{\"at\":{at},\"limiter\":\"api\",\"key\":\"u\"}}\n");
    let trace: String = times.split_whitespace().map(hit).collect();
    let (out, outcome) = run(config, &trace);
    outcome.unwrap();
    let yes = |line: &str| if line.contains("\"allowed\":true") { "y" } else { "n" };
    let got: Vec<&str> = out.lines().map(yes).collect();
    assert_eq!(got.join(" "), expected, "{config} at {times}");
}

/// How many of `hits` hits at one instant are allowed.
fn allowed_at(config: &str, before: &str, at: &str, hits: usize) -> usize {
    let hit = format!("{{\"at\":{at},\"limiter\":\"api\",\"key\":\"u\"}}\n");
    let (out, outcome) = run(config, &(before.to_owned() + &hit.repeat(hits)));
    outcome.unwrap();
    let before = before.lines().count();
    out.lines().skip(before).filter(|line| line.contains("\"allowed\":true")).count()
}

const EACH: [&str; 4] = ["token-bucket", "fixed-window", "sliding-log", "sliding-window"];

#[test]
fn fields_come_in_the_stated_order_and_at_is_echoed() {
    let three = limiter("sliding-log", "3 per minute");
    check(
        &three,
        r#"
{"at":0.5,"limiter":"api","key":"u1","cost":1} -> {"at":0.5,"limiter":"api","key":"u1","allowed":true,"limit":3,"remaining":2,"retry_after_ms":null,"reset_after_ms":60000}
{"at":1.50,"op":"hit","limiter":"api","key":"u1","cost":2} -> {"at":1.50,"op":"hit","limiter":"api","key":"u1","allowed":true,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
{"at":2e0,"op":"peek","limiter":"api","key":"u1"} -> {"at":2e0,"op":"peek","limiter":"api","key":"u1","allowed":false,"limit":3,"remaining":0,"retry_after_ms":58500,"reset_after_ms":59500}
{"at":2,"limiter":"api","key":"u1","cost":4} -> {"at":2,"limiter":"api","key":"u1","allowed":false,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":59500}
{"at":2,"limiter":"api","key":"\u00fc\n\"","cost":2.0} -> {"at":2,"limiter":"api","key":"ü\n\"","allowed":true,"limit":3,"remaining":1,"retry_after_ms":null,"reset_after_ms":60000}
"#,
    );
}

#[test]
fn a1_three_a_minute_slides() {
    let times = "0 30 59 59.999 60 61 90";
    check_hits(&limiter("sliding-log", "3 per minute"), times, "y y y n y n y");
    // From any origin, also one whose seconds are many.
    let shifted = "1700000000 1700000030 1700000059 1700000059.999 1700000060 1700000061 1700000090";
    check_hits(&limiter("sliding-log", "3 per minute"), shifted, "y y y n y n y");
}

#[test]
fn a2_a_fixed_window_starts_at_the_first_hit() {
    // originals.md, 5: at exactly 60 s a new one starts; refused requests do not count.
    check_hits(
        &limiter("fixed-window", "2 per minute"),
        "10 69 69.5 69.999999 70 70 70 129.9 130",
        "y y n n y y n n y",
    );
}

#[test]
fn a1_refused_requests_are_not_recorded_and_all_of_an_instant_count() {
    check_hits(&limiter("sliding-log", "3 per minute"), "0 0 0 0 0 59.999999 60 60 60 60", "y y y n n n y y y n");
    check_hits(&limiter("sliding-log", "1 per minute"), "0 10 20 30 40 50 60 61 119.999999 120", "y n n n n n y n n y");
}

#[test]
fn a4_a_drained_bucket_holds_no_more_than_its_burst_after_idling() {
    let config = limiter("token-bucket", "100 per minute");
    let drain = "{\"at\":0,\"limiter\":\"api\",\"key\":\"u\",\"cost\":100}\n";
    assert_eq!(allowed_at(&config, drain, "0", 5), 0);
    assert_eq!(allowed_at(&config, drain, "118", 300), 100);
    assert_eq!(allowed_at(&config, drain, "30", 300), 50);
}

#[test]
fn a4_a_count_is_exact_however_large_or_small() {
    for algorithm in EACH {
        assert_eq!(allowed_at(&limiter(algorithm, "6000 per second"), "", "7", 7000), 6000, "{algorithm}");
        check_hits(&limiter(algorithm, "1 per minute"), "0 0 30 59.999999", "y n n n");
        check_hits(&limiter(algorithm, "0 per minute"), "0 100 1000", "n n n");
    }
    for algorithm in ["token-bucket", "fixed-window", "sliding-log"] {
        check_hits(&limiter(algorithm, "1 per minute"), "0 60 60 120", "y y n y");
    }
    // Third after third of a second: 3 per second is exactly 3, not 3.000003.
    check_hits(&limiter("token-bucket", "3 per second"), "0 0 0 0.333333 0.333334 0.666666 0.666667", "y y y n y n y");
}

#[test]
fn an_aligned_window_follows_the_clock_on_the_wall() {
    let config = limiter("fixed-window", "1 per minute") + "aligned = true\n";
    check_hits(&config, "59 59.999999 60 119 120", "y n y n y");
}

const LOGIN: &str = r#"
[[limiter]]
name = "login-user"
domain = "login"
by = ["user"]
algorithm = "sliding-log"
limits = ["2 per minute"]
[[limiter]]
name = "login-ip"
domain = "login"
by = ["ip"]
algorithm = "sliding-log"
limits = ["3 per minute"]
[[limiter]]
name = "pair"
by = ["user", "ip"]
limits = ["1 per minute"]
"#;

#[test]
fn a5_user_and_address_are_charged_both_or_neither() {
    check(
        LOGIN,
        r#"
{"at":0,"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> {"at":0,"limiter":"login-user","key":"u1","allowed":true,"limit":2,"remaining":1,"retry_after_ms":null,"reset_after_ms":60000}
{"at":1,"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> {"at":1,"limiter":"login-user","key":"u1","allowed":true,"limit":2,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
{"at":2,"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> {"at":2,"limiter":"login-user","key":"u1","allowed":false,"limit":2,"remaining":0,"retry_after_ms":58000,"reset_after_ms":59000}
{"at":2,"op":"peek","limiter":"login-ip","key":"192.0.2.1"} -> {"at":2,"op":"peek","limiter":"login-ip","key":"192.0.2.1","allowed":true,"limit":3,"remaining":1,"retry_after_ms":null,"reset_after_ms":59000}
{"at":3,"domain":"login","attributes":{"ip":"192.0.2.1"}} -> {"at":3,"limiter":"login-ip","key":"192.0.2.1","allowed":true,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
{"at":4,"domain":"login","attributes":{"user":"u2","ip":"192.0.2.1"}} -> {"at":4,"limiter":"login-ip","key":"192.0.2.1","allowed":false,"limit":3,"remaining":0,"retry_after_ms":56000,"reset_after_ms":59000}
{"at":4,"op":"peek","limiter":"login-user","key":"u2"} -> {"at":4,"op":"peek","limiter":"login-user","key":"u2","allowed":true,"limit":2,"remaining":2,"retry_after_ms":null,"reset_after_ms":0}
{"at":60,"domain":"login","attributes":{"user":"u2","ip":"192.0.2.1"}} -> {"at":60,"limiter":"login-ip","key":"192.0.2.1","allowed":true,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
"#,
    );
}

#[test]
fn a_request_that_meets_no_limiter_is_allowed() {
    check(
        LOGIN,
        r#"
{"at":0,"domain":"login","attributes":{"tenant":"t1"}} -> {"at":0,"limiter":null,"key":null,"allowed":true,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}
{"at":0,"domain":"other","attributes":{"user":"u1"}} -> {"at":0,"limiter":null,"key":null,"allowed":true,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}
{"at":1,"attributes":{"ip":"i","user":"u"}} -> {"at":1,"limiter":"pair","key":"user=u,ip=i","allowed":true,"limit":1,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
"#,
    );
}

#[test]
fn a10_blocks_switches_and_lists() {
    check(
        &limiter("sliding-log", "1 per minute block 5m"),
        r#"
{"at":0,"op":"block","limiter":"api","key":"b","for":"10m"} -> {"at":0,"op":"block","limiter":"api","key":"b","blocked_until":600}
{"at":0.5,"op":"block","limiter":"api","key":"a","for":"250ms"} -> {"at":0.5,"op":"block","limiter":"api","key":"a","blocked_until":0.75}
{"at":0.6,"op":"blocked","limiter":"api"} -> {"at":0.6,"op":"blocked","limiter":"api","keys":["a","b"]}
{"at":0.75,"op":"blocked","limiter":"api","key":"ignored"} -> {"at":0.75,"op":"blocked","limiter":"api","keys":["b"]}
{"at":1,"limiter":"api","key":"b"} -> {"at":1,"limiter":"api","key":"b","allowed":false,"limit":1,"remaining":0,"retry_after_ms":599000,"reset_after_ms":599000}
{"at":2,"limiter":"api","key":"c"} -> {"at":2,"limiter":"api","key":"c","allowed":true,"limit":1,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
{"at":3,"limiter":"api","key":"c"} -> {"at":3,"limiter":"api","key":"c","allowed":false,"limit":1,"remaining":0,"retry_after_ms":300000,"reset_after_ms":300000}
{"at":4,"op":"keys","limiter":"api"} -> {"at":4,"op":"keys","limiter":"api","keys":["b","c"]}
{"at":5,"op":"unblock","limiter":"api","key":"c"} -> {"at":5,"op":"unblock","limiter":"api","key":"c","unblocked":true}
{"at":5,"op":"unblock","limiter":"api","key":"c"} -> {"at":5,"op":"unblock","limiter":"api","key":"c","unblocked":false}
{"at":5,"limiter":"api","key":"c"} -> {"at":5,"limiter":"api","key":"c","allowed":true,"limit":1,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
{"at":6,"op":"unblock_all","limiter":"api","key":7} -> {"at":6,"op":"unblock_all","limiter":"api","unblocked":1}
{"at":7,"op":"disable","limiter":"api"} -> {"at":7,"op":"disable","limiter":"api"}
{"at":7,"limiter":"api","key":"c"} -> {"at":7,"limiter":"api","key":"c","allowed":true,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}
{"at":8,"op":"enable","limiter":"api"} -> {"at":8,"op":"enable","limiter":"api"}
{"at":65,"limiter":"api","key":"c"} -> {"at":65,"limiter":"api","key":"c","allowed":true,"limit":1,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000}
"#,
    );
}

#[test]
fn increments_count_and_analyses_block() {
    let notify = "[[limiter]]\nname = \"notify\"\nalgorithm = \"buckets\"\nresolution = \"10s\"\nhistory = \"60s\"\nlimits = [\"5 per 20s block 40s\", \"7 per 40s block 40s\"]\n";
    check(
        notify,
        r#"
{"at":100,"op":"increment","limiter":"notify","key":"7","count":4,"timestamp":70.5} -> {"at":100,"op":"increment","limiter":"notify","key":"7","count":4,"timestamp":70.5,"counted":true}
{"at":100,"op":"increment","limiter":"notify","key":"7","count":2} -> {"at":100,"op":"increment","limiter":"notify","key":"7","count":2,"timestamp":100,"counted":true}
{"at":100,"op":"analyze","limiter":"notify","key":"7"} -> {"at":100,"op":"analyze","limiter":"notify","key":"7","status":"ok","timestamp":100}
{"at":100,"op":"increment","limiter":"notify","key":"7"} -> {"at":100,"op":"increment","limiter":"notify","key":"7","count":1,"timestamp":100,"counted":true}
{"at":100.5,"op":"analyze","limiter":"notify","key":"7"} -> {"at":100.5,"op":"analyze","limiter":"notify","key":"7","status":"limited","sum":7,"limit":"7 per 40s block 40s","timestamp":100.5,"blocked_until":140.5}
{"at":101,"op":"analyze","limiter":"notify","key":"7"} -> {"at":101,"op":"analyze","limiter":"notify","key":"7","status":"blocked","timestamp":101,"blocked_until":140.5}
{"at":101,"op":"increment","limiter":"notify","key":"old","timestamp":39} -> {"at":101,"op":"increment","limiter":"notify","key":"old","count":1,"timestamp":39,"counted":false}
{"at":140.5,"op":"analyze","limiter":"notify","key":"7"} -> {"at":140.5,"op":"analyze","limiter":"notify","key":"7","status":"ok","timestamp":140.5}
{"at":200,"limiter":"notify","key":"7","cost":5} -> {"at":200,"limiter":"notify","key":"7","allowed":true,"limit":5,"remaining":0,"retry_after_ms":null,"reset_after_ms":30000}
{"at":229,"op":"peek","limiter":"notify","key":"7"} -> {"at":229,"op":"peek","limiter":"notify","key":"7","allowed":false,"limit":5,"remaining":0,"retry_after_ms":1000,"reset_after_ms":1000}
{"at":230,"limiter":"notify","key":"7"} -> {"at":230,"limiter":"notify","key":"7","allowed":true,"limit":7,"remaining":1,"retry_after_ms":null,"reset_after_ms":50000}
"#,
    );
}

#[test]
fn lists_hold_every_page_sorted() {
    let hit = |i: usize| format!("{{\"at\":0,\"limiter\":\"api\",\"key\":\"k{i:05}\"}}\n");
    let trace: String = (0..5_000).rev().map(hit).collect();
    let (out, _) =
        run(&limiter("token-bucket", "1 per day"), &(trace + "{\"at\":1,\"op\":\"keys\",\"limiter\":\"api\"}"));
    let keys: Vec<String> = (0..5_000).map(|i| format!("\"k{i:05}\"")).collect();
    assert!(out.lines().last().unwrap().ends_with(&format!("\"keys\":[{}]}}", keys.join(","))));
}

/// Ends with a message that has this part; the line before it is answered.
#[track_caller]
fn refused(line: &str, part: &str) {
    let first = "{\"at\":5,\"limiter\":\"api\",\"key\":\"u\"}\n";
    let (out, outcome) = run(&limiter("token-bucket", "5 per minute"), &(first.to_owned() + line));
    let message = outcome.unwrap_err();
    assert!(message.contains(part), "{line}: {message}");
    assert_eq!(out.lines().count(), 1);
}

#[test]
fn a_bad_line_names_the_field_the_value_the_bound_and_the_remedy() {
    for (line, part) in [
        ("hello", "this is not JSON (column 1)"),
        ("{\"at\":5", "this is not JSON"),
        ("{\"at\":5}}", "this is not JSON (column 9)"),
        ("[1]", "this is a JSON array; write one object on each line"),
        ("7", "invalid type: integer `7`"),
        (r#"{"at":5,"limiter":"api","key":"u","colour":1}"#, "unknown field `colour`, expected one of `at`, `op`"),
        (r#"{"at":5,"at":6,"limiter":"api","key":"u"}"#, "duplicate field `at`"),
        (r#"{"limiter":"api","key":"u"}"#, "at is missing"),
        (r#"{"at":null,"limiter":"api","key":"u"}"#, "at is missing"),
        (r#"{"at":"5","limiter":"api","key":"u"}"#, "at: \"5\" is not a number; write seconds"),
        (r#"{"at":-1,"limiter":"api","key":"u"}"#, "at: -1 is before 0; count from an earlier origin"),
        (r#"{"at":1700000000000,"limiter":"api","key":"u"}"#, "write seconds, not milliseconds"),
        (
            r#"{"at":4.9999994,"limiter":"api","key":"u"}"#,
            "at: 4.9999994 is before the line above, at 5; sort the trace",
        ),
        (r#"{"at":5,"key":"u"}"#, "limiter is missing"),
        (r#"{"at":5,"limiter":"apy","key":"u"}"#, "no limiter is named \"apy\"; there are: api"),
        (r#"{"at":5,"limiter":"api"}"#, "key is missing; add a string of 1 to 512 bytes"),
        (r#"{"at":5,"limiter":"api","key":7}"#, "key: 7 is not a string"),
        (r#"{"at":5,"limiter":"api","key":""}"#, "the key is empty; use 1 to 512 bytes"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":-1}"#, "cost: -1 is not a whole number from 0 to 4294967295"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":null}"#, "cost: null is not a whole number from 0 to 4294967295"),
        (r#"{"at":5,"op":null,"limiter":"api","key":"u"}"#, "op: null is not a string"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":1.5}"#, "cost: 1.5 is not a whole number"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":4294967296}"#, "cost: 4294967296 is not a whole number"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":1e400}"#, "cost: 1e400 is not a whole number"),
        (r#"{"at":5,"limiter":"api","key":"u","cost":"1"}"#, "cost: \"1\" is not a whole number"),
        (r#"{"at":5,"limiter":"api","key":"u","domain":"d"}"#, "domain does not belong here"),
        (r#"{"at":5,"limiter":"api","key":"u","for":"1m"}"#, "for does not belong here"),
        (r#"{"at":5,"domain":"d"}"#, "attributes is missing"),
        (r#"{"at":5,"domain":"d","attributes":{}}"#, "attributes: it is empty; name one at least"),
        (r#"{"at":5,"domain":"d","attributes":{"a":1}}"#, "attributes: invalid type: integer `1`"),
        (r#"{"at":5,"domain":"d","attributes":{"a":""}}"#, "attributes: \"a\" has 0 bytes; use 1 to 512"),
        (r#"{"at":5,"domain":"d","attributes":{"a":"1","a":"2"}}"#, "attributes: it names \"a\" twice"),
        (r#"{"at":5,"op":"hug","limiter":"api"}"#, "op: \"hug\" is unknown; use one of hit, peek"),
        (
            r#"{"at":5,"op":"increment","limiter":"api","key":"7"}"#,
            "increment needs algorithm = \"buckets\", and limiter",
        ),
        (r#"{"at":5,"op":"increment","limiter":"api"}"#, "key is missing"),
        (r#"{"at":5,"op":"increment","limiter":"api","key":"7","count":-4}"#, "count: -4 is not a whole number from 0"),
        (r#"{"at":5,"op":"increment","limiter":"api","key":"7","timestamp":-4}"#, "timestamp: -4 is before 0"),
        (r#"{"at":5,"op":"increment","limiter":"api","key":"7","cost":4}"#, "cost does not belong here"),
        (r#"{"at":5,"op":"analyze","limiter":"api","key":"7"}"#, "analyze needs algorithm = \"buckets\""),
        (
            r#"{"at":5,"op":"analyze","limiter":"api","key":"7","count":1}"#,
            "count does not belong here: only op \"increment\"",
        ),
        (r#"{"at":5,"limiter":"api","key":"7","timestamp":1}"#, "timestamp does not belong here"),
        (r#"{"at":5,"udp":"ping","count":1}"#, "count does not belong here"),
        (
            r#"{"at":5,"udp":"78 over_limit ws","key":"k"}"#,
            "key does not belong here: a line with udp has at and udp only",
        ),
        (r#"{"at":5,"udp":7}"#, "udp: 7 is not a string; write it in quotes"),
        (r#"{"at":5,"stream":"orders","submit":"taco"}"#, "stream: the configuration has no stream"),
        (r#"{"at":5,"stream":"orders","key":"k"}"#, "key does not belong here: a line with stream has at, stream"),
        (r#"{"at":5,"submit":"taco"}"#, "submit does not belong here: only a line with stream has it"),
        (r#"{"at":5,"op":"block","limiter":"api","key":"u"}"#, "for is missing"),
        (r#"{"at":5,"op":"block","limiter":"api","key":"u","for":"10"}"#, "for: duration \"10\" has no unit"),
        (r#"{"at":5,"op":"block","limiter":"api","key":"u","for":"0s"}"#, "for: 0s is outside 1ms to 366d"),
        (r#"{"at":5,"op":"block","limiter":"api","for":"1m"}"#, "key is missing"),
        (r#"{"at":5,"op":"keys"}"#, "limiter is missing"),
        (r#"{"at":5,"op":"keys","limiter":"api","cost":1}"#, "cost does not belong here"),
    ] {
        refused(line, part);
    }
    refused(
        &format!(r#"{{"at":5,"limiter":"api","key":"{}"}}"#, "k".repeat(100_000)),
        "has 100000 bytes, more than 512",
    );
    let many: Vec<String> = (0..100_000).map(|i| format!("\"a{i}\":\"1\"")).collect();
    refused(&format!(r#"{{"at":5,"attributes":{{{}}}}}"#, many.join(",")), "attributes: it has more than 16");
    refused(&format!(r#"{{"at":5,"limiter":"api","key":{}}}"#, "[".repeat(100_000)), "this is not JSON");
}

#[test]
fn the_report_needs_nothing_from_outside_and_escapes_keys() {
    let hit = "{\"at\":1,\"limiter\":\"api\",\"key\":\"<script>alert(1)</script>\"}\n".repeat(5);
    let (_, tally) = run(&limiter("sliding-log", "2 per minute"), &hit);
    let page = super::report::page("<trace>", None, &tally.unwrap());
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("&lt;trace&gt;"));
    for outside in ["<script", "<trace>", "http://", "https://", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn s1_no_line_makes_it_panic() {
    let lines = [
        r#"{"at":12.5e0,"limiter":"api","key":"u1","cost":1}"#,
        r#"{"at":1,"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}}"#,
        r#"{"at":2,"op":"block","limiter":"api","key":"u1","for":"10m"}"#,
    ];
    let mut replay =
        Replay::new(parsed(LOGIN).policy, &Routing::default(), Vec::new(), Vec::new(), Charts::Wanted).unwrap();
    for text in lines.iter().flat_map(|line| crate::mangled::texts(line, 11, 5_000)) {
        if let Ok(line) = line::read(&String::from_utf8_lossy(&text)) {
            let _ = replay.line(&line);
        }
    }
    let log = r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a\"?b HTTP/1.0" 200 2326"#;
    for text in crate::mangled::texts(log, 13, 10_000) {
        let _ = super::access_log::read(&text);
    }
}

const MUSICBRAINZ: &str = include_str!("../../../../examples/musicbrainz.toml");

/// Datagrams at these seconds, and their replies; `None`: silence.
fn udp(config: &str, datagrams: impl IntoIterator<Item = (f64, String)>) -> Vec<Option<String>> {
    let line = |(at, text): (f64, String)| format!("{{\"at\":{at},\"udp\":{}}}", serde_json::json!(text));
    let trace: Vec<String> = datagrams.into_iter().map(line).collect();
    let (out, outcome) = run(config, &trace.join("\n"));
    outcome.unwrap();
    let reply = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["udp"].clone();
    out.lines().map(|line| reply(line).as_str().map(str::to_owned)).collect()
}

/// The first that is over, from 1, and how many are.
fn over(config: &str, key: &str, times: impl IntoIterator<Item = f64>) -> (Option<usize>, usize) {
    let replies = udp(config, times.into_iter().map(|at| (at, format!("1 over_limit {key}"))));
    let over = |reply: &Option<String>| reply.as_deref().unwrap().starts_with("1 ok Y ");
    (replies.iter().position(over).map(|at| at + 1), replies.iter().filter(|reply| over(reply)).count())
}

#[test]
fn udp_lines_are_answered_as_the_door_does() {
    check(
        MUSICBRAINZ,
        r#"
{"at":2,"udp":"78 over_limit ws ip=192.0.2.1"} -> {"at":2,"udp":"78 ok N 0.0 22.0 20"}
{"at":2,"udp":"over_limit ws ip=192.0.2.1\n"} -> {"at":2,"udp":"ok N 1.0 22.0 20"}
{"at":2,"udp":"over_limit\n\n"} -> {"at":2,"udp":null}
{"at":2.5,"udp":"1 over_limit ws ip=192.0.2.1"} -> {"at":2.5,"udp":"1 ok N 2.0 22.0 20"}
{"at":3,"udp":"over_limit ws ip=4.14.989.98"} -> {"at":3,"udp":"ok N 0.0 22.0 20"}
{"at":3,"udp":"over_limit ws ip=2001:db8::1"} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"over_limit nobody"} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"over_limit "} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"000867465 ping"} -> {"at":3,"udp":"000867465 pong"}
{"at":3,"udp":"PING"} -> {"at":3,"udp":null}
{"at":3,"udp":"get_stats"} -> {"at":3,"udp":null}
{"at":3,"udp":"7 get_stats some-key"} -> {"at":3,"udp":"7 n_req=0 n_over=0 last_max_rate=0 key=some-key"}"#,
    );
    let (out, _) = run(
        MUSICBRAINZ,
        r#"{"at":0,"udp":"over_limit ws ip=1.2.3.4"}
{"at":0,"udp":"get_size"}"#,
    );
    let size = out.lines().nth(1).unwrap();
    assert!(size.starts_with(r#"{"at":0,"udp":"size=1/"#) && size.ends_with(r#" keys=1"}"#), "{size}");
}

#[test]
fn udp_traces_of_the_original_come_out_the_same() {
    let leaky = MUSICBRAINZ.replace("strict = true\n", "");
    let (ip, twice) = ("ws ip=192.0.2.1", || (0..80).map(|i| f64::from(i) / 2.0));
    assert_eq!(over(MUSICBRAINZ, ip, [0.0; 25]), (Some(23), 3));
    assert_eq!(over(MUSICBRAINZ, ip, (0..60).map(f64::from)), (None, 0));
    assert_eq!(over(MUSICBRAINZ, ip, twice()), (Some(33), 48));
    assert_eq!(over(&leaky, ip, twice()), (Some(33), 22));
    let never = "[[limiter]]\nname = \"n\"\nalgorithm = \"average\"\nlimits = [\"0 per 10s\"]\n\
                 [[udp.route]]\nmatch = '^n$'\nlimiter = \"n\"\n";
    assert_eq!(udp(never, [(5.0, "over_limit n".to_owned())]), [Some("ok Y 0.0 0.0 10".to_owned())]);
}

#[test]
fn udp_statistics_live_under_the_rewritten_key() {
    let mut lines = vec![(10.0, "over_limit ws ip=132.185.7.9".to_owned()); 310];
    lines.push((10.0, "1 get_stats ws cust=bbc".to_owned()));
    lines.push((10.0, "2 get_stats ws ip=132.185.7.9".to_owned()));
    lines.push((300.0, "3 get_stats ws cust=bbc".to_owned()));
    lines.push((600.0, "4 get_stats ws cust=bbc".to_owned()));
    let replies = udp(MUSICBRAINZ, lines);
    let tail: Vec<&str> = replies[310..].iter().map(|reply| reply.as_deref().unwrap()).collect();
    assert_eq!(
        tail,
        [
            "1 n_req=310 n_over=10 last_max_rate=0 key=ws cust=bbc",
            "2 n_req=0 n_over=0 last_max_rate=0 key=ws ip=132.185.7.9",
            "3 n_req=310 n_over=10 last_max_rate=300 key=ws cust=bbc",
            "4 n_req=310 n_over=10 last_max_rate=0 key=ws cust=bbc",
        ]
    );
}

#[test]
fn udp_routes_take_every_algorithm() {
    for algorithm in EACH {
        let config = limiter(algorithm, "3 per minute") + "[[udp.route]]\nmatch = '^.*$'\nlimiter = \"api\"\n";
        let asked = ["over_limit ", "over_limit ", "over_limit ", "over_limit ", "get_stats "];
        let replies = udp(&config, asked.map(|text| (60.0, text.to_owned())));
        let replies: Vec<&str> = replies.iter().map(|reply| reply.as_deref().unwrap()).collect();
        assert_eq!(replies[..3], ["ok N 1.0 3.0 60", "ok N 2.0 3.0 60", "ok N 3.0 3.0 60"], "{algorithm}");
        assert_eq!(replies[3..], ["ok Y 3.0 3.0 60", "n_req=0 n_over=0 last_max_rate=0 key="]);
    }
    let disabled = limiter("average", "0 per 500ms") + "[[udp.route]]\nmatch = ''\nlimiter = \"api\"\n";
    check(
        &disabled,
        r#"
{"at":1,"udp":"over_limit k"} -> {"at":1,"udp":"ok Y 0.0 0.0 0"}
{"at":1,"op":"disable","limiter":"api"} -> {"at":1,"op":"disable","limiter":"api"}
{"at":1,"udp":"over_limit k"} -> {"at":1,"udp":"ok N 0.0 0.0 0"}"#,
    );
}

#[test]
fn udp_requests_are_in_the_tally() {
    let (_, outcome) = run(
        MUSICBRAINZ,
        &r#"{"at":0,"udp":"over_limit ws ip=1.2.3.4"}
"#
        .repeat(24),
    );
    let tally = outcome.unwrap();
    assert_eq!((tally.limiters[0].allowed, tally.limiters[0].denied), (22, 2));
    assert_eq!(tally.limiters[0].spec.name, "ws-ip");
}
