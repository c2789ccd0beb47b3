//! The simulator's lines: one JSON object each, its fields in a fixed order.

use super::at::Seconds;
use std::io::{self, Write as _};
use tidegate::{Analyzed, Answer, Incremented, Micros, Status};

/// What every line begins with.
pub(super) struct Head<'a> {
    pub(super) at: &'a str,
    pub(super) op: Option<&'a str>,
}

/// The answer to a hit or a peek; without a key, no limiter applied.
pub(super) fn decision(out: &mut Vec<u8>, head: &Head<'_>, key: Option<&[u8]>, answer: &Answer) -> io::Result<()> {
    begin(out, head)?;
    out.write_all(b",\"limiter\":")?;
    match &answer.limiter {
        Some(limiter) => string(out, &limiter.name)?,
        None => out.write_all(b"null")?,
    }
    out.write_all(b",\"key\":")?;
    match key {
        Some(key) => string(out, &String::from_utf8_lossy(key))?,
        None => out.write_all(b"null")?,
    }
    out.write_all(if answer.allowed { b",\"allowed\":true" } else { b",\"allowed\":false" })?;
    number(out, b",\"limit\":", answer.limit.map(u64::from));
    number(out, b",\"remaining\":", answer.remaining.map(u64::from));
    number(out, b",\"retry_after_ms\":", answer.retry_after.map(Micros::as_millis_ceil));
    number(out, b",\"reset_after_ms\":", answer.reset_after.map(Micros::as_millis_ceil));
    out.write_all(b"}\n")
}

/// The answer to any other op.
pub(super) struct Deed<'a> {
    pub(super) limiter: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) result: Outcome,
}

/// What an op other than a decision led to.
pub(super) enum Outcome {
    Done,
    BlockedUntil(Micros),
    Incremented {
        count: u32,
        told: Incremented,
    },
    Analyzed(Analyzed),
    Unblocked(bool),
    /// `None`: until it is cleared.
    OverriddenUntil(Option<Micros>),
    Cleared(bool),
    UnblockedAll(u64),
    Keys(Vec<Vec<u8>>),
}

pub(super) fn deed(out: &mut Vec<u8>, head: &Head<'_>, deed: &Deed<'_>) -> io::Result<()> {
    begin(out, head)?;
    out.write_all(b",\"limiter\":")?;
    string(out, deed.limiter)?;
    if let Some(key) = deed.key {
        out.write_all(b",\"key\":")?;
        string(out, key)?;
    }
    match &deed.result {
        Outcome::Done => {}
        Outcome::BlockedUntil(until) => write!(out, ",\"blocked_until\":{}", Seconds(*until))?,
        Outcome::Incremented { count, told } => {
            let timestamp = Seconds(told.timestamp);
            write!(out, ",\"count\":{count},\"timestamp\":{timestamp},\"counted\":{}", told.counted)?;
        }
        Outcome::Analyzed(analyzed) => analysis(out, analyzed)?,
        Outcome::Unblocked(yes) => write!(out, ",\"unblocked\":{yes}")?,
        Outcome::OverriddenUntil(None) => out.write_all(b",\"until\":null")?,
        Outcome::OverriddenUntil(Some(until)) => write!(out, ",\"until\":{}", Seconds(*until))?,
        Outcome::Cleared(yes) => write!(out, ",\"cleared\":{yes}")?,
        Outcome::UnblockedAll(count) => write!(out, ",\"unblocked\":{count}")?,
        Outcome::Keys(keys) => list(out, keys)?,
    }
    out.write_all(b"}\n")
}

/// Sum and limit only when this very call has blocked the key.
fn analysis(out: &mut Vec<u8>, analyzed: &Analyzed) -> io::Result<()> {
    let at = Seconds(analyzed.at);
    match &analyzed.status {
        Status::Ok => write!(out, ",\"status\":\"ok\",\"timestamp\":{at}"),
        Status::Denied => write!(out, ",\"status\":\"limited\",\"timestamp\":{at}"),
        Status::Blocked { until } => {
            write!(out, ",\"status\":\"blocked\",\"timestamp\":{at},\"blocked_until\":{}", Seconds(*until))
        }
        Status::Limited(event) => write!(
            out,
            ",\"status\":\"limited\",\"sum\":{},\"limit\":\"{}\",\"timestamp\":{at},\"blocked_until\":{}",
            event.sum,
            event.check,
            Seconds(event.blocked_until)
        ),
    }
}

/// The reply to a datagram; silence is `null`.
pub(super) fn datagram(out: &mut Vec<u8>, at: &str, reply: Option<&[u8]>) -> io::Result<()> {
    begin(out, &Head { at, op: None })?;
    out.write_all(b",\"udp\":")?;
    match reply {
        Some(reply) => string(out, &String::from_utf8_lossy(reply))?,
        None => out.write_all(b"null")?,
    }
    out.write_all(b"}\n")
}

/// A stream's messages, after what became of the submitted event.
pub(super) fn stream(
    out: &mut Vec<u8>,
    at: &str,
    name: &str,
    submitted: Option<(&str, &str)>,
    messages: &[String],
) -> io::Result<()> {
    begin(out, &Head { at, op: None })?;
    out.write_all(b",\"stream\":")?;
    string(out, name)?;
    if let Some((event, status)) = submitted {
        out.write_all(b",\"submit\":")?;
        string(out, event)?;
        write!(out, ",\"status\":\"{status}\"")?;
    }
    out.write_all(b",\"messages\":[")?;
    for (index, message) in messages.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        out.write_all(message.as_bytes())?;
    }
    out.write_all(b"]}\n")
}

fn begin(out: &mut Vec<u8>, head: &Head<'_>) -> io::Result<()> {
    out.write_all(b"{\"at\":")?;
    out.write_all(head.at.as_bytes())?;
    if let Some(op) = head.op {
        write!(out, ",\"op\":\"{op}\"")?;
    }
    Ok(())
}

fn list(out: &mut Vec<u8>, keys: &[Vec<u8>]) -> io::Result<()> {
    out.write_all(b",\"keys\":[")?;
    for (index, key) in keys.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        string(out, &String::from_utf8_lossy(key))?;
    }
    out.write_all(b"]")
}

fn string(out: &mut Vec<u8>, text: &str) -> io::Result<()> {
    // Nearly all keys are plain, and then nothing is escaped.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return Ok(());
    }
    serde_json::to_writer(out, text).map_err(io::Error::from)
}

fn number(out: &mut Vec<u8>, name: &[u8], value: Option<u64>) {
    out.extend_from_slice(name);
    match value {
        Some(value) => digits(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// A number in decimal; four of them are in every line, and the standard library's way takes several times as long.
pub(super) fn digits(out: &mut Vec<u8>, mut n: u64) {
    let (mut buffer, mut start) = ([0; 20], 20);
    loop {
        start -= 1;
        buffer[start] = b'0' + u8::try_from(n % 10).unwrap_or(0);
        n /= 10;
        if n == 0 {
            return out.extend_from_slice(&buffer[start..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_as_json_has_them() {
        for n in [0, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            digits(&mut out, n);
            assert_eq!(out, n.to_string().as_bytes());
        }
        for text in ["", "plain", "a\"b", "a\\b", "a\nb", "\u{7f}", "grüße", "\u{1F512}"] {
            let mut out = Vec::new();
            string(&mut out, text).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(text).unwrap());
        }
    }
}
