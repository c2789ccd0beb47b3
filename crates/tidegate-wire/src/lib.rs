//! Wire formats: bytes to words and back.
//!
//! No I/O, no clock, no decision: what a request says and how an answer is written, nothing else.
//! Every parser has numeric limits.

pub mod calendar;
pub mod certificate;
pub mod grpc;
pub mod json;
pub mod percent;
pub mod resp;
pub mod stomp;
pub mod udp;
pub mod websocket;
