//! `[[limiter]]`: the policy's limiters.
//!
//! What a limit or a name may be is checked by the core and the engine; here their refusals are
//! given a place.

use super::problem::Problem;
use super::section::{Known, Section, Text};
use super::source::{Place, Source};
use super::tree::{Node, Table, Value};
use crate::nearest;
use tidegate::{
    Algorithm, DECISIONS_MAX, Grid, GridError, Ipv6Prefix, LIMITERS_MAX, Limit, LimiterSpec, Micros, Policy,
    PolicyProblem, Rules, Weekday, is_address, text,
};

const KNOWN: Known = Known {
    here: &[
        "name",
        "scope",
        "domain",
        "by",
        "ipv6_prefix",
        "algorithm",
        "aligned",
        "week_starts",
        "strict",
        "resolution",
        "history",
        "limits",
        "names",
        "stats",
        "honour_disable",
        "overdraw",
        "request_limits",
        "top_keys",
        "last_decisions",
        "log_denials",
        "layout",
        "on_failure",
        "replicas",
        "replica",
        "match",
        "alternative",
        "replaces",
        "candidate",
        "candidate_limits",
        "metadata",
    ],
    later: &[],
};

/// Reads every `[[limiter]]`; each problem is reported, and the policy is whole when there is none.
pub(super) fn read(node: &Node, sources: &[Source], problems: &mut Vec<Problem>) -> Policy {
    let Some(tables) = tables(node) else {
        let message = "limiter: it must be an array of tables; write [[limiter]] above each limiter's settings";
        problems.push(Problem { place: Some(node.place), message: message.to_owned() });
        return Policy::default();
    };
    let mut specs: Vec<(LimiterSpec, Place)> = Vec::new();
    for (index, (table, place)) in tables.into_iter().enumerate() {
        let title = title(table, index);
        let mut section = Section::open(title, table, &KNOWN, problems);
        let Some((spec, name_place)) = read_one(&mut section, place) else { continue };
        if let Some((_, first)) = specs.iter().find(|(other, _)| other.name == spec.name) {
            let first = sources[first.source].label(*first);
            section.refuse(
                name_place,
                "name",
                &format!("\"{}\" is taken by the limiter at {first}; names must differ", spec.name),
            );
            continue;
        }
        // Those that it replaces are looked for among all limiters.
        if let Err(error) = Policy::new(vec![LimiterSpec { replaces: Vec::new(), ..spec.clone() }]) {
            let place = at_fault(&mut section, &error.problem).unwrap_or(name_place);
            section.problem(place, error.to_string());
            continue;
        }
        specs.push((spec, name_place));
    }
    whole(specs, problems)
}

/// The policy of all limiters. A limiter that does not go with the others is reported and left out, so that every such limiter is reported.
fn whole(mut specs: Vec<(LimiterSpec, Place)>, problems: &mut Vec<Problem>) -> Policy {
    loop {
        let error = match Policy::new(specs.iter().map(|(spec, _)| spec.clone()).collect()) {
            Ok(policy) => return policy,
            Err(error) => error,
        };
        let at = error.index.min(specs.len() - 1);
        problems.push(Problem { place: Some(specs[at].1), message: format!("limiter: {error}") });
        match error.problem {
            PolicyProblem::TooMany(_) => specs.truncate(LIMITERS_MAX),
            _ => drop(specs.remove(at)),
        }
    }
}

/// The names in the file, those of limiters that are refused too: a setting that refers to one of these is no second mistake.
pub(super) fn names(root: &Table) -> Vec<&str> {
    let node = root.position("limiter").map(|at| &root.entries[at].node);
    let tables = node.and_then(tables).unwrap_or_default();
    tables.into_iter().filter_map(|(table, _)| name(table)).collect()
}

fn name(table: &Table) -> Option<&str> {
    match &table.entries[table.position("name")?].node.value {
        Value::Text(name) => Some(name),
        _ => None,
    }
}

/// Reads an array of tables that have no names, and are counted instead: `[[name]]`.
pub(super) fn read_tables<T>(
    node: Option<&Node>,
    name: &str,
    known: &Known,
    problems: &mut Vec<Problem>,
    read: impl Fn(&mut Section<'_>, Place) -> Option<T>,
) -> Vec<T> {
    let Some(node) = node else { return Vec::new() };
    let Some(tables) = tables(node) else {
        let message = format!("{name}: it must be an array of tables; write [[{name}]] above each one's settings");
        problems.push(Problem { place: Some(node.place), message });
        return Vec::new();
    };
    let mut all = Vec::new();
    for (index, (table, place)) in tables.into_iter().enumerate() {
        let mut section = Section::open(format!("{name} {}", index + 1), table, known, problems);
        all.extend(read(&mut section, place));
    }
    all
}

/// The tables of an array of tables, with their places; `None`: it is something else.
pub(super) fn tables(node: &Node) -> Option<Vec<(&Table, Place)>> {
    let Value::Array(array) = &node.value else { return None };
    let table = |node| match node {
        &Node { place, value: Value::Table(ref table) } => Some((table, place)),
        _ => None,
    };
    array.iter().map(table).collect()
}

/// `limiter "api"`, or `limiter 3` when it has no name to be called by.
fn title(table: &Table, index: usize) -> String {
    match name(table) {
        Some(name) => format!("limiter \"{}\"", name.escape_debug()),
        None => format!("limiter {}", index + 1),
    }
}

fn read_one(section: &mut Section<'_>, place: Place) -> Option<(LimiterSpec, Place)> {
    let name = section.text("name", "api");
    if section.node("name").is_none() {
        section.problem(place, "it has no name; add name = \"api\"".to_owned());
    }
    let scope = section.text("scope", "notify").map(|scope| scope.text.to_owned());
    let domain = section.text("domain", "login").map(|domain| domain.text.to_owned());
    let by = section.texts("by", "user").unwrap_or_default();
    let ipv6_prefix = ipv6_prefix(section);
    if let (Some(node), false) = (section.node("ipv6_prefix"), by.iter().any(|name| is_address(name.text))) {
        section.refuse(
            node.place,
            "ipv6_prefix",
            "\"by\" has no \"ip\" and no \"remote_address\", so that no address counts; leave it out",
        );
    }
    let names = section.boolean("names").unwrap_or(true);
    let stats = section.boolean("stats").unwrap_or(false);
    let honour_disable = section.boolean("honour_disable").unwrap_or(true);
    let overdraw = section.boolean("overdraw").unwrap_or(false);
    let request_limits = section.boolean("request_limits").unwrap_or(false);
    let top_keys = section.boolean("top_keys").unwrap_or(true);
    let last_decisions = section.number("last_decisions", 0..=DECISIONS_MAX as u64, 1_000).unwrap_or(0);
    let log_denials = section.boolean("log_denials").unwrap_or(false);
    if let (true, false, Some(place)) = (log_denials, names, section.node("log_denials").map(|node| node.place)) {
        section.refuse(
            place,
            "log_denials",
            "the limiter has names = false, so that no key may be logged; leave one of them out",
        );
    }
    let on_failure = section.parsed("on_failure", "local", super::store::on_failure);
    let pause_layout = section.parsed("layout", "pause", layout).unwrap_or(false);
    let replicas = super::replicas::read(section);
    let rules = read_rules(section, place, pause_layout)?;
    if let (true, Some(place)) = (pause_layout, section.node("layout").map(|node| node.place))
        && let Some(problem) = unlike_pause(&rules)
    {
        section.refuse(place, "layout", &problem);
    }
    let matches = super::matches::read(section, &rules, pause_layout)?;
    let alternative = section.boolean("alternative").unwrap_or(false);
    let replaces = section.texts("replaces", "api").unwrap_or_default();
    let replaces = replaces.iter().map(|name| name.text.to_owned()).collect();
    let candidate = section.boolean("candidate").unwrap_or(false);
    let candidate_rules = match section.node("candidate_limits") {
        None => None,
        Some(_) => Some(super::matches::limits(section, "candidate_limits", &rules, pause_layout)?),
    };
    let metadata = super::metadata::read(section);
    let name = name?;
    let by = by.iter().map(|attribute| attribute.text.to_owned()).collect();
    Some((
        LimiterSpec {
            name: name.text.to_owned(),
            scope,
            domain,
            by,
            ipv6_prefix: ipv6_prefix.unwrap_or_default(),
            rules,
            names,
            stats,
            honour_disable,
            top_keys,
            last_decisions: usize::try_from(last_decisions).unwrap_or(0),
            log_denials,
            pause_layout,
            on_failure,
            replicas,
            matches,
            candidate,
            alternative,
            replaces,
            candidate_rules,
            request_limits,
            overdraw,
            metadata,
            limit_per_call: false,
        },
        name.place,
    ))
}

/// How many bits of an IPv6 address count.
pub(super) fn ipv6_prefix(section: &mut Section<'_>) -> Option<Ipv6Prefix> {
    let bits = section.number("ipv6_prefix", 1..=128, 64)?;
    u8::try_from(bits).ok().and_then(Ipv6Prefix::new)
}

fn layout(text: &str) -> Result<bool, String> {
    match text {
        "native" => Ok(false),
        "pause" => Ok(true),
        other => Err(format!("\"{}\" is no layout; use \"native\" or \"pause\"", other.escape_debug())),
    }
}

/// Why rules cannot be kept as Pause keeps them, if they cannot.
pub(super) fn unlike_pause(rules: &Rules) -> Option<String> {
    if rules.algorithm() != Algorithm::Buckets {
        return Some("Pause counts in buckets; use algorithm = \"buckets\", or leave it out".to_owned());
    }
    let grid = rules.grid();
    let spans = rules.checks().flat_map(|check| [Some(check.limit().period()), check.block()]).flatten();
    let mut spans = spans.chain([grid.resolution(), grid.history()]);
    let broken = spans.find(|span| span.get() % 1_000_000 != 0)?;
    Some(format!("Pause counts in whole seconds, and {broken} is none; choose whole seconds, or leave it out"))
}

fn read_rules(section: &mut Section<'_>, place: Place, pause_layout: bool) -> Option<Rules> {
    let algorithm = read_algorithm(section);
    let grid = algorithm.and_then(|algorithm| read_grid(section, algorithm));
    if section.node("limits").is_none() {
        section.problem(place, "it has no limits; add limits = [\"5 per minute\"]".to_owned());
        return None;
    }
    let texts = section.texts("limits", "5 per minute")?;
    let limits: Vec<Option<Limit>> = texts.iter().map(|text| read_limit(section, *text)).collect();
    let limits: Vec<Limit> = limits.into_iter().collect::<Option<_>>()?;
    let limits = in_weeks(section, algorithm, limits)?;
    let limits_place = section.node("limits").map_or(place, |node| node.place);
    let (algorithm, grid) = (algorithm?, grid?);
    let rules_of = |limits: &[Limit]| match algorithm {
        // As the application has it: another resolution would not share its counts.
        Algorithm::Buckets if pause_layout => Rules::buckets_of_pause(grid, limits),
        Algorithm::Buckets => Rules::buckets(grid, limits),
        other => Rules::new(other, limits),
    };
    let error = match rules_of(&limits) {
        Ok(rules) => return Some(rules),
        Err(error) => error,
    };
    // It tells one limit at fault; each by itself tells them all.
    let each = limits.iter().zip(&texts).filter_map(|(limit, text)| {
        let error = rules_of(std::slice::from_ref(limit)).err()?;
        Some((text.place, error.to_string()))
    });
    let mut faults: Vec<(Place, String)> = each.collect();
    if error.index().is_none() || faults.is_empty() {
        faults = vec![(limits_place, error.to_string())];
    }
    for (place, message) in faults {
        section.refuse(place, "limits", &message);
    }
    None
}

/// The limits with the first day of their weeks, where that is written.
fn in_weeks(section: &mut Section<'_>, algorithm: Option<Algorithm>, limits: Vec<Limit>) -> Option<Vec<Limit>> {
    let Some(place) = section.node("week_starts").map(|node| node.place) else { return Some(limits) };
    let day = section.parsed("week_starts", "monday", weekday)?;
    if algorithm.is_some_and(|algorithm| algorithm != Algorithm::AlignedWindow) || !limits.iter().any(Limit::has_weeks)
    {
        let remedy =
            "leave it out, or use algorithm = \"fixed-window\", aligned = true and a limit such as \"7 per week\"";
        section.refuse(place, "week_starts", &format!("only aligned windows of whole weeks begin on a day; {remedy}"));
        return None;
    }
    Some(limits.into_iter().map(|limit| limit.with_weeks_from(day)).collect())
}

fn weekday(text: &str) -> Result<Weekday, String> {
    let found = Weekday::ALL.into_iter().find(|day| day.name() == text);
    found.ok_or_else(|| format!("\"{}\" is no day; use \"monday\" to \"sunday\"", text.escape_debug()))
}

/// How buckets cut time; the other algorithms have no such settings. `None`: a setting is at fault.
fn read_grid(section: &mut Section<'_>, algorithm: Algorithm) -> Option<Grid> {
    let default = Grid::default();
    if algorithm != Algorithm::Buckets {
        for setting in ["resolution", "history"] {
            if let Some(place) = section.node(setting).map(|node| node.place) {
                let message =
                    format!("{} counts in no blocks; leave it out or use algorithm = \"buckets\"", algorithm.name());
                section.refuse(place, setting, &message);
            }
        }
        return Some(default);
    }
    let resolution = read_span(section, "resolution", default.resolution());
    let history = read_span(section, "history", default.history());
    let (resolution, history) = (resolution?, history?);
    Grid::new(resolution, history)
        .map_err(|error| {
            // Of the two the one that is written: a default is not at fault.
            let order = match error {
                GridError::History(_) | GridError::TooShort { .. } => ["history", "resolution"],
                _ => ["resolution", "history"],
            };
            if let Some(setting) = order.into_iter().find(|setting| section.node(setting).is_some())
                && let Some(place) = section.node(setting).map(|node| node.place)
            {
                section.refuse(place, setting, &error.to_string());
            }
        })
        .ok()
}

fn read_span(section: &mut Section<'_>, setting: &str, default: Micros) -> Option<Micros> {
    match section.node(setting) {
        Some(_) => section.parsed(setting, &default.to_string(), text::duration),
        None => Some(default),
    }
}

pub(super) fn read_limit(section: &mut Section<'_>, text: Text<'_>) -> Option<Limit> {
    text.text
        .parse()
        .map_err(|error| section.refuse(text.place, "limits", &format!("\"{}\": {error}", text.text.escape_debug())))
        .ok()
}

fn read_algorithm(section: &mut Section<'_>) -> Option<Algorithm> {
    let name = match section.node("algorithm") {
        Some(_) => section.parsed("algorithm", "token-bucket", algorithm)?,
        None => Algorithm::default(),
    };
    let name = read_variant(section, name, &ALIGNED)?;
    read_variant(section, name, &STRICT)
}

/// A setting that makes one algorithm another.
struct Variant {
    setting: &'static str,
    plain: Algorithm,
    set: Algorithm,
    /// What the other algorithms lack.
    lacks: &'static str,
}

const ALIGNED: Variant = Variant {
    setting: "aligned",
    plain: Algorithm::FixedWindow,
    set: Algorithm::AlignedWindow,
    lacks: "has no windows to align",
};
const STRICT: Variant = Variant {
    setting: "strict",
    plain: Algorithm::LeakyAverage,
    set: Algorithm::StrictAverage,
    lacks: "forgets its denials, strict or not",
};

fn read_variant(section: &mut Section<'_>, name: Algorithm, variant: &Variant) -> Option<Algorithm> {
    match section.boolean(variant.setting) {
        Some(true) if name == variant.plain => Some(variant.set),
        Some(_) if name != variant.plain => {
            let place = section.node(variant.setting).map(|node| node.place)?;
            let message = format!(
                "{} {}; leave it out or use algorithm = \"{}\"",
                name.name(),
                variant.lacks,
                variant.plain.name()
            );
            section.refuse(place, variant.setting, &message);
            None
        }
        _ => Some(name),
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    let known = || Algorithm::ALL.iter().filter(|algorithm| ![ALIGNED.set, STRICT.set].contains(algorithm));
    if let Some(found) = known().find(|algorithm| algorithm.name() == text) {
        return Ok(*found);
    }
    let shown = text.escape_debug();
    let names: Vec<&str> = known().map(|algorithm| algorithm.name()).collect();
    Err(match nearest::of(text, names.iter().copied()) {
        Some(near) => format!("\"{shown}\" is no algorithm; did you mean \"{near}\"?"),
        None => format!("\"{shown}\" is no algorithm; use one of {}", names.join(", ")),
    })
}

/// Where the word stands that the engine refuses.
fn at_fault(section: &mut Section<'_>, problem: &PolicyProblem) -> Option<Place> {
    let word = match problem {
        PolicyProblem::Name(name) | PolicyProblem::AttributeTwice(name) => name,
        PolicyProblem::DomainWithoutBy(domain) => domain,
        PolicyProblem::Scope(scope) => scope,
        PolicyProblem::Match { at, .. } => return super::matches::place(section, *at),
        PolicyProblem::Candidate { .. } => {
            let nodes = ["candidate_limits", "candidate"].map(|name| section.node(name));
            return nodes.into_iter().flatten().next().map(|node| node.place);
        }
        PolicyProblem::RequestLimits { .. } => return section.node("request_limits").map(|node| node.place),
        PolicyProblem::NotShareable(_) => return section.node("replicas").map(|node| node.place),
        _ => return None,
    };
    let by = section.texts("by", "user").unwrap_or_default();
    let words = ["name", "scope", "domain"].iter().filter_map(|name| section.text(name, "")).chain(by);
    words.filter(|text| text.text == word).last().map(|text| text.place)
}
