//! Imports, as data; and what a gate makes of an imported policy against a naive walk down the tree that it was made from.

use super::policy::Imported;
use super::{File, envoy, limitador};
use crate::config;
use std::fmt::Write as _;
use std::path::Path;
use tidegate::{Clock, Gate, Micros, Request};
use tidegate_testkit::{Random, number};

fn file(text: &str) -> File {
    File { name: "a.yaml".to_owned(), text: text.to_owned() }
}

/// A node: key, value, limit (`-`: none, `*`: unlimited), children.
struct Node(&'static str, &'static str, &'static str, &'static [Node]);

fn yaml(nodes: &[Node], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth * 2 + 1);
    for Node(key, value, limit, children) in nodes {
        let _ = writeln!(text, "{indent}- key: {key}");
        if !value.is_empty() {
            let _ = writeln!(text, "{indent}  value: \"{value}\"");
        }
        match *limit {
            "-" => {}
            "*" => {
                let _ = writeln!(text, "{indent}  rate_limit:\n{indent}    unlimited: true");
            }
            limit => {
                let (count, unit) = limit.split_once('/').unwrap();
                let _ = writeln!(
                    text,
                    "{indent}  rate_limit:\n{indent}    unit: {unit}\n{indent}    requests_per_unit: {count}"
                );
            }
        }
        if !children.is_empty() {
            let _ = writeln!(text, "{indent}  descriptors:");
            yaml(children, depth + 1, text);
        }
    }
}

/// The limit that a descriptor has by a walk down the tree.
fn walk<'n>(mut level: &'n [Node], entries: &[(&str, &str)]) -> Option<&'n str> {
    for (at, (key, value)) in entries.iter().enumerate() {
        let of_key = || level.iter().filter(|node| node.0 == *key);
        let exact = of_key().find(|node| !node.1.is_empty() && node.1 == *value);
        let pattern = || of_key().find(|node| node.1.contains('*') && matches(node.1, value));
        let node = exact.or_else(pattern).or_else(|| of_key().find(|node| node.1.is_empty()))?;
        if at + 1 == entries.len() {
            return Some(node.2).filter(|limit| !matches!(*limit, "-" | "*"));
        }
        level = node.3;
    }
    None
}

/// `*` stands for any text, anywhere.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => {
            let Some(text) = text.strip_prefix(start) else { return false };
            (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]))
        }
    }
}

/// The gate that the imported policy makes.
fn gate(imported: &Imported) -> Gate {
    let toml = imported.toml();
    let config = config::parse("imported", toml.clone(), Path::new(""), Vec::new());
    let config = config.unwrap_or_else(|error| {
        panic!(
            "{error}
{toml}"
        )
    });
    Gate::with_clock(config.policy, Clock::manual(Micros::from_secs(1_000)))
}

/// The limit that a descriptor has by the imported policy.
fn by_gate(gate: &Gate, entries: &[(&str, &str)]) -> Option<String> {
    let entries: Vec<(&str, &[u8])> = entries.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
    let answer = gate.decide(&Request::of_descriptor("d", &entries).peek()).unwrap();
    answer.limit?;
    let limit = answer.limiter?.rules.limits()[answer.limit_index];
    Some(format!("{} per {}s", limit.count(), limit.period().get() / 1_000_000))
}

const KEYS: [&str; 5] = ["plan", "user", "path", "ip", "app"];
const VALUES: [&str; 14] =
    ["gold", "g", "root", "u", "u1", "", "/slow", "/free", "/api", "/api/v1", "/a/b", "a", "v1", "/x/v1/y"];

/// Any keys, in any order.
fn anywhere(random: &mut Random) -> Vec<(&'static str, &'static str)> {
    let mut keys = KEYS.to_vec();
    let count = 1 + random.below(3);
    let entry = |_| (keys.remove(random.index(keys.len())), VALUES[random.index(VALUES.len())]);
    (0..count).map(entry).collect()
}

/// Keys of the tree from its top down, with their own values or others.
fn downhill(mut level: &'static [Node], random: &mut Random) -> Vec<(&'static str, &'static str)> {
    let mut entries = Vec::new();
    while !level.is_empty() && (entries.is_empty() || random.below(4) > 0) {
        let node = &level[random.index(level.len())];
        let is_own = !node.1.is_empty() && random.below(2) > 0;
        entries.push((node.0, if is_own { node.1 } else { VALUES[random.index(VALUES.len())] }));
        level = node.3;
    }
    entries
}

/// Shapes that the configurations of envoyproxy/ratelimit's own tests have, each with trees of its own.
static TREES: [&[Node]; 5] = [
    &[
        Node("plan", "gold", "-", &[Node("user", "", "5/second", &[]), Node("user", "root", "10/second", &[])]),
        Node("path", "", "20/minute", &[]),
        Node("path", "/slow", "30/minute", &[]),
        Node("path", "/free", "-", &[]),
        Node("ip", "", "1/hour", &[]),
        Node("app", "a", "15/day", &[Node("user", "u", "25/day", &[])]),
    ],
    &[
        Node("path", "/api*", "20/minute", &[]),
        Node("path", "/api/v1", "21/minute", &[]),
        Node("path", "/a*b", "22/minute", &[]),
        Node("user", "root", "20/minute", &[]),
        Node("ip", "", "20/minute", &[]),
    ],
    &[
        Node("plan", "g*", "-", &[Node("user", "u*", "1/minute", &[]), Node("user", "", "2/minute", &[])]),
        Node("plan", "gold", "3/minute", &[]),
        Node("plan", "", "4/minute", &[Node("user", "", "5/minute", &[Node("path", "*v1*", "6/minute", &[])])]),
    ],
    &[
        Node("user", "root", "*", &[]),
        Node("user", "", "7/second", &[]),
        Node("path", "", "*", &[Node("user", "", "8/second", &[])]),
        Node("plan", "gold", "0/second", &[]),
    ],
    &[Node("user", "", "-", &[Node("plan", "gold", "-", &[Node("path", "/slow", "9/second", &[])])])],
];

#[test]
fn the_imported_policy_decides_by_the_limit_at_which_the_walk_ends() {
    let mut random = Random(number("TIDEGATE_SEED", 1));
    let steps: usize = number("TIDEGATE_STEPS", 100_000);
    for tree in TREES {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        yaml(tree, 0, &mut text);
        let imported = envoy::import(&[file(&text)]).unwrap();
        assert!(imported.lost.is_empty(), "{:?}", imported.lost);
        let gate = gate(&imported);
        let mut limited = 0;
        for _ in 0..steps {
            let entries = match random.below(2) {
                0 => anywhere(&mut random),
                _ => downhill(tree, &mut random),
            };
            let expected = walk(tree, &entries).map(|limit| {
                let (count, unit) = limit.split_once('/').unwrap();
                let seconds = match unit {
                    "second" => 1,
                    "minute" => 60,
                    "hour" => 3_600,
                    "day" => 86_400,
                    other => panic!("{other}"),
                };
                format!("{count} per {seconds}s")
            });
            limited += usize::from(expected.is_some());
            assert_eq!(by_gate(&gate, &entries), expected, "{entries:?}\n{text}");
        }
        assert!(limited > steps / 1_000, "{limited} of {steps} had a limit: is anything tried?");
    }
}

/// A part of the error.
#[track_caller]
fn refused(text: &str, part: &str) {
    let error = envoy::import(&[file(text)]).unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn what_is_refused_there_is_refused_here() {
    let with = |rest: &str| format!("domain: d\ndescriptors:\n  - key: a\n{rest}");
    refused("descriptors:\n  - key: a\n", "a.yaml, line 1: the file has no domain");
    refused("domain: d\ndescriptors:\n  - value: a\n", "line 3: the descriptor has no key");
    refused("domain: d\ndescriptors:\n  - a\n", "line 3: a descriptor must be a map");
    refused(
        "domain: d\ndescriptors:\n  - key: a\n  - key: a\n",
        "a with the value \"\" is there already, at a.yaml line 3",
    );
    refused("domain: d\ndescriptors:\n  - {key: a}\n  - {key: a}\n", "is there already");
    refused(
        &with("    ratelimit: {unit: second, requests_per_unit: 1}\n"),
        "line 4: a descriptor has no setting \"ratelimit\"",
    );
    refused(
        &with("    rate_limit: {unit: second, requestsperunit: 1}\n"),
        "rate_limit has no setting \"requestsperunit\"",
    );
    refused(&with("    rate_limit: {unit: fortnight, requests_per_unit: 1}\n"), "unit \"fortnight\" is none of");
    refused(&with("    rate_limit: {requests_per_unit: 1}\n"), "rate_limit has no unit");
    refused(&with("    rate_limit: {unlimited: true, unit: second}\n"), "unlimited has no unit");
    refused(
        &with("    rate_limit: {unit: second, requests_per_unit: 1, unit_multiplier: 0}\n"),
        "unit_multiplier is 0",
    );
    refused(&with("    rate_limit: {unit: second, requests_per_unit: x}\n"), "\"x\" is no whole number");
    refused(
        &with("    rate_limit: {unit: second, requests_per_unit: 1, name: n, replaces: [{name: n}]}\n"),
        "and not itself",
    );
    refused(&with("    rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: ''}]}\n"), "by their names");
    refused("domain: d\ndomain: e\n", "\"domain\" stands twice");
    refused("domain: [\n", "line");
    refused(&"[".repeat(100), "nested more than 64 deep");
    let bomb = (0..30)
        .fold("a0: &a0 [x, x]\n".to_owned(), |text, n| text + &format!("a{}: &a{} [*a{n}, *a{n}]\n", n + 1, n + 1));
    refused(&bomb, "more than 1000000 values");
}

#[test]
fn what_counts_differently_is_said() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    value: x*\n    share_threshold: true\n    quota_mode: true\n    detailed_metric: true\n    metadata: {b: c}\n    rate_limit:\n      unit: month\n      requests_per_unit: 3\n      name: one\n      replaces:\n        - name: two\n  - key: a_b\n    rate_limit: {unit: week, requests_per_unit: 2, unit_multiplier: 1}\n  - key: not a name\n    rate_limit: {unit: hour, requests_per_unit: 2, unit_multiplier: 5}\n";
    let imported = envoy::import(&[file(text)]).unwrap();
    let notes: Vec<String> = imported.notes().collect();
    for part in [
        "counts requests that it denies",
        "share_threshold of a",
        "quota_mode of a",
        "metadata of a",
        "a month is 30 days",
        "it replaces \"two\"",
        "\"a_b\" is also found for a value of \"a\"",
        "\"not a name\" cannot be an attribute",
    ] {
        assert_eq!(notes.iter().filter(|note| note.contains(part)).count(), 1, "{part}: {notes:#?}");
    }
    let toml = imported.toml();
    assert!(toml.contains("week_starts = \"thursday\"\nlimits = [\"2 per 7d\"]"), "{toml}");
    assert!(notes.iter().all(|note| toml.contains(&format!("# {note}\n"))), "{toml}");
}

#[test]
fn rules_with_one_limit_are_one_match_and_what_does_not_fit_is_said() {
    let rules = |count: u32, limit: &dyn Fn(u32) -> u32| {
        let rule = |n: u32| {
            let limit = limit(n);
            format!("  - {{key: a, value: v{n}, rate_limit: {{unit: second, requests_per_unit: {limit}}}}}\n")
        };
        format!("domain: d\ndescriptors:\n{}", (0..count).map(rule).collect::<String>())
    };
    let imported = envoy::import(&[file(&rules(900, &|n| n / 300))]).unwrap();
    assert_eq!(imported.toml().matches("[[limiter.match]]").count(), 4, "three, and the rest");
    let gate = gate(&imported);
    let limit = |value: &str| by_gate(&gate, &[("a", value)]);
    assert_eq!(
        [limit("v299"), limit("v300"), limit("v899"), limit("v900")].map(Option::unwrap_or_default),
        ["0 per 1s", "1 per 1s", "2 per 1s", ""]
    );
    for (text, part) in [
        (rules(101, &|n| n), "101 different limits by value are more than 99"),
        (rules(1, &|_| 1).replace("key: a", "key: ip"), "\"v0\" is no address"),
    ] {
        let imported = envoy::import(&[file(&text)]).unwrap();
        assert!(imported.limiters.is_empty() && imported.lost.concat().contains(part), "{:?}", imported.lost);
    }
}

#[test]
fn shadow_rules_are_candidates_beside_the_others() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: second, requests_per_unit: 1}\n  - key: a\n    value: x\n    shadow_mode: true\n    rate_limit: {unit: second, requests_per_unit: 2}\n";
    let imported = envoy::import(&[file(text)]).unwrap();
    let names: Vec<(&str, bool)> = imported.limiters.iter().map(|l| (l.name.as_str(), l.is_candidate)).collect();
    assert_eq!(names, [("d-a", false), ("d-a.shadow", true)]);
    let limits = |at: usize| imported.limiters[at].rows.iter().map(|row| row.limit.as_deref()).collect::<Vec<_>>();
    assert_eq!((limits(0), limits(1)), (vec![None, Some("1 per 1s")], vec![Some("2 per 1s")]));
    let gate = gate(&imported);
    let hit = |value: &str| gate.decide(&Request::of_descriptor("d", &[("a", value.as_bytes())])).unwrap().allowed;
    assert_eq!(["x", "x", "x", "y", "y"].map(hit), [true, true, true, true, false]);
    let counts: Vec<(u64, u64)> =
        gate.limiters().iter().map(|info| (info.counts.allowed, info.counts.denied)).collect();
    assert_eq!(counts[1], (3, 1), "two of x and one that no rule is for, and one of x denied: {counts:?}");
}

#[test]
fn limits_of_limitador_become_limiters() {
    let text = "- namespace: shop\n  max_value: 10\n  seconds: 60\n  conditions: [\"descriptors[0].method == 'GET'\", \"descriptors[0]['plan'] != \\\"gold\\\"\"]\n  variables: ['descriptors[0].user']\n- namespace: shop\n  max_value: 5\n  seconds: 1\n  variables: [user]\n- namespace: shop\n  max_value: 1\n  seconds: 1\n- namespace: shop\n  max_value: 1\n  seconds: 1\n  conditions: [\"size(x) > 3\"]\n";
    let imported = limitador::import(&[file(text)]).unwrap();
    let [first, second] = &imported.limiters[..] else { panic!("{imported:#?}") };
    assert_eq!((first.name.as_str(), first.by.join(" ")), ("shop-user-method-plan", "user method plan".to_owned()));
    let rows: Vec<(String, Option<&str>)> =
        first.rows.iter().map(|row| (row.values.join(" "), row.limit.as_deref())).collect();
    assert_eq!(rows, [("* * gold".to_owned(), None), ("* GET *".to_owned(), Some("10 per 60s"))]);
    assert_eq!((second.name.as_str(), second.rows.len()), ("shop-user", 1));
    assert_eq!(imported.lost.len(), 2, "{:?}", imported.lost);
    assert!(limitador::import(&[file("- namespace: a\n")]).unwrap_err().contains("has no max_value"));
}
