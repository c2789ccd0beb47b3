//! Who may ask which route, as the table of routes says.
//!
//! A loopback peer is a process on this machine, with two exceptions that are ruled out here: a
//! proxy on this machine that passes on what the world sends, and a browser on this machine that
//! sends what a web page of the world tells it to (cross-site requests, DNS rebinding).

use super::problem::Problem;
use super::server::WhoMayChange;
use http::header::{FORWARDED, HOST, HeaderMap, ORIGIN, VIA};
use std::net::{IpAddr, SocketAddr};

/// The rule of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Whoever reaches the door, and any web page: health, metrics, descriptions.
    Public,
    /// Whoever reaches the door, but no web page of another host: it must not spend its visitor's quota, nor look at keys.
    SameOrigin,
    /// What changes limiters and blocks: peers that [`WhoMayChange`] names, and no web page of another host.
    Change,
}

impl Access {
    /// # Errors
    /// When this peer, with these header fields, may not ask.
    pub(crate) fn check(self, who: WhoMayChange, peer: SocketAddr, headers: &HeaderMap) -> Result<(), Problem> {
        match (self, who) {
            (Access::Public, _) => Ok(()),
            (Access::SameOrigin, _) | (Access::Change, WhoMayChange::Anyone) => check_origin(headers),
            (Access::Change, WhoMayChange::Loopback) => {
                check_origin(headers)?;
                check_loopback(peer, headers)
            }
        }
    }
}

fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let host = headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
    if is_same_host(origin.as_bytes(), host) {
        return Ok(());
    }
    let detail = "the request comes from a web page of another host; send it without an Origin";
    Err(Problem::new(403, "cross_origin", detail).field("Origin"))
}

fn check_loopback(peer: SocketAddr, headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
    let passed_on = headers.contains_key("x-forwarded-for")
        || headers.contains_key("x-real-ip")
        || headers.contains_key(FORWARDED)
        || headers.contains_key(VIA);
    if !peer.ip().to_canonical().is_loopback() || passed_on {
        let detail =
            "what changes things answers only to this machine; ask from there, over loopback and without a proxy";
        return Err(Problem::new(403, "not_loopback", detail));
    }
    if !is_local_name(host) {
        let detail = "what changes things answers only under localhost or an address; ask for http://127.0.0.1";
        return Err(Problem::new(403, "not_loopback", detail).field("Host"));
    }
    Ok(())
}

/// `http://host:port` against `host:port`. `null`, as sandboxed pages send it, is no host.
fn is_same_host(origin: &[u8], host: &[u8]) -> bool {
    let rest = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
}

/// A name that another's DNS cannot answer for.
fn is_local_name(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_case(who: WhoMayChange, peer: &str, headers: &[(&'static str, &str)], allowed: bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let outcome = Access::Change.check(who, format!("{peer}:9").parse().unwrap(), &map);
        assert_eq!(outcome.is_ok(), allowed, "{peer} {headers:?}: {outcome:?}");
    }

    #[test]
    fn s2_only_this_machine_changes_things() {
        use WhoMayChange::{Anyone, Loopback};
        check_case(Loopback, "127.0.0.1", &[("host", "localhost:7400")], true);
        check_case(Loopback, "127.8.8.8", &[("host", "127.0.0.1:7400")], true);
        check_case(Loopback, "[::1]", &[("host", "[::1]:7400")], true);
        check_case(Loopback, "[::ffff:127.0.0.1]", &[("host", "localhost")], true);
        check_case(Loopback, "127.0.0.1", &[], false);
        check_case(Loopback, "192.0.2.1", &[("host", "localhost")], false);
        check_case(Loopback, "[2001:db8::1]", &[("host", "localhost")], false);
        for passed_on in [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("via", "1.1 proxy"),
        ] {
            check_case(Loopback, "127.0.0.1", &[("host", "localhost"), passed_on], false);
        }
        check_case(Anyone, "192.0.2.1", &[("host", "gate.example"), ("via", "1.1 proxy")], true);
    }

    #[test]
    fn s2_no_web_page_changes_things() {
        use WhoMayChange::{Anyone, Loopback};
        let evil = ("origin", "http://evil.example");
        check_case(Loopback, "127.0.0.1", &[("host", "localhost:7400"), evil], false);
        check_case(Anyone, "127.0.0.1", &[("host", "gate.example"), evil], false);
        check_case(Loopback, "127.0.0.1", &[("host", "localhost:7400"), ("origin", "null")], false);
        check_case(Loopback, "127.0.0.1", &[("host", "localhost:7400"), ("origin", "http://localhost:7400")], true);
        check_case(Loopback, "127.0.0.1", &[("host", "localhost:7400"), ("origin", "http://localhost:80")], false);
        // Rebinding: the page's own name now points here, so that Origin and Host agree.
        check_case(Loopback, "127.0.0.1", &[("host", "evil.example"), evil], false);
        check_case(Anyone, "127.0.0.1", &[("host", "evil.example"), evil], true);
    }
}
