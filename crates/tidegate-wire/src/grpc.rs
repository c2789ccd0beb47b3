//! gRPC over HTTP/2: how a message is framed, how a call's time limit and its end are written.
//!
//! A call is a POST; its body is messages, each behind five bytes: a flag for compression, and the length. Its end is a status in the
//! trailers. The messages that we know are in [`health`] and [`ratelimit`]: types of ours from which prost derives reading and
//! writing. Only the fields that we read or write are there; others are skipped. What their numbers are, the files in `proto/` say, and
//! a test holds the types against them.
//! Not here: HTTP/2 itself, and what is done with a message. Invariant: a length is looked at before anything of its size is kept.

pub mod health;
pub mod ratelimit;

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
pub use prost::Message;
use std::fmt;
use std::time::Duration;

/// How a call ended (`grpc-status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// As asked.
    Ok = 0,
    /// The request is not what it should be, whoever asks.
    InvalidArgument = 3,
    /// The client's time was up.
    DeadlineExceeded = 4,
    /// There is nothing of that name.
    NotFound = 5,
    /// This caller may not ask that.
    PermissionDenied = 7,
    /// More than a bound.
    ResourceExhausted = 8,
    /// There is no such method, or not in this way.
    Unimplemented = 12,
    /// A fault of ours.
    Internal = 13,
    /// Not now; the same call may pass later.
    Unavailable = 14,
    /// Who asks?
    Unauthenticated = 16,
}

impl Code {
    /// All of them, for what is counted by code.
    pub const ALL: [Code; 10] = [
        Code::Ok,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::Unauthenticated,
    ];

    /// Its name, as gRPC has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    /// Its number, as `grpc-status` has it.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// How a call ended, in words where it did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// For people: the thing, the value, the bound and the remedy.
    pub message: String,
}

impl Status {
    /// A call that ended in this way.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    /// The message as `grpc-message` has it: ASCII that can be read, the rest as percent escapes.
    #[must_use]
    pub fn message_field(&self) -> String {
        percent_encode(self.message.as_bytes(), ESCAPED).to_string()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

/// All but what can be read, and the sign of an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Bytes before every message: whether it is compressed, and its length.
pub const PREFIX_LEN: usize = 5;

/// The length of the message behind this prefix, if it may be read.
///
/// # Errors
/// It is compressed, or longer than `len_max`.
pub fn message_len(prefix: [u8; PREFIX_LEN], len_max: usize) -> Result<usize, Status> {
    let [flag, length @ ..] = prefix;
    if flag != 0 {
        let message = match flag {
            1 => "the message is compressed, which this server does not read; send it as it is (identity)".to_owned(),
            flag => format!("the message begins with {flag}, and may with 0 alone; is it gRPC?"),
        };
        return Err(Status::new(Code::Unimplemented, message));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > len_max {
        let message = format!("the message has {length} bytes; at most {len_max} are read");
        return Err(Status::new(Code::ResourceExhausted, message));
    }
    Ok(length)
}

/// A message with its prefix, in one piece.
#[must_use]
pub fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX_LEN + length);
    bytes.push(0);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes
}

/// What a message says.
///
/// # Errors
/// The bytes are no such message.
pub fn read<M: Message + Default>(bytes: impl prost::bytes::Buf) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::new(Code::InvalidArgument, format!("the message cannot be read: {error}")))
}

/// What `grpc-timeout` says: up to eight digits, and a unit. `None`: it is none.
#[must_use]
pub fn timeout(field: &[u8]) -> Option<Duration> {
    let (unit, digits) = field.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |sum: u64, digit| sum * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_lengths_and_compression_are_looked_at_first() {
        let check = |prefix, expected: Result<usize, Code>| {
            assert_eq!(message_len(prefix, 1000).map_err(|status| status.code), expected, "{prefix:?}");
        };
        check([0, 0, 0, 0, 0], Ok(0));
        check([0, 0, 0, 3, 232], Ok(1000));
        check([0, 0, 0, 3, 233], Err(Code::ResourceExhausted));
        check([0, 255, 255, 255, 255], Err(Code::ResourceExhausted));
        check([1, 0, 0, 0, 1], Err(Code::Unimplemented));
        check([b'P', b'O', b'S', b'T', b' '], Err(Code::Unimplemented));
    }

    #[test]
    fn what_is_framed_can_be_read() {
        let request = health::HealthCheckRequest { service: "a".to_owned() };
        let bytes = framed(&request);
        assert_eq!(bytes, [0, 0, 0, 0, 3, 10, 1, b'a']);
        assert_eq!(read(&bytes[PREFIX_LEN..]), Ok(request));
        assert_eq!(read::<health::HealthCheckRequest>(&[10, 9][..]).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        for (field, expected_us) in [
            ("1H", Some(3_600_000_000)),
            ("2M", Some(120_000_000)),
            ("3S", Some(3_000_000)),
            ("15m", Some(15_000)),
            ("20u", Some(20)),
            ("1000n", Some(1)),
            ("99999999H", Some(99_999_999 * 3_600_000_000)),
            ("0m", Some(0)),
            ("", None),
            ("m", None),
            ("123456789m", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("1 S", None),
        ] {
            let expected = expected_us.map(Duration::from_micros);
            assert_eq!(timeout(field.as_bytes()), expected, "{field}");
        }
    }

    #[test]
    fn words_in_trailers_are_ascii() {
        let status = Status::new(Code::InvalidArgument, "100 % of \"gr\u{fc}n\"\n");
        assert_eq!(status.message_field(), "100 %25 of \"gr%C3%BCn\"%0A");
        assert_eq!(status.to_string(), "INVALID_ARGUMENT: 100 % of \"gr\u{fc}n\"\n");
        let numbers: Vec<u8> = Code::ALL.map(Code::number).to_vec();
        assert_eq!(numbers, [0, 3, 4, 5, 7, 8, 12, 13, 14, 16]);
    }
}
