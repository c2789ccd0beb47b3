//! The request log of a UDP server: one request on each line, after the time at which it came.
//!
//! `TIME REQUEST`, such as `1763200000.25 78 over_limit ws ip=192.0.2.1`. The time is in seconds since the epoch or in ISO 8601,
//! the request as it stood in the datagram. Where requests are marked `>>` and replies `<<`, the mark is passed over and so are
//! the replies. The original server's text states no format of a log; this is ours.

use super::when;
use memchr::memchr;
use tidegate::Micros;
use tidegate_wire::udp::Request;

/// One line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UdpLine<'a> {
    Request {
        at: Micros,
        datagram: &'a [u8],
    },
    /// What the server answered.
    Reply,
}

/// Why a line cannot be read.
pub(super) const PROBLEM: &str = "this is not a request log of the UDP door: it does not begin with a time and a space, \
such as 1763200000.25 78 over_limit KEY; correct the line, or add --skip-bad-lines";

/// Reads one line; `None`: it has no time.
pub(super) fn read(line: &[u8]) -> Option<UdpLine<'_>> {
    let end = memchr(b' ', line)?;
    let at = when::any(std::str::from_utf8(&line[..end]).ok()?)?;
    let rest = &line[end + 1..];
    Some(match rest {
        [b'<', b'<', ..] => UdpLine::Reply,
        [b'>', b'>', b' ', datagram @ ..] => UdpLine::Request { at, datagram },
        datagram => UdpLine::Request { at, datagram },
    })
}

/// Does a file that begins with this line look like such a log?
pub(super) fn is_one(line: &[u8]) -> bool {
    match read(line) {
        Some(UdpLine::Request { datagram, .. }) => Request::parse(datagram).is_some(),
        Some(UdpLine::Reply) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_with_their_times() {
        let request = |us, datagram: &'static str| {
            Some(UdpLine::Request { at: Micros::saturating(us), datagram: datagram.as_bytes() })
        };
        for (line, expected) in [
            ("5.25 78 over_limit ws ip=192.0.2.1", request(5_250_000, "78 over_limit ws ip=192.0.2.1")),
            ("2000-10-10T20:55:36Z ping", request(971_211_336_000_000, "ping")),
            ("5 >> 1 over_limit a b", request(5_000_000, "1 over_limit a b")),
            ("5 << 1 ok N 1.4 22.0 20", Some(UdpLine::Reply)),
            ("5 ", request(5_000_000, "")),
            ("5", None),
            ("78x over_limit a", None),
            ("", None),
        ] {
            assert_eq!(read(line.as_bytes()), expected, "{line}");
        }
        assert!(
            is_one(b"5 78 over_limit a") && is_one(b"5 << pong") && !is_one(b"5 anything") && !is_one(b"78 ping 5")
        );
    }
}
