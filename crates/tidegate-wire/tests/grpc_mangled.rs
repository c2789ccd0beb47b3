//! S1: messages of gRPC with wounds. Reading ends, keeps its bounds, and what was read is the same when it is written and read again.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod grpc_properties;

use tidegate_testkit::{Random, number};
use tidegate_wire::grpc::ratelimit::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use tidegate_wire::grpc::{Message as _, framed};

fn seeds() -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &'static [u8]| Entry { key: key.to_owned(), value: value.into() };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry("user", b"ann"), entry("path", b"/\xff")],
        limit: Some(RateLimitOverride { requests_per_unit: 5, unit: 2, unit_multiplier: Some(3) }),
        hits_addend: Some(0),
        is_negative_hits: true,
    };
    let request = RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor.clone(), descriptor],
        hits_addend: 7,
    };
    vec![request.encode_to_vec(), framed(&request), b"20m".to_vec()]
}

#[test]
fn s1_no_bytes_break_the_messages_of_grpc() {
    let (steps, mut random) = (number("TIDEGATE_STEPS", 100_000), Random(number("TIDEGATE_SEED", 1)));
    let (seeds, mut recognised) = (seeds(), 0);
    for _ in 0..steps {
        let mut bytes = seeds[random.index(seeds.len())].clone();
        for _ in 0..random.index(4) {
            let at = random.index(bytes.len());
            bytes[at] = u8::try_from(random.below(256)).unwrap();
        }
        bytes.truncate(bytes.len() - random.index(2) * random.index(bytes.len()));
        recognised += u64::from(grpc_properties::check(&bytes));
    }
    assert!(recognised > steps / 20, "{recognised} of {steps}");
}
