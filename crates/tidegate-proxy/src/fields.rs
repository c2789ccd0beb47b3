//! Header fields that are for one hop only, and those that a proxy adds.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, FORWARDED, HOST,
    HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use std::net::IpAddr;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What a field is to a proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// For the servers behind this one.
    Plain,
    Host,
    Length,
    /// These speak of one connection (RFC 9110, 7.6.1).
    Connection,
    Te,
    Upgrade,
    OtherHop,
    /// `100 Continue` is sent by the proxy.
    Expect,
    /// HTTP/2 sends each of several in a field of its own (RFC 9113, 8.2.3); HTTP/1 has one field.
    Cookie,
    /// Lists of the hops before.
    ForwardedFor,
    Forwarded,
}

impl Role {
    fn of(name: &HeaderName) -> Role {
        match name.as_str() {
            "host" => Role::Host,
            "content-length" => Role::Length,
            "connection" => Role::Connection,
            "te" => Role::Te,
            "upgrade" => Role::Upgrade,
            "transfer-encoding" | "keep-alive" | "proxy-connection" => Role::OtherHop,
            "expect" => Role::Expect,
            "cookie" => Role::Cookie,
            "x-forwarded-for" => Role::ForwardedFor,
            "forwarded" => Role::Forwarded,
            _ => Role::Plain,
        }
    }
}

/// Which roles are among a message's fields.
#[derive(Clone, Copy, Default)]
pub(crate) struct Roles(u16);

impl Roles {
    fn of(headers: &HeaderMap) -> Roles {
        headers.keys().fold(Roles::default(), |roles, name| roles.and(Role::of(name)))
    }

    fn and(self, role: Role) -> Roles {
        Roles(self.0 | 1 << role as u16)
    }

    fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u16 != 0
    }

    fn any_hop(self) -> bool {
        [Role::Connection, Role::Te, Role::Upgrade, Role::OtherHop].into_iter().any(|role| self.has(role))
    }
}

/// What there is to know of a request's fields, found in one pass: looking for each by name costs more.
pub(crate) struct Survey<'a> {
    pub(crate) roles: Roles,
    /// The last Host, and how many there are.
    pub(crate) host: Option<&'a HeaderValue>,
    pub(crate) hosts: u32,
    /// The last length of a body, if it is one, and how many there are.
    pub(crate) body_length: Option<u64>,
    pub(crate) body_lengths: u32,
    /// Names and values together.
    pub(crate) length: usize,
}

impl Survey<'_> {
    pub(crate) fn of(headers: &HeaderMap) -> Survey<'_> {
        let mut survey =
            Survey { roles: Roles::default(), host: None, hosts: 0, body_length: None, body_lengths: 0, length: 0 };
        for (name, value) in headers {
            let role = Role::of(name);
            survey.roles = survey.roles.and(role);
            survey.length += name.as_str().len() + value.len();
            match role {
                Role::Host => {
                    survey.host = Some(value);
                    survey.hosts += 1;
                }
                Role::Length => {
                    survey.body_length = body_length(value.as_bytes());
                    survey.body_lengths += 1;
                }
                _ => {}
            }
        }
        survey
    }
}

/// Digits and nothing else, and no more of them than every server can hold.
fn body_length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=LENGTH_DIGITS_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

const LENGTH_DIGITS_MAX: usize = 18;

/// What a client's address becomes in the fields; made once for each connection.
pub(crate) struct Hop {
    plain: HeaderValue,
    forwarded: HeaderValue,
    /// The fields of a request that came through no hop before, as they are written.
    first: Vec<u8>,
    /// The upstream sees our connection to it alone, and must know that the client's has TLS.
    is_encrypted: bool,
}

impl Hop {
    pub(crate) fn of(peer: IpAddr, is_encrypted: bool) -> Hop {
        let peer = peer.to_canonical();
        let mut forwarded = if peer.is_ipv6() { format!("for=\"[{peer}]\"") } else { format!("for={peer}") };
        if is_encrypted {
            forwarded.push_str(";proto=https");
        }
        let value = |text: String| HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
        let (plain, forwarded, mut first) = (value(peer.to_string()), value(forwarded), Vec::new());
        push_field(&mut first, &X_FORWARDED_FOR, &plain);
        push_field(&mut first, &FORWARDED, &forwarded);
        Hop { plain, forwarded, first, is_encrypted }
    }
}

/// Does the request ask for a WebSocket?
pub(crate) fn wants_websocket(headers: &HeaderMap, roles: Roles) -> bool {
    if !roles.has(Role::Upgrade) {
        return false;
    }
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is_websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    // Only this protocol: another one inside the connection would carry requests that no limit counts.
    protocols.next().is_some_and(is_websocket)
        && protocols.next().is_none()
        && tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"))
}

/// Writes a client's fields as the upstream gets them. The length is not among them: the code that frames the body writes it.
pub(crate) fn push_to_upstream(head: &mut Vec<u8>, headers: &HeaderMap, roles: Roles, hop: &Hop, is_websocket: bool) {
    let named = if roles.has(Role::Connection) { named_by_connection(headers) } else { Vec::new() };
    for (name, value) in headers {
        match Role::of(name) {
            Role::Plain if named.contains(name) => {}
            Role::Plain | Role::Host => push_field(head, name, value),
            _ => {}
        }
    }
    if roles.has(Role::Cookie) && !named.contains(&COOKIE) {
        push_joined(head, &COOKIE, b"; ", headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes));
    }
    if is_websocket {
        head.extend_from_slice(b"connection: upgrade\r\nupgrade: websocket\r\n");
    } else if roles.has(Role::Te) && tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case(b"trailers")) {
        head.extend_from_slice(b"connection: te\r\nte: trailers\r\n");
    }
    // A proxy in front of this one knows better.
    if hop.is_encrypted && !headers.contains_key(&X_FORWARDED_PROTO) {
        head.extend_from_slice(b"x-forwarded-proto: https\r\n");
    }
    if !roles.has(Role::ForwardedFor) && !roles.has(Role::Forwarded) {
        return head.extend_from_slice(&hop.first);
    }
    let before = |role, name: &HeaderName| (roles.has(role) && !named.contains(name)).then_some(headers);
    push_list(head, &X_FORWARDED_FOR, before(Role::ForwardedFor, &X_FORWARDED_FOR), &hop.plain);
    push_list(head, &FORWARDED, before(Role::Forwarded, &FORWARDED), &hop.forwarded);
}

/// Writes a list with one more element on one line: some servers read only the first.
fn push_list(head: &mut Vec<u8>, name: &HeaderName, before: Option<&HeaderMap>, element: &HeaderValue) {
    let lines = before.into_iter().flat_map(|headers| headers.get_all(name)).chain([element]);
    push_joined(head, name, b", ", lines.map(HeaderValue::as_bytes));
}

/// Writes one field of several values.
fn push_joined<'a>(head: &mut Vec<u8>, name: &HeaderName, between: &[u8], mut values: impl Iterator<Item = &'a [u8]>) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(values.next().unwrap_or_default());
    for value in values {
        head.extend_from_slice(between);
        head.extend_from_slice(value);
    }
    head.extend_from_slice(b"\r\n");
}

/// Writes a field as it is.
pub(crate) fn push_field(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value.as_bytes());
    head.extend_from_slice(b"\r\n");
}

/// May it stand behind a body (RFC 9110, 6.5.1)? There, a recipient that merges it into the head would have framing, a way here,
/// credentials or a content that was not looked at when the request came.
pub(crate) fn may_trail(name: &HeaderName) -> bool {
    Role::of(name) == Role::Plain && !HEAD_ONLY.contains(name)
}

static HEAD_ONLY: [HeaderName; 8] =
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, TRAILER];

/// Makes an upstream's fields fit for the client. Its answer had a length or a coding, not both.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    let roles = Roles::of(headers);
    if !roles.any_hop() {
        return;
    }
    if roles.has(Role::Connection) {
        named_by_connection(headers).iter().for_each(|name| drop(headers.remove(name)));
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The fields whose role is to speak of one connection.
static HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Is it a `Connection` that names no field? That is what almost every message says.
pub(crate) fn names_no_field(connection: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close"].contains(&connection)
}

/// The fields that `Connection` names, which end here as well.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    // A length is framing, and a Host is where the request goes: neither is the sender's to take away.
    tokens(headers, &CONNECTION)
        .filter(|name| !names_no_field(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect()
}

/// The elements of a comma-separated field, over all of its lines.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
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
        let (headers, mut head) = (map(sent), Vec::new());
        let roles = Survey::of(&headers).roles;
        let is_websocket = wants_websocket(&headers, roles);
        push_to_upstream(&mut head, &headers, roles, &Hop::of("192.0.2.1".parse().unwrap(), false), is_websocket);
        let written = String::from_utf8(head).unwrap().replace("\r\n", "|");
        assert_eq!(text(&map(&written)), text(&map(forwarded)), "{sent}");
    }

    const OURS: &str = "x-forwarded-for: 192.0.2.1|forwarded: for=192.0.2.1";

    #[test]
    fn hop_by_hop_fields_end_here() {
        check("a: b|connection: close", &format!("a: b|{OURS}"));
        check("connection: keep-alive, X-Secret|x-secret: 1|keep-alive: timeout=5", OURS);
        check("connection: x-forwarded-for|x-forwarded-for: 6.6.6.6", OURS);
        check("connection: host|host: h|content-length: 5", &format!("host: h|{OURS}"));
        check("proxy-connection: close|te: gzip|transfer-encoding: chunked|upgrade: h2c", OURS);
        check("te: gzip, trailers|connection: te", &format!("te: trailers|connection: te|{OURS}"));
        check("expect: 100-continue", OURS);
    }

    #[test]
    fn cookies_of_http2_are_one_field() {
        check("cookie: a=1|x: y|cookie: b=2|cookie: c=3", &format!("cookie: a=1; b=2; c=3|x: y|{OURS}"));
        check("cookie: a=1; b=2", &format!("cookie: a=1; b=2|{OURS}"));
        check("cookie: a=1|connection: cookie", OURS);
    }

    #[test]
    fn a_length_is_digits_that_every_server_can_hold() {
        for (value, length) in [("0", Some(0)), ("05", Some(5)), ("999999999999999999", Some(999_999_999_999_999_999))]
        {
            assert_eq!(body_length(value.as_bytes()), length, "{value}");
        }
        for value in ["", "+5", "-5", " 5", "5 ", "5,5", "0x5", "1000000000000000000", "\u{664}"] {
            assert_eq!(body_length(value.as_bytes()), None, "{value}");
        }
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
        assert_eq!(Hop::of("2001:db8::1".parse().unwrap(), false).forwarded, "for=\"[2001:db8::1]\"");
        assert_eq!(Hop::of("::ffff:192.0.2.1".parse().unwrap(), false).forwarded, "for=192.0.2.1");
    }

    #[test]
    fn answers_lose_them_too() {
        let mut headers =
            map("transfer-encoding: chunked|connection: x-a|x-a: 1|x-b: 2|upgrade: h2c|keep-alive: timeout=5");
        to_client(&mut headers);
        assert_eq!(text(&headers), "x-b: 2");
    }
}
