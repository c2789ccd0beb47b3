//! JSON, as much of it as etcd's gateway speaks.
//!
//! By hand, because types of serde stop in the doors and the command. Numbers are integers: protobuf writes
//! 64-bit ones as texts, and nothing that is read here is a fraction.

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// How deep values may nest: etcd's replies have six levels, and this bounds the recursion.
const DEPTH_MAX: u32 = 12;

impl Json {
    /// The first value of a text; what follows it is not looked at, as a stream may go on.
    pub(crate) fn parse(text: &str) -> Result<Json, &'static str> {
        Reader { text, at: 0 }.value(DEPTH_MAX)
    }

    /// A member of an object.
    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().find(|(known, _)| known == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    /// The items of a list; none if it is no list.
    pub(crate) fn items(&self) -> &[Json] {
        if let Json::List(items) = self { items } else { &[] }
    }

    /// A number, which may be written as a text.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Json::Number(number) => Some(*number),
            Json::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// Appends a text with its quotes.
pub(crate) fn push_text(text: &str, to: &mut String) {
    to.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => to.extend(['\\', char]),
            '\0'..='\x1f' => to.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => to.push(char),
        }
    }
    to.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: u32) -> Result<Json, &'static str> {
        let depth = depth.checked_sub(1).ok_or("nested too deeply")?;
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: u32) -> Result<Json, &'static str> {
        self.at += 1;
        let mut members = Vec::new();
        while !self.takes(b'}') {
            if !members.is_empty() && !self.takes(b',') {
                return Err("an object without its comma");
            }
            self.peek();
            let name = self.string()?;
            if !self.takes(b':') {
                return Err("a name without its value");
            }
            members.push((name, self.value(depth)?));
        }
        Ok(Json::Object(members))
    }

    fn list(&mut self, depth: u32) -> Result<Json, &'static str> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.takes(b']') {
            if !items.is_empty() && !self.takes(b',') {
                return Err("a list without its comma");
            }
            items.push(self.value(depth)?);
        }
        Ok(Json::List(items))
    }

    fn string(&mut self) -> Result<String, &'static str> {
        let inside = self.text[self.at..].strip_prefix('"').ok_or("not a text")?;
        let mut text = String::new();
        let mut chars = inside.char_indices();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.at += 1 + at + 1;
                    return Ok(text);
                }
                '\\' => match chars.next().map(|(_, escaped)| escaped) {
                    Some(escaped @ ('"' | '\\' | '/')) => text.push(escaped),
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some('b') => text.push('\u{8}'),
                    Some('f') => text.push('\u{c}'),
                    Some('u') => {
                        let digits: String = chars.by_ref().take(4).map(|(_, digit)| digit).collect();
                        let code = u32::from_str_radix(&digits, 16).map_err(|_| "an escape that is none")?;
                        // Halves of a pair are for people to read, in an error's text: nothing decides by them.
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    _ => return Err("an escape that is none"),
                },
                _ => text.push(char),
            }
        }
        Err("a text without its end")
    }

    fn number(&mut self) -> Result<Json, &'static str> {
        let rest = &self.text[self.at..];
        let len =
            rest.find(|char: char| !matches!(char, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')).unwrap_or(rest.len());
        self.at += len;
        rest[..len].parse().map(Json::Number).map_err(|_| "a number that is not whole")
    }

    fn word(&mut self) -> Result<Json, &'static str> {
        let words = [("true", Json::Bool(true)), ("false", Json::Bool(false)), ("null", Json::Null)];
        for (word, value) in words {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("no JSON")
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        self.text.as_bytes().get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply() {
        let json =
            Json::parse(" {\"a\" : [ {\"n\":\"12\"}, -3, true, null ], \"t\":\"\\u00e9\\\"\\n\"}\nmore").unwrap();
        let items = json.get("a").unwrap().items();
        assert_eq!(items[0].get("n").and_then(Json::integer), Some(12));
        assert_eq!(items[1..], [Json::Number(-3), Json::Bool(true), Json::Null]);
        assert_eq!(json.get("t").and_then(Json::text), Some("é\"\n"));
        assert_eq!(json.get("none"), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let text = "a \"quoted\" \\ back\nslash \u{1} é";
        let mut written = String::new();
        push_text(text, &mut written);
        assert_eq!(Json::parse(&written), Ok(Json::Text(text.to_owned())));
    }

    #[test]
    fn refusals() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[1",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":1 \"b\":2}",
            "{a:1}",
            "\"open",
            "\"\\x\"",
            "\"\\u12\"",
            "1.5",
            "nul",
            "99999999999999999999",
            "{\"\\u00zz\":1}",
            "-",
            "<html>",
            &deep,
        ] {
            assert!(Json::parse(text).is_err(), "{text:.20}");
        }
    }
}
