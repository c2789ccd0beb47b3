//! `[grpc]`: what answers of the rate limit service carry, and whether they deny.

use super::section::{Known, Section, unknown};
use super::tree::Value;
use tidegate_doors::ratelimit::{HeaderNames, RateLimitSettings};

pub(super) const KNOWN: Known = Known { here: &["headers", "dynamic_metadata", "shadow"], later: &[] };
const FIELDS: Known =
    Known { here: &["ratelimit", "policy", "retry_after", "limit", "remaining", "reset"], later: &[] };

/// Reads the table.
pub(super) fn read(section: &mut Section<'_>) -> RateLimitSettings {
    RateLimitSettings {
        headers: headers(section),
        dynamic_metadata: section.boolean("dynamic_metadata").unwrap_or(false),
        shadow: section.boolean("shadow").unwrap_or(false),
    }
}

/// `true` for the fields of the standard, or a table of fields with their names.
fn headers(section: &mut Section<'_>) -> HeaderNames {
    let Some(Value::Table(table)) = section.node("headers").map(|node| &node.value) else {
        return match section.boolean("headers") {
            Some(true) => HeaderNames::standard(),
            Some(false) | None => HeaderNames::default(),
        };
    };
    let mut inner = section.inner("headers", table);
    for entry in table.entries.iter().filter(|entry| !FIELDS.here.contains(&entry.name.as_str())) {
        inner.problem(entry.name_place, unknown(&entry.name, &FIELDS));
    }
    let mut name = |field: &str| inner.parsed(field, "RateLimit-Limit", header_name);
    HeaderNames {
        ratelimit: name("ratelimit"),
        policy: name("policy"),
        retry_after: name("retry_after"),
        limit: name("limit"),
        remaining: name("remaining"),
        reset: name("reset"),
    }
}

fn header_name(text: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match (1..=HEADER_LEN_MAX).contains(&text.len()) && text.bytes().all(is_token) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "\"{}\" is no name of a header field, which has 1 to {HEADER_LEN_MAX} letters, digits and -; write one, such as \"RateLimit-Limit\"",
            text.escape_debug()
        )),
    }
}

const HEADER_LEN_MAX: usize = 64;
