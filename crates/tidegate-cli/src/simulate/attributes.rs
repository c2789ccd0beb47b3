//! A request's attributes: names and values, each at most once, within bounds.

use super::line::{Str, without_position};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use tidegate::KEY_LEN_MAX;

/// Attribute names and values, in the line's order.
pub(super) type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Most attributes of a request, as at the HTTP door.
pub(super) const ATTRIBUTES_MAX: usize = 16;

/// Reads them from their JSON.
///
/// # Errors
/// A sentence with the bound and the remedy.
pub(super) fn read(json: &str) -> Result<Pairs<'_>, String> {
    let read = serde_json::from_str::<Attributes<'_>>(json).map_err(|error| {
        let problem = without_position(&error);
        format!("attributes: {problem}; write strings by name, such as {{\"user\":\"u1\"}}")
    })?;
    if read.0.is_empty() {
        return Err("attributes: it is empty; name one at least, such as {\"user\":\"u1\"}".to_owned());
    }
    match read.0.iter().find(|(_, value)| !(1..=KEY_LEN_MAX).contains(&value.len())) {
        Some((name, value)) => Err(format!(
            "attributes: \"{}\" has {} bytes; use 1 to {KEY_LEN_MAX}, or leave it out",
            name.escape_debug(),
            value.len()
        )),
        None => Ok(read.0),
    }
}

/// Names and values in the line's order; a name twice is an error, as it is not clear which counts.
struct Attributes<'a>(Pairs<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs: Self::Value = Vec::new();
                while let Some((name, value)) = map.next_entry::<Str<'de>, Str<'de>>()? {
                    if pairs.iter().any(|(other, _)| *other == name.0) {
                        return Err(serde::de::Error::custom(format_args!(
                            "it names \"{}\" twice",
                            name.0.escape_debug()
                        )));
                    }
                    if pairs.len() == ATTRIBUTES_MAX {
                        return Err(serde::de::Error::custom(format_args!("it has more than {ATTRIBUTES_MAX}")));
                    }
                    pairs.push((name.0, value.0));
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Members).map(Attributes)
    }
}
