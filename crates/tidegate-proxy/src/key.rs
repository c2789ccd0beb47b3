//! The key that a request counts for: by default its path, in its normal form.
//!
//! The turnstile knows keys by two seeded hashes, so that no client can make two keys meet and no key costs more than
//! another. The gate's limiter knows them as text, so that people can look at them and block them. Replicas that count
//! together call a key the same at their store: there it is a SHA-256. What escapes are left in a path are decoded for
//! the key: `/a%40b` and `/a@b` are forwarded as they are written and share one limit.

use crate::target::Target;
use foldhash::quality::{FoldHasher, RandomState};
use http::header::{COOKIE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use percent_encoding::percent_decode_str;
use ring::digest::{Context, SHA256};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;
use std::str::FromStr;
use tidegate::KEY_LEN_MAX;
use tidegate::layer::{client_address, key_of_address};
use tidegate_core::turnstile::{KeyHash, Name};

/// One part of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyPart {
    /// The path, or the template that it matches.
    Path,
    /// GET, POST, …
    Method,
    /// The Host in lower case, without its port and a dot at its end.
    Host,
    /// The client's address behind the trusted hops; an IPv6 address counts as its /64.
    Ip,
    /// A header field's value.
    Header(HeaderName),
}

impl FromStr for KeyPart {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyPart, String> {
        match text {
            "path" => Ok(KeyPart::Path),
            "method" => Ok(KeyPart::Method),
            "host" => Ok(KeyPart::Host),
            "ip" => Ok(KeyPart::Ip),
            _ => match text.strip_prefix("header.").map(HeaderName::try_from) {
                Some(Ok(name)) => Ok(KeyPart::Header(name)),
                Some(Err(_)) => {
                    Err(format!("\"{}\" names no header field; write header.x-api-key", text.escape_debug()))
                }
                None => Err(format!(
                    "\"{}\" is no part of a key; use path, method, host, ip or header.NAME",
                    text.escape_debug()
                )),
            },
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Path => f.write_str("path"),
            KeyPart::Method => f.write_str("method"),
            KeyPart::Host => f.write_str("host"),
            KeyPart::Ip => f.write_str("ip"),
            KeyPart::Header(name) => write!(f, "header.{name}"),
        }
    }
}

/// A path with blanks, such as `/users/{id}`: all paths that fill them count as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    text: String,
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        let shown = text.escape_debug();
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("\"{shown}\" does not begin with a slash; write \"/users/{{id}}\""));
        };
        if !rest.split('/').any(is_blank) {
            return Err(format!("\"{shown}\" has no blank; write one segment in braces, such as \"/users/{{id}}\""));
        }
        let plain = rest.split('/').filter(|segment| !is_blank(segment));
        for segment in plain {
            let path = format!("/{segment}");
            let is_normal = crate::target::normal(&path).ok().as_deref() == Some(path.as_str());
            if !is_normal || rest.contains("//") || rest.starts_with('/') {
                return Err(format!(
                    "\"{shown}\" has the segment \"{}\", which no forwarded path has; write it as it is forwarded, and blanks as whole segments",
                    segment.escape_debug()
                ));
            }
        }
        Ok(Template { text: text.to_owned() })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Template {
    /// A slash at the end of either is of no account.
    fn matches(&self, path: &str) -> bool {
        let [own, asked] = [self.text.as_str(), path].map(|path| path.strip_suffix('/').unwrap_or(path));
        let (mut own, mut asked) = (own.split('/'), asked.split('/'));
        loop {
            match (own.next(), asked.next()) {
                (None, None) => return true,
                (Some(own), Some(asked)) if own == asked || is_blank(own) && !asked.is_empty() => {}
                _ => return false,
            }
        }
    }
}

fn is_blank(segment: &str) -> bool {
    segment.len() > 2 && segment.starts_with('{') && segment.ends_with('}')
}

/// A key in words. Most fit without an allocation.
pub(crate) type KeyText = SmallVec<[u8; 48]>;

/// Makes keys of requests, with seeds of its own.
#[derive(Default)]
pub(crate) struct KeyMaker {
    one: RandomState,
    other: RandomState,
}

/// Where a request came from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: IpAddr,
    pub(crate) trusted_hops: usize,
}

impl KeyMaker {
    /// The key of a request. Never inlined, so that a profile can tell what limiting costs.
    #[inline(never)]
    pub(crate) fn key(
        &self,
        key: &[KeyPart],
        templates: &[Template],
        target: &Target<'_>,
        parts: &Parts,
        from: Origin,
    ) -> KeyHash {
        let mut both = Both([self.one.build_hasher(), self.other.build_hasher()]);
        write_key(&mut both, key, templates, target, parts, from);
        let [one, other] = both.0;
        KeyHash::new(one.finish(), other.finish())
    }
}

/// The name of a request's key at a store: the same in every replica.
pub(crate) fn name(key: &[KeyPart], templates: &[Template], target: &Target<'_>, parts: &Parts, from: Origin) -> Name {
    let mut digest = Digest(Context::new(&SHA256));
    write_key(&mut digest, key, templates, target, parts, from);
    let mut name = Name::default();
    name.0.copy_from_slice(&digest.0.finish().as_ref()[..16]);
    name
}

/// A request's key in words, as the gate's limiter knows it: the one part, or `path=/a,method=GET` for several. A key that
/// is longer than a limiter's may be goes by its name.
pub(crate) fn text(
    key: &[KeyPart],
    templates: &[Template],
    target: &Target<'_>,
    parts: &Parts,
    from: Origin,
) -> KeyText {
    let mut text = Text::default();
    for part in key {
        if key.len() > 1 {
            text.begin(&part.to_string());
        }
        write_key(&mut text, std::slice::from_ref(part), templates, target, parts, from);
    }
    match text.bytes.len() {
        1..=KEY_LEN_MAX => text.bytes,
        _ => name(key, templates, target, parts, from).to_string().into_bytes().into(),
    }
}

fn write_key(
    sink: &mut impl Pieces,
    key: &[KeyPart],
    templates: &[Template],
    target: &Target<'_>,
    parts: &Parts,
    from: Origin,
) {
    for part in key {
        match part {
            KeyPart::Path => match templates.iter().find(|template| template.matches(&target.path)) {
                Some(template) => sink.write(template.text.as_bytes()),
                None => sink.write_path(target),
            },
            KeyPart::Method => sink.write(parts.method.as_str().as_bytes()),
            KeyPart::Host => {
                let host = parts.headers.get(HOST).map(|host| bare_host(host.as_bytes()).to_ascii_lowercase());
                sink.write(&host.unwrap_or_default());
            }
            KeyPart::Ip => {
                let address = client_address(&parts.headers, Some(from.peer), from.trusted_hops);
                sink.write(key_of_address(address.unwrap_or(from.peer)).as_bytes());
            }
            // Once, or refused before: see `header_sent_twice`.
            KeyPart::Header(name) if *name != COOKIE => {
                let value = parts.headers.get(name).map(HeaderValue::as_bytes);
                sink.write(value.unwrap_or_default());
            }
            // HTTP/2 sends each cookie in a field of its own, which are one in HTTP/1.
            KeyPart::Header(name) => {
                let values: Vec<&[u8]> = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
                sink.write(&values.join(&b"; "[..]));
            }
        }
    }
}

/// A field of the key that is there twice: servers disagree on which of them counts, and with another second one each request
/// would be a new key.
pub(crate) fn header_sent_twice<'a>(key: &'a [KeyPart], headers: &HeaderMap) -> Option<&'a HeaderName> {
    key.iter().find_map(|part| match part {
        KeyPart::Header(name) if *name != COOKIE => headers.get_all(name).iter().nth(1).map(|_| name),
        _ => None,
    })
}

/// `EXAMPLE.org.:8080` names the same host as `EXAMPLE.org`.
fn bare_host(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let name = match host[..host.len() - digits].strip_suffix(b":") {
        // The colons of an address stand inside brackets.
        Some(name) if !name.is_empty() => name,
        _ => host,
    };
    name.strip_suffix(b".").filter(|name| !name.is_empty()).unwrap_or(name)
}

/// What takes the pieces of a key.
trait Pieces {
    /// Each piece with its length in front, so that no two lists of pieces look alike.
    fn write(&mut self, piece: &[u8]);

    /// A path as it is read: escapes that its normal form keeps are decoded.
    fn write_path(&mut self, target: &Target<'_>) {
        let Cow::Owned(path) = &target.path else {
            // It came in its normal form, without escapes.
            return self.write(target.path.as_bytes());
        };
        self.write(&Cow::from(percent_decode_str(path)));
    }
}

struct Both<'a>([FoldHasher<'a>; 2]);

impl Pieces for Both<'_> {
    fn write(&mut self, piece: &[u8]) {
        for hasher in &mut self.0 {
            hasher.write_usize(piece.len());
            hasher.write(piece);
        }
    }
}

/// Commas and backslashes are escaped where they could be taken for the end of a part.
#[derive(Default)]
struct Text {
    bytes: KeyText,
    is_named: bool,
}

impl Text {
    fn begin(&mut self, name: &str) {
        if self.is_named {
            self.bytes.push(b',');
        }
        self.is_named = true;
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'=');
    }
}

impl Pieces for Text {
    fn write(&mut self, piece: &[u8]) {
        if !self.is_named {
            return self.bytes.extend_from_slice(piece);
        }
        for byte in piece {
            if matches!(byte, b',' | b'\\') {
                self.bytes.push(b'\\');
            }
            self.bytes.push(*byte);
        }
    }
}

struct Digest(Context);

impl Pieces for Digest {
    fn write(&mut self, piece: &[u8]) {
        self.0.update(&(piece.len() as u64).to_be_bytes());
        self.0.update(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target;
    use http::Request;

    /// Requests are `METHOD URL [NAME: VALUE]…`, separated by `|`; do they share a key?
    #[track_caller]
    fn check(key: &str, templates: &[&str], one: &str, other: &str, share: bool) {
        let key: Vec<KeyPart> = key.split(' ').map(|part| part.parse().unwrap()).collect();
        let templates: Vec<Template> = templates.iter().map(|text| text.parse().unwrap()).collect();
        let maker = KeyMaker::default();
        let of = |text: &str| {
            let mut words = text.split('|');
            let (method, uri) = words.next().unwrap().split_once(' ').unwrap();
            let mut request = Request::builder().method(method).uri(uri);
            for (name, value) in words.map(|field| field.split_once(": ").unwrap()) {
                request = request.header(name, value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let target = target::read(&parts.method, &parts.uri).unwrap();
            let from = Origin { peer: "192.0.2.1".parse().unwrap(), trusted_hops: 1 };
            (maker.key(&key, &templates, &target, &parts, from), name(&key, &templates, &target, &parts, from))
        };
        let ((one_key, one_name), (other_key, other_name)) = (of(one), of(other));
        assert_eq!(one_key == other_key, share, "{one} and {other}");
        assert_eq!(one_name == other_name, share, "{one} and {other}, at a store");
    }

    #[test]
    fn by_path_in_every_spelling() {
        check("path", &[], "GET /a", "POST /a?x=1", true);
        check("path", &[], "GET /a", "GET /b", false);
        check("path", &[], "GET /a", "GET /a/", false);
        check("path", &[], "GET /a/b", "GET //a/./c/..//%62", true);
        check("path", &[], "GET /a@b", "GET /a%40b", true);
        check("path", &[], "GET /a%25b", "GET /a%2525b", false);
    }

    #[test]
    fn by_everything_else() {
        check("path method", &[], "GET /a", "POST /a", false);
        check("path host", &[], "GET /a|Host: X.example", "GET /a|Host: x.EXAMPLE", true);
        check("path host", &[], "GET /a|Host: x", "GET /a|Host: y", false);
        check("host", &[], "GET /a|Host: x.example", "GET /a|Host: x.EXAMPLE.:8080", true);
        check("host", &[], "GET /a|Host: x.example:", "GET /a|Host: x.example:443", true);
        check("host", &[], "GET /a|Host: [2001:db8::1]", "GET /a|Host: [2001:DB8::1]:8080", true);
        check("host", &[], "GET /a|Host: [2001:db8::1]", "GET /a|Host: [2001:db8::2]", false);
        check("host", &[], "GET /a|Host: 10.0.0.1", "GET /a|Host: 10.0.0.2", false);
        check("header.cookie", &[], "GET /a|Cookie: a=1; b=2", "GET /a|Cookie: a=1|Cookie: b=2", true);
        check("ip", &[], "GET /a|X-Forwarded-For: 198.51.100.1", "GET /b|X-Forwarded-For: 6.6.6.6, 198.51.100.1", true);
        check("ip", &[], "GET /a|X-Forwarded-For: 198.51.100.1", "GET /a|X-Forwarded-For: 198.51.100.2", false);
        check("header.x-key", &[], "GET /a|X-Key: 1", "GET /b|X-Key: 1", true);
        check("header.x-key", &[], "GET /a|X-Key: 1", "GET /a", false);
        check("header.x-a header.x-b", &[], "GET /a|X-A: 1", "GET /a|X-B: 1", false);
    }

    #[test]
    fn templates_make_one_of_many() {
        let users = &["/users/{id}", "/users/{id}/posts/{post}"];
        check("path", users, "GET /users/1", "GET /users/2", true);
        check("path", users, "GET /users/1", "GET /users/", false);
        check("path", users, "GET /users/1", "GET /users/2/", true);
        check("path", users, "GET /users/1/", "GET /users/2/", true);
        check("path", users, "GET /users/1/posts/2", "GET /users/3/posts/4", true);
        check("path", users, "GET /users/1/posts/2", "GET /users/3", false);
        check("path", users, "GET /users/1", "GET /users/%7Bid%7D", true);
        for (text, part) in [
            ("users/{id}", "does not begin with a slash"),
            ("/users", "has no blank"),
            ("/users/x{id}/{y}", "which no forwarded path has"),
            ("/a//{id}", "which no forwarded path has"),
            ("/a%41/{id}", "which no forwarded path has"),
        ] {
            assert!(text.parse::<Template>().unwrap_err().contains(part), "{text}");
        }
    }
}
