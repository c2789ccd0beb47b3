//! Several requests in one datagram: lines, each as a request of its own; and the reply, which has as many.

use super::{HEADERS_LEN, REPLY_LEN_MAX, split_id};

/// Longest datagram of several lines; what is behind is cut off.
pub const DATAGRAM_LEN_MAX: usize = 8 << 10;

/// Most bytes of the reply to one line of several, of this length: the headers are there once for all of them.
#[must_use]
pub fn line_room(line_len: usize) -> usize {
    (3 * (line_len + 1) - 1).min(REPLY_LEN_MAX)
}

/// The lines of a datagram that has several; `None`: it is one request, with or without a newline at its end.
///
/// ```
/// use tidegate_wire::udp::lines;
/// assert_eq!(lines(b"ping\n\n7 ping\n").unwrap().collect::<Vec<_>>(), [&b"ping"[..], b"", b"7 ping"]);
/// assert!(lines(b"over_limit k\n").is_none());
/// ```
pub fn lines(datagram: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let text = &datagram[..datagram.len().min(DATAGRAM_LEN_MAX)];
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.contains(&b'\n').then(|| text.split(|byte| *byte == b'\n'))
}

/// The reply to a datagram of several lines, put together line by line.
///
/// Invariant (promise S3): with its headers it is at most three times as long as its request. What a line does not need of its
/// three times, the next ones may take; a reply that does not fit is told in its shortest form, or left out.
#[derive(Debug)]
pub struct Lines<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
    any: bool,
}

impl<'a> Lines<'a> {
    /// Writes to `out`, which is emptied first.
    pub fn new(out: &'a mut Vec<u8>) -> Lines<'a> {
        out.clear();
        Lines { out, room: 2 * HEADERS_LEN - 2, any: false }
    }

    /// The reply to the next line; empty: silence.
    pub fn push(&mut self, line: &[u8], reply: &[u8]) {
        if self.any {
            self.out.push(b'\n');
        }
        self.any = true;
        // A newline on both sides takes one of three.
        self.room += 3 * line.len() + 2;
        let reply = if reply.len() <= self.room { reply } else { &shortest(reply) };
        if reply.len() <= self.room {
            self.room -= reply.len();
            self.out.extend_from_slice(reply);
        }
    }

    /// Ends it. Where every line is met with silence, so is the datagram: two servers would answer each other for ever.
    pub fn finish(self) {
        if self.out.iter().all(|byte| *byte == b'\n') {
            self.out.clear();
        }
    }
}

/// A verdict without its figures, which every `over_limit` has room for; nothing of any other reply.
fn shortest(reply: &[u8]) -> Vec<u8> {
    let (id, verdict) = split_id(reply);
    let word = match verdict.get(..4) {
        Some(b"ok Y") => "ok Y 0.0 0.0 0",
        Some(b"ok N") => "ok N 0.0 0.0 0",
        _ => return Vec::new(),
    };
    [id.unwrap_or_default(), if id.is_some() { b" " } else { b"" }, word.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::Request;

    /// The reply to these lines, each with the reply that it would get alone.
    fn joined(lines: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        let mut reply = Lines::new(&mut out);
        lines.iter().for_each(|(line, alone)| reply.push(line.as_bytes(), alone.as_bytes()));
        reply.finish();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn several_lines_are_answered_line_by_line() {
        assert_eq!(joined(&[("1 ping", "1 pong"), ("x", ""), ("2 ping", "2 pong")]), "1 pong\n\n2 pong");
        assert_eq!(joined(&[("x", ""), ("ping", "pong")]), "\npong");
        assert_eq!(joined(&[("ping", "pong"), ("x", "")]), "pong\n");
        assert_eq!(joined(&[("x", ""), ("y", ""), ("z", "")]), "", "silence");
        let all = |datagram: &'static [u8]| lines(datagram).map(|lines| lines.map(<[u8]>::len).collect::<Vec<_>>());
        assert_eq!(all(b""), None);
        assert_eq!(all(b"\n"), None);
        assert_eq!(all(b"over_limit k"), None);
        assert_eq!(all(b"over_limit k\n"), None);
        assert_eq!(all(b"\n\n"), Some(vec![0, 0]));
        assert_eq!(all(b"a\nbb\n"), Some(vec![1, 2]));
        assert_eq!(all(b"a\n\nbb"), Some(vec![1, 0, 2]));
        let long = [b"x\n".as_slice(), &[b'y'; 9_000]].concat();
        assert_eq!(lines(&long).unwrap().map(<[u8]>::len).collect::<Vec<_>>(), [1, 8_190]);
    }

    #[test]
    fn s3_a_reply_of_several_lines_is_at_most_three_times_its_request() {
        let over = "ok Y 1000000000000000000.0 4294967295.0 4294967295";
        let size = "size=18446744073709551615/18446744073709551615 keys=18446744073709551615";
        for (line, alone, shortest) in [("over_limit k", over, "ok Y 0.0 0.0 0"), ("get_size", size, "")] {
            for count in 2..600 {
                let reply = joined(&vec![(line, alone); count]);
                let request = (line.len() + 1) * count - 1;
                assert!(reply.len() + HEADERS_LEN <= 3 * (request + HEADERS_LEN), "{line} {count}: {}", reply.len());
                assert_eq!(reply.split('\n').count(), count);
                assert!(reply.split('\n').all(|told| told == alone || told == shortest), "{reply}");
                assert!(reply.split('\n').all(|told| Request::parse(told.as_bytes()).is_none()));
            }
        }
        let told = joined(&[("7 over_limit ", &format!("7 {over}")), ("8 over_limit ", &format!("8 {over}"))]);
        assert!(told.starts_with("7 ok Y") && told.contains("\n8 ok Y"), "{told}");
    }
}
