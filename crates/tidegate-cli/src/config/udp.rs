//! `[[udp.rewrite]]` and `[[udp.route]]`: which limiter a key of the UDP door matches; `[[udp.count]]`: which
//! keys are counted beside that.
//!
//! What a pattern may be is checked by the door; here its refusals are given a place.

use super::access::each;
use super::limiter::{ipv6_prefix, read_tables};
use super::problem::Problem;
use super::section::{Known, Section, Text};
use super::source::Place;
use super::tree::{Entry, Node, Table, Value};
use crate::nearest;
use tidegate_doors::access::Network;
use tidegate_doors::udp::{Count, Rewrite, Route, RouteProblem, Routes, Routing};

const KNOWN: Known = Known { here: &["allow", "count", "rewrite", "route"], later: &[] };
const KNOWN_COUNT: Known = Known { here: &["match", "name"], later: &[] };
const KNOWN_REWRITE: Known = Known { here: &["match", "replace"], later: &[] };
const KNOWN_ROUTE: Known = Known { here: &["match", "limiter", "ipv6_prefix"], later: &[] };

/// Reads `[udp]`: the rules, and the networks that may ask. A route's limiter must be one of the policy's.
pub(super) fn read(entry: &Entry, limiters: &[&str], problems: &mut Vec<Problem>) -> (Routing, Vec<Network>) {
    let Value::Table(table) = &entry.node.value else {
        let message = "udp: it must be tables; write [[udp.route]] above each route's settings".to_owned();
        problems.push(Problem { place: Some(entry.node.place), message });
        return (Routing::default(), Vec::new());
    };
    let before = problems.len();
    let mut section = Section::open("[udp]".to_owned(), table, &KNOWN, problems);
    let allow = each(&mut section, "allow", "10.0.0.0/8", str::parse);
    if let (Some(Node { place, value: Value::Array(all) }), true) = (section.node("allow"), allow.is_empty())
        && all.is_empty()
    {
        section.refuse(
            *place,
            "allow",
            "an empty list would let nobody ask; name a network such as \"10.0.0.0/8\", or leave it out",
        );
    }
    let rules = |name| table.position(name).map(|at| &table.entries[at].node);
    let (counts, rewrites, routes) = (rules("count"), rules("rewrite"), rules("route"));
    let routing = Routing {
        counts: read_tables(counts, "udp.count", &KNOWN_COUNT, problems, read_count),
        rewrites: read_tables(rewrites, "udp.rewrite", &KNOWN_REWRITE, problems, read_rewrite),
        routes: read_tables(routes, "udp.route", &KNOWN_ROUTE, problems, |section, place| {
            read_route(section, place, limiters)
        }),
    };
    // Each rule was checked by itself; together they may still be too many.
    if problems.len() == before
        && let Err(error) = Routes::new(&routing)
    {
        problems.push(Problem { place: Some(entry.name_place), message: format!("udp: {error}") });
    }
    (routing, allow)
}

/// Rules that no request would reach: `[doors]` opens other doors only.
pub(super) fn without_a_door(root: &Table) -> Option<Problem> {
    let udp = &root.entries[root.position("udp")?];
    let Value::Table(doors) = &root.entries[root.position("doors")?].node.value else { return None };
    (!doors.entries.is_empty() && doors.position("udp").is_none()).then(|| Problem {
        place: Some(udp.name_place),
        message: "udp: [doors] opens no UDP door, so that nothing would ask these rules; add udp = \"127.0.0.1:7401\" to [doors], \
                  or leave the rules out"
            .to_owned(),
    })
}

fn read_count(section: &mut Section<'_>, place: Place) -> Option<Count> {
    let pattern = needed(section, place, "match", "(?i)(picard|googlebot)");
    let name = needed(section, place, "name", "$1");
    let (pattern, name) = (pattern?, name?);
    let rule = Count { pattern: pattern.text.to_owned(), name: name.text.to_owned() };
    match rule.check() {
        Ok(()) => return Some(rule),
        Err(RouteProblem::Replacement(message)) => section.refuse(name.place, "name", &message),
        Err(other) => section.refuse(pattern.place, "match", &other.to_string()),
    }
    None
}

fn read_rewrite(section: &mut Section<'_>, place: Place) -> Option<Rewrite> {
    let pattern = needed(section, place, "match", "^ws ip=");
    let replacement = needed(section, place, "replace", " cust=bbc");
    let (pattern, replacement) = (pattern?, replacement?);
    let rule = Rewrite { pattern: pattern.text.to_owned(), replacement: replacement.text.to_owned() };
    match rule.check() {
        Ok(()) => return Some(rule),
        Err(RouteProblem::Replacement(message)) => section.refuse(replacement.place, "replace", &message),
        Err(other) => section.refuse(pattern.place, "match", &other.to_string()),
    }
    None
}

fn read_route(section: &mut Section<'_>, place: Place, limiters: &[&str]) -> Option<Route> {
    let pattern = needed(section, place, "match", "^ws ip=");
    let limiter = needed(section, place, "limiter", "ws-ip");
    let ipv6_prefix = ipv6_prefix(section);
    let (pattern, limiter) = (pattern?, limiter?);
    let route = Route { pattern: pattern.text.to_owned(), limiter: limiter.text.to_owned(), ipv6_prefix };
    if let Err(problem) = route.check() {
        section.refuse(pattern.place, "match", &problem.to_string());
        return None;
    }
    if !limiters.contains(&route.limiter.as_str()) {
        let message = stranger(&route.limiter, limiters);
        section.refuse(limiter.place, "limiter", &message);
        return None;
    }
    Some(route)
}

fn needed<'a>(section: &mut Section<'a>, place: Place, name: &str, example: &str) -> Option<Text<'a>> {
    if section.node(name).is_none() {
        section.problem(place, format!("it has no {name}; add {name} = '{example}'"));
    }
    section.text(name, example)
}

fn stranger(name: &str, names: &[&str]) -> String {
    let remedy = match nearest::of(name, names.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if names.is_empty() => "add a [[limiter]] of this name".to_owned(),
        None => format!("there are: {}", names[..names.len().min(10)].join(", ")),
    };
    format!("no limiter is named \"{}\"; {remedy}", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, parse};
    use std::path::Path;

    const LIMITER: &str = "[[limiter]]\nname = \"a\"\nlimits = [\"1 per hour\"]\n";
    const ROUTE: &str = "[[udp.route]]\nmatch = '^a$'\nlimiter = \"a\"\n";

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        parse("t.toml", format!("{LIMITER}{text}"), Path::new(""), variables).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(text: &str, part: &str) {
        let error = read(text, &[]).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn rules_that_count_are_read() {
        let udp = read("[[udp.count]]\nmatch = '(?i)(picard)'\nname = '$1'\n", &[]).unwrap().udp;
        assert_eq!((udp.counts[0].pattern.as_str(), udp.counts[0].name.as_str()), ("(?i)(picard)", "$1"));
        check("[[udp.count]]\nmatch = 'x'", "udp.count 1: it has no name; add name = '$1'");
        check("[[udp.count]]\nmatch = '('\nname = 'x'", "5:9: udp.count 1 match: this is no regular expression");
        check("[[udp.count]]\nmatch = 'x'\nname = '$1'", "6:8: udp.count 1 name: it refers to the group \"1\"");
        check("[[udp.count]]\nmatch = 'x'\nname = 'x'\nlimiter = 'a'", "udp.count 1: unknown setting \"limiter\"");
    }

    /// They validated without a word, and nothing listened.
    #[test]
    fn rules_without_a_udp_door_are_refused() {
        let http = "[doors]\nhttp = \"127.0.0.1:7400\"\n";
        check(&format!("{http}{ROUTE}"), "6:3: udp: [doors] opens no UDP door");
        check(&format!("{http}[[udp.count]]\nmatch = 'x'\nname = 'x'"), "add udp = \"127.0.0.1:7401\" to [doors]");
        assert!(read(ROUTE, &[]).is_ok(), "without [doors] all are open");
        assert!(read(&format!("{http}{ROUTE}"), &[("TIDEGATE_DOORS__UDP", "127.0.0.1:0")]).is_ok());
        let wrong = read(&format!("[doors]\nudp = \"x\"\n{ROUTE}"), &[]).unwrap_err();
        assert!(!wrong.contains("opens no UDP door"), "no second error for the same mistake: {wrong}");
    }

    #[test]
    fn s2_routes_may_ask_for_networks() {
        let udp = read(&format!("{ROUTE}ipv6_prefix = 56\n{ROUTE}"), &[]).unwrap().udp;
        let prefixes: Vec<Option<u8>> = udp.routes.iter().map(|route| Some(route.ipv6_prefix?.bits())).collect();
        assert_eq!(prefixes, [Some(56), None]);
        check(&format!("{ROUTE}ipv6_prefix = 0"), "7:15: udp.route 1 ipv6_prefix: 0 is no whole number from 1 to 128");
    }

    #[test]
    fn a_regular_expression_in_double_quotes_gets_a_hint_that_fits() {
        check(
            "[[udp.route]]\nmatch = \"^ws ip=\\d+$\"\nlimiter = \"a\"",
            "write a regular expression in single quotes",
        );
        check("[store]\nmax_memory = 64MiB", "strings stand in quotes, such as \"64MiB\"");
    }

    #[test]
    fn a_group_by_a_backslash_is_refused_with_the_way_to_write_it() {
        check(
            "[[udp.rewrite]]\nmatch = '(x)'\nreplace = '\\1 y'",
            "udp.rewrite 1 replace: \\1 stands for no group here; write ${1}",
        );
    }
}
