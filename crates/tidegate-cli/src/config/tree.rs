//! The configuration as a tree of places and values.
//!
//! The only file that knows the TOML crate. Values from environment variables are grafted on here,
//! so that readers need not know where a value came from.

use super::problem::Problem;
use super::source::{Place, Source};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// A TOML value. Numbers keep their text, as they were written.
#[derive(Debug)]
pub(crate) enum Value {
    Text(String),
    Number(String),
    Boolean(bool),
    Time(String),
    Array(Vec<Node>),
    Table(Table),
}

impl Value {
    /// What it is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Number(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Time(_) => "a date or time",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
        }
    }
}

/// Settings by name, in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) name_place: Place,
    pub(crate) node: Node,
}

impl Table {
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }
}

/// The file's tree, or every syntax error in it.
pub(crate) fn parse(source: usize, text: &str) -> Result<Table, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table(source, document.into_inner()));
    }
    let problem = |error: &toml::de::Error| {
        let span = error.span().unwrap_or(0..0);
        let place = Place { source, start: span.start, end: span.end };
        Problem { place: Some(place), message: format!("this is not TOML: {}{}", error.message(), remedy(text, place)) }
    };
    Err(errors.iter().map(problem).collect())
}

/// The mistakes people make most: a regular expression in double quotes, and a bare word where a string belongs.
fn remedy(text: &str, place: Place) -> &'static str {
    let (before, after) = text.split_at_checked(place.start).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let value = line.split_once('=').map(|(_, value)| value.trim_start());
    let rest = after.lines().next().unwrap_or_default();
    match value {
        Some(value) if value.starts_with('"') && (value.contains('\\') || rest.contains('\\')) => {
            "; in double quotes \\ starts an escape: write a regular expression in single quotes, such as '^ws ip=\\d+$'"
        }
        Some(_) => "; strings stand in quotes, such as \"64MiB\"",
        None => "",
    }
}

/// Sets one value from an environment variable: what the text means as TOML, else the text itself.
///
/// # Errors
/// When the path leads through something that is no table.
pub(crate) fn graft(root: &mut Table, path: &[String], index: usize, source: &Source) -> Result<(), String> {
    let text = source.text();
    let place = Place { source: index, start: 0, end: text.len() };
    let value = match DeValue::parse(text) {
        Ok(value) => node(index, value).value,
        Err(_) => Value::Text(text.to_owned()),
    };
    let Some((last, tables)) = path.split_last() else { return Ok(()) };
    let mut table = root;
    for name in tables {
        let at = table.position(name).unwrap_or_else(|| {
            let node = Node { place, value: Value::Table(Table::default()) };
            table.entries.push(Entry { name: name.clone(), name_place: place, node });
            table.entries.len() - 1
        });
        table = match &mut table.entries[at].node.value {
            Value::Table(table) => table,
            Value::Array(_) => {
                return Err(format!(
                    "\"{name}\" is an array of tables, which a variable cannot change; change it in the file"
                ));
            }
            other => return Err(format!("\"{name}\" is {} and no table; write it in the file", other.kind())),
        };
    }
    let node = Node { place, value };
    match table.position(last) {
        Some(at) => table.entries[at].node = node,
        None => table.entries.push(Entry { name: last.clone(), name_place: place, node }),
    }
    Ok(())
}

fn table(source: usize, table: DeTable<'_>) -> Table {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| {
            let span = key.span();
            Entry {
                name: key.into_inner().into_owned(),
                name_place: Place { source, start: span.start, end: span.end },
                node: node(source, value),
            }
        })
        .collect();
    entries.sort_by_key(|entry| entry.name_place.start);
    Table { entries }
}

/// Recursion is bounded: the parser refuses values nested deeper than 80.
fn node(source: usize, value: Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(yes) => Value::Boolean(yes),
        DeValue::Datetime(time) => Value::Time(time.to_string()),
        DeValue::Array(array) => Value::Array(array.into_iter().map(|value| node(source, value)).collect()),
        DeValue::Table(inner) => Value::Table(table(source, inner)),
    };
    Node { place: Place { source, start: span.start, end: span.end }, value }
}
