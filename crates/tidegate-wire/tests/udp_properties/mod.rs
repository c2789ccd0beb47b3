//! What holds for every datagram (S1, S3): parsing does not panic, and what is answered is no
//! request, fits its buffer and is at most three times its request at IP level. For the mutation
//! test and for the fuzzer, which differ in where datagrams come from.

use tidegate_wire::udp::{Answer, Command, REPLY_LEN_MAX, REQUEST_LEN_MAX, Reply, Request, reply_room};

/// IP and UDP headers.
const HEADERS: usize = 28;

/// Is the datagram a request? `number` gives the numbers of its reply, any at all.
pub(crate) fn check(datagram: &[u8], number: impl FnMut() -> u64) -> bool {
    let Some(request) = Request::parse(datagram) else { return false };
    let first = &datagram[..datagram.len().min(REQUEST_LEN_MAX)];
    assert_eq!(Request::parse(first), Some(request), "what is behind 1,000 bytes makes no difference");
    let mut out = [0; REPLY_LEN_MAX];
    let len = reply(&request, datagram.len(), number).write(request.id, &mut out);
    let text = &out[..len];
    assert_eq!(Request::parse(text), None, "{}", datagram.escape_ascii());
    assert!(len + HEADERS <= 3 * (datagram.len() + HEADERS), "{len} bytes to {}", datagram.escape_ascii());
    let reply = match request.id {
        Some(id) => text.strip_prefix(id).and_then(|rest| rest.strip_prefix(b" ")).expect("the id comes first"),
        None => text,
    };
    match request.command {
        Command::OverLimit(_) => assert!(Answer::parse(reply).is_some(), "{}", reply.escape_ascii()),
        Command::CheckLimit(_) => {
            assert!(Answer::parse(reply).is_some() && reply.starts_with(LAST), "{}", reply.escape_ascii());
        }
        Command::GetStats(key) => assert!(reply.ends_with(key), "{}", datagram.escape_ascii()),
        Command::GetSize => assert!(reply.starts_with(b"size="), "{}", reply.escape_ascii()),
        Command::Ping => assert_eq!(reply, b"pong"),
    }
    true
}

/// The longest that a key's reply can be.
const LAST: &[u8] = b"ok Y 1000000000000000000.0 4294967295.0 4294967295";
const JSON: [u8; 2_000] = [b'j'; 2_000];

fn reply<'a>(request: &Request<'a>, datagram_len: usize, mut number: impl FnMut() -> u64) -> Reply<'a> {
    let json = |number: u64| &JSON[..usize::from(number.to_le_bytes()[0]) * 7];
    match request.command {
        Command::OverLimit(_) => Reply::OverLimit {
            over: number() % 2 == 1,
            rate: f64::from_bits(number()),
            limit: half(number()),
            period_s: half(number()),
        },
        Command::CheckLimit(_) => {
            let (keys, results) = (json(number()), json(number()));
            Reply::Checked { last: LAST, keys, results, room: reply_room(datagram_len) }
        }
        Command::GetStats(key) => {
            Reply::Stats { requests: number(), over: number(), last_max_rate: half(number()), key }
        }
        Command::GetSize => Reply::Size { keys: number(), capacity: number() },
        Command::Ping => Reply::Pong,
    }
}

fn half(number: u64) -> u32 {
    u32::try_from(number >> 32).expect("the upper half fits")
}
