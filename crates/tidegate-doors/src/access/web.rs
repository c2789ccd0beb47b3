//! Requests without a token: is it a program that asks, or a web page through its visitor's browser?
//!
//! A browser on this machine reaches loopback doors, and sends what any page of the world tells it to. Two things give it away. The
//! Host is a name that the page's owner chose when DNS was pointed here (rebinding), where programs say an address, `localhost` or a
//! name that the operator listed. And browsers say where a request comes from: `Origin` on whatever a page can read or post,
//! `Sec-Fetch-Site` on all else to addresses that they trust (loopback, TLS). A page cannot set either.
//! Not here: tokens. No page has one unless it was given one, so that requests with a token skip these rules; certificates do
//! not, as browsers send them by themselves.

use super::Rules;
use super::refusal::Refusal;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, VIA};
use http::request::Parts;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// # Errors
/// The Host is no name that this server is known by, or a page of another origin asks.
pub(super) fn check(rules: &Rules, parts: &Parts) -> Result<(), Refusal> {
    let said = Said::of(parts);
    if !is_known(rules, said.host) {
        return Err(unknown_host(said.host));
    }
    if let Some(origin) = said.origin {
        if is_allowed(rules, origin) {
            return Ok(());
        }
        if !is_same_host(origin, said.host) {
            return Err(cross_origin().field("Origin"));
        }
    }
    match said.site {
        // `none`: typed by the visitor.
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(cross_origin().field("Sec-Fetch-Site")),
    }
}

/// # Errors
/// A browser sends it, whatever page it is from: for what no page has a reason to ask.
pub(super) fn check_program(headers: &HeaderMap) -> Result<(), Refusal> {
    for field in [ORIGIN, SEC_FETCH_SITE] {
        if headers.contains_key(&field) {
            return Err(cross_origin().field(if field == ORIGIN { "Origin" } else { "Sec-Fetch-Site" }));
        }
    }
    Ok(())
}

/// What a request says of where it goes and where it comes from.
struct Said<'h> {
    host: &'h [u8],
    origin: Option<&'h [u8]>,
    site: Option<&'h [u8]>,
}

impl Said<'_> {
    /// In one pass: looking three names up costs more than to see the few fields that a request has.
    fn of(parts: &Parts) -> Said<'_> {
        // HTTP/2 has the host in the request line's place.
        let authority = parts.uri.authority().map_or(&b""[..], |authority| authority.as_str().as_bytes());
        let mut said = Said { host: authority, origin: None, site: None };
        for (name, value) in &parts.headers {
            if *name == HOST {
                said.host = value.as_bytes();
            } else if *name == ORIGIN {
                said.origin = Some(value.as_bytes());
            } else if *name == SEC_FETCH_SITE {
                said.site = Some(value.as_bytes());
            }
        }
        said
    }
}

/// The origin of the page that asks, if it is one of `allowed_origins`: it may read answers.
pub(crate) fn allowed_origin<'h>(rules: &Rules, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
    headers.get(ORIGIN).filter(|origin| is_allowed(rules, origin.as_bytes()))
}

fn is_allowed(rules: &Rules, origin: &[u8]) -> bool {
    rules.origins.iter().any(|allowed| allowed.0.as_bytes() == origin)
}

/// # Errors
/// Not somebody on this machine who asks directly: what an operator does by hand needs a token otherwise.
pub(super) fn check_local(headers: &HeaderMap, peer: IpAddr) -> Result<(), Refusal> {
    let passed_on = headers.contains_key("x-forwarded-for")
        || headers.contains_key("x-real-ip")
        || headers.contains_key(FORWARDED)
        || headers.contains_key(VIA);
    if peer.to_canonical().is_loopback() && !passed_on {
        return Ok(());
    }
    let detail = "what changes things by hand answers without a token to this machine only, over loopback and without a proxy; ask from there, or set [access] tokens and send one with the scope operate";
    Err(Refusal::forbidden("not_loopback", detail))
}

fn is_known(rules: &Rules, host: &[u8]) -> bool {
    // In one pass: an address of IPv4 is up to its port.
    let address = &host[..host.iter().take_while(|byte| is_of_ipv4(**byte)).count()];
    if !address.is_empty() && matches!(host[address.len()..], [] | [b':', ..]) {
        return true;
    }
    let name = match host {
        // Nobody's DNS answers for what is in brackets, which the door has checked to be an address.
        [b'[', ..] => return true,
        host => &host[..host.iter().position(|byte| *byte == b':').unwrap_or(host.len())],
    };
    name.eq_ignore_ascii_case(b"localhost")
        || rules.hosts.iter().any(|known| known.0.as_bytes().eq_ignore_ascii_case(name))
}

/// Digits and dots: an address, or nothing. Browsers ask no DNS for a name whose last part is a number (the URL standard), so that
/// it need not be parsed to be safe.
fn is_of_ipv4(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'.'
}

/// `http://host:port` against `host:port`. `null`, as sandboxed pages send it, is no host.
fn is_same_host(origin: &[u8], host: &[u8]) -> bool {
    let rest = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
}

#[cold]
fn unknown_host(host: &[u8]) -> Refusal {
    let host: String = String::from_utf8_lossy(host).chars().take(64).flat_map(char::escape_debug).collect();
    let detail = format!(
        "without a token this server answers under an address, localhost or a name in [access] hosts, and \"{host}\" is none of them; ask for http://127.0.0.1, add the name to hosts, or send a token"
    );
    Refusal::forbidden("unknown_host", detail).field("Host")
}

#[cold]
fn cross_origin() -> Refusal {
    let detail = "the request comes from a web page of another origin; add the page's origin to [access] allowed_origins, send a token, or send the request without Origin and Sec-Fetch-Site";
    Refusal::forbidden("cross_origin", detail)
}

/// A name that the Host field may have, in lower case, without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        let shown = text.escape_debug();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        match text {
            "" | "*" => Err(format!("\"{shown}\" is no name; write a host's name, such as \"tidegate.example\"")),
            text if text.len() > 253 => Err(format!("a name of {} bytes is longer than 253, the most", text.len())),
            text if text.bytes().all(is_name) => Ok(HostName(text.to_ascii_lowercase())),
            _ => Err(format!(
                "\"{shown}\" is no host's name; write it without a scheme or a port, such as \"tidegate.example\""
            )),
        }
    }
}

/// A web origin as browsers send it: `https://app.example`, with a port where it is not the scheme's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WebOrigin(String);

impl FromStr for WebOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<WebOrigin, String> {
        const REMEDY: &str =
            "write scheme, host and port of the page, such as \"https://app.example\" or \"http://localhost:3000\"";
        let refusal = || format!("\"{}\" is no origin; {REMEDY}", text.escape_debug());
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://").ok_or_else(refusal)?;
        let own_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return Err(refusal()),
        };
        let is_part =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
        let parsed = authority.parse::<http::uri::Authority>();
        let has_port = authority.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
        let is_whole = parsed.is_ok_and(|parsed| !parsed.host().is_empty() && parsed.port_u16().is_some() == has_port);
        if !is_whole || !authority.bytes().all(is_part) {
            return Err(refusal());
        }
        Ok(WebOrigin(format!("{scheme}://{}", authority.strip_suffix(own_port).unwrap_or(authority))))
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
