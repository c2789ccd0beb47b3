//! `[[udp.rewrite]]` and `[[udp.route]]`: which limiter a key of the UDP door meets.
//!
//! What a pattern may be is checked by the door; here its refusals are given a place.

use super::limiter::tables;
use super::problem::Problem;
use super::section::{Known, Section, Text};
use super::source::Place;
use super::tree::{Entry, Node, Value};
use crate::nearest;
use tidegate::Policy;
use tidegate_doors::udp::{Rewrite, Route, RouteProblem, Routes, Routing};

const KNOWN: Known = Known { here: &["rewrite", "route"], later: &[] };
const KNOWN_REWRITE: Known = Known { here: &["match", "replace"], later: &[] };
const KNOWN_ROUTE: Known = Known { here: &["match", "limiter"], later: &[] };

/// Reads `[udp]`; a route's limiter must be one of the policy's.
pub(super) fn read(entry: &Entry, policy: &Policy, problems: &mut Vec<Problem>) -> Routing {
    let Value::Table(table) = &entry.node.value else {
        let message = "udp: it must be tables; write [[udp.route]] above each route's settings".to_owned();
        problems.push(Problem { place: Some(entry.node.place), message });
        return Routing::default();
    };
    let before = problems.len();
    Section::open("[udp]".to_owned(), table, &KNOWN, problems);
    let rules = |name| table.position(name).map(|at| &table.entries[at].node);
    let (rewrites, routes) = (rules("rewrite"), rules("route"));
    let routing = Routing {
        rewrites: read_all(rewrites, "udp.rewrite", &KNOWN_REWRITE, problems, read_rewrite),
        routes: read_all(routes, "udp.route", &KNOWN_ROUTE, problems, |section, place| {
            read_route(section, place, policy)
        }),
    };
    // Each rule was checked by itself; together they may still be too many.
    if problems.len() == before
        && let Err(error) = Routes::new(&routing)
    {
        problems.push(Problem { place: Some(entry.name_place), message: format!("udp: {error}") });
    }
    routing
}

fn read_all<T>(
    node: Option<&Node>,
    name: &str,
    known: &Known,
    problems: &mut Vec<Problem>,
    read: impl Fn(&mut Section<'_>, Place) -> Option<T>,
) -> Vec<T> {
    let Some(node) = node else { return Vec::new() };
    let Some(tables) = tables(node) else {
        let message = format!("{name}: it must be an array of tables; write [[{name}]] above each rule's settings");
        problems.push(Problem { place: Some(node.place), message });
        return Vec::new();
    };
    let mut all = Vec::new();
    for (index, (table, place)) in tables.into_iter().enumerate() {
        // Rules have no names, so they are counted.
        let mut section = Section::open(format!("{name} {}", index + 1), table, known, problems);
        all.extend(read(&mut section, place));
    }
    all
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

fn read_route(section: &mut Section<'_>, place: Place, policy: &Policy) -> Option<Route> {
    let pattern = needed(section, place, "match", "^ws ip=");
    let limiter = needed(section, place, "limiter", "ws-ip");
    let (pattern, limiter) = (pattern?, limiter?);
    let route = Route { pattern: pattern.text.to_owned(), limiter: limiter.text.to_owned() };
    if let Err(problem) = route.check() {
        section.refuse(pattern.place, "match", &problem.to_string());
        return None;
    }
    if policy.limiters().iter().all(|spec| spec.name != route.limiter) {
        let message = stranger(&route.limiter, policy);
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

fn stranger(name: &str, policy: &Policy) -> String {
    let names: Vec<&str> = policy.limiters().iter().map(|spec| spec.name.as_str()).collect();
    let remedy = match nearest::of(name, names.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if names.is_empty() => "add a [[limiter]] of this name".to_owned(),
        None => format!("there are: {}", names[..names.len().min(10)].join(", ")),
    };
    format!("no limiter is named \"{}\"; {remedy}", name.escape_debug())
}
