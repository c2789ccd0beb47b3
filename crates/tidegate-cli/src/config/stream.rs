//! `[[stream]]`: the event streams.
//!
//! What a name or a number may be is checked by the streams themselves; here their refusals are given
//! a place.

use super::limiter::tables;
use super::problem::Problem;
use super::section::{Known, Section};
use super::source::Place;
use super::tree::{Node, Table, Value};
use tidegate::text;
use tidegate_events::{MAX_EVENTS_MAX, Mode, Overdue, STREAMS_MAX, StreamSpec};

const KNOWN: Known =
    Known { here: &["name", "mode", "duration", "max_events", "snapshot_every", "overdue"], later: &[] };

/// Reads every `[[stream]]`; each problem is reported.
pub(super) fn read(node: &Node, problems: &mut Vec<Problem>) -> Vec<StreamSpec> {
    let Some(tables) = tables(node) else {
        let message = "stream: it must be an array of tables; write [[stream]] above each stream's settings";
        problems.push(Problem { place: Some(node.place), message: message.to_owned() });
        return Vec::new();
    };
    let mut specs: Vec<StreamSpec> = Vec::new();
    for (index, (table, place)) in tables.into_iter().enumerate() {
        let mut section = Section::open(title(table, index), table, &KNOWN, problems);
        if index == STREAMS_MAX {
            section.problem(place, format!("it is one more than {STREAMS_MAX}, the most streams; leave some out"));
            break;
        }
        let Some(spec) = read_one(&mut section, place) else { continue };
        if specs.iter().any(|other| other.name == spec.name) {
            let at = section.node("name").map_or(place, |node| node.place);
            section.refuse(at, "name", &format!("\"{}\" is taken by a stream above; names must differ", spec.name));
            continue;
        }
        specs.push(spec);
    }
    specs
}

/// `stream "orders"`, or `stream 3` when it has no name to be called by.
fn title(table: &Table, index: usize) -> String {
    match table.position("name").map(|at| &table.entries[at].node.value) {
        Some(Value::Text(name)) => format!("stream \"{}\"", name.escape_debug()),
        _ => format!("stream {}", index + 1),
    }
}

fn read_one(section: &mut Section<'_>, place: Place) -> Option<StreamSpec> {
    for (name, example) in [("name", "orders"), ("mode", "strictly-once")] {
        if section.node(name).is_none() {
            section.problem(place, format!("it has no {name}; add {name} = \"{example}\""));
        }
    }
    let name = section.text("name", "orders");
    let mode = section.parsed("mode", "strictly-once", mode);
    let duration = section.parsed("duration", "10s", text::duration);
    let snapshot_every = section.parsed("snapshot_every", "10s", text::duration);
    let max_events = section.whole("max_events", 1..=MAX_EVENTS_MAX as u64);
    let overdue = section.parsed("overdue", "publish", overdue);
    let mut spec = StreamSpec::new(name?.text, mode?);
    let rules = &mut spec.rules;
    rules.duration_ms = duration.map_or(rules.duration_ms, |span| span.as_millis_ceil());
    rules.snapshot_every_ms = snapshot_every.map_or(rules.duration_ms, |span| span.as_millis_ceil());
    rules.max_events = max_events.and_then(|max| usize::try_from(max).ok()).unwrap_or(rules.max_events);
    spec.overdue = overdue.unwrap_or_default();
    if let Err(problem) = spec.check() {
        let at = section.node(problem.setting).map_or(place, |node| node.place);
        section.refuse(at, problem.setting, &problem.message);
        return None;
    }
    Some(spec)
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "only-once" => Ok(Mode::OnlyOnce),
        "strictly-once" => Ok(Mode::StrictlyOnce),
        other => Err(format!("\"{}\" is no mode; use \"only-once\" or \"strictly-once\"", other.escape_debug())),
    }
}

fn overdue(text: &str) -> Result<Overdue, String> {
    match text {
        "publish" => Ok(Overdue::Publish),
        "invalidate" => Ok(Overdue::Invalidate),
        other => Err(format!("\"{}\" is unknown; use \"publish\" or \"invalidate\"", other.escape_debug())),
    }
}
