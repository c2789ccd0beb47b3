//! `[[limiter.match]]`: other limits, or none, for certain values.
//!
//! Every setting of such a table but `limits`, `unlimited`, `deny`, `together` and `metadata` is an attribute with its pattern, or a list of them. Which
//! attributes can match is the engine's to say.

use super::limiter::{read_limit, tables, unlike_pause};
use super::section::{Section, Text};
use super::source::Place;
use super::tree::Value as Tree;
use tidegate::{Condition, Limit, Match, Outcome, Rules, Value};

/// What is no attribute.
const SETTINGS: [&str; 5] = ["limits", "unlimited", "deny", "together", "metadata"];

/// Reads every `[[limiter.match]]` of a limiter with these rules. `None`: one of them is at fault.
pub(super) fn read(section: &mut Section<'_>, rules: &Rules, pause_layout: bool) -> Option<Vec<Match>> {
    let Some(node) = section.node("match") else { return Some(Vec::new()) };
    let Some(tables) = tables(node) else {
        section.refuse(
            node.place,
            "match",
            "it must be an array of tables; write [[limiter.match]] above its settings",
        );
        return None;
    };
    let mut matches = Vec::new();
    for (index, (table, place)) in tables.iter().enumerate() {
        let mut inner = section.inner(&format!("match {}", index + 1), table);
        matches.push(read_one(&mut inner, *place, rules, pause_layout));
    }
    matches.into_iter().collect()
}

/// Where a match stands.
pub(super) fn place(section: &Section<'_>, at: usize) -> Option<Place> {
    Some(tables(section.node("match")?)?.get(at)?.1)
}

fn read_one(section: &mut Section<'_>, place: Place, rules: &Rules, pause_layout: bool) -> Option<Match> {
    let names: Vec<&str> = section.names().filter(|name| !SETTINGS.contains(name)).collect();
    let conditions: Vec<Option<Condition>> = names.into_iter().map(|name| condition(section, name)).collect();
    let together = section.texts("together", "path").unwrap_or_default();
    let together = together.iter().map(|name| name.text.to_owned()).collect();
    let metadata = super::metadata::read(section);
    let unlimited = section.boolean("unlimited").unwrap_or(false);
    let deny = section.boolean("deny").unwrap_or(false);
    let has_limits = section.node("limits").is_some();
    let outcome = match (has_limits, unlimited, deny) {
        (true, false, false) => limits(section, "limits", rules, pause_layout).map(Outcome::Limits),
        (false, true, false) => Some(Outcome::Unlimited),
        (false, false, true) => Some(Outcome::Deny),
        (false, false, false) => {
            section.problem(place, "it says nothing; add limits = [\"…\"], unlimited = true or deny = true".to_owned());
            None
        }
        _ => {
            section.problem(place, "it says two things; keep one of limits, unlimited and deny".to_owned());
            None
        }
    };
    Some(Match { conditions: conditions.into_iter().collect::<Option<_>>()?, together, outcome: outcome?, metadata })
}

/// One pattern, or a list of them.
fn condition(section: &mut Section<'_>, name: &str) -> Option<Condition> {
    let values = match section.node(name)?.value {
        Tree::Array(_) => section.texts(name, "gold*")?,
        _ => vec![section.text(name, "gold*")?],
    };
    let value = |text: &Text<'_>| match Value::of(name, text.text) {
        Ok(value) => Some(value),
        Err(message) => {
            section.refuse(text.place, name, &message);
            None
        }
    };
    let values: Vec<Option<Value>> = values.iter().map(value).collect();
    Some(Condition { attribute: name.to_owned(), values: values.into_iter().collect::<Option<_>>()? })
}

/// The limits that stand in for the limiter's own.
pub(super) fn limits(section: &mut Section<'_>, name: &str, rules: &Rules, pause_layout: bool) -> Option<Rules> {
    let texts = section.texts(name, "5 per minute")?;
    let limits: Vec<Option<Limit>> = texts.iter().map(|text| read_limit(section, *text)).collect();
    let limits: Vec<Limit> = limits.into_iter().collect::<Option<_>>()?;
    let whole = section.node(name)?.place;
    match rules.with_limits(&limits) {
        Err(error) => {
            let place = error.index().and_then(|index| texts.get(index)).map_or(whole, |text| text.place);
            section.refuse(place, name, &error.to_string());
            None
        }
        Ok(made) => match unlike_pause(&made).filter(|_| pause_layout) {
            Some(problem) => {
                section.refuse(whole, name, &problem);
                None
            }
            None => Some(made),
        },
    }
}
