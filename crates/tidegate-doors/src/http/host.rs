//! The Host field: which server the client believes it asks.
//!
//! A request of HTTP/1.1 has exactly one, an address or a name with or without a port (RFC 9112, 3.2). One that has none or
//! several was put together from pieces, such as a user's name with line breaks that a proxy wrote into its request line, or
//! will be read otherwise by somebody in between. Health checks of HTTP/1.0 may leave it out for pages that are public.

use super::problem::Problem;
use crate::access::Needs;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Version};
use std::net::Ipv6Addr;

/// # Errors
/// When the request has no Host where it must, more than one, or one that is no host.
pub(crate) fn check(parts: &Parts, needs: Needs) -> Result<(), Problem> {
    // A pass over the few fields of a request costs less than to look a name up.
    let mut hosts = parts.headers.iter().filter(|(name, _)| **name == HOST).map(|(_, host)| host);
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_host(host.as_bytes()).then_some(()).ok_or_else(|| bad(host)),
        (None, _) if parts.version < Version::HTTP_11 && needs == Needs::Nothing => Ok(()),
        (None, _) => Err(refused("the request has no Host field; send one, such as Host: 127.0.0.1:7400")),
        (Some(_), Some(_)) => Err(refused("the request has more than one Host field; send one")),
    }
}

fn bad(host: &HeaderValue) -> Problem {
    let detail = "the Host field must be a name or an address, with or without a port, such as 127.0.0.1:7400";
    refused(detail).value(super::percent::shown(host.as_bytes()))
}

/// A client that sends such a head may mean more by what follows, so that the connection ends.
fn refused(detail: &'static str) -> Problem {
    Problem::new(400, "bad_host", detail).field("Host").close()
}

/// `name`, `192.0.2.1` or `[2001:db8::1]`, and behind it nothing or a port.
fn is_host(host: &[u8]) -> bool {
    let behind = match host.strip_prefix(b"[") {
        Some(rest) => behind_address(rest),
        None => Some(&host[host.iter().take_while(|byte| OF_A_NAME[usize::from(**byte)]).count()..]),
    };
    behind.is_some_and(|behind| match behind {
        [] => !host.is_empty(),
        [b':', port @ ..] => behind.len() < host.len() && is_port(port),
        _ => false,
    })
}

/// What follows the bracket that closes an address of IPv6.
fn behind_address(rest: &[u8]) -> Option<&[u8]> {
    let (address, behind) = std::str::from_utf8(rest).ok()?.split_once(']')?;
    address.parse::<Ipv6Addr>().is_ok().then_some(behind.as_bytes())
}

/// Bytes of RFC 3986's reg-name.
static OF_A_NAME: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0_u8);
    while byte < 0x80 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b".-_~%!$&'()*+,;=";
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
};

/// A colon without a port is allowed, and stands for none.
fn is_port(port: &[u8]) -> bool {
    let mut number = 0;
    port.iter().all(|digit| {
        number = number * 10 + u32::from(digit.wrapping_sub(b'0'));
        digit.is_ascii_digit() && number <= u32::from(u16::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Scope;

    const READS: Needs = Needs::Scope(Scope::Read);

    #[track_caller]
    fn check_case(version: Version, needs: Needs, hosts: &[&str], passes: bool) {
        let mut request = http::Request::builder().version(version).uri("/");
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let outcome = check(&parts, needs);
        assert_eq!(outcome.is_ok(), passes, "{version:?} {needs:?} {hosts:?}: {outcome:?}");
    }

    #[test]
    fn s2_a_host_is_one_name_or_address() {
        for host in ["localhost", "a.example:7400", "my_service", "192.0.2.1:1", "[::1]", "[2001:db8::1]:7400", "a:"] {
            check_case(Version::HTTP_11, READS, &[host], true);
        }
        for host in
            ["", ":80", "a b", "a/b", "u@a", "a#b", "a?b", "a:b", "a:65536", "::1", "[::1", "[x]", "[::1]x", "é"]
        {
            check_case(Version::HTTP_11, READS, &[host], false);
        }
    }

    #[test]
    fn s2_there_is_one_host_but_in_health_checks_of_http_1_0() {
        for version in [Version::HTTP_10, Version::HTTP_11] {
            for needs in [Needs::Nothing, READS, Needs::Session] {
                let may_be_missing = version == Version::HTTP_10 && needs == Needs::Nothing;
                check_case(version, needs, &[], may_be_missing);
                check_case(version, needs, &["localhost"], true);
                check_case(version, needs, &["localhost", "localhost"], false);
            }
        }
    }
}
