//! `metadata = { … }` of a limiter or a match: a table of TOML as an object of JSON.

use super::section::Section;
use super::tree::{Table, Value};
use tidegate_wire::json::push_string;

/// Longest such object: it is sent with every answer.
const BYTES_MAX: usize = 4096;

/// Reads the table as JSON's text. `None`: there is none, or it is at fault.
pub(super) fn read(section: &mut Section<'_>) -> Option<String> {
    let node = section.node("metadata")?;
    let Value::Table(table) = &node.value else {
        let kind = node.value.kind();
        let message = format!("this is {kind}, not a table; write metadata = {{ team = \"shop\" }}");
        section.refuse(node.place, "metadata", &message);
        return None;
    };
    let mut text = String::new();
    if let Err(number) = push_table(&mut text, table) {
        section.refuse(node.place, "metadata", &format!("{number} is no number of JSON; write another, or a string"));
        return None;
    }
    if text.len() > BYTES_MAX {
        let message = format!("as JSON it has {} bytes, more than {BYTES_MAX}; make it shorter", text.len());
        section.refuse(node.place, "metadata", &message);
        return None;
    }
    Some(text)
}

fn push_table(text: &mut String, table: &Table) -> Result<(), String> {
    text.push('{');
    for (index, entry) in table.entries.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        push_string(text, &entry.name);
        text.push(':');
        push(text, &entry.node.value)?;
    }
    text.push('}');
    Ok(())
}

/// Recursion is bounded: the parser refuses values nested deeper than 80.
fn push(text: &mut String, value: &Value) -> Result<(), String> {
    match value {
        Value::Text(words) | Value::Time(words) => push_string(text, words),
        Value::Boolean(is) => text.push_str(if *is { "true" } else { "false" }),
        Value::Number(number) => match number.parse::<f64>() {
            Ok(parsed) if parsed.is_finite() => text.push_str(number.trim_start_matches('+')),
            _ => return Err(number.clone()),
        },
        Value::Table(table) => push_table(text, table)?,
        Value::Array(values) => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                push(text, &value.value)?;
            }
            text.push(']');
        }
    }
    Ok(())
}
