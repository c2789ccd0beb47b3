//! `replicas` and `replica`: how several processes keep one limit. The same for limiters and for the proxy.

use super::section::Section;
use tidegate::Replicas;

pub(super) fn read(section: &mut Section<'_>) -> Replicas {
    let is_shared = section.parsed("replicas", "exact", is_shared).unwrap_or(false);
    let numbered = section.parsed("replica", "1/3", numbered);
    match (is_shared, section.node("replica")) {
        (true, _) => Replicas::Share(numbered),
        (false, None) => Replicas::Exact,
        (false, Some(node)) => {
            let message = "it has no effect without replicas = \"share\"; add that, or leave it out";
            section.refuse(node.place, "replica", message);
            Replicas::Exact
        }
    }
}

fn is_shared(text: &str) -> Result<bool, String> {
    match text {
        "share" => Ok(true),
        "exact" => Ok(false),
        other => Err(format!("\"{}\" is not known; use \"exact\" or \"share\"", other.escape_debug())),
    }
}

/// `1/3`: the first of three.
fn numbered(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(one, of)| Some((one.parse::<u32>().ok()?, of.parse::<u32>().ok()?)));
    match parsed {
        Some((one, of)) if (1..=of).contains(&one) && of <= 1_000 => Ok((one - 1, of)),
        _ => Err(format!(
            "\"{}\" is none of 1/1 to 1000/1000; write \"1/3\" for the first of three",
            text.escape_debug()
        )),
    }
}
