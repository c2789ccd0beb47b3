//! Reading one table: which settings it may have, and of which kind each is.
//!
//! Nothing is skipped silently: a setting that is unknown, of a later version or of another kind is
//! a problem, and reading goes on, so that one run tells them all.

use super::problem::Problem;
use super::source::Place;
use super::tree::{Node, Table, Value};
use crate::nearest;
use std::ops::RangeInclusive;

/// The settings a table may have.
pub(crate) struct Known {
    /// Those with an effect.
    pub(crate) here: &'static [&'static str],
    /// Those that the design names and this version does not have.
    pub(crate) later: &'static [&'static str],
}

/// One table being read.
pub(crate) struct Section<'a> {
    /// How messages call it: `[store]`, `limiter "api"`.
    title: String,
    table: &'a Table,
    problems: &'a mut Vec<Problem>,
}

/// A string and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) text: &'a str,
    pub(crate) place: Place,
}

impl<'a> Section<'a> {
    /// Starts reading; settings that do not belong here are reported at once.
    pub(crate) fn open(title: String, table: &'a Table, known: &Known, problems: &'a mut Vec<Problem>) -> Section<'a> {
        let mut section = Section { title, table, problems };
        for entry in &table.entries {
            let name = entry.name.as_str();
            if known.later.contains(&name) {
                let message = format!("{} {name} is not in this version; leave it out", section.title);
                section.problems.push(Problem { place: Some(entry.name_place), message });
            } else if !known.here.contains(&name) {
                let message = unknown(name, known);
                section.problem(entry.name_place, message);
            }
        }
        section
    }

    /// A table inside this one, whose settings may have any name.
    pub(crate) fn inner<'s>(&'s mut self, title: &str, table: &'s Table) -> Section<'s> {
        Section { title: format!("{} {title}", self.title), table, problems: self.problems }
    }

    /// The names of its settings, in the order of the file.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let table = self.table;
        table.entries.iter().map(|entry| entry.name.as_str())
    }

    /// A problem with the table itself, at `place`.
    pub(crate) fn problem(&mut self, place: Place, message: String) {
        let message = format!("{}: {message}", self.title);
        self.problems.push(Problem { place: Some(place), message });
    }

    /// A problem with one setting: `[store] max_memory: MESSAGE`.
    pub(crate) fn refuse(&mut self, place: Place, name: &str, message: &str) {
        let message = format!("{} {name}: {message}", self.title);
        self.problems.push(Problem { place: Some(place), message });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    pub(crate) fn node(&self, name: &str) -> Option<&'a Node> {
        self.table.position(name).map(|at| &self.table.entries[at].node)
    }

    /// A string; of another kind, it is reported with `example` as the remedy.
    pub(crate) fn text(&mut self, name: &str, example: &str) -> Option<Text<'a>> {
        let node = self.node(name)?;
        self.as_text(node, name, &format!("{name} = \"{example}\""))
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Option<bool> {
        let node = self.node(name)?;
        if let Value::Boolean(yes) = node.value {
            return Some(yes);
        }
        self.wrong_kind(node, name, "true or false", &format!("{name} = true"));
        None
    }

    /// A number from 0 to 1.
    pub(crate) fn fraction(&mut self, name: &str) -> Option<f64> {
        let node = self.node(name)?;
        let (Value::Number(text) | Value::Text(text)) = &node.value else {
            self.wrong_kind(node, name, "a number", &format!("{name} = 0.5"));
            return None;
        };
        match text.parse() {
            Ok(number) if (0.0..=1.0).contains(&number) => Some(number),
            _ => {
                self.refuse(node.place, name, &format!("{text} is not from 0 to 1; write {name} = 0.5"));
                None
            }
        }
    }

    /// A whole number within bounds.
    pub(crate) fn number(&mut self, name: &str, bounds: RangeInclusive<u64>, example: u64) -> Option<u64> {
        let node = self.node(name)?;
        let remedy = format!("{name} = {example}");
        let Value::Number(text) = &node.value else {
            self.wrong_kind(node, name, "a number", &remedy);
            return None;
        };
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        if number.is_none() {
            let (least, most) = (bounds.start(), bounds.end());
            self.refuse(
                node.place,
                name,
                &format!("{text} is no whole number from {least} to {most}; write one, such as {remedy}"),
            );
        }
        number
    }

    /// A whole number within `range`.
    pub(crate) fn whole(&mut self, name: &str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(name)?;
        let remedy = format!("write {name} = {}", range.start());
        let Value::Number(text) = &node.value else {
            self.wrong_kind(node, name, "a whole number", &format!("{name} = {}", range.start()));
            return None;
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let bounds = format!("{text} is not a whole number from {} to {}", range.start(), range.end());
            self.refuse(node.place, name, &format!("{bounds}; {remedy} or more"));
        }
        number
    }

    /// An array of strings. Elements of another kind are reported and left out.
    pub(crate) fn texts(&mut self, name: &str, example: &str) -> Option<Vec<Text<'a>>> {
        let node = self.node(name)?;
        let remedy = format!("{name} = [\"{example}\"]");
        let Value::Array(array) = &node.value else {
            self.wrong_kind(node, name, "an array of strings", &remedy);
            return None;
        };
        Some(array.iter().filter_map(|element| self.as_text(element, name, &remedy)).collect())
    }

    /// Reads a string with `parse`; its error is the message.
    pub(crate) fn parsed<T>(
        &mut self,
        name: &str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.text(name, example)?;
        match parse(value.text) {
            Ok(parsed) => Some(parsed),
            Err(message) => {
                self.refuse(value.place, name, &message);
                None
            }
        }
    }

    fn as_text(&mut self, node: &'a Node, name: &str, remedy: &str) -> Option<Text<'a>> {
        if let Value::Text(text) = &node.value {
            return Some(Text { text, place: node.place });
        }
        self.wrong_kind(node, name, "a string", remedy);
        None
    }

    fn wrong_kind(&mut self, node: &Node, name: &str, wanted: &str, remedy: &str) {
        let shown = match &node.value {
            Value::Text(text) => format!("\"{}\" is a string", text.escape_debug()),
            Value::Number(text) => format!("{text} is a number"),
            Value::Boolean(yes) => format!("{yes} is a boolean"),
            Value::Time(text) => format!("{text} is a date or time"),
            other => format!("this is {}", other.kind()),
        };
        self.refuse(node.place, name, &format!("{shown}, not {wanted}; write {remedy}"));
    }
}

/// The message for an unknown setting.
pub(crate) fn unknown(name: &str, known: &Known) -> String {
    let shown = name.escape_debug();
    match nearest::of(name, known.here.iter().copied()) {
        Some(near) => format!("unknown setting \"{shown}\"; did you mean \"{near}\"?"),
        None if known.here.is_empty() => format!("unknown setting \"{shown}\"; leave it out"),
        None => format!("unknown setting \"{shown}\"; the settings here are: {}", known.here.join(", ")),
    }
}
