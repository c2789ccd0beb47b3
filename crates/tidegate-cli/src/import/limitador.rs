//! Limitador: a list of limits, each with a namespace, conditions and variables.
//!
//! A limit counts for each combination of its variables' values, where its conditions hold. Its attributes here are both: the variables, and what the
//! conditions are about. Limitador checks every limit whose attributes a request has; here a descriptor meets limiters whose `by` is exactly its keys, so that a
//! request needs a descriptor for each limiter. That is told once for all.

use super::File;
use super::policy::{ANY, Imported, Limiter, Role, Row, TAKEN, is_name};
use super::yaml::{self, Node};

/// The policy of this file.
///
/// # Errors
/// What is wrong in which line.
pub(super) fn import(files: &[File]) -> Result<Imported, String> {
    let mut imported = Imported {
        from: files.iter().map(|file| file.name.clone()).collect(),
        by: "limitador",
        different: vec![EXACT.to_owned()],
        ..Imported::default()
    };
    for file in files {
        let here = |message: String| format!("{}, {message}", file.name);
        for document in yaml::read(&file.text).map_err(here)? {
            for node in document.list("the file").map_err(here)? {
                limit(node, &file.name, &mut imported).map_err(here)?;
            }
        }
    }
    Ok(imported)
}

const EXACT: &str = "Limitador checks every limit whose variables a request has; here a descriptor meets the limiters whose `by` is exactly its keys, in \
                     this order: send one descriptor for each limiter";

fn limit(node: Node, file: &str, imported: &mut Imported) -> Result<(), String> {
    let mut members = node.members("a limit")?;
    let line = members.line();
    let place = format!("{file} line {line}");
    let missing = |name: &str| format!("line {line}: the limit has no {name}");
    let namespace = members.text("namespace")?.ok_or_else(|| missing("namespace"))?;
    let most = members.number("max_value")?.ok_or_else(|| missing("max_value"))?;
    let seconds = members.number("seconds")?.ok_or_else(|| missing("seconds"))?;
    let texts =
        |nodes: Vec<Node>, what: &str| nodes.into_iter().map(|node| node.text(what)).collect::<Result<Vec<_>, _>>();
    let conditions = texts(members.list("conditions")?, "a condition")?;
    let variables = texts(members.list("variables")?, "a variable")?;
    for setting in ["name", "id", "policy", "cache_size"] {
        if members.take(setting).is_some() {
            imported.lost.push(format!("{place}: {setting}; {}", instead(setting)));
        }
    }
    members.end()?;
    match made(imported, &namespace, most, seconds, &conditions, &variables, &place) {
        Ok(limiter) => imported.add(limiter),
        Err(why) => imported.lost.push(format!("{place}: {why}")),
    }
    Ok(())
}

fn made(
    imported: &Imported,
    namespace: &str,
    most: u64,
    seconds: u64,
    conditions: &[String],
    variables: &[String],
    place: &str,
) -> Result<Limiter, String> {
    let most = u32::try_from(most).map_err(|_| format!("max_value {most} is more than {}", u32::MAX))?;
    if seconds == 0 {
        return Err("0 seconds are no period".to_owned());
    }
    let mut by: Vec<String> = Vec::new();
    for variable in variables {
        by.push(attribute(variable)?);
    }
    let conditions = conditions.iter().map(|text| Condition::parse(text)).collect::<Result<Vec<_>, _>>()?;
    by.extend(conditions.iter().map(|condition| condition.name.clone()));
    let mut seen = Vec::new();
    by.retain(|name| {
        let is_new = !seen.contains(name);
        seen.push(name.clone());
        is_new
    });
    if by.is_empty() {
        return Err("it has neither variables nor conditions, and a limiter needs attributes".to_owned());
    }
    if let Some(bad) = [namespace].into_iter().chain(by.iter().map(String::as_str)).find(|name| !is_name(name)) {
        return Err(format!("\"{}\" cannot be a name here", bad.escape_debug()));
    }
    let limit = format!("{most} per {seconds}s");
    let rows = rows(&by, &conditions, &limit, place);
    // A window of Limitador begins with its first request, as ours does.
    let (name, algorithm) = (imported.name_for(namespace, &by, ""), "algorithm = \"fixed-window\"");
    Ok(Limiter {
        name,
        domain: namespace.to_owned(),
        by,
        algorithm,
        role: Role::Enforced,
        called: None,
        replaces: Vec::new(),
        rows,
    })
}

/// What stands in for a setting that is not carried over.
fn instead(setting: &str) -> &'static str {
    match setting {
        "cache_size" => "all counts fit [store] max_memory together",
        "policy" => "here each limit is deducted from as it is written",
        _ => "limiters are named after their keys",
    }
}

/// Where a condition does not hold, the limit is none.
fn rows(by: &[String], conditions: &[Condition], limit: &str, place: &str) -> Vec<Row> {
    let any = || vec![ANY.to_owned(); by.len()];
    let with = |mut values: Vec<String>, condition: &Condition| {
        if let Some(at) = by.iter().position(|name| *name == condition.name) {
            values[at].clone_from(&condition.value);
        }
        values
    };
    let excluded = conditions.iter().filter(|condition| !condition.is_equal);
    let mut rows: Vec<Row> = excluded
        .map(|condition| Row {
            values: with(any(), condition),
            together: Vec::new(),
            limit: None,
            metadata: None,
            comment: "its condition does not hold".to_owned(),
        })
        .collect();
    let values = conditions.iter().filter(|condition| condition.is_equal).fold(any(), with);
    rows.push(Row {
        values,
        together: Vec::new(),
        limit: Some(limit.to_owned()),
        metadata: None,
        comment: place.to_owned(),
    });
    rows
}

/// `name == 'value'`, or `!=`.
struct Condition {
    name: String,
    value: String,
    is_equal: bool,
}

impl Condition {
    fn parse(text: &str) -> Result<Condition, String> {
        let cannot = || {
            format!("the condition \"{}\" is not of the form name == 'value' or name != 'value'", text.escape_debug())
        };
        let (name, rest, is_equal) = match (text.split_once("=="), text.split_once("!=")) {
            (Some((name, rest)), _) => (name, rest, true),
            (None, Some((name, rest))) => (name, rest, false),
            (None, None) => return Err(cannot()),
        };
        let rest = rest.trim();
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"')).ok_or_else(cannot)?;
        let value =
            rest[1..].strip_suffix(quote).filter(|value| !value.contains([quote, '\\', '*'])).ok_or_else(cannot)?;
        Ok(Condition { name: attribute(name)?, value: value.to_owned(), is_equal })
    }
}

/// The entry of a descriptor that an expression stands for.
fn attribute(expression: &str) -> Result<String, String> {
    let text = expression.trim();
    let inner = text.strip_prefix("descriptors[0].").or_else(|| {
        let inner = text.strip_prefix("descriptors[0][")?.strip_suffix(']')?;
        inner
            .strip_prefix('\'')
            .and_then(|inner| inner.strip_suffix('\''))
            .or_else(|| inner.strip_prefix('"')?.strip_suffix('"'))
    });
    let name = inner.unwrap_or(text);
    match is_name(name) && !TAKEN.contains(&name) {
        true => Ok(name.to_owned()),
        false => {
            Err(format!("\"{}\" is no entry of a descriptor that can be an attribute here", expression.escape_debug()))
        }
    }
}
