//! S1: replies of a Redis with wounds. Reading ends, keeps its bounds, and does not depend on the pieces.
//!
//! `STEPS=100000000 cargo nextest run --release -p tidegate-wire --test resp_mangled` for a long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod resp_properties;

const STEPS: u64 = 100_000;
const SEEDS: [&[u8]; 4] = [
    b"*3\r\n:12\r\n$3\r\nabc\r\n*2\r\n+OK\r\n-ERR x\r\n",
    b"$-1\r\n*-1\r\n*0\r\n:-7\r\n",
    b"$4\r\na\r\nb\r\n$0\r\n\r\n-MOVED 3999 127.0.0.1:6381\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
];
const BYTES: &[u8; 16] = b"*$:+-\r\n0919ab\xff\0 ";

#[test]
fn s1_no_bytes_break_the_redis_protocol() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (steps, seed) = (number("STEPS", STEPS), number("SEED", 1));
    let mut state = seed;
    let mut below = move |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % bound as u64).unwrap()
    };
    let mut recognised = 0;
    for _ in 0..steps {
        let mut bytes = SEEDS[below(SEEDS.len())].to_vec();
        for _ in 0..below(4) {
            let at = below(bytes.len());
            bytes[at] = BYTES[below(BYTES.len())];
        }
        recognised += u64::from(resp_properties::check(&bytes));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} inputs, {recognised} recognised, 0 failures; seed {seed}");
}
