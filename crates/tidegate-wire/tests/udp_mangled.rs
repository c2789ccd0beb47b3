//! S1, S3: whatever comes in a datagram, parsing does not panic, and what is answered is no request,
//! fits its buffer and is at most three times its request at IP level.
//!
//! Mutated requests; a failing one prints its bytes. The long mode takes the number from the
//! environment: `STEPS=100000000 cargo nextest run --release -p tidegate-wire --test udp_mangled`.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate_wire::udp::{Command, REPLY_LEN_MAX, REQUEST_LEN_MAX, Reply, Request};

const STEPS: u64 = 300_000;
const SEEDS: [&[u8]; 8] = [
    b"000867465 ping",
    b"get_size",
    b"78 over_limit ws ip=192.0.2.1",
    b"over_limit ws global\n",
    b"9 get_stats search ip=2001:db8::1",
    b"12345678901234567890123456789012345678901234567890 get_stats a b c",
    b"over_limit ",
    b"1 2 over_limit x\ny",
];
const WORDS: [&[u8]; 10] =
    [b"over_limit ", b"get_stats ", b"get_size", b"ping", b" ", b"\n", b"0", b"99999999999999999999", b"\0", b"\xff"];
/// IP and UDP headers.
const HEADERS: usize = 28;

#[test]
fn s1_s3_no_datagram_breaks_the_codec() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (steps, seed) = (number("STEPS", STEPS), number("SEED", 3));
    let mut random = Random(seed);
    let (mut datagram, mut recognised) = (Vec::new(), 0_u64);
    for _ in 0..steps {
        random.mangle(&mut datagram);
        recognised += u64::from(check(&datagram, &mut random));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} datagrams, {recognised} recognised, 0 failures; seed {seed}");
}

fn check(datagram: &[u8], random: &mut Random) -> bool {
    let Some(request) = Request::parse(datagram) else { return false };
    assert!(datagram.len() <= REQUEST_LEN_MAX, "{}", datagram.escape_ascii());
    let reply = match request.command {
        Command::OverLimit(_) => Reply::OverLimit {
            over: true,
            rate: f64::from_bits(random.wide()),
            limit: u32::try_from(random.wide() >> 32).unwrap(),
            period_s: u32::try_from(random.wide() >> 32).unwrap(),
        },
        Command::GetStats(key) => {
            let (requests, over) = (random.wide(), random.wide());
            Reply::Stats { requests, over, last_max_rate: u32::MAX, key }
        }
        Command::GetSize => Reply::Size { keys: random.wide(), capacity: random.wide() },
        Command::Ping => Reply::Pong,
    };
    let mut out = [0; REPLY_LEN_MAX];
    let len = reply.write(request.id, &mut out);
    let text = &out[..len];
    assert_eq!(Request::parse(text), None, "{}", datagram.escape_ascii());
    assert!(len + HEADERS <= 3 * (datagram.len() + HEADERS), "{} bytes to {}", len, datagram.escape_ascii());
    assert!(request.id.is_none_or(|id| text.starts_with(id) && text[id.len()] == b' '));
    if let Command::GetStats(key) = request.command {
        assert!(text.ends_with(key), "{}", datagram.escape_ascii());
    }
    true
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    /// Any magnitude.
    fn wide(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    /// A request with zero to four wounds: bytes changed, words put in, parts cut or doubled.
    fn mangle(&mut self, datagram: &mut Vec<u8>) {
        datagram.clear();
        datagram.extend_from_slice(SEEDS[self.below(SEEDS.len())]);
        for _ in 0..self.below(5) {
            let at = self.below(datagram.len() + 1);
            match self.below(5) {
                0 if at < datagram.len() => datagram[at] = u8::try_from(self.below(256)).unwrap(),
                1 => datagram.truncate(at),
                2 => drop(datagram.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
                3 => drop(datagram.drain(..at)),
                _ => datagram.extend_from_within(at..),
            }
        }
        if self.below(50) == 0 {
            datagram.resize(990 + self.below(20), b'7');
        }
    }
}
