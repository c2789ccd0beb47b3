//! S1: commands of a Redis client with wounds. Reading ends, keeps its bounds, and does not depend on the pieces.
//!
//! `TIDEGATE_STEPS=100000000 cargo nextest run --release -p tidegate-wire --test resp_commands_mangled` for a long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod resp_command_properties;

use tidegate_testkit::{Random, number};

const STEPS: u64 = 100_000;
const SEEDS: [&[u8]; 4] = [
    b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n",
    b"PING\r\n\r\n*0\r\nTG.HIT api  k\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n",
    b"*2\r\n$3\r\nGET\r\n$5\r\na\r\nb\0\r\n",
];
const BYTES: &[u8; 16] = b"*$:+-\r\n0919ab\xff\0 ";

#[test]
fn s1_no_bytes_break_the_commands_of_the_redis_protocol() {
    let (steps, seed) = (number("TIDEGATE_STEPS", STEPS), number("TIDEGATE_SEED", 1));
    let (mut dice, mut recognised) = (Random(seed), 0);
    for _ in 0..steps {
        let mut bytes = SEEDS[dice.index(SEEDS.len())].to_vec();
        for _ in 0..dice.index(4) {
            let at = dice.index(bytes.len());
            bytes[at] = BYTES[dice.index(BYTES.len())];
        }
        recognised += u64::from(resp_command_properties::check(&bytes));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
    println!("{steps} inputs, {recognised} recognised, 0 failures; seed {seed}");
}
