//! A candidate takes its place: the change to the file's text, and to nothing else in it.
//!
//! The text is cut at the spans that the parser gives, so that comments and layout stay as they are. Pure: texts in, text out.

use super::limiter::tables;
use super::tree::{Entry, Table, Value, parse};
use std::ops::Range;

/// The text with the candidate of a limiter in force: `candidate = true` is taken out, or `candidate_limits` become `limits`.
///
/// # Errors
/// A sentence with the limiter and the remedy.
pub(crate) fn promoted(text: &str, limiter: &str) -> Result<String, String> {
    let root = parse(0, text)
        .map_err(|problems| problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>().join("; "))?;
    let entry = |table: &Table, name: &str| table.position(name);
    let limiters = entry(&root, "limiter").and_then(|at| tables(&root.entries[at].node)).unwrap_or_default();
    let is_named = |table: &Table| {
        let name = entry(table, "name").map(|at| &table.entries[at].node.value);
        matches!(name, Some(Value::Text(name)) if name == limiter)
    };
    let Some((table, _)) = limiters.into_iter().find(|(table, _)| is_named(table)) else {
        return Err(format!(
            "no limiter is named \"{}\" in the file; tidegate limiters lists those of a server",
            limiter.escape_debug()
        ));
    };
    let found = |name: &str| entry(table, name).map(|at| &table.entries[at]);
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    if let Some(one) = found("candidate").filter(|one| matches!(one.node.value, Value::Boolean(true))) {
        edits.push((whole_lines(text, one)?, ""));
    }
    if let (Some(one), Some(limits)) = (found("candidate_limits"), found("limits")) {
        let (from, to) = (&one.node.place, &limits.node.place);
        edits.push((to.start..to.end, &text[from.start..from.end]));
        edits.push((whole_lines(text, one)?, ""));
    }
    if edits.is_empty() {
        return Err(format!(
            "limiter \"{limiter}\" has no candidate; write candidate = true, or candidate_limits = [\"…\"] beside its limits"
        ));
    }
    // From the end, so that the spans before it stay what they are.
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut changed = text.to_owned();
    edits.into_iter().for_each(|(range, with)| changed.replace_range(range, with));
    Ok(changed)
}

/// The lines of a setting, if nothing but a comment stands beside it.
fn whole_lines(text: &str, entry: &Entry) -> Result<Range<usize>, String> {
    let start = text[..entry.name_place.start].rfind('\n').map_or(0, |at| at + 1);
    let end = entry.node.place.end;
    let line_end = text[end..].find('\n').map_or(text.len(), |at| end + at + 1);
    let (before, after) = (text[start..entry.name_place.start].trim(), text[end..line_end].trim());
    if before.is_empty() && (after.is_empty() || after.starts_with('#')) {
        return Ok(start..line_end);
    }
    Err(format!("{} does not stand on lines of its own; write it so, and promote it again", entry.name))
}

#[cfg(test)]
mod tests {
    use super::promoted;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (promoted(text, "api"), expected) {
            (Ok(changed), Ok(expected)) => assert_eq!(changed, expected),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (got, _) => panic!("{got:?}"),
        }
    }

    #[test]
    fn a12_promotion_changes_the_limits_and_keeps_every_comment() {
        check(
            "# ours\n[[limiter]] # the first\nname = \"api\"\nlimits = [\"5 per minute\"] # since 2024\n# tried since May\ncandidate_limits = [ \"3 per minute\" ] # stricter\nstats = true\n\n[[limiter]]\nname = \"b\"\nlimits = [\"1 per day\"]\ncandidate = true\n",
            Ok(
                "# ours\n[[limiter]] # the first\nname = \"api\"\nlimits = [ \"3 per minute\" ] # since 2024\n# tried since May\nstats = true\n\n[[limiter]]\nname = \"b\"\nlimits = [\"1 per day\"]\ncandidate = true\n",
            ),
        );
        check(
            "[[limiter]]\ncandidate_limits = [\n  \"3 per minute\", # a\n  \"9 per hour\",\n]\nname = \"api\"\nlimits = [\"5 per minute\", \"8 per hour\"]",
            Ok("[[limiter]]\nname = \"api\"\nlimits = [\n  \"3 per minute\", # a\n  \"9 per hour\",\n]"),
        );
        check(
            "[[limiter]]\nname = \"api\"\nlimits = [\"5 per minute\"]\n  candidate = true\n",
            Ok("[[limiter]]\nname = \"api\"\nlimits = [\"5 per minute\"]\n"),
        );
    }

    #[test]
    fn what_cannot_be_promoted_is_refused() {
        check("", Err("no limiter is named \"api\""));
        check("[[limiter]]\nname = \"api\"\nlimits = [\"1 per day\"]\ncandidate = false\n", Err("has no candidate"));
        check("limiter = [{ name = \"api\", limits = [\"1 per day\"], candidate = true }]", Err("lines of its own"));
        check("[[limiter", Err("this is not TOML"));
    }
}
