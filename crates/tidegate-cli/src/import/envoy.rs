//! envoyproxy/ratelimit: a domain, and a tree of descriptors.
//!
//! A request's descriptor walks down the tree, entry by entry. At each level it takes the child of its key with its very value, else the first whose value has a
//! `*` and matches, else the one without a value; it never goes back up. Its limit is that of the node at which it ends. So the rules for one list of keys, in
//! that order, are rows of which the first that matches is the node that the walk ends at; and where a walk would end at no node, a row says unlimited.

use super::File;
use super::metadata;
use super::policy::{ANY, Imported, Limiter, Role, Row, TAKEN, is_name};
use super::yaml::{self, Members, Node};
use tidegate_doors::ratelimit::attribute;

/// A node of the tree.
#[derive(Debug)]
struct Rule {
    key: String,
    /// Empty: any.
    value: String,
    limit: Limit,
    class: Class,
    /// Values that match it count together, in the rules below it, too.
    is_shared: bool,
    /// A table of TOML.
    metadata: Option<String>,
    children: Vec<Rule>,
    place: String,
}

/// What rules must have in common to be one limiter.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Class {
    role: Role,
    called: Option<String>,
    replaces: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Limit {
    /// It has none.
    Nothing,
    Unlimited,
    Of(String),
}

#[derive(Debug)]
struct Domain {
    name: String,
    rules: Vec<Rule>,
}

/// The policy of these files, where rules that are neither quotas nor in shadow mode have this role.
///
/// # Errors
/// What is wrong in which line of which file.
pub(super) fn import(files: &[File], enforced: Role) -> Result<Imported, String> {
    let mut imported = Imported {
        from: files.iter().map(|file| file.name.clone()).collect(),
        by: "envoy",
        different: vec![DENIED.to_owned()],
        ..Imported::default()
    };
    if enforced == Role::Alternative {
        imported.different.push(UNMATCHED_QUOTA.to_owned());
    }
    let mut domains: Vec<Domain> = Vec::new();
    for file in files {
        let here = |message: String| format!("{}, {message}", file.name);
        for node in yaml::read(&file.text).map_err(here)? {
            let domain = domain(node, &Reading { file: &file.name, enforced }, &mut imported).map_err(here)?;
            match domains.iter_mut().find(|other| other.name == domain.name) {
                Some(other) => merge(&mut other.rules, domain.rules)?,
                None => domains.push(domain),
            }
        }
    }
    for domain in &domains {
        note_joined(&domain.rules, &mut imported);
        if !is_name(&domain.name) {
            imported.lost.push(format!("domain \"{}\": its name is none of ours", domain.name.escape_debug()));
            continue;
        }
        let mut lists: Vec<Vec<String>> = Vec::new();
        lists_of_keys(&domain.rules, &mut Vec::new(), &mut lists);
        for keys in lists {
            add_limiters(&mut imported, domain, &keys);
        }
    }
    Ok(imported)
}

const UNMATCHED_QUOTA: &str =
    "with QUOTA_MODE a descriptor that no rule is for is a quota that allows there; here it counts for nothing";
const DENIED: &str = "envoyproxy/ratelimit counts requests that it denies; here a denial charges nothing, in no descriptor of the request";

/// The file that is being read, and what its rules are unless they say so.
struct Reading<'a> {
    file: &'a str,
    enforced: Role,
}

fn domain(node: Node, reading: &Reading<'_>, imported: &mut Imported) -> Result<Domain, String> {
    let mut members = node.members("a configuration")?;
    let line = members.line();
    let name = members.text("domain")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("line {line}: the file has no domain"))?;
    let rules = rules(members.list("descriptors")?, reading, imported)?;
    members.end()?;
    Ok(Domain { name, rules })
}

fn rules(nodes: Vec<Node>, reading: &Reading<'_>, imported: &mut Imported) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    for node in nodes {
        let rule = rule(node, reading, imported)?;
        merge(&mut rules, vec![rule])?;
    }
    Ok(rules)
}

/// Adds rules of the same level; two of one key and value cannot be.
fn merge(rules: &mut Vec<Rule>, more: Vec<Rule>) -> Result<(), String> {
    for rule in more {
        if let Some(other) = rules.iter().find(|other| other.key == rule.key && other.value == rule.value) {
            let (key, value) = (rule.key.escape_debug(), rule.value.escape_debug());
            return Err(format!(
                "{}: {key} with the value \"{value}\" is there already, at {}; keep one of them",
                rule.place, other.place
            ));
        }
        rules.push(rule);
    }
    Ok(())
}

fn rule(node: Node, reading: &Reading<'_>, imported: &mut Imported) -> Result<Rule, String> {
    let mut members = node.members("a descriptor")?;
    let line = members.line();
    let place = format!("{} line {line}", reading.file);
    let key = members.text("key")?.filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| format!("line {line}: the descriptor has no key"))?;
    let value = members.text("value")?.unwrap_or_default();
    let role = match (members.is_true("shadow_mode")?, members.is_true("quota_mode")?) {
        (false, false) => reading.enforced,
        (false, true) => Role::Alternative,
        (true, is_quota) => {
            if is_quota {
                imported
                    .different
                    .push(format!("{place}: quota_mode of {key}, a rule in shadow_mode; here it decides nothing"));
            }
            Role::Candidate
        }
    };
    let is_shared = members.is_true("share_threshold")?;
    if is_shared && !value.contains('*') {
        return Err(format!(
            "line {line}: share_threshold needs a value with a *, and \"{}\" has none",
            value.escape_debug()
        ));
    }
    // What they tell, `tidegate top` tells for every limiter.
    for told in ["detailed_metric", "value_to_metric"] {
        members.is_true(told)?;
    }
    let metadata = members.take("metadata").map(|node| metadata::table(&node));
    if metadata == Some(None) {
        imported.lost.push(format!("{place}: metadata of {key}, which is no table of at most 4,000 bytes"));
    }
    let mut class = Class { role, ..Class::default() };
    let limit = match members.take("rate_limit") {
        Some(node) => rate_limit(node, &place, &mut class, imported)?,
        None => Limit::Nothing,
    };
    let children = rules(members.list("descriptors")?, reading, imported)?;
    members.end()?;
    Ok(Rule { key, value, limit, class, is_shared, metadata: metadata.flatten(), children, place })
}

fn rate_limit(node: Node, place: &str, class: &mut Class, imported: &mut Imported) -> Result<Limit, String> {
    let mut members = node.members("rate_limit")?;
    let line = members.line();
    let unlimited = members.is_true("unlimited")?;
    let (unit, count) = (members.text("unit")?, members.number("requests_per_unit")?);
    let times = members.number("unit_multiplier")?;
    class.called = members.text("name")?.filter(|name| !name.is_empty());
    for node in members.list("replaces")? {
        let mut replaced = node.members("replaces")?;
        let other = replaced.text("name")?.unwrap_or_default();
        replaced.end()?;
        if other.is_empty() || Some(&other) == class.called.as_ref() {
            return Err(format!("line {line}: a limit replaces others by their names, and not itself"));
        }
        // Who does not limit replaces nobody here.
        match (unlimited, class.role) {
            (false, Role::Enforced | Role::Alternative) => class.replaces.push(other),
            _ => imported
                .lost
                .push(format!("{place}: it replaces \"{other}\", though it limits nothing itself; here it does not")),
        }
    }
    note_soft_limit(&mut members, place, imported)?;
    members.end()?;
    if unlimited {
        return match unit {
            Some(_) => Err(format!("line {line}: unlimited has no unit; leave one of them out")),
            None => Ok(Limit::Unlimited),
        };
    }
    let unit = unit.ok_or_else(|| format!("line {line}: rate_limit has no unit"))?;
    let times = times.unwrap_or(1);
    if times == 0 {
        return Err(format!("line {line}: unit_multiplier is 0; leave it out, or write 1 or more"));
    }
    let count = u32::try_from(count.unwrap_or(0))
        .map_err(|_| format!("line {line}: requests_per_unit is more than {}", u32::MAX))?;
    period(&unit, times, place, imported).map(|period| Limit::Of(format!("{count} per {period}"))).ok_or_else(|| {
        format!("line {line}: unit \"{}\" is none of second, minute, hour, day, week, month, year", unit.escape_debug())
    })
}

fn note_soft_limit(members: &mut Members, place: &str, imported: &mut Imported) -> Result<(), String> {
    if members.number("soft_requests_per_unit")?.is_some() {
        imported.lost.push(format!("{place}: soft_requests_per_unit; limit for real, or watch the metrics"));
    }
    Ok(())
}

/// A period of ours; windows begin at multiples of it since the epoch, here as there.
fn period(unit: &str, times: u64, place: &str, imported: &mut Imported) -> Option<String> {
    let (days, word) = match unit.to_ascii_lowercase().as_str() {
        "second" => (0, "s"),
        "minute" => (0, "m"),
        "hour" => (0, "h"),
        "day" => (1, "d"),
        "week" => (7, "d"),
        "month" => (30, "d"),
        "year" => (365, "d"),
        _ => return None,
    };
    match days {
        30 | 365 => imported
            .different
            .push(format!("{place}: a {unit} is {days} days from the epoch, of no calendar, there and here")),
        _ => {}
    }
    Some(format!("{}{word}", times * days.max(1)))
}

/// There a key and its value are one text, joined by `_`, so that a rule for the key `a_b` is also found for the key `a` with the value `b`.
fn note_joined(rules: &[Rule], imported: &mut Imported) {
    for rule in rules {
        let clashes = |other: &&Rule| other.key != rule.key && rule.key.starts_with(&format!("{}_", other.key));
        if let Some(other) = rules.iter().find(clashes) {
            let (key, other) = (&rule.key, &other.key);
            imported.different.push(format!(
                "{}: there \"{key}\" is also found for a value of \"{other}\"; here it is not",
                rule.place
            ));
        }
        note_joined(&rule.children, imported);
    }
}

/// Every list of keys at whose end a limit may stand.
fn lists_of_keys(rules: &[Rule], above: &mut Vec<String>, lists: &mut Vec<Vec<String>>) {
    for rule in rules {
        above.push(rule.key.clone());
        if rule.limit != Limit::Nothing && !lists.contains(above) {
            lists.push(above.clone());
        }
        lists_of_keys(&rule.children, above, lists);
        above.pop();
    }
}

fn add_limiters(imported: &mut Imported, domain: &Domain, keys: &[String]) {
    let shown = keys.join(", ");
    if let Some(key) = keys.iter().find(|key| !is_name(key) || TAKEN.contains(&key.as_str())) {
        imported.lost.push(format!(
            "domain \"{}\", keys {shown}: \"{}\" cannot be an attribute here",
            domain.name,
            key.escape_debug()
        ));
        return;
    }
    let keys_here: Vec<&str> = keys.iter().map(String::as_str).collect();
    let by: Vec<String> = (0..keys.len()).map(|at| attribute(&keys_here, at).into_owned()).collect();
    if let Some((_, name)) = by.iter().enumerate().find(|(at, name)| !is_name(name) || by[..*at].contains(name)) {
        let what = "and is another key's name, or too long";
        imported.lost.push(format!("domain \"{}\", keys {shown}: a key is \"{name}\" here, {what}", domain.name));
        return;
    }
    let mut rows = Vec::new();
    let entries: Vec<(&str, &str)> = keys_here.iter().copied().zip(by.iter().map(String::as_str)).collect();
    rows_of(&domain.rules, &entries, &Above::default(), &mut rows);
    let mut classes: Vec<Class> = Vec::new();
    for (_, class) in rows.iter().filter(|(row, _)| row.limit.is_some()) {
        if !classes.contains(class) {
            classes.push(class.clone());
        }
    }
    // What is enforced comes first: it is what most look for.
    classes.sort_by_key(|class| class.role != Role::Enforced);
    for class in classes {
        let rows: Vec<Row> =
            rows.iter().map(|(row, other)| if *other == class { row.clone() } else { unlimited(row) }).collect();
        let end = match class.role {
            Role::Enforced => "",
            Role::Candidate => ".shadow",
            Role::Alternative => ".quota",
        };
        let name =
            imported.own_name(class.called.as_ref()).unwrap_or_else(|| imported.name_for(&domain.name, &by, end));
        let algorithm = algorithm(imported, &rows, &domain.name, &shown);
        let (domain, by, rows) = (domain.name.clone(), by.clone(), trimmed(rows));
        let Class { role, called, replaces } = class;
        imported.add(Limiter { name, domain, by, algorithm, role, called, replaces, rows });
    }
}

fn unlimited(row: &Row) -> Row {
    Row { limit: None, together: Vec::new(), metadata: None, ..row.clone() }
}

/// Windows there begin at multiples of their length since the epoch, which was a Thursday; so do ours, but for weeks, which begin as people's do.
fn algorithm(imported: &mut Imported, rows: &[Row], domain: &str, keys: &str) -> &'static str {
    let is_weeks = |limit: &String| {
        let days = limit.split(" per ").nth(1).and_then(|period| period.strip_suffix('d')?.parse::<u64>().ok());
        days.is_some_and(|days| days.is_multiple_of(7))
    };
    let limits: Vec<&String> = rows.iter().filter_map(|row| row.limit.as_ref()).collect();
    match (limits.iter().all(|limit| is_weeks(limit)), limits.iter().any(|limit| is_weeks(limit))) {
        (true, _) => "algorithm = \"fixed-window\"\naligned = true\nweek_starts = \"thursday\"",
        (false, some) => {
            if some {
                let what = format!(
                    "domain \"{domain}\", keys {keys}: weeks begin on a Thursday there, on a Monday here, as other periods stand beside them"
                );
                imported.different.push(what);
            }
            "algorithm = \"fixed-window\"\naligned = true"
        }
    }
}

/// What a walk has come by.
#[derive(Clone, Default)]
struct Above {
    values: Vec<String>,
    together: Vec<String>,
}

/// The rows for these keys, each with the attribute that it is, below these values, in the order of the walk; with each what its rule is like.
fn rows_of(rules: &[Rule], keys: &[(&str, &str)], above: &Above, rows: &mut Vec<(Row, Class)>) {
    let Some(((key, attribute), below)) = keys.split_first() else { return };
    let of_key = || rules.iter().filter(|rule| rule.key == *key);
    let exact = of_key().filter(|rule| !rule.value.is_empty() && !rule.value.contains('*'));
    let patterns = of_key().filter(|rule| rule.value.contains('*'));
    let any = of_key().filter(|rule| rule.value.is_empty());
    for rule in exact.chain(patterns).chain(any) {
        let Above { mut values, mut together } = above.clone();
        values.push(if rule.value.is_empty() { ANY.to_owned() } else { rule.value.clone() });
        together.extend(rule.is_shared.then(|| (*attribute).to_owned()));
        if below.is_empty() {
            let (limit, together, metadata) = match &rule.limit {
                Limit::Of(limit) => (Some(limit.clone()), together, rule.metadata.clone()),
                Limit::Nothing | Limit::Unlimited => (None, Vec::new(), None),
            };
            let row = Row { values, together, limit, metadata, comment: rule.place.clone() };
            rows.push((row, rule.class.clone()));
        } else {
            rows_of(&rule.children, below, &Above { values: values.clone(), together }, rows);
            // The walk does not go back up.
            values.resize(values.len() + below.len(), ANY.to_owned());
            let row = Row { values, together: Vec::new(), limit: None, metadata: None, comment: "no rule".to_owned() };
            rows.push((row, Class::default()));
        }
    }
}

/// Without rows behind one that is for all, and without rows at the end that say what the end says anyway.
fn trimmed(mut rows: Vec<Row>) -> Vec<Row> {
    if let Some(at) = rows.iter().position(|row| row.values.iter().all(|value| value == ANY)) {
        rows.truncate(at + 1);
    }
    while rows.last().is_some_and(|row| row.limit.is_none()) {
        rows.pop();
    }
    // Two rows for the same values: the second is never reached.
    let mut seen: Vec<Vec<String>> = Vec::new();
    rows.retain(|row| {
        let is_new = !seen.contains(&row.values);
        seen.push(row.values.clone());
        is_new
    });
    rows
}
