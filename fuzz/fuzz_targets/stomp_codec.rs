//! The STOMP and WebSocket codecs (S1): any bytes, as a client could send them.
#![no_main]

#[path = "../../crates/tidegate-wire/tests/stomp_properties/mod.rs"]
mod stomp_properties;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    stomp_properties::check(data);
});
