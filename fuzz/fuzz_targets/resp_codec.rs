//! The Redis protocol (S1): any bytes, as a server could send them.
#![no_main]

#[path = "../../crates/tidegate-wire/tests/resp_properties/mod.rs"]
mod resp_properties;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    resp_properties::check(data);
});
