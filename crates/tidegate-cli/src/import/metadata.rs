//! A rule's `metadata`, from YAML to a table of TOML in one line.

use super::policy::{quoted, quoted_name};
use super::yaml::{Node, Value};

/// Longest that is carried over; as JSON it may be a little longer than as TOML.
const BYTES_MAX: usize = 4000;

/// The table; `None`: it is none, or too long.
pub(super) fn table(node: &Node) -> Option<String> {
    let Value::Map(_) = &node.value else { return None };
    value(node).filter(|text| text.len() <= BYTES_MAX)
}

/// `None`: nothing, which TOML has no word for. Recursion is bounded: the YAML was read, and is not deep.
fn value(node: &Node) -> Option<String> {
    Some(match &node.value {
        Value::Text(text) if node.is_plain => plain(text)?,
        Value::Text(text) => quoted(text),
        Value::List(list) => format!("[{}]", list.iter().filter_map(value).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let member = |(name, node): &(String, Node)| Some(format!("{} = {}", quoted_name(name), value(node)?));
            let members: Vec<String> = map.iter().filter_map(member).collect();
            if members.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", members.join(", ")) }
        }
    })
}

/// A text without quotes, as YAML takes it.
fn plain(text: &str) -> Option<String> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    match text {
        "" | "~" | "null" => None,
        "true" | "false" => Some(text.to_owned()),
        _ if text.parse::<i64>().is_ok() => text.parse::<i64>().ok().map(|number| number.to_string()),
        _ if is_number => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Some(format!("{number:?}")),
            _ => Some(quoted(text)),
        },
        _ => Some(quoted(text)),
    }
}
