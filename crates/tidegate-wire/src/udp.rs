//! The UDP protocol: one datagram asks, at most one answers.
//!
//! **Request**: an optional id (ASCII digits, then exactly one space), then `over_limit KEY`,
//! `check_limit JSON`, `get_stats KEY`, `get_size` or `ping`. The id is text, echoed as it came. KEY is
//! the rest of the datagram, spaces included, and may be empty; one newline at its end is dropped. Of a
//! longer datagram the first 1,000 bytes are the request.
//! **Several requests** in one datagram are lines, each as a request of its own; the reply has as many lines.
//! **Anything else gets no answer**: silence is what the protocol prescribes, and a client takes it
//! for "not over". So what a server wants to deny, it must answer.
//!
//! Parsing borrows, writing fills a buffer of the caller's; neither allocates. Invariants (promise
//! S3): no reply is a request, and a reply's IP datagram is at most three times its request's.

mod decimal;
mod lines;

pub use lines::{DATAGRAM_LEN_MAX, Lines, line_room, lines};

/// Longest request, in bytes. A longer datagram is cut here, as the original server did: silence would
/// admit it, after the client's whole timeout, for every client that sends long keys.
pub const REQUEST_LEN_MAX: usize = 1_000;
/// Longest reply: `get_stats` echoes id and key, 999 bytes at most, beside three numbers.
pub const REPLY_LEN_MAX: usize = REQUEST_LEN_MAX + 100;
/// IP and UDP headers, which belong to what a forged request makes the server send.
const HEADERS_LEN: usize = 28;

/// Most bytes of a reply to a datagram of this length: with its headers it is at most three times as long.
#[must_use]
pub fn reply_room(datagram_len: usize) -> usize {
    (3 * (datagram_len + HEADERS_LEN) - HEADERS_LEN).min(REPLY_LEN_MAX)
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The digits in front, if there are any.
    pub id: Option<&'a [u8]>,
    /// What is asked.
    pub command: Command<'a>,
}

/// What a request asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// A use of the key: is it over its limit?
    OverLimit(&'a [u8]),
    /// A use of each key that a JSON object stands for, until one is over its limit.
    CheckLimit(&'a [u8]),
    /// What the key did so far.
    GetStats(&'a [u8]),
    /// How much is kept.
    GetSize,
    /// Are you there?
    Ping,
}

impl<'a> Request<'a> {
    /// The request in a datagram; `None`: it is to be met with silence.
    ///
    /// ```
    /// use tidegate_wire::udp::{Command, Request};
    /// let request = Request::parse(b"78 over_limit ws ip=192.0.2.1").unwrap();
    /// assert_eq!(request.id, Some(&b"78"[..]));
    /// assert_eq!(request.command, Command::OverLimit(b"ws ip=192.0.2.1"));
    /// assert_eq!(Request::parse(b"PING"), None);
    /// ```
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Request<'a>> {
        let (id, rest) = split_id(&datagram[..datagram.len().min(REQUEST_LEN_MAX)]);
        Some(Request { id, command: Command::parse(rest)? })
    }
}

/// The id in front of a request or a reply, if there is one, and what follows it.
#[must_use]
pub fn split_id(datagram: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let digits = datagram.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match (digits, datagram.get(digits)) {
        (1.., Some(b' ')) => (Some(&datagram[..digits]), &datagram[digits + 1..]),
        _ => (None, datagram),
    }
}

/// The reply for a key, as a client reads it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    /// Is it over its limit?
    pub over: bool,
    /// Its rate.
    pub rate: f64,
    /// The limit.
    pub limit: f64,
    /// The limit's period, in seconds.
    pub period_s: u64,
}

impl Answer {
    /// Reads `ok Y|N RATE LIMIT PERIOD`, without an id; of a reply to `check_limit`, what is before the comma.
    ///
    /// ```
    /// use tidegate_wire::udp::Answer;
    /// let answer = Answer::parse(b"ok Y 28.1 22.0 20").unwrap();
    /// assert_eq!((answer.over, answer.rate, answer.limit, answer.period_s), (true, 28.1, 22.0, 20));
    /// assert_eq!(Answer::parse(b"ok Y 28.1 22.0 20, [\"k\"]"), Some(answer));
    /// assert_eq!(Answer::parse(b"pong"), None);
    /// ```
    #[must_use]
    pub fn parse(reply: &[u8]) -> Option<Answer> {
        let verdict = reply.split(|byte| *byte == b',').next()?;
        let mut words = std::str::from_utf8(verdict).ok()?.split(' ');
        let (ok, over) = (words.next()?, words.next()?);
        let answer = Answer {
            over: over == "Y",
            rate: words.next()?.parse().ok()?,
            limit: words.next()?.parse().ok()?,
            period_s: words.next()?.parse().ok()?,
        };
        (ok == "ok" && matches!(over, "Y" | "N") && words.next().is_none()).then_some(answer)
    }
}

const OVER_LIMIT: &[u8] = b"over_limit ";
const CHECK_LIMIT: &[u8] = b"check_limit ";
const GET_STATS: &[u8] = b"get_stats ";
const GET_SIZE: &[u8] = b"get_size";
const PING: &[u8] = b"ping";

impl<'a> Command<'a> {
    fn parse(text: &'a [u8]) -> Option<Command<'a>> {
        if let Some(rest) = text.strip_prefix(OVER_LIMIT) {
            return key(rest).map(Command::OverLimit);
        }
        if let Some(rest) = text.strip_prefix(CHECK_LIMIT) {
            return key(rest).map(Command::CheckLimit);
        }
        if let Some(rest) = text.strip_prefix(GET_STATS) {
            return key(rest).map(Command::GetStats);
        }
        match text {
            GET_SIZE => Some(Command::GetSize),
            PING => Some(Command::Ping),
            _ => None,
        }
    }
}

/// The rest of the datagram, without one newline at its end; a newline in another place makes it no key.
fn key(rest: &[u8]) -> Option<&[u8]> {
    let key = rest.strip_suffix(b"\n").unwrap_or(rest);
    (!key.contains(&b'\n')).then_some(key)
}

/// One reply, without its id.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reply<'a> {
    /// To `over_limit`: `ok Y|N RATE LIMIT PERIOD`.
    OverLimit {
        /// Is the key over its limit?
        over: bool,
        /// Its rate.
        rate: f64,
        /// The limit.
        limit: u32,
        /// The limit's period, in whole seconds.
        period_s: u32,
    },
    /// To `check_limit`: the last key's reply, all keys and every reply so far, as
    /// `ok Y|N RATE LIMIT PERIOD, [KEY, …], [{"key": …, "over_limit": …}, …]`.
    Checked {
        /// What the last key that was used got, as it is written for `over_limit`.
        last: &'a [u8],
        /// All keys, as JSON.
        keys: &'a [u8],
        /// Keys and what they got, as JSON.
        results: &'a [u8],
        /// Most bytes of the whole, from [`reply_room`]: what does not fit is left out, the results first.
        room: usize,
    },
    /// To `get_stats`: `n_req=… n_over=… last_max_rate=… key=…`.
    Stats {
        /// Requests since start.
        requests: u64,
        /// Those that were over.
        over: u64,
        /// The highest rate of the previous five minutes, its whole part.
        last_max_rate: u32,
        /// The key, as it was asked.
        key: &'a [u8],
    },
    /// To `get_size`: `size=LEN/CAPACITY keys=LEN`.
    Size {
        /// Keys held.
        keys: u64,
        /// Keys there is memory for.
        capacity: u64,
    },
    /// To `ping`.
    Pong,
}

impl Reply<'_> {
    /// The reply for a key that no route knows.
    pub const UNLIMITED: Reply<'static> = Reply::OverLimit { over: false, rate: 0.0, limit: 1, period_s: 1 };

    /// Writes the reply to a request with this id; how many bytes it takes.
    #[must_use]
    pub fn write(&self, id: Option<&[u8]>, out: &mut [u8; REPLY_LEN_MAX]) -> usize {
        let mut out = Out { bytes: out, len: 0 };
        if let Some(id) = id {
            out.put(id);
            out.put(b" ");
        }
        match *self {
            Reply::OverLimit { over, rate, limit, period_s } => {
                out.put(if over { b"ok Y " } else { b"ok N " });
                out.tenths(rate);
                out.put(b" ");
                out.number(limit.into());
                out.put(b".0 ");
                out.number(period_s.into());
            }
            Reply::Checked { last, keys, results, room } => {
                out.put(last);
                let fits = |len: usize, more: &[u8]| len + 2 + more.len() <= room;
                if fits(out.len, keys) {
                    out.put(b", ");
                    out.put(keys);
                    if fits(out.len, results) {
                        out.put(b", ");
                        out.put(results);
                    }
                }
            }
            Reply::Stats { requests, over, last_max_rate, key } => {
                out.put(b"n_req=");
                out.number(requests);
                out.put(b" n_over=");
                out.number(over);
                out.put(b" last_max_rate=");
                out.number(last_max_rate.into());
                out.put(b" key=");
                out.put(key);
            }
            Reply::Size { keys, capacity } => {
                out.put(b"size=");
                out.number(keys);
                out.put(b"/");
                out.number(capacity);
                out.put(b" keys=");
                out.number(keys);
            }
            Reply::Pong => out.put(b"pong"),
        }
        out.len
    }
}

/// A buffer and how much of it is written. What does not fit is left out, which the sizes rule out.
struct Out<'a> {
    bytes: &'a mut [u8; REPLY_LEN_MAX],
    len: usize,
}

impl Out<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn number(&mut self, number: u64) {
        let mut digits = [0; decimal::DIGITS_MAX];
        self.put(decimal::whole(number, &mut digits));
    }

    /// As C's `%.1f`.
    fn tenths(&mut self, rate: f64) {
        let mut digits = [0; decimal::TENTHS_MAX];
        self.put(decimal::tenths(rate, &mut digits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reply: &Reply<'_>, id: Option<&[u8]>) -> Vec<u8> {
        let mut out = [0; REPLY_LEN_MAX];
        let len = reply.write(id, &mut out);
        out[..len].to_vec()
    }

    #[track_caller]
    fn check(datagram: &[u8], id: Option<&str>, command: Command<'_>) {
        let expected = Request { id: id.map(str::as_bytes), command };
        assert_eq!(Request::parse(datagram), Some(expected), "{}", datagram.escape_ascii());
    }

    #[test]
    fn requests_are_read() {
        let forty = "1234567890".repeat(4);
        check(b"ping", None, Command::Ping);
        check(b"000867465 ping", Some("000867465"), Command::Ping);
        check(format!("{forty} ping").as_bytes(), Some(&forty), Command::Ping);
        check(b"0 get_size", Some("0"), Command::GetSize);
        check(b"get_size", None, Command::GetSize);
        check(b"over_limit ws ip=192.0.2.1", None, Command::OverLimit(b"ws ip=192.0.2.1"));
        check(b"1 over_limit ws ip=2001:db8::1", Some("1"), Command::OverLimit(b"ws ip=2001:db8::1"));
        check(b"over_limit a  b ", None, Command::OverLimit(b"a  b "));
        check(b"over_limit  a", None, Command::OverLimit(b" a"));
        check(b"over_limit ", None, Command::OverLimit(b""));
        check(b"over_limit \n", None, Command::OverLimit(b""));
        check(b"over_limit k\n", None, Command::OverLimit(b"k"));
        check(b"over_limit k\r\n", None, Command::OverLimit(b"k\r"));
        check(b"over_limit \0\xff\xfe", None, Command::OverLimit(b"\0\xff\xfe"));
        check(b"7 get_stats some-key", Some("7"), Command::GetStats(b"some-key"));
        check(b"get_stats ", None, Command::GetStats(b""));
        check(b"get_stats get_stats x\n", None, Command::GetStats(b"get_stats x"));
        check(b"1 check_limit {\"ua\":\"x\"}\n", Some("1"), Command::CheckLimit(b"{\"ua\":\"x\"}"));
        check(b"check_limit ", None, Command::CheckLimit(b""));
        let longest = [b"over_limit ".as_slice(), &[b'x'; 989]].concat();
        check(&longest, None, Command::OverLimit(&[b'x'; 989]));
        let digits = [b"9".repeat(995).as_slice(), b" ping"].concat();
        assert_eq!(Request::parse(&digits).unwrap().id.unwrap().len(), 995);
    }

    #[test]
    fn a_longer_datagram_counts_by_its_first_1000_bytes() {
        for len in [1_001, 1_024, 9_000] {
            let long = [b"7 over_limit ".as_slice(), &[b'x'; 9_000]].concat();
            check(&long[..len], Some("7"), Command::OverLimit(&[b'x'; 987]));
        }
        // What is behind the cut makes it neither better nor worse.
        let newline_behind = [b"get_stats ".as_slice(), &[b'x'; 990], b"a\nb"].concat();
        check(&newline_behind, None, Command::GetStats(&[b'x'; 990]));
        let digits = [b"9".repeat(996).as_slice(), b" ping"].concat();
        assert_eq!(Request::parse(&digits), None, "the command itself is cut");
    }

    #[test]
    fn anything_else_is_met_with_silence() {
        let long = [b"over_limit ".as_slice(), &[b'x'; 500], b"\n", &[b'x'; 500]].concat();
        let silent: [&[u8]; 35] = [
            b"",
            b" ",
            b"\n",
            b"PING",
            b"Ping",
            b" ping",
            b"ping ",
            b"ping\n",
            b"ping\0",
            b"pong",
            b"123  ping",
            b"123\tping",
            b"123ping",
            b"-1 ping",
            b"+1 ping",
            b"1.5 ping",
            b"0x1 ping",
            b"12a ping",
            b"1 2 ping",
            b"78",
            b"78 ",
            b"\xd9\xa1 ping",
            b"over_limit",
            b"over_limit\n",
            b"over_limit\tk",
            b"OVER_LIMIT k",
            b"over_limit a\nb",
            b"over_limit k\n\n",
            b"get_stats",
            b"get_size ",
            b"get_size\n",
            b"get_size k",
            b"check_limit",
            b"check_limit {\n}",
            &long,
        ];
        for datagram in silent {
            assert_eq!(Request::parse(datagram), None, "{}", datagram.escape_ascii());
        }
    }

    #[test]
    fn replies_are_written_as_the_original_wrote_them() {
        let over = |over, rate, limit, period_s| Reply::OverLimit { over, rate, limit, period_s };
        let stats = Reply::Stats { requests: 2, over: 1, last_max_rate: 1, key: b"some-key" };
        let checked = |room| Reply::Checked { last: b"ok N 0.0 1.0 1", keys: b"[\"k\"]", results: b"[{}]", room };
        let cases: [(Reply<'_>, Option<&[u8]>, &str); 13] = [
            (over(false, 2034.3, 2500, 10), Some(b"1173"), "1173 ok N 2034.3 2500.0 10"),
            (over(false, 1.4, 22, 20), Some(b"472"), "472 ok N 1.4 22.0 20"),
            (over(true, 28.1, 22, 20), None, "ok Y 28.1 22.0 20"),
            (over(true, 0.0, 0, 10), None, "ok Y 0.0 0.0 10"),
            (Reply::UNLIMITED, Some(b"007"), "007 ok N 0.0 1.0 1"),
            (stats, Some(b"78229"), "78229 n_req=2 n_over=1 last_max_rate=1 key=some-key"),
            (Reply::Size { keys: 3, capacity: 13 }, None, "size=3/13 keys=3"),
            (Reply::Pong, Some(b"000867465"), "000867465 pong"),
            (checked(1_000), None, "ok N 0.0 1.0 1, [\"k\"], [{}]"),
            (checked(29), Some(b"9"), "9 ok N 0.0 1.0 1, [\"k\"], [{}]"),
            (checked(28), Some(b"9"), "9 ok N 0.0 1.0 1, [\"k\"]"),
            (checked(22), Some(b"9"), "9 ok N 0.0 1.0 1"),
            (checked(0), None, "ok N 0.0 1.0 1"),
        ];
        for (reply, id, text) in cases {
            assert_eq!(String::from_utf8(told(&reply, id)).unwrap(), text);
        }
    }

    /// The largest reply that any state could make of a request of this length.
    fn largest<'a>(request: &Request<'a>, len: usize) -> Reply<'a> {
        match request.command {
            Command::CheckLimit(_) => Reply::Checked {
                last: b"ok Y 1000000000000000000.0 4294967295.0 4294967295",
                keys: &[b'k'; 400],
                results: &[b'r'; 600],
                room: reply_room(len),
            },
            Command::OverLimit(_) => {
                Reply::OverLimit { over: true, rate: decimal::RATE_MAX, limit: u32::MAX, period_s: u32::MAX }
            }
            Command::GetStats(key) => Reply::Stats { requests: u64::MAX, over: u64::MAX, last_max_rate: u32::MAX, key },
            Command::GetSize => Reply::Size { keys: u64::MAX, capacity: u64::MAX },
            Command::Ping => Reply::Pong,
        }
    }

    #[test]
    fn s3_no_reply_is_a_request_and_none_is_more_than_three_times_its_own() {
        let ids = [String::new(), "7 ".to_owned(), format!("{} ", "9".repeat(900))];
        let keys = ["", "k", "ping", "1 ping", "over_limit x", &"k".repeat(80)];
        for id in &ids {
            let words = ["over_limit ", "check_limit ", "get_stats "];
            let asking = words.iter().flat_map(|word| keys.iter().map(move |key| format!("{word}{key}")));
            for command in asking.chain(["get_size".to_owned(), "ping".to_owned()]) {
                let datagram = format!("{id}{command}");
                let request = Request::parse(datagram.as_bytes()).unwrap();
                let reply = told(&largest(&request, datagram.len()), request.id);
                assert_eq!(Request::parse(&reply), None, "{datagram}");
                assert!(reply.len() + HEADERS_LEN <= 3 * (datagram.len() + HEADERS_LEN), "{datagram}: {}", reply.len());
            }
        }
        // The longest of all fits its buffer whole.
        let datagram = [b"1 get_stats ".as_slice(), &[b'k'; 988]].concat();
        let reply = told(&largest(&Request::parse(&datagram).unwrap(), datagram.len()), Some(b"1"));
        assert!(reply.ends_with(b"key=".iter().chain(&[b'k'; 988]).copied().collect::<Vec<u8>>().as_slice()));
    }
}
