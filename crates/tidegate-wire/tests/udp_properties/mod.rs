//! What holds for every datagram (S1, S3): parsing does not panic, and what is answered is no
//! request, fits its buffer and is at most three times its request at IP level. For the mutation
//! test and for the fuzzer, which differ in where datagrams come from.

use tidegate_wire::udp::{Answer, Command, REPLY_LEN_MAX, REQUEST_LEN_MAX, Reply, Request};

/// IP and UDP headers.
const HEADERS: usize = 28;

/// Is the datagram a request? `number` gives the numbers of its reply, any at all.
pub(crate) fn check(datagram: &[u8], number: impl FnMut() -> u64) -> bool {
    let Some(request) = Request::parse(datagram) else { return false };
    assert!(datagram.len() <= REQUEST_LEN_MAX, "{}", datagram.escape_ascii());
    let mut out = [0; REPLY_LEN_MAX];
    let len = reply(&request, number).write(request.id, &mut out);
    let text = &out[..len];
    assert_eq!(Request::parse(text), None, "{}", datagram.escape_ascii());
    assert!(len + HEADERS <= 3 * (datagram.len() + HEADERS), "{len} bytes to {}", datagram.escape_ascii());
    let reply = match request.id {
        Some(id) => text.strip_prefix(id).and_then(|rest| rest.strip_prefix(b" ")).expect("the id comes first"),
        None => text,
    };
    match request.command {
        Command::OverLimit(_) => assert!(Answer::parse(reply).is_some(), "{}", reply.escape_ascii()),
        Command::GetStats(key) => assert!(reply.ends_with(key), "{}", datagram.escape_ascii()),
        Command::GetSize => assert!(reply.starts_with(b"size="), "{}", reply.escape_ascii()),
        Command::Ping => assert_eq!(reply, b"pong"),
    }
    true
}

fn reply<'a>(request: &Request<'a>, mut number: impl FnMut() -> u64) -> Reply<'a> {
    match request.command {
        Command::OverLimit(_) => Reply::OverLimit {
            over: number() % 2 == 1,
            rate: f64::from_bits(number()),
            limit: half(number()),
            period_s: half(number()),
        },
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
