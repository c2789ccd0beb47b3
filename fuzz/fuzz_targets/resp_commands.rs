//! The Redis protocol from a server's side (S1): any bytes, as a client could send them.
#![no_main]

#[path = "../../crates/tidegate-wire/tests/resp_command_properties/mod.rs"]
mod resp_command_properties;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    resp_command_properties::check(data);
});
