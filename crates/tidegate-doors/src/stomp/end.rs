//! Why a session ends, and the words for it.

use super::VERSION;
use super::words;
use super::writer::Gone;
use crate::access::Refusal;
use std::time::Duration;
use tidegate_wire::websocket::Violation;

/// Why a session ends.
pub(super) enum End {
    /// The client has gone, or said goodbye.
    Gone,
    Closing,
    Violation(Violation),
    /// The client speaks other versions of STOMP; it is told those that are spoken here.
    OtherVersions(String),
    Refused {
        message: &'static str,
        detail: String,
        receipt: Option<String>,
    },
}

impl End {
    pub(super) fn too_slow(write_timeout: Duration) -> End {
        let seconds = write_timeout.as_secs_f32();
        let detail = format!("nothing was read for {seconds} s; read faster, and subscribe again with from-clock");
        End::Refused { message: "too slow", detail, receipt: None }
    }

    /// The same end, with the receipt that was asked for: `None` if its id was too long.
    pub(super) fn with_receipt(self, id: Option<&str>) -> End {
        match self {
            End::Refused { message, detail, .. } => End::Refused { message, detail, receipt: id.map(str::to_owned) },
            other => other,
        }
    }

    pub(super) fn words(&self) -> bytes::Bytes {
        match self {
            End::Gone => words::close(1000),
            End::Closing => words::close(1001),
            End::Violation(violation) => {
                words::last("bad WebSocket frame", &violation.to_string(), None, violation.status())
            }
            End::OtherVersions(detail) => {
                words::last("version not supported", detail, Some(("version", VERSION)), 1008)
            }
            End::Refused { message, detail, receipt } => {
                words::last(message, detail, receipt.as_deref().map(|id| ("receipt-id", id)), 1008)
            }
        }
    }
}

pub(super) fn refuse<T>(message: &'static str, detail: impl Into<String>) -> Result<T, End> {
    Err(End::Refused { message, detail: detail.into(), receipt: None })
}

impl From<Refusal> for End {
    fn from(Refusal { code, detail, .. }: Refusal) -> End {
        End::Refused { message: code, detail, receipt: None }
    }
}

impl From<Gone> for End {
    fn from(Gone: Gone) -> End {
        End::Gone
    }
}

/// A piece of what a client sent, for an answer.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    format!("\"{short}\"")
}
