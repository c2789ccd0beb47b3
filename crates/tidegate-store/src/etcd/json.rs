//! What etcd's gateway says, as serde_json reads it.
//!
//! serde_json stays inside this folder: no public type here names it. It bounds the nesting at 128 levels, and
//! `member.rs` bounds the bytes. Protobuf writes 64-bit integers as texts, hence [`integer`].

/// A reply, or a part of one.
pub(crate) type Json = serde_json::Value;

/// The first value of a reply; what follows it is not looked at, as a stream may go on.
pub(crate) fn first_value(reply: &[u8]) -> Result<Json, String> {
    let first = serde_json::Deserializer::from_slice(reply).into_iter().next();
    first.ok_or("an empty reply")?.map_err(|error| format!("no JSON: {error}"))
}

/// A member's integer, which may be written as a text.
pub(crate) fn integer(object: &Json, name: &str) -> Option<i64> {
    match object.get(name)? {
        Json::String(text) => text.parse().ok(),
        number => number.as_i64(),
    }
}

/// A member's text.
pub(crate) fn text<'a>(object: &'a Json, name: &str) -> Option<&'a str> {
    object.get(name)?.as_str()
}

/// A member's items; none if it is no list.
pub(crate) fn items<'a>(object: &'a Json, name: &str) -> &'a [Json] {
    object.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_reply() {
        let reply = br#" {"a" : [ {"n":"12"}, -3 ], "n":-3, "t":"\u00e9", "x":1.5, "y":"1.5" }
            {"more":1}"#;
        let json = first_value(reply).unwrap();
        assert_eq!(integer(&items(&json, "a")[0], "n"), Some(12));
        assert_eq!([integer(&json, "n"), integer(&json, "x"), integer(&json, "y")], [Some(-3), None, None]);
        assert_eq!([text(&json, "t"), text(&json, "n"), text(&json, "none")], [Some("\u{e9}"), None, None]);
        assert!(items(&json, "n").is_empty() && items(&json, "none").is_empty());
    }

    #[test]
    fn s1_anything_else_is_refused() {
        let deep = "[".repeat(100_000);
        for reply in ["", " ", "{", "[1 2]", "{a:1}", "\"open", "\"\\x\"", "<html>", "\u{1}", &deep] {
            assert!(first_value(reply.as_bytes()).is_err(), "{reply:.20}");
        }
        assert!(first_value(b"{\"a\":\"\xff\"}").is_err());
    }
}
