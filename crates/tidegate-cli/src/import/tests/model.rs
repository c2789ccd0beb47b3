//! What a gate makes of an imported policy, against a naive walk down the tree that it was made from: the limit that a descriptor has, what it counts
//! together with, and what a request of several descriptors comes to.

use super::trees::{MORE, Rule, VALID, read, yaml};
use super::{envoy, file, gate};
use crate::import::policy::{Imported, Role};
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;
use tidegate::{Answer, Gate, Request};
use tidegate_doors::ratelimit::attribute;
use tidegate_testkit::{Random, number};

type Entries = Vec<(String, String)>;

/// The rule at which a walk ends, and the values that are counted by.
struct Found<'r> {
    rule: &'r Rule,
    counted: Vec<String>,
}

fn walk<'r>(mut level: &'r [Rule], entries: &Entries) -> Option<Found<'r>> {
    let mut counted = Vec::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let of_key = || level.iter().filter(|rule| rule.key == *key);
        let exact = of_key().find(|rule| !rule.value.is_empty() && rule.value == *value);
        let pattern = || of_key().find(|rule| rule.value.contains('*') && matches(&rule.value, value));
        let rule = exact.or_else(pattern).or_else(|| of_key().find(|rule| rule.value.is_empty()))?;
        counted.push(if rule.is("share") { rule.value.clone() } else { value.clone() });
        if at + 1 == entries.len() {
            return Some(Found { rule, counted });
        }
        level = &rule.children;
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

/// `5 per 60s` of `5/minute`; `None`: nothing limits it.
fn shown(rule: &Rule) -> Option<String> {
    let (count, unit) = rule.limit.as_deref()?.split_once('/')?;
    let (times, unit) = unit.split_once('x').unwrap_or(("1", unit));
    const DAY: u64 = 86_400;
    let seconds = match unit {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        other => panic!("{other}"),
    };
    let seconds = seconds * times.parse::<u64>().unwrap();
    Some(format!("{count} per {seconds}s"))
}

/// Every key and every value of the rules, and some values that are like them.
fn words(rules: &[Rule], keys: &mut Vec<String>, values: &mut Vec<String>) {
    for rule in rules {
        keys.push(rule.key.clone());
        values.extend([rule.value.clone(), rule.value.replace('*', "1"), rule.value.replace('*', "/v1/")]);
        words(&rule.children, keys, values);
    }
    keys.sort();
    keys.dedup();
    values.extend(["", "x", "u", "v1"].map(str::to_owned));
    values.sort();
    values.dedup();
}

/// Random descriptors: any keys in any order, or keys of the tree from its top down, with their own values or others.
struct Descriptors<'r> {
    rules: &'r [Rule],
    keys: Vec<String>,
    values: Vec<String>,
    random: Random,
}

impl<'r> Descriptors<'r> {
    fn of(rules: &'r [Rule], seed: u64) -> Descriptors<'r> {
        // A key that no rule is for, too.
        let (mut keys, mut values) = (vec!["elsewhere".to_owned()], Vec::new());
        words(rules, &mut keys, &mut values);
        Descriptors { rules, keys, values, random: Random(seed) }
    }

    fn value(&mut self) -> String {
        self.values[self.random.index(self.values.len())].clone()
    }

    fn next(&mut self) -> Entries {
        if self.random.below(4) == 0 {
            let count = 1 + self.random.below(3);
            return (0..count).map(|_| (self.keys[self.random.index(self.keys.len())].clone(), self.value())).collect();
        }
        let (mut level, mut entries) = (self.rules, Vec::new());
        while !level.is_empty() && (entries.is_empty() || self.random.below(5) > 0) {
            let rule = &level[self.random.index(level.len())];
            let own = rule.value.replace('*', ["", "1", "/v1/", "*"][self.random.index(4)]);
            let is_own = !rule.value.is_empty() && self.random.below(3) > 0;
            entries.push((rule.key.clone(), if is_own { own } else { self.value() }));
            level = &rule.children;
        }
        entries
    }
}

/// The attributes that entries are at the door, with their values.
fn attributes(entries: &Entries) -> Vec<(Cow<'_, str>, &[u8])> {
    let keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
    entries.iter().enumerate().map(|(at, (_, value))| (attribute(&keys, at), value.as_bytes())).collect()
}

fn bytes<'a>(attributes: &'a [(Cow<'_, str>, &'a [u8])]) -> Vec<(&'a str, &'a [u8])> {
    attributes.iter().map(|(name, value)| (&**name, *value)).collect()
}

/// A limiter, and one of its keys.
type Counter = (String, Vec<u8>);

/// What a descriptor is limited by: the limit, whether as a candidate or an alternative, and what counts it. Of all limiters with its keys one at most limits it.
fn limited_by(gate: &Gate, entries: &Entries) -> Option<(String, [bool; 2], Counter)> {
    let attributes = attributes(entries);
    let entries = bytes(&attributes);
    let answer = gate.decide(&Request::of_descriptor("d", &entries).peek().explained()).unwrap();
    let mut asked = answer.explanation.iter().filter(|one| !one.limits.is_empty());
    let one = asked.next()?;
    assert!(asked.next().is_none(), "{entries:?}: {:?}", answer.explanation);
    let limit = one.limits[0].0;
    let limit = format!("{} per {}s", limit.count(), limit.period().get() / 1_000_000);
    Some((limit, [one.candidate, one.limiter.alternative], (one.limiter.name.clone(), one.key.clone())))
}

/// Two maps that must agree: what counts together there, counts together here, and nothing else does.
#[derive(Default)]
struct Counters {
    here: HashMap<Entries, Counter>,
    there: HashMap<Counter, Entries>,
}

impl Counters {
    fn check(&mut self, there: Entries, here: Counter) {
        assert_eq!(*self.here.entry(there.clone()).or_insert_with(|| here.clone()), here, "{there:?}");
        assert_eq!(*self.there.entry(here.clone()).or_insert_with(|| there.clone()), there, "{here:?}");
    }
}

fn check_limits(imported: &Imported, rules: &[Rule], steps: usize, text: &str) {
    let (gate, mut descriptors) = (gate(imported), Descriptors::of(rules, number("TIDEGATE_SEED", 1)));
    let (mut counters, mut limited) = (Counters::default(), 0);
    for _ in 0..steps {
        let entries = descriptors.next();
        let found = walk(rules, &entries);
        let expected = found.as_ref().and_then(|found| shown(found.rule));
        let told = limited_by(&gate, &entries);
        assert_eq!(told.as_ref().map(|told| &told.0), expected.as_ref(), "{entries:?}\n{text}");
        let (Some(found), Some((_, roles, key)), true) = (found, told, expected.is_some()) else { continue };
        let is_shadow = found.rule.is("shadow");
        assert_eq!(roles, [is_shadow, found.rule.is("quota") && !is_shadow], "{entries:?}\n{text}");
        let keys = entries.iter().map(|(key, _)| key.clone());
        counters.check(keys.zip(found.counted).collect(), key);
        limited += 1;
    }
    let any = !rules.is_empty();
    assert_eq!(limited > steps / 100, any, "{limited} of {steps} had a limit: is anything tried?\n{text}");
}

/// The policy of files with these rules.
fn imported(files: &[&str]) -> (Vec<Rule>, Imported, String) {
    let rules: Vec<Vec<Rule>> = files.iter().map(|text| read(text)).collect();
    let texts: Vec<String> = rules.iter().map(|rules| yaml(rules)).collect();
    let read: Vec<_> = texts.iter().map(|text| file(text)).collect();
    (rules.concat(), envoy::import(&read, Role::Enforced).unwrap(), texts.join("---\n"))
}

#[test]
fn the_imported_policy_decides_by_the_limit_at_which_the_walk_ends() {
    let steps = number("TIDEGATE_STEPS", 10_000);
    let more: Vec<[&str; 1]> = MORE.iter().map(|text| [*text]).collect();
    let all = VALID.iter().map(|(name, files)| (*name, *files)).chain(more.iter().map(|files| ("more", &files[..])));
    for (name, files) in all {
        let (rules, imported, text) = imported(files);
        let lost = &imported.lost;
        assert!(lost.iter().all(|what| name == "more" && what.contains("limits nothing itself")), "{name}: {lost:?}");
        assert_eq!(
            imported.toml().matches("metadata = { team = ").count(),
            text.matches("metadata:").count(),
            "{name}"
        );
        check_limits(&imported, &rules, steps, &text);
    }
}

/// What the other service says of several descriptors whose rules allow all (a count) or nothing (a count of 0).
fn service(rules: &[Rule], request: &[Entries]) -> (bool, Vec<bool>) {
    let found = |entries: &Entries| {
        let found = walk(rules, entries)?;
        shown(found.rule).map(|limit| (found.rule, limit.starts_with("0 ")))
    };
    let found: Vec<Option<(&Rule, bool)>> = request.iter().map(found).collect();
    let replacing = found.iter().flatten().filter(|(rule, _)| !rule.is("shadow"));
    let replaced: Vec<&str> = replacing.flat_map(|(rule, _)| rule.named("replaces")).collect();
    let is_replaced = |rule: &Rule| rule.named("name").iter().any(|name| replaced.contains(name));
    let (mut failed, mut quotas, mut failed_quotas) = (0, 0, 0);
    let mut statuses = Vec::new();
    for one in found {
        let checked = one.filter(|(rule, _)| !is_replaced(rule) && !rule.is("shadow"));
        let is_over = checked.is_some_and(|(_, is_over)| is_over);
        let is_quota = checked.is_some_and(|(rule, _)| rule.is("quota"));
        quotas += usize::from(is_quota);
        failed_quotas += usize::from(is_quota && is_over);
        failed += usize::from(!is_quota && is_over);
        statuses.push(!is_over);
    }
    (failed == 0 && (quotas == 0 || quotas != failed_quotas), statuses)
}

#[test]
fn several_descriptors_come_to_what_quotas_names_and_replacements_make_of_them() {
    let steps: usize = number("TIDEGATE_STEPS", 10_000);
    let (rules, imported, text) = imported(&[MORE[3]]);
    let (gate, mut descriptors) = (gate(&imported), Descriptors::of(&rules, number("TIDEGATE_SEED", 1)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut passed = 0;
    for _ in 0..steps {
        let request: Vec<Entries> = (0..1 + descriptors.random.below(5)).map(|_| descriptors.next()).collect();
        let attributes: Vec<_> = request.iter().map(attributes).collect();
        let entries: Vec<Vec<(&str, &[u8])>> = attributes.iter().map(|one| bytes(one)).collect();
        let asked: Vec<Request<'_>> = entries.iter().map(|one| Request::of_descriptor("d", one).peek()).collect();
        let answers = runtime.block_on(gate.ask_together(&asked, Duration::from_secs(1))).unwrap();
        let told = (Answer::all_pass(&answers), answers.iter().map(|answer| answer.allowed).collect::<Vec<_>>());
        assert_eq!(told, service(&rules, &request), "{request:?}\n{text}\n{}", imported.toml());
        passed += usize::from(told.0);
    }
    assert!((steps / 20..steps).contains(&passed), "{passed} of {steps} passed: is anything tried?");
}
