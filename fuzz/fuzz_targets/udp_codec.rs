//! The UDP codec (S1, S3): eight bytes for the numbers of a reply, and the datagram behind them.
#![no_main]

#[path = "../../crates/tidegate-wire/tests/udp_properties/mod.rs"]
mod udp_properties;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (seed, datagram) = data.split_first_chunk::<8>().unwrap_or((&[0; 8], data));
    let mut number = u64::from_be_bytes(*seed);
    udp_properties::check(datagram, || {
        number = number.rotate_left(13);
        number
    });
});
