//! What holds of any bytes whatsoever that a gRPC client could send. The fuzz target checks the same.

use tidegate_wire::grpc::health::HealthCheckRequest;
use tidegate_wire::grpc::ratelimit::{RateLimitRequest, RateLimitResponse};
use tidegate_wire::grpc::{Message, PREFIX_LEN, framed, message_len, read, timeout};

/// Reads the bytes as a frame and as each message; true when a rate limit request was in them.
pub(crate) fn check(bytes: &[u8]) -> bool {
    if let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_LEN>() {
        if let Ok(length) = message_len(*prefix, 1 << 16) {
            assert!(length <= 1 << 16, "{bytes:?}");
        }
        round::<HealthCheckRequest>(rest);
    }
    // No time limit is longer than eight digits of hours.
    assert!(timeout(bytes).is_none_or(|limit| limit.as_secs() <= 99_999_999 * 3600), "{bytes:?}");
    round::<RateLimitResponse>(bytes);
    let request = round::<RateLimitRequest>(bytes);
    if let Some(request) = &request {
        // An entry is at least its tag and its length, so that few bytes cannot make many.
        let entries: usize = request.descriptors.iter().map(|descriptor| 1 + descriptor.entries.len()).sum();
        assert!(entries <= bytes.len() / 2 + 1, "{entries} out of {} bytes", bytes.len());
    }
    request.is_some()
}

/// A message that was read is the same when it is written and read again.
fn round<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message: M = read(bytes).ok()?;
    let again = framed(&message);
    let length = message_len(*again.first_chunk().expect("a prefix"), usize::MAX).expect("its own frame");
    assert_eq!(length, again.len() - PREFIX_LEN, "{bytes:?}");
    let second: M = read(&again[PREFIX_LEN..]).expect("its own message");
    // Not a number is not equal to itself, and says the same in bytes.
    assert_eq!(framed(&second), again, "{bytes:?}");
    Some(message)
}
