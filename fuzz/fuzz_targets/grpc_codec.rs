//! The messages of gRPC (S1): any bytes, as a client could send them.
#![no_main]

#[path = "../../crates/tidegate-wire/tests/grpc_properties/mod.rs"]
mod grpc_properties;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    grpc_properties::check(data);
});
