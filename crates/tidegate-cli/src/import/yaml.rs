//! YAML as a tree with line numbers. The crate's parser makes events of the text; what they make is built here without recursion, and is bounded: in
//! depth, and in nodes, as aliases can make very many of few.

use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;

/// A value, and the line where it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
    /// A text without quotes, which may mean a number, true or nothing.
    pub(super) is_plain: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    List(Vec<Node>),
    /// In order; names differ.
    Map(Vec<(String, Node)>),
}

const DEPTH_MAX: usize = 64;
const NODES_MAX: usize = 1_000_000;

/// A collection that is being built.
struct Open {
    anchor: usize,
    line: usize,
    nodes: Nodes,
}

enum Nodes {
    List(Vec<Node>),
    /// With the name that waits for its value.
    Map(Vec<(String, Node)>, Option<String>),
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    documents: Vec<Node>,
    nodes: usize,
}

/// The documents of a text.
///
/// # Errors
/// `line N: …`.
pub(super) fn read(text: &str) -> Result<Vec<Node>, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        let line = span.start.line();
        builder.take(event, line).map_err(|message| format!("line {line}: {message}"))?;
    }
    Ok(builder.documents)
}

impl Builder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == ScalarStyle::Plain;
                self.add(Node { line, value: Value::Text(text.into_owned()), is_plain }, anchor)
            }
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned().ok_or("an alias of what is not there yet")?;
                self.count(size(&node))?;
                self.add(node, 0)
            }
            Event::SequenceStart(anchor, _) => self.begin(anchor, line, Nodes::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(anchor, line, Nodes::Map(Vec::new(), None)),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { anchor, line, nodes }) = self.open.pop() else { return Ok(()) };
                let value = match nodes {
                    Nodes::List(list) => Value::List(list),
                    Nodes::Map(map, _) => Value::Map(map),
                };
                self.add(Node { line, value, is_plain: false }, anchor)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn begin(&mut self, anchor: usize, line: usize, nodes: Nodes) -> Result<(), String> {
        if self.open.len() >= DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        self.open.push(Open { anchor, line, nodes });
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        self.count(1)?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.nodes) {
            None => self.documents.push(node),
            Some(Nodes::List(list)) => list.push(node),
            Some(Nodes::Map(map, name)) => match name.take() {
                Some(name) => map.push((name, node)),
                None => {
                    let Value::Text(text) = node.value else { return Err("a name must be a text".to_owned()) };
                    if map.iter().any(|(other, _)| *other == text) {
                        return Err(format!("\"{}\" stands twice", text.escape_debug()));
                    }
                    *name = Some(text);
                }
            },
        }
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.nodes += more;
        if self.nodes > NODES_MAX { Err(format!("it has more than {NODES_MAX} values")) } else { Ok(()) }
    }
}

/// How many values it has; it was built, so that it is not deep.
fn size(node: &Node) -> usize {
    let mut left = vec![node];
    let mut count = 0;
    while let Some(node) = left.pop() {
        count += 1;
        match &node.value {
            Value::Text(_) => {}
            Value::List(list) => left.extend(list),
            Value::Map(map) => left.extend(map.iter().map(|(_, node)| node)),
        }
    }
    count
}

/// The members of a map, each to be taken once.
pub(super) struct Members {
    what: &'static str,
    line: usize,
    left: Vec<(String, Node)>,
}

impl Node {
    pub(super) fn members(self, what: &'static str) -> Result<Members, String> {
        match self.value {
            Value::Map(left) => Ok(Members { what, line: self.line, left }),
            _ => Err(format!("line {}: {what} must be a map of settings", self.line)),
        }
    }

    pub(super) fn list(self, what: &str) -> Result<Vec<Node>, String> {
        match self.value {
            Value::List(list) => Ok(list),
            // `descriptors:` with nothing behind it.
            Value::Text(text) if matches!(text.as_str(), "" | "~" | "null") => Ok(Vec::new()),
            _ => Err(format!("line {}: {what} must be a list", self.line)),
        }
    }

    pub(super) fn text(self, what: &str) -> Result<String, String> {
        match self.value {
            Value::Text(text) => Ok(text),
            _ => Err(format!("line {}: {what} must be a text", self.line)),
        }
    }
}

impl Members {
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let at = self.left.iter().position(|(other, _)| other == name)?;
        Some(self.left.remove(at).1)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        self.take(name).map(|node| node.text(name)).transpose()
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Vec<Node>, String> {
        self.take(name).map_or(Ok(Vec::new()), |node| node.list(name))
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(node) = self.take(name) else { return Ok(None) };
        let line = node.line;
        let text = node.text(name)?;
        let parsed =
            text.parse().map_err(|_| format!("line {line}: {name}: \"{}\" is no whole number", text.escape_debug()));
        parsed.map(Some)
    }

    pub(super) fn is_true(&mut self, name: &str) -> Result<bool, String> {
        match self.text(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => {
                Err(format!("line {}: {name}: \"{}\" is neither true nor false", self.line, other.escape_debug()))
            }
        }
    }

    /// Nothing is left that nobody knows.
    pub(super) fn end(self) -> Result<(), String> {
        match self.left.first() {
            None => Ok(()),
            Some((name, node)) => Err(format!(
                "line {}: {} has no setting \"{}\"; correct it there first",
                node.line,
                self.what,
                name.escape_debug()
            )),
        }
    }
}
