//! `check_limit JSON`: the keys that an object stands for, used one after another until one is over.
//!
//! `{"origin": "ws", "ip": "192.0.2.1", "ua": "Picard"}` stands for `ws ua=Picard`, `ws ip=192.0.2.1` and
//! `ws global`, in this order. Numbers and truth values count as their text. An object that ends too early
//! counts by the fields that are whole: a datagram is cut at 1,000 bytes, and silence would admit a client that
//! sends a long agent. Anything that is no object gets silence, like any other datagram that is no request.

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt;
use tidegate_wire::udp::{REQUEST_LEN_MAX, Reply, Request};

/// Keys of one `check_limit`.
const KEYS: usize = 3;

/// A `check_limit` under way.
pub(super) struct Check<'d> {
    pub(super) index: usize,
    request: Request<'d>,
    /// Most bytes of its reply.
    room: usize,
    keys: [String; KEYS],
    /// What the keys so far got.
    results: Vec<String>,
}

impl<'d> Check<'d> {
    /// The check in the datagram at `index` of its batch; `None`: this is no object.
    pub(super) fn read(index: usize, request: Request<'d>, json: &[u8], room: usize) -> Option<Check<'d>> {
        let keys = keys(&Fields::read(&String::from_utf8_lossy(json))?);
        Some(Check { index, request, room, keys, results: Vec::with_capacity(KEYS) })
    }

    /// The key to be used next; `None`: the check is done, as all are used or one is over.
    pub(super) fn next_key(&self) -> Option<&str> {
        let over = self.results.last().is_some_and(|result| result.starts_with("ok Y"));
        if over { None } else { self.keys.get(self.results.len()).map(String::as_str) }
    }

    /// Takes the reply to the last key's use.
    pub(super) fn take(&mut self, reply: &[u8]) {
        self.results.push(String::from_utf8_lossy(reply).into_owned());
    }

    /// Writes the reply to the whole.
    pub(super) fn finish(&self, write: impl FnOnce(&Request<'_>, &Reply<'_>)) {
        let last = self.results.last().map_or(&b""[..], |last| last.as_bytes());
        let used = self.keys.iter().zip(&self.results);
        let results: Value = used.map(|(key, reply)| json!({ "key": key, "over_limit": reply })).collect();
        let (keys, results) = (json!(self.keys).to_string(), results.to_string());
        let reply = Reply::Checked { last, keys: keys.as_bytes(), results: results.as_bytes(), room: self.room };
        write(&self.request, &reply);
    }
}

fn keys(fields: &Fields) -> [String; KEYS] {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let origin = fields.origin.as_deref().unwrap_or("unspecified");
    [
        format!("{origin} ua={}", text(&fields.ua)),
        format!("{origin} ip={}", text(&fields.ip)),
        format!("{origin} global"),
    ]
    .map(cut)
}

/// A byte that is no UTF-8 became three; a key is no longer than a request all the same.
fn cut(mut key: String) -> String {
    while key.len() > REQUEST_LEN_MAX {
        key.pop();
    }
    key
}

/// What the object says; of a field that comes twice, the last.
#[derive(Default)]
struct Fields {
    origin: Option<String>,
    ip: Option<String>,
    ua: Option<String>,
}

impl Fields {
    fn read(json: &str) -> Option<Fields> {
        let mut found = Object { fields: Fields::default(), opened: false };
        let mut reader = serde_json::Deserializer::from_str(json);
        match reader.deserialize_map(&mut found).and_then(|()| reader.end()) {
            Err(error) if !(error.is_eof() && found.opened) => None,
            _ => Some(found.fields),
        }
    }
}

/// The fields that were whole by the time when the text ended.
struct Object {
    fields: Fields,
    opened: bool,
}

impl<'de> Visitor<'de> for &mut Object {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.opened = true;
        while let Some(name) = map.next_key::<String>()? {
            let field = match name.as_str() {
                "origin" => &mut self.fields.origin,
                "ip" => &mut self.fields.ip,
                "ua" => &mut self.fields.ua,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = map.next_value::<Scalar>()?.0;
        }
        Ok(())
    }
}

/// A string, or a number or truth value as text; `None`: null.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(text.to_owned())))
            }

            fn visit_bool<E: Error>(self, yes: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(u8::from(yes).to_string())))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number.to_string())))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number.to_string())))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number.to_string())))
            }

            fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the object, joined by `|`; empty: this is no object.
    #[track_caller]
    fn check(json: &str, expected: &str) {
        let found = Fields::read(json).map(|fields| keys(&fields).join("|")).unwrap_or_default();
        assert_eq!(found, expected, "{json}");
    }

    #[test]
    fn an_object_stands_for_three_keys() {
        let picard = "ws ua=Picard|ws ip=192.0.2.1|ws global";
        check(r#"{"origin":"ws","ip":"192.0.2.1","ua":"Picard"}"#, picard);
        check(r#" { "ua" : "Picard", "more": [{"ua": [1]}], "ip":"192.0.2.1", "origin":"ws" } "#, picard);
        check(r#"{"origin":"x","ua":"1","origin":"ws","ip":"192.0.2.1","ua":"Picard"}"#, picard);
        check("{}", "unspecified ua=|unspecified ip=|unspecified global");
        check(r#"{"origin":null,"ua":null}"#, "unspecified ua=|unspecified ip=|unspecified global");
        check(r#"{"origin":"","ua":7,"ip":true}"#, " ua=7| ip=1| global");
        check(r#"{"origin":"a","ua":"\u00e9\n\"","ip":1.5}"#, "a ua=é\n\"|a ip=1.5|a global");
    }

    #[test]
    fn an_object_that_ends_too_early_counts_by_what_is_whole() {
        let without_agent = "ws ua=|ws ip=192.0.2.1|ws global";
        check(r#"{"origin":"ws","ip":"192.0.2.1","ua":"Mozil"#, without_agent);
        check(r#"{"origin":"ws","ip":"192.0.2.1","ua":"a\"#, without_agent);
        check(r#"{"origin":"ws","ip":"192.0.2.1","u"#, without_agent);
        check(r#"{"origin":"ws","ip":"192.0.2.1","ua":"","#, without_agent);
        check("{", "unspecified ua=|unspecified ip=|unspecified global");
    }

    #[test]
    fn anything_else_is_no_check() {
        for json in [
            "",
            " ",
            "x",
            "[]",
            "null",
            "7",
            "\"ws\"",
            "{x",
            "{}x",
            "{\"ua\":[]}",
            "{\"ip\":{}}",
            "{\"ua\":\"\\ud800\"}",
        ] {
            check(json, "");
        }
        check(&"[".repeat(900), "");
        check(&format!("{{\"a\":{}", "[".repeat(900)), "unspecified ua=|unspecified ip=|unspecified global");
    }
}
