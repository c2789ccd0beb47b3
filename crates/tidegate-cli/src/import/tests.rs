//! Imports, as data. `model.rs` has what a gate makes of an imported policy against a naive walk down the tree that it was made from.

mod model;
mod trees;

use super::policy::{Imported, Role};
use super::{File, envoy, limitador};
use crate::config;
use std::path::Path;
use tidegate::{Clock, Gate, Micros, Request};

fn file(text: &str) -> File {
    File { name: "a.yaml".to_owned(), text: text.to_owned() }
}

fn import(text: &str) -> Result<Imported, String> {
    envoy::import(&[file(text)], Role::Enforced)
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

/// A part of the error.
#[track_caller]
fn refused(text: &str, part: &str) {
    let error = import(text).unwrap_err();
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
        &with("    value: b\n    share_threshold: true\n"),
        "share_threshold needs a value with a *, and \"b\" has none",
    );
    refused("'''\n", "line 1");
    refused("0.25: d\ndescriptors: []\n", "a.yaml, line 1: the file has no domain");
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
    let text = "domain: d\ndescriptors:\n  - key: a\n    value: x*\n    shadow_mode: true\n    quota_mode: true\n    detailed_metric: true\n    rate_limit:\n      unit: month\n      requests_per_unit: 3\n      name: one\n      replaces:\n        - name: two\n  - key: a_b\n    rate_limit: {unit: week, requests_per_unit: 2, unit_multiplier: 1}\n  - key: not a name\n    rate_limit: {unit: hour, requests_per_unit: 2, unit_multiplier: 5}\n  - key: free\n    metadata: x\n    rate_limit: {unlimited: true, replaces: [{name: one}]}\n  - key: e\n    descriptors: [{key: e.2, descriptors: [{key: e, rate_limit: {unit: hour, requests_per_unit: 1}}]}]\n";
    let imported = import(text).unwrap();
    let notes: Vec<String> = imported.notes().collect();
    for part in [
        "counts requests that it denies",
        "quota_mode of a, a rule in shadow_mode",
        "metadata of free, which is no table of at most 4,000 bytes",
        "a month is 30 days",
        "it replaces \"two\", though it limits nothing itself",
        "it replaces \"one\", though it limits nothing itself",
        "\"a_b\" is also found for a value of \"a\"",
        "\"not a name\" cannot be an attribute",
        "keys e, e.2, e: a key is \"e.2\" here, and is another key's name",
    ] {
        assert_eq!(notes.iter().filter(|note| note.contains(part)).count(), 1, "{part}: {notes:#?}");
    }
    let toml = imported.toml();
    assert!(toml.contains("week_starts = \"thursday\"\nlimits = [\"2 per 7d\"]"), "{toml}");
    assert!(notes.iter().all(|note| toml.contains(&format!("# {note}\n"))), "{toml}");
}

/// Names stay, where they can be a limiter's; a name that rules share is the first one's.
#[test]
fn names_quotas_what_is_replaced_and_what_counts_together_are_carried_over() {
    let limit = "unit: second, requests_per_unit: 1";
    let text = format!(
        "domain: d\ndescriptors:\n  - {{key: a, rate_limit: {{{limit}, name: general}}}}\n  - {{key: b, quota_mode: true, rate_limit: {{{limit}}}}}\n  - {{key: c, value: gold*, share_threshold: true, rate_limit: {{{limit}, name: gold, replaces: [{{name: general}}, {{name: nobody}}]}}}}\n  - {{key: c, rate_limit: {{{limit}, name: general}}}}\n"
    );
    let imported = import(&text).unwrap();
    assert!(imported.lost.is_empty(), "{:?}", imported.lost);
    let toml = imported.toml();
    for part in [
        "name = \"general\"\ndomain = \"d\"\nby = [\"a\"]",
        "name = \"d-b.quota\"\ndomain = \"d\"\nby = [\"b\"]\nalgorithm = \"fixed-window\"\naligned = true\nalternative = true",
        "name = \"gold\"\ndomain = \"d\"\nby = [\"c\"]\nalgorithm = \"fixed-window\"\naligned = true\nreplaces = [\"general\", \"d-c\"]",
        "c = \"gold*\"\ntogether = [\"c\"]\nlimits = [\"1 per 1s\"]",
    ] {
        assert!(toml.contains(part), "{part}\n{toml}");
    }
    let gate = gate(&imported);
    let hit = |value: &str| gate.decide(&Request::of_descriptor("d", &[("c", value.as_bytes())])).unwrap().allowed;
    assert_eq!(["gold1", "gold2", "tin", "iron"].map(hit), [true, false, true, true], "gold counts together");
}

#[test]
fn metadata_is_carried_over_rule_by_rule() {
    let text = "domain: d\ndescriptors:\n  - {key: a, value: x, metadata: {team: {name: 'b \"', size: 3, on: true, none: ~, of: [1, '2', 0.5]}}, rate_limit: {unit: second, requests_per_unit: 1}}\n  - {key: a, value: y, rate_limit: {unit: second, requests_per_unit: 1}}\n  - {key: a, metadata: {own: true}, rate_limit: {unit: second, requests_per_unit: 1}}\n";
    let imported = import(text).unwrap();
    assert!(imported.lost.is_empty(), "{:?}", imported.lost);
    let config = config::parse("imported", imported.toml(), Path::new(""), Vec::new()).unwrap();
    let limiter = &config.policy.limiters()[0];
    assert_eq!(limiter.metadata.as_deref(), Some(r#"{"own":true}"#));
    let of_matches: Vec<Option<&str>> = limiter.matches.iter().map(|one| one.metadata.as_deref()).collect();
    assert_eq!(of_matches, [Some(r#"{"team":{"name":"b \"","size":3,"on":true,"of":[1,"2",0.5]}}"#), Some("{}")]);
}

#[test]
fn with_quota_mode_every_rule_that_decides_is_an_alternative() {
    let rule = |key: &str, more: &str| {
        format!("  - {{key: {key}, {more}rate_limit: {{unit: second, requests_per_unit: 0}}}}\n")
    };
    let rules = [rule("a", ""), rule("b", "quota_mode: true, "), rule("c", "shadow_mode: true, ")].concat();
    let imported = envoy::import(&[file(&format!("domain: d\ndescriptors:\n{rules}"))], Role::Alternative).unwrap();
    let roles: Vec<Role> = imported.limiters.iter().map(|limiter| limiter.role).collect();
    assert_eq!(roles, [Role::Alternative, Role::Alternative, Role::Candidate]);
    assert!(imported.different.iter().any(|note| note.contains("with QUOTA_MODE")), "{:?}", imported.different);
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
    let imported = import(&rules(900, &|n| n / 300)).unwrap();
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
        let imported = import(&text).unwrap();
        assert!(imported.limiters.is_empty() && imported.lost.concat().contains(part), "{:?}", imported.lost);
    }
}

/// Behind Envoy a client with a /64 has any number of addresses, and each of them had a count.
#[test]
fn s2_imported_limits_by_address_count_networks_of_ipv6() {
    for key in ["remote_address", "masked_remote_address", "ip"] {
        let text = format!(
            "domain: d\ndescriptors:\n  - key: {key}\n    rate_limit: {{unit: second, requests_per_unit: 1}}\n"
        );
        let imported = envoy::import(&[file(&text)], Role::Enforced).unwrap();
        let notes: String = imported.notes().collect();
        assert!(notes.contains("an IPv6 address counts as its /64 network; ipv6_prefix = 128"), "{notes}");
        let gate_of = |imported: &Imported| {
            let gate = gate(imported);
            move |value: &str| gate.decide(&Request::of_descriptor("d", &[(key, value.as_bytes())])).unwrap().allowed
        };
        let hit = gate_of(&imported);
        assert_eq!(["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(hit), [true, false, true], "{key}");
        // A rule for one address needs whole addresses.
        let single = format!(
            "{text}  - key: {key}\n    value: \"2001:db8::9\"\n    rate_limit: {{unit: second, requests_per_unit: 2}}\n"
        );
        let imported = envoy::import(&[file(&single)], Role::Enforced).unwrap();
        let notes: String = imported.notes().collect();
        assert!(!notes.contains("/64"), "{notes}");
        let hit = gate_of(&imported);
        let asked = ["2001:db8::1", "2001:db8::1", "2001:db8::2", "2001:db8::9", "2001:db8::9", "2001:db8::9"];
        assert_eq!(asked.map(hit), [true, false, true, true, true, false], "{key}");
    }
}

#[test]
fn shadow_rules_are_candidates_beside_the_others() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: second, requests_per_unit: 1}\n  - key: a\n    value: x\n    shadow_mode: true\n    rate_limit: {unit: second, requests_per_unit: 2}\n";
    let imported = import(text).unwrap();
    let names: Vec<(&str, Role)> = imported.limiters.iter().map(|l| (l.name.as_str(), l.role)).collect();
    assert_eq!(names, [("d-a", Role::Enforced), ("d-a.shadow", Role::Candidate)]);
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
    let named =
        "- {namespace: a, max_value: 1, seconds: 1, variables: [user], name: n, id: i, policy: deny, cache_size: 5}\n";
    let imported = limitador::import(&[file(named)]).unwrap();
    for setting in ["name", "id", "policy", "cache_size"] {
        let note = format!("a.yaml line 1: {setting}; ");
        assert!(imported.lost.iter().any(|lost| lost.starts_with(&note)), "{note}: {:?}", imported.lost);
    }
    assert!(limitador::import(&[file("- namespace: a\n")]).unwrap_err().contains("has no max_value"));
}
