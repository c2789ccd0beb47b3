//! S1: STOMP and WebSocket frames with wounds. Reading ends, keeps its bounds, and what was read is
//! written back as it was.
//!
//! `TIDEGATE_STEPS=100000000 cargo nextest run --release -p tidegate-wire --test stomp_mangled` for a long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod stomp_properties;

use tidegate_testkit::{Random, number};

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
    let (steps, seed) = (number("TIDEGATE_STEPS", STEPS), number("TIDEGATE_SEED", 3));
    let mut random = Random(seed);
    let (mut bytes, mut recognised) = (Vec::new(), 0_u64);
    for _ in 0..steps {
        mangle(&mut random, &mut bytes);
        recognised += u64::from(stomp_properties::check(&bytes));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} messages, {recognised} recognised, 0 failures; seed {seed}");
}

/// A frame with zero to four wounds: bytes changed, words put in, parts cut or doubled.
fn mangle(random: &mut Random, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(SEEDS[random.index(SEEDS.len())]);
    for _ in 0..random.index(5) {
        let at = random.index(bytes.len() + 1);
        match random.index(4) {
            0 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            1 => {
                let word = WORDS[random.index(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            2 => bytes.truncate(at),
            _ => {
                let part = bytes[at..].to_vec();
                (0..random.index(40)).for_each(|_| bytes.extend_from_slice(&part));
            }
        }
    }
}
