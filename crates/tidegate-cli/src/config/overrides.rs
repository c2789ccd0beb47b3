//! Settings from the environment: `TIDEGATE_STORE__MAX_MEMORY=64MiB` is `[store] max_memory`.
//!
//! Two underscores stand for the table. Variables without them are left alone: some are the
//! client's, and Kubernetes sets such as `TIDEGATE_PORT` for a service of that name.

use super::problem::Problem;
use super::source::{Place, Source};
use super::tree::{self, Table};

const PREFIX: &str = "TIDEGATE_";
/// Tables that come many times, so that a variable could not say which.
const ARRAYS: [&str; 5] = ["limiter", "stream", "udp.count", "udp.rewrite", "udp.route"];

/// The variables that are settings, sorted, so that messages come in a stable order.
pub(crate) fn from_environment() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains("__")))
        .collect();
    all.sort();
    all
}

/// Puts each variable's value into the tree, in place of the file's.
pub(super) fn apply(
    variables: Vec<(String, String)>,
    root: &mut Table,
    sources: &mut Vec<Source>,
    problems: &mut Vec<Problem>,
) {
    for (name, text) in variables {
        let path = path_of(&name);
        let index = sources.len();
        let place = Place { source: index, start: 0, end: text.len() };
        sources.push(Source::Variable { name, text });
        let grafted = check_path(&path).and_then(|()| tree::graft(root, &path, index, &sources[index]));
        if let Err(message) = grafted {
            problems.push(Problem { place: Some(place), message });
        }
    }
}

fn path_of(name: &str) -> Vec<String> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    rest.split("__").map(str::to_lowercase).collect()
}

fn check_path(path: &[String]) -> Result<(), String> {
    if path.iter().any(String::is_empty) {
        return Err(
            "its name has an empty part; write TIDEGATE_TABLE__SETTING, such as TIDEGATE_STORE__PATH".to_owned()
        );
    }
    let dotted = path.join(".");
    match ARRAYS.iter().find(|array| dotted == **array || dotted.starts_with(&format!("{array}."))) {
        Some(array) => {
            Err(format!("[[{array}]] comes many times, so no variable can change it; change it in the file"))
        }
        None => Ok(()),
    }
}
