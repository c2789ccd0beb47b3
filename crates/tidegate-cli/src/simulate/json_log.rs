//! Access logs of one JSON object on each line, as nginx's `log_format … escape=json` writes them.
//!
//! Fields have the names of nginx's variables, or those that people commonly give them; all others are passed over. The time is
//! the most exact that is there. Values may be strings or numbers.

use super::access_log::{self, Logged};
use super::when;
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt;

/// What is read of a line. A field that a line has twice is an error, as it is not clear which counts.
#[derive(Deserialize, Default)]
#[serde(default, expecting = "an object")]
struct Fields<'a> {
    #[serde(borrow)]
    msec: Value<'a>,
    #[serde(borrow)]
    time_iso8601: Value<'a>,
    #[serde(borrow, rename = "@timestamp")]
    at_timestamp: Value<'a>,
    #[serde(borrow)]
    timestamp: Value<'a>,
    #[serde(borrow)]
    time: Value<'a>,
    #[serde(borrow)]
    ts: Value<'a>,
    #[serde(borrow)]
    time_local: Value<'a>,

    #[serde(borrow)]
    remote_addr: Value<'a>,
    #[serde(borrow)]
    client_ip: Value<'a>,
    #[serde(borrow)]
    remote_ip: Value<'a>,
    #[serde(borrow)]
    ip: Value<'a>,

    #[serde(borrow)]
    remote_user: Value<'a>,
    #[serde(borrow)]
    user: Value<'a>,

    #[serde(borrow)]
    request_uri: Value<'a>,
    #[serde(borrow)]
    uri: Value<'a>,
    #[serde(borrow)]
    path: Value<'a>,
    #[serde(borrow)]
    request: Value<'a>,
}

/// Which part of a line cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum JsonLogError {
    Json(String),
    NoTime,
    Time(String),
    NoAddress,
}

impl fmt::Display for JsonLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not an access log in JSON: ")?;
        match self {
            JsonLogError::Json(problem) => f.write_str(problem)?,
            JsonLogError::NoTime => f.write_str("it has no time; log msec, time_iso8601 or time_local")?,
            JsonLogError::Time(text) => write!(f, "its time \"{}\" is none that is known", text.escape_debug())?,
            JsonLogError::NoAddress => f.write_str("it has neither remote_addr nor remote_user nor request_uri")?,
        }
        f.write_str("; correct the line, or add --skip-bad-lines")
    }
}

/// Reads one line.
pub(super) fn read(line: &[u8]) -> Result<Logged<'_>, JsonLogError> {
    let fields: Fields<'_> = serde_json::from_slice(line).map_err(|error| {
        JsonLogError::Json(format!("{} (column {})", super::line::without_position(&error), error.column()))
    })?;
    let times = [
        fields.msec,
        fields.time_iso8601,
        fields.at_timestamp,
        fields.timestamp,
        fields.time,
        fields.ts,
        fields.time_local,
    ];
    let time = first(times).ok_or(JsonLogError::NoTime)?;
    let at = when::any(&time).ok_or_else(|| JsonLogError::Time(time.chars().take(60).collect()))?;
    let ip = first([fields.remote_addr, fields.client_ip, fields.remote_ip, fields.ip]);
    let user = first([fields.remote_user, fields.user]);
    let target = first([fields.request_uri, fields.uri, fields.path]);
    let path = match target {
        Some(target) => part(target, access_log::path_of_target),
        None => fields.request.0.and_then(|request| part(request, access_log::path)),
    };
    if ip.is_none() && user.is_none() && path.is_none() {
        return Err(JsonLogError::NoAddress);
    }
    Ok(Logged { at, values: [ip.map(bytes), user.map(bytes), path] })
}

/// The first that is there; `-` and an empty string mean that there is none.
fn first<'a, const N: usize>(values: [Value<'a>; N]) -> Option<Cow<'a, str>> {
    values.into_iter().find_map(|value| value.0.filter(|text| !matches!(&**text, "" | "-")))
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

fn part<'a>(text: Cow<'a, str>, of: impl Fn(&[u8]) -> Option<&[u8]>) -> Option<Cow<'a, [u8]>> {
    match text {
        Cow::Borrowed(text) => of(text.as_bytes()).map(Cow::Borrowed),
        Cow::Owned(text) => of(text.as_bytes()).map(|part| Cow::Owned(part.to_vec())),
    }
}

/// The text of a string or a number; of anything else, none.
#[derive(Default)]
struct Value<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&serde_json::value::RawValue>::deserialize(deserializer)?.get();
        let text = match raw.as_bytes().first() {
            Some(b'"') => Some(serde_json::from_str::<super::line::Str<'de>>(raw).map_err(serde::de::Error::custom)?.0),
            Some(b'-' | b'0'..=b'9') => Some(Cow::Borrowed(raw)),
            _ => None,
        };
        Ok(Value(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, at_us: u64, expected: [Option<&str>; 3]) {
        let logged = read(line.as_bytes()).unwrap();
        assert_eq!(logged.at.get(), at_us, "{line}");
        assert_eq!(
            logged.values.map(|value| value.map(|v| String::from_utf8(v.into_owned()).unwrap())),
            expected.map(|v| v.map(str::to_owned)),
            "{line}"
        );
    }

    #[test]
    fn lines_of_nginx_are_read() {
        check(
            r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"192.0.2.1","remote_user":"frank","request":"GET /a?b=c HTTP/1.1","status":200}"#,
            971_211_336_000_000,
            [Some("192.0.2.1"), Some("frank"), Some("/a")],
        );
        check(
            r#"{"msec":"971211336.250","time_local":"no matter","remote_addr":"::1","remote_user":"","request_uri":"/x\u002fy?z","upstream":{"a":[1]}}"#,
            971_211_336_250_000,
            [Some("::1"), None, Some("/x/y")],
        );
        check(r#"{"ts":971211336.5,"ip":"h","user":"-"}"#, 971_211_336_500_000, [Some("h"), None, None]);
        check(
            r#"{"@timestamp":"2000-10-10T20:55:36Z","path":"/p","msec":null}"#,
            971_211_336_000_000,
            [None, None, Some("/p")],
        );
    }

    #[test]
    fn other_lines_say_what_is_missing() {
        for (line, part) in [
            ("", "this is not an access log in JSON: EOF"),
            ("[1]", "this is not an access log in JSON"),
            (r#"{"remote_addr":"h"}"#, "it has no time; log msec, time_iso8601 or time_local; correct the line"),
            (r#"{"time":"soon","remote_addr":"h"}"#, "its time \"soon\" is none that is known"),
            (r#"{"msec":1,"remote_addr":"-"}"#, "it has neither remote_addr nor remote_user nor request_uri"),
            (r#"{"msec":1,"msec":2,"ip":"h"}"#, "duplicate field"),
        ] {
            let error = read(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
