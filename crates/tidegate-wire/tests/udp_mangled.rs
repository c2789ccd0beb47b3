//! S1, S3: what `udp_properties` holds of every datagram, on mutated requests.
//!
//! A failing one prints its bytes. The long mode takes the number from the
//! environment: `TIDEGATE_STEPS=100000000 cargo nextest run --release -p tidegate-wire --test udp_mangled`.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod udp_properties;

use tidegate_testkit::{Random, number};
use udp_properties::check;

const STEPS: u64 = 300_000;
const SEEDS: [&[u8]; 9] = [
    b"000867465 ping",
    b"get_size",
    b"78 over_limit ws ip=192.0.2.1",
    b"over_limit ws global\n",
    b"9 get_stats search ip=2001:db8::1",
    b"12345678901234567890123456789012345678901234567890 get_stats a b c",
    b"over_limit ",
    b"5 check_limit {\"origin\":\"ws\",\"ip\":\"192.0.2.1\"}",
    b"1 2 over_limit x\ny",
];
const WORDS: [&[u8]; 11] = [
    b"over_limit ",
    b"check_limit ",
    b"get_stats ",
    b"get_size",
    b"ping",
    b" ",
    b"\n",
    b"0",
    b"99999999999999999999",
    b"\0",
    b"\xff",
];

#[test]
fn s1_s3_no_datagram_breaks_the_codec() {
    let (steps, seed) = (number("TIDEGATE_STEPS", STEPS), number("TIDEGATE_SEED", 3));
    let mut random = Random(seed);
    let (mut datagram, mut recognised) = (Vec::new(), 0_u64);
    for _ in 0..steps {
        mangle(&mut random, &mut datagram);
        recognised += u64::from(check(&datagram, || wide(&mut random)));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} datagrams, {recognised} recognised, 0 failures; seed {seed}");
}

/// A request with zero to four wounds: bytes changed, words put in, parts cut or doubled.
fn mangle(random: &mut Random, datagram: &mut Vec<u8>) {
    datagram.clear();
    datagram.extend_from_slice(SEEDS[random.index(SEEDS.len())]);
    for _ in 0..random.index(5) {
        let at = random.index(datagram.len() + 1);
        match random.index(5) {
            0 if at < datagram.len() => datagram[at] = u8::try_from(random.index(256)).unwrap(),
            1 => datagram.truncate(at),
            2 => drop(datagram.splice(at..at, WORDS[random.index(WORDS.len())].iter().copied())),
            3 => drop(datagram.drain(..at)),
            _ => datagram.extend_from_within(at..),
        }
    }
    if random.index(50) == 0 {
        datagram.resize(990 + random.index(20), b'7');
    }
}

/// A number of any magnitude.
fn wide(random: &mut Random) -> u64 {
    let shift = random.below(64);
    random.next() >> shift
}
