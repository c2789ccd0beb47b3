//! The tokens file: who is known, and what each may do. Written by `tidegate token`, read by the server.
//!
//! Invariant: a file that is refused grants nothing.

use super::access::each;
use super::limiter::read_tables;
use super::problem::{ConfigError, Problem};
use super::section::{Known, Section};
use super::source::{Place, Source};
use super::tree::{self, Node, Value};
use super::{read_text, section};
use crate::calendar;
use std::path::Path;
use tidegate::Micros;
use tidegate_doors::access::{
    Certificate, CertificatePattern, Grant, Hash, Pattern, TOKEN_NAME_LEN_MAX, Token, Tokens,
};

const KNOWN: Known = Known { here: &["token", "certificate"], later: &[] };
const KNOWN_TOKEN: Known =
    Known { here: &["name", "sha256", "scopes", "limiters", "domains", "streams", "expires"], later: &[] };
const KNOWN_CERTIFICATE: Known =
    Known { here: &["name", "subject", "san", "scopes", "limiters", "domains", "streams"], later: &[] };

/// Reads a file by itself.
///
/// # Errors
/// It cannot be read, or every problem found in it.
pub(super) fn load(file: &Path) -> Result<Tokens, String> {
    let name = file.display().to_string();
    let text = read_text(file).map_err(|message| ConfigError::whole(name.clone(), message).to_string())?;
    parse(&name, text)
}

/// The same for a text that is there already; `name` is what errors call it.
pub(crate) fn parse(name: &str, text: String) -> Result<Tokens, String> {
    let mut problems = Vec::new();
    let tokens = read(0, &text, &mut problems);
    if problems.is_empty() {
        return Ok(tokens);
    }
    problems.sort_by_key(|problem| problem.place.map(|place| place.start));
    let sources = vec![Source::File { name: name.to_owned(), text }];
    Err(ConfigError { file: name.to_owned(), sources, problems }.to_string())
}

/// Reads the text of a source.
pub(super) fn read(source: usize, text: &str, problems: &mut Vec<Problem>) -> Tokens {
    let root = match tree::parse(source, text) {
        Ok(root) => root,
        Err(syntax) => {
            problems.extend(syntax);
            return Tokens::default();
        }
    };
    let before = problems.len();
    for entry in root.entries.iter().filter(|entry| !KNOWN.here.contains(&entry.name.as_str())) {
        let message = section::unknown(&entry.name, &KNOWN);
        problems.push(Problem { place: Some(entry.name_place), message });
    }
    let node = |name| root.position(name).map(|at| &root.entries[at].node);
    let tokens = read_tables(node("token"), "token", &KNOWN_TOKEN, problems, read_token);
    let certificates = read_tables(node("certificate"), "certificate", &KNOWN_CERTIFICATE, problems, read_certificate);
    if problems.len() > before {
        return Tokens::default();
    }
    Tokens::new(tokens, certificates).unwrap_or_else(|message| {
        problems.push(Problem { place: Some(Place { source, start: 0, end: 0 }), message });
        Tokens::default()
    })
}

fn read_token(section: &mut Section<'_>, place: Place) -> Option<Token> {
    let name = read_name(section, place);
    if section.node("sha256").is_none() {
        section.problem(place, "it has no sha256; make tokens with tidegate token new".to_owned());
    }
    let hash = section.parsed("sha256", "…", str::parse::<Hash>);
    let grant = read_grant(section, place);
    let expires = match section.node("expires").map(read_expiry) {
        None => None,
        Some(Ok(at)) => Some(at),
        Some(Err((place, message))) => {
            section.refuse(place, "expires", &message);
            return None;
        }
    };
    Some(Token { name: name?, hash: hash?, grant: grant?, expires })
}

fn read_certificate(section: &mut Section<'_>, place: Place) -> Option<Certificate> {
    let name = read_name(section, place);
    let subject = section.parsed("subject", "orders", str::parse::<Pattern>);
    let san = section.parsed("san", "spiffe://mesh/ns/*/sa/orders", str::parse::<Pattern>);
    let grant = read_grant(section, place);
    let of = match (section.node("subject").is_some(), section.node("san").is_some()) {
        (true, false) => CertificatePattern::Subject(subject?),
        (false, true) => CertificatePattern::San(san?),
        _ => {
            section.problem(place, "it must have either subject or san; write one of them".to_owned());
            return None;
        }
    };
    Some(Certificate { name: name?, of, grant: grant? })
}

fn read_name(section: &mut Section<'_>, place: Place) -> Option<String> {
    if section.node("name").is_none() {
        section.problem(place, "it has no name; add name = \"nginx\"".to_owned());
    }
    section.parsed("name", "nginx", |text| name(text).map(|()| text.to_owned()))
}

/// # Errors
/// It is no name: people must know it in a log line.
pub(crate) fn name(text: &str) -> Result<(), String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=TOKEN_NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(is_part) {
        return Ok(());
    }
    let shown: String = text.chars().take(TOKEN_NAME_LEN_MAX).flat_map(char::escape_debug).collect();
    Err(format!(
        "\"{shown}\" is no name; use 1 to {TOKEN_NAME_LEN_MAX} letters, digits, dashes, dots and underscores, such as \"nginx\""
    ))
}

fn read_grant(section: &mut Section<'_>, place: Place) -> Option<Grant> {
    if section.node("scopes").is_none() {
        section.problem(place, "it has no scopes; add scopes = [\"check\"]".to_owned());
        return None;
    }
    let scopes = each(section, "scopes", "check", str::parse);
    if let (true, Some(node)) = (scopes.is_empty(), section.node("scopes")) {
        section.refuse(node.place, "scopes", "it opens nothing; name some, such as [\"check\"]");
        return None;
    }
    let mut patterns = |name, example| {
        let found = each(section, name, example, str::parse::<Pattern>);
        // An empty list could be read as "none" and would mean "all".
        if let Some(Node { place, value: Value::Array(all) }) = section.node(name)
            && all.is_empty()
        {
            section.refuse(*place, name, "an empty list narrows to nothing; name some, or leave it out for all");
        }
        found
    };
    Some(Grant {
        scopes: scopes.into_iter().collect(),
        limiters: patterns("limiters", "login-*"),
        domains: patterns("domains", "login"),
        streams: patterns("streams", "orders"),
    })
}

fn read_expiry(node: &Node) -> Result<Micros, (Place, String)> {
    let instant = match &node.value {
        Value::Time(text) => calendar::instant(text),
        _ => None,
    };
    instant
        .ok_or_else(|| (node.place, "it must be an instant in UTC; write one such as 2027-02-14T18:00:00Z".to_owned()))
}
