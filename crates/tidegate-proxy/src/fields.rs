//! Header fields that are for one hop only, and those that a proxy adds.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, Entry, FORWARDED, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use std::net::IpAddr;

const HOPS: usize = 6;
/// Fields that speak of one connection (RFC 9110, 7.6.1).
static HOP_BY_HOP: [HeaderName; HOPS] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];
const CONNECTION_AT: usize = 0;
const TE_AT: usize = 1;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What a client's address becomes in the fields; made once for each connection.
pub(crate) struct Hop {
    plain: HeaderValue,
    forwarded: HeaderValue,
}

impl Hop {
    pub(crate) fn of(peer: IpAddr) -> Hop {
        let peer = peer.to_canonical();
        let forwarded = if peer.is_ipv6() { format!("for=\"[{peer}]\"") } else { format!("for={peer}") };
        let value = |text: String| HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
        Hop { plain: value(peer.to_string()), forwarded: value(forwarded) }
    }
}

/// Does the request ask for a WebSocket?
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    if !headers.contains_key(UPGRADE) {
        return false;
    }
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is_websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    // Only this protocol: another one inside the connection would be requests that nobody limits.
    protocols.next().is_some_and(is_websocket)
        && protocols.next().is_none()
        && tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"))
}

/// Makes a client's fields fit to be forwarded.
pub(crate) fn to_upstream(headers: &mut HeaderMap, hop: &Hop, is_websocket: bool) {
    let found = hop_by_hop(headers);
    let trailers = found[TE_AT] && tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case(b"trailers"));
    remove_hop_by_hop(headers, found);
    // `100 Continue` was, or will be, told by us.
    headers.remove(EXPECT);
    if is_websocket {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    } else if trailers {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    append(headers, X_FORWARDED_FOR, &hop.plain);
    append(headers, FORWARDED, &hop.forwarded);
}

/// Makes an upstream's fields fit for the client. Its answer had a length or a coding, not both.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    let found = hop_by_hop(headers);
    remove_hop_by_hop(headers, found);
}

/// Which of the fields for one hop are there, in one pass: looking for each would cost more.
fn hop_by_hop(headers: &HeaderMap) -> [bool; HOPS] {
    let mut found = [false; HOPS];
    for name in headers.keys() {
        if let Some(at) = HOP_BY_HOP.iter().position(|known| known == name) {
            found[at] = true;
        }
    }
    found
}

/// Removes what speaks of one connection, and what the sender says does.
fn remove_hop_by_hop(headers: &mut HeaderMap, found: [bool; HOPS]) {
    if found[CONNECTION_AT] {
        remove_named(headers);
    }
    for (name, found) in HOP_BY_HOP.iter().zip(found) {
        if found {
            headers.remove(name);
        }
    }
}

/// Removes the fields that `Connection` names.
fn remove_named(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(CONNECTION).iter();
    let plain = |line: &HeaderValue| [&b"keep-alive"[..], b"close"].contains(&line.as_bytes());
    // What almost every message says names no field.
    if lines.next().is_none_or(plain) && lines.next().is_none() {
        return;
    }
    let named: Vec<HeaderName> =
        tokens(headers, &CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    // A length is framing, and a Host is where the request goes: neither is the sender's to take away.
    for name in named.iter().filter(|name| **name != CONTENT_LENGTH && **name != http::header::HOST) {
        headers.remove(name);
    }
}

/// The elements of a comma-separated field, over all of its lines.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Adds an element to a list, which stays on one line: some servers read only the first.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => drop(entry.insert(element.clone())),
        Entry::Occupied(mut entry) => {
            let mut list = Vec::new();
            for line in entry.iter() {
                list.extend_from_slice(line.as_bytes());
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(element.as_bytes());
            // Joined lines are made of what lines are made of.
            entry.insert(HeaderValue::from_bytes(&list).unwrap_or_else(|_| element.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> HeaderMap {
        let fields = text.split('|').filter(|field| !field.is_empty());
        let fields = fields.map(|field| field.split_once(": ").unwrap());
        fields
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()))
            .collect()
    }

    fn text(headers: &HeaderMap) -> String {
        let mut fields: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        fields.sort();
        fields.join("|")
    }

    #[track_caller]
    fn check(sent: &str, forwarded: &str) {
        let mut headers = map(sent);
        let is_websocket = wants_websocket(&headers);
        to_upstream(&mut headers, &Hop::of("192.0.2.1".parse().unwrap()), is_websocket);
        assert_eq!(text(&headers), text(&map(forwarded)), "{sent}");
    }

    const OURS: &str = "x-forwarded-for: 192.0.2.1|forwarded: for=192.0.2.1";

    #[test]
    fn hop_by_hop_fields_end_here() {
        check("a: b|connection: close", &format!("a: b|{OURS}"));
        check("connection: keep-alive, X-Secret|x-secret: 1|keep-alive: timeout=5", OURS);
        check("connection: x-forwarded-for|x-forwarded-for: 6.6.6.6", OURS);
        check(
            "connection: host, content-length|host: h|content-length: 5",
            &format!("host: h|content-length: 5|{OURS}"),
        );
        check("proxy-connection: close|te: gzip|transfer-encoding: chunked|upgrade: h2c", OURS);
        check("te: gzip, trailers|connection: te", &format!("te: trailers|connection: te|{OURS}"));
        check("expect: 100-continue", OURS);
    }

    #[test]
    fn only_websockets_are_upgraded() {
        check("connection: Upgrade|upgrade: WebSocket", &format!("connection: upgrade|upgrade: websocket|{OURS}"));
        check("connection: upgrade|upgrade: h2c", OURS);
        check("connection: upgrade|upgrade: websocket, h2c", OURS);
        check("connection: upgrade|upgrade: websocket|upgrade: h2c", OURS);
        check("upgrade: websocket", OURS);
    }

    #[test]
    fn the_client_is_appended_to_the_list() {
        check("x-forwarded-for: 1.1.1.1", "x-forwarded-for: 1.1.1.1, 192.0.2.1|forwarded: for=192.0.2.1");
        check(
            "x-forwarded-for: 1.1.1.1|x-forwarded-for: 2.2.2.2|forwarded: for=x;proto=https",
            "x-forwarded-for: 1.1.1.1, 2.2.2.2, 192.0.2.1|forwarded: for=x;proto=https, for=192.0.2.1",
        );
        assert_eq!(Hop::of("2001:db8::1".parse().unwrap()).forwarded, "for=\"[2001:db8::1]\"");
        assert_eq!(Hop::of("::ffff:192.0.2.1".parse().unwrap()).forwarded, "for=192.0.2.1");
    }

    #[test]
    fn answers_lose_them_too() {
        let mut headers =
            map("transfer-encoding: chunked|connection: x-a|x-a: 1|x-b: 2|upgrade: h2c|keep-alive: timeout=5");
        to_client(&mut headers);
        assert_eq!(text(&headers), "x-b: 2");
    }
}
