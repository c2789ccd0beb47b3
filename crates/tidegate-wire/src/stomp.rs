//! STOMP 1.2: frames to words and back.
//!
//! A frame is a command, header lines, an empty line, a body and a NUL. In headers `\r`, `\n`, `:` and
//! `\` are written as `\r`, `\n`, `\c` and `\\`; CONNECT and CONNECTED are the exception, as old clients do
//! not escape there. Of a repeated header the first counts. Line ends between frames are heart-beats.
//! Invariant: whatever the bytes are, reading ends, and gives a frame within the bounds or a sentence.

use std::fmt;

/// Largest frame that is read.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;
/// Most header lines of a frame.
pub const HEADERS_MAX: usize = 32;

/// What a client can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// CONNECT or STOMP, which mean the same.
    Connect,
    /// SEND
    Send,
    /// SUBSCRIBE
    Subscribe,
    /// UNSUBSCRIBE
    Unsubscribe,
    /// ACK
    Ack,
    /// NACK
    Nack,
    /// BEGIN, COMMIT or ABORT.
    Transaction,
    /// DISCONNECT
    Disconnect,
}

/// Every command of a client, by its name.
pub const COMMANDS: [(&str, Command); 11] = [
    ("CONNECT", Command::Connect),
    ("STOMP", Command::Connect),
    ("SEND", Command::Send),
    ("SUBSCRIBE", Command::Subscribe),
    ("UNSUBSCRIBE", Command::Unsubscribe),
    ("ACK", Command::Ack),
    ("NACK", Command::Nack),
    ("BEGIN", Command::Transaction),
    ("COMMIT", Command::Transaction),
    ("ABORT", Command::Transaction),
    ("DISCONNECT", Command::Disconnect),
];

/// A frame of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// What it says.
    pub command: Command,
    headers: Vec<(String, String)>,
    /// What it brings.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Why bytes are no frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// More than [`FRAME_BYTES_MAX`] bytes.
    TooLarge(usize),
    /// It has no NUL at its end.
    NoNul,
    /// Command or headers are not UTF-8.
    NotText,
    /// The command is none of STOMP's.
    Command(String),
    /// There is no empty line after the headers.
    NoEmptyLine,
    /// A header line without a colon.
    NoColon(String),
    /// A backslash before something else than `r`, `n`, `c` or a backslash.
    Escape(String),
    /// More than [`HEADERS_MAX`] headers.
    TooManyHeaders,
    /// `content-length` is no number, or no NUL stands where it says.
    Length(String),
}

impl std::error::Error for Malformed {}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::TooLarge(len) => write!(f, "the frame has {len} bytes, more than {FRAME_BYTES_MAX}; send less"),
            Malformed::NoNul => f.write_str("the frame has no NUL at its end; send whole frames"),
            Malformed::NotText => f.write_str("command and headers are not UTF-8; send text"),
            Malformed::Command(command) => write!(f, "\"{command}\" is no command of STOMP 1.2"),
            Malformed::NoEmptyLine => f.write_str("there is no empty line after the headers"),
            Malformed::NoColon(line) => write!(f, "the header line \"{line}\" has no colon"),
            Malformed::Escape(text) => {
                write!(f, "\"{text}\" has an undefined escape; there are \\r, \\n, \\c and \\\\")
            }
            Malformed::TooManyHeaders => write!(f, "the frame has more than {HEADERS_MAX} headers; send fewer"),
            Malformed::Length(text) => {
                write!(
                    f,
                    "content-length \"{text}\" is not the number of bytes before the NUL; leave it out or correct it"
                )
            }
        }
    }
}

/// Takes the next frame off the front; `None`: heart-beats only.
///
/// # Errors
/// When what is there is no frame.
pub fn read<'a>(bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Malformed> {
    let beats = bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    let frame = &bytes[beats..];
    *bytes = frame;
    if frame.is_empty() {
        return Ok(None);
    }
    let (command, headers, after) = read_head(frame)?;
    let body = &frame[after..];
    let length = headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.as_str());
    let len = match length {
        Some(text) => {
            text.parse().ok().filter(|len| body.get(*len) == Some(&0)).ok_or_else(|| Malformed::Length(shown(text)))?
        }
        None => body.iter().position(|byte| *byte == 0).ok_or(Malformed::NoNul)?,
    };
    let used = after + len + 1;
    if used > FRAME_BYTES_MAX {
        return Err(Malformed::TooLarge(used));
    }
    *bytes = &frame[used..];
    Ok(Some(Frame { command, headers, body: &body[..len] }))
}

type Head = (Command, Vec<(String, String)>, usize);

/// Command and headers, and where the body begins.
fn read_head(frame: &[u8]) -> Result<Head, Malformed> {
    let mut at = 0;
    let mut next_line = || {
        let rest = &frame[at..];
        let len = rest.iter().take(FRAME_BYTES_MAX).position(|byte| matches!(byte, b'\n' | 0));
        let (Some(len), true) = (len, at < FRAME_BYTES_MAX) else { return Err(too_long(frame)) };
        if rest[len] == 0 {
            return Err(Malformed::NoEmptyLine);
        }
        at += len + 1;
        let line = std::str::from_utf8(&rest[..len]).map_err(|_| Malformed::NotText)?;
        Ok(line.strip_suffix('\r').unwrap_or(line))
    };
    let word = next_line()?;
    let known = COMMANDS.iter().find(|(name, _)| *name == word);
    let command = known.map(|(_, command)| *command).ok_or_else(|| Malformed::Command(shown(word)))?;
    let mut headers = Vec::new();
    loop {
        let line = next_line()?;
        if line.is_empty() {
            return Ok((command, headers, at));
        }
        if headers.len() == HEADERS_MAX {
            return Err(Malformed::TooManyHeaders);
        }
        let (name, value) = line.split_once(':').ok_or_else(|| Malformed::NoColon(shown(line)))?;
        headers.push(match command {
            Command::Connect => (name.to_owned(), value.to_owned()),
            _ => (unescape(name)?, unescape(value)?),
        });
    }
}

/// A line that does not end: there is no NUL, or too much before it.
fn too_long(frame: &[u8]) -> Malformed {
    if frame.len() > FRAME_BYTES_MAX { Malformed::TooLarge(frame.len()) } else { Malformed::NoNul }
}

fn unescape(text: &str) -> Result<String, Malformed> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('r') => '\r',
                Some('n') => '\n',
                Some('c') => ':',
                Some('\\') => '\\',
                _ => return Err(Malformed::Escape(shown(text))),
            },
            c => c,
        });
    }
    Ok(plain)
}

/// A part of what was wrong, short and on one line.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 64;
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Appends the head of a frame, up to the body; the body and a NUL must follow.
pub fn push_head(out: &mut Vec<u8>, command: &str, headers: &[(&str, &str)]) {
    let escapes = command != "CONNECTED";
    out.extend_from_slice(command.as_bytes());
    out.push(b'\n');
    for (name, value) in headers {
        push_escaped(out, name, escapes);
        out.push(b':');
        push_escaped(out, value, escapes);
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// Appends a whole frame.
pub fn push(out: &mut Vec<u8>, command: &str, headers: &[(&str, &str)], body: &[u8]) {
    push_head(out, command, headers);
    out.extend_from_slice(body);
    out.push(0);
}

fn push_escaped(out: &mut Vec<u8>, text: &str, escapes: bool) {
    if !escapes || !text.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | b':' | b'\\')) {
        return out.extend_from_slice(text.as_bytes());
    }
    for byte in text.bytes() {
        match byte {
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b':' => out.extend_from_slice(b"\\c"),
            b'\\' => out.extend_from_slice(b"\\\\"),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Expected<'a> = (Command, &'a [(&'a str, &'a str)], &'a str);

    #[track_caller]
    fn check(text: &str, expected: Result<Expected<'_>, &str>) {
        match (read(&mut text.as_bytes()), expected) {
            (Ok(Some(frame)), Ok((command, headers, body))) => {
                assert_eq!((frame.command, frame.body), (command, body.as_bytes()), "{text:?}");
                for (name, value) in headers {
                    assert_eq!(frame.header(name), Some(*value), "{text:?}");
                }
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text:?}: {error}"),
            (got, _) => panic!("{text:?}: {got:?}"),
        }
    }

    #[test]
    fn frames_are_read() {
        use Command::{Connect, Send, Subscribe};
        check("CONNECT\naccept-version:1.2\n\n\0", Ok((Connect, &[("accept-version", "1.2")], "")));
        check("STOMP\r\nhost:a\\b\r\n\r\n\0\n", Ok((Connect, &[("host", "a\\b")], "")));
        check("\n\r\n\nSEND\ndestination:/app/a\n\ntaco\0", Ok((Send, &[("destination", "/app/a")], "taco")));
        check("SEND\ncontent-length:3\n\na\0b\0", Ok((Send, &[], "a\0b")));
        check("SEND\na:1\na:2\n\n\0", Ok((Send, &[("a", "1")], "")));
        check("SUBSCRIBE\nid:a\\cb\\\\\\n\\r\n\n\0", Ok((Subscribe, &[("id", "a:b\\\n\r")], "")));
        check("SEND\na:b:c\n\n\0", Ok((Send, &[("a", "b:c")], "")));
    }

    #[test]
    fn several_frames_and_heart_beats_in_one_message() {
        let mut bytes = &b"\n\nACK\nid:1\n\n\0\nDISCONNECT\n\n\0\n\n"[..];
        assert_eq!(read(&mut bytes).unwrap().unwrap().command, Command::Ack);
        assert_eq!(read(&mut bytes).unwrap().unwrap().command, Command::Disconnect);
        assert_eq!(read(&mut bytes), Ok(None));
        assert!(bytes.is_empty());
    }

    #[test]
    fn s1_what_is_no_frame_is_refused_with_a_reason() {
        check("SEND\n\ntaco", Err("no NUL"));
        check("SEND", Err("no NUL"));
        check("SEND\na:b\0", Err("no empty line"));
        check("HELLO\n\n\0", Err("\"HELLO\" is no command"));
        check("send\n\n\0", Err("no command"));
        check("MESSAGE\n\n\0", Err("no command"));
        check("SEND\nab\n\n\0", Err("\"ab\" has no colon"));
        check("SEND\na:b\\t\n\n\0", Err("undefined escape"));
        check("SEND\na:b\\\n\n\0", Err("undefined escape"));
        check("SEND\ncontent-length:9\n\nabc\0", Err("content-length \"9\""));
        check("SEND\ncontent-length:-1\n\nabc\0", Err("content-length \"-1\""));
        check("SEND\ncontent-length:99999999999999999999\n\nabc\0", Err("content-length"));
        check(&format!("SEND\n{}\n\0", "a:b\n".repeat(33)), Err("more than 32 headers"));
        check(&format!("SEND\n\n{}\0", "x".repeat(FRAME_BYTES_MAX)), Err("more than 16384"));
        check(&format!("SEND\na:{}\n\n\0", "x".repeat(FRAME_BYTES_MAX)), Err("more than 16384"));
        assert_eq!(read(&mut &b"SEND\na:\xff\n\n\0"[..]), Err(Malformed::NotText));
    }

    #[test]
    fn frames_are_written_with_escapes_but_for_connected() {
        let mut out = Vec::new();
        push(&mut out, "MESSAGE", &[("subscription", "a:b\n\\\r")], b"x");
        assert_eq!(out, b"MESSAGE\nsubscription:a\\cb\\n\\\\\\r\n\nx\0");
        out.clear();
        push(&mut out, "CONNECTED", &[("server", "a:b")], b"");
        assert_eq!(out, b"CONNECTED\nserver:a:b\n\n\0");
    }
}
