//! S1: STOMP and WebSocket frames with wounds. Reading ends, keeps its bounds, and what was read is
//! written back as it was.
//!
//! `STEPS=100000000 cargo nextest run --release -p tidegate-wire --test stomp_mangled` for a long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod stomp_properties;

const STEPS: u64 = 300_000;
const SEEDS: [&[u8]; 8] = [
    b"CONNECT\naccept-version:1.2\nheart-beat:10000,10000\n\n\0",
    b"STOMP\r\naccept-version:1.2\r\nhost:localhost\r\n\r\n\0",
    b"SUBSCRIBE\nid:sub-0\ndestination:/topic/orders\nfrom-clock:7\n\n\0",
    b"SEND\ndestination:/app/orders\nreceipt:a\\cb\n\ntaco\0",
    b"SEND\ndestination:/app/orders\ncontent-length:4\n\nta\0o\0\n",
    b"UNSUBSCRIBE\nid:sub-0\n\n\0DISCONNECT\nreceipt:77\n\n\0",
    b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58",
    b"\x01\x83\x00\x00\x00\x00abc\x80\xfe\x00\x80\x00\x00\x00\x00",
];
const WORDS: [&[u8]; 12] = [
    b"SEND\n",
    b"\n\n",
    b"\0",
    b"\\c",
    b"\\",
    b"\r\n",
    b":",
    b"content-length:",
    b"99999999999999999999",
    b"\xff",
    b"\x81\xfe",
    b"\x00\xff",
];

#[test]
fn s1_no_bytes_break_the_codecs() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (steps, seed) = (number("STEPS", STEPS), number("SEED", 3));
    let mut random = Random(seed);
    let (mut bytes, mut recognised) = (Vec::new(), 0_u64);
    for _ in 0..steps {
        random.mangle(&mut bytes);
        recognised += u64::from(stomp_properties::check(&bytes));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} messages, {recognised} recognised, 0 failures; seed {seed}");
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

    /// A frame with zero to four wounds: bytes changed, words put in, parts cut or doubled.
    fn mangle(&mut self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(SEEDS[self.below(SEEDS.len())]);
        for _ in 0..self.below(5) {
            let at = self.below(bytes.len() + 1);
            match self.below(4) {
                0 if at < bytes.len() => bytes[at] = self.next().to_le_bytes()[0],
                1 => {
                    let word = WORDS[self.below(WORDS.len())];
                    bytes.splice(at..at, word.iter().copied());
                }
                2 => bytes.truncate(at),
                _ => {
                    let part = bytes[at..].to_vec();
                    (0..self.below(40)).for_each(|_| bytes.extend_from_slice(&part));
                }
            }
        }
    }
}
