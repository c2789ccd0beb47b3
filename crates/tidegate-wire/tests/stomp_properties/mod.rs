//! What holds of any bytes whatsoever. The fuzz target checks the same.

use tidegate_wire::stomp::{self, FRAME_BYTES_MAX};
use tidegate_wire::websocket::{self, Assembly, PAYLOAD_MAX};

/// Reads the bytes as STOMP and as WebSocket; true when a STOMP frame was in them.
pub(crate) fn check(bytes: &[u8]) -> bool {
    check_websocket(bytes);
    let (mut rest, mut frames) = (bytes, 0);
    loop {
        let before = rest.len();
        match stomp::read(&mut rest) {
            Ok(Some(frame)) => {
                frames += 1;
                assert!(before - rest.len() <= FRAME_BYTES_MAX + bytes.len(), "{bytes:?}");
                assert!(rest.len() < before && frame.body.len() < FRAME_BYTES_MAX, "{bytes:?}");
                check_again(&frame);
            }
            Ok(None) => {
                assert!(rest.is_empty(), "{bytes:?}");
                return frames > 0;
            }
            Err(malformed) => {
                assert!(malformed.to_string().len() < 1_000, "{bytes:?}");
                return frames > 0;
            }
        }
    }
}

/// A header that was read is written and read again as it was.
fn check_again(frame: &stomp::Frame<'_>) {
    let Some(id) = frame.header("id").or(frame.header("receipt")) else { return };
    if frame.command == stomp::Command::Connect {
        return;
    }
    let mut out = Vec::new();
    stomp::push(&mut out, "ACK", &[("id", id)], b"");
    let again = stomp::read(&mut &out[..]).expect("what we write can be read").expect("one frame");
    assert_eq!(again.header("id"), Some(id));
}

fn check_websocket(bytes: &[u8]) {
    let (mut rest, mut assembly) = (bytes, Assembly::default());
    while let Ok(Some(head)) = websocket::read_head(rest) {
        assert!(head.payload_len <= PAYLOAD_MAX && head.head_len <= websocket::HEAD_MAX);
        let Some(payload) = rest.get(head.head_len..head.head_len + head.payload_len) else { return };
        let mut payload = payload.to_vec();
        head.unmask(&mut payload);
        match assembly.push(&head, &payload) {
            Ok(Some(message)) => assert!(message.len() <= PAYLOAD_MAX),
            Ok(None) => {}
            Err(_) => return,
        }
        rest = &rest[head.head_len + head.payload_len..];
    }
}
