//! Frames of ours, ready for the socket: STOMP within WebSocket.

use bytes::Bytes;
use tidegate_wire::stomp;
use tidegate_wire::websocket::{self, Opcode};

/// A STOMP frame in a WebSocket message of its own.
pub(super) fn frame(command: &str, headers: &[(&str, &str)], body: &[u8]) -> Bytes {
    let (mut text, mut out) = (Vec::new(), Vec::new());
    stomp::push(&mut text, command, headers, body);
    websocket::push(&mut out, Opcode::Text, &text);
    out.into()
}

pub(super) fn heart_beat() -> Bytes {
    Bytes::from_static(&[0x81, 1, b'\n'])
}

pub(super) fn pong(payload: &[u8]) -> Bytes {
    let mut out = Vec::new();
    websocket::push(&mut out, Opcode::Pong, payload);
    out.into()
}

pub(super) fn close(status: u16) -> Bytes {
    let mut out = Vec::new();
    websocket::push_close(&mut out, status);
    out.into()
}

/// An ERROR, with one more header or not, and the close that must follow it.
pub(super) fn last(message: &str, detail: &str, header: Option<(&str, &str)>, status: u16) -> Bytes {
    let mut headers = vec![("message", message), ("content-type", "text/plain")];
    headers.extend(header);
    let mut out = frame("ERROR", &headers, detail.as_bytes()).to_vec();
    websocket::push_close(&mut out, status);
    out.into()
}
