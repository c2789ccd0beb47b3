//! S1, S3: what `udp_properties` holds of every datagram, on mutated requests.
//!
//! A failing one prints its bytes. The long mode takes the number from the
//! environment: `STEPS=100000000 cargo nextest run --release -p tidegate-wire --test udp_mangled`.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod udp_properties;

use udp_properties::check;

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

#[test]
fn s1_s3_no_datagram_breaks_the_codec() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (steps, seed) = (number("STEPS", STEPS), number("SEED", 3));
    let mut random = Random(seed);
    let (mut datagram, mut recognised) = (Vec::new(), 0_u64);
    for _ in 0..steps {
        random.mangle(&mut datagram);
        recognised += u64::from(check(&datagram, || random.wide()));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} datagrams, {recognised} recognised, 0 failures; seed {seed}");
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
