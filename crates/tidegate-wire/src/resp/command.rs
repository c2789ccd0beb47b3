//! Commands as a server reads them: arrays of texts, or one line of words ("inline", for people with telnet).
//!
//! A command is read from the bytes that are there, or not at all: what is half here is looked at again when more has come. That
//! costs nothing to speak of, as a look goes from length to length and not from byte to byte. Nothing is kept and nothing is
//! allocated but the list of parts, which grows with parts that are here.
//! Invariant: whatever a client sends is commands, "not all here yet" or an error, and never a panic; a length is compared with its
//! bound as soon as it is read, and before anything is made of it.

use std::fmt;

/// Most parts of a command. The longest sensible one, sixteen attributes with their names, has 35.
pub const PARTS_MAX: usize = 128;
/// Longest part. A key has 512 bytes at most; a longer one is read to be refused by name.
pub const PART_LEN_MAX: usize = 16 << 10;
/// Longest command, with everything.
pub const COMMAND_LEN_MAX: usize = 64 << 10;
/// Longest line of words.
pub const INLINE_LEN_MAX: usize = 1 << 10;
/// Digits that a length may have, leading zeros among them.
const DIGITS_MAX: usize = 10;

/// Why bytes are not commands. Nothing that follows can be read then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// An array of more parts than a command may have, or of fewer than none.
    Parts,
    /// A text that is longer than a part may be, or shorter than nothing.
    PartLength,
    /// The parts together are longer than a command may be.
    Length,
    /// Where a length should stand is something else.
    NoNumber,
    /// Where a part should begin is this byte: arrays in arrays are no commands.
    NoText(u8),
    /// A text or a length that goes on where its end should be.
    NoEnd,
    /// A line of words that is longer than one may be.
    Line,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Parts => write!(f, "invalid multibulk length; a command has 1 to {PARTS_MAX} parts"),
            Malformed::PartLength => write!(f, "invalid bulk length; a part has 0 to {PART_LEN_MAX} bytes"),
            Malformed::Length => write!(f, "the command is longer than {COMMAND_LEN_MAX} bytes; send less in it"),
            Malformed::NoNumber => f.write_str("a length is no number"),
            Malformed::NoText(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Malformed::NoEnd => f.write_str("a line end is missing where a length or a text should end"),
            Malformed::Line => write!(f, "too big inline request; a line of words has {INLINE_LEN_MAX} bytes at most"),
        }
    }
}

impl std::error::Error for Malformed {}

/// How a command came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As an array of texts, as every client sends it.
    Array,
    /// As a line of words. The first line of an HTTP request reads as one, too.
    Inline,
}

/// A command that is all here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// How many bytes it takes. Its parts are in the list; none: an empty line or array, which is passed over.
    pub len: usize,
    /// How it came.
    pub form: Form,
}

/// Reads the next command into `parts`, which is emptied first; `None`: it is not all here yet.
///
/// ```
/// use tidegate_wire::resp::command::{Form, Read, read};
/// let (bytes, mut parts) = (b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPING\r\n", Vec::new());
/// assert_eq!(read(bytes, &mut parts), Ok(Some(Read { len: 22, form: Form::Array })));
/// assert_eq!(parts, [&b"ECHO"[..], b"hi"]);
/// assert_eq!(read(&bytes[22..], &mut parts), Ok(Some(Read { len: 6, form: Form::Inline })));
/// assert_eq!(parts, [b"PING"]);
/// assert_eq!(read(&bytes[..21], &mut parts), Ok(None));
/// ```
///
/// # Errors
/// When the bytes are no command, or more than the bounds allow.
#[inline]
pub fn read<'b>(bytes: &'b [u8], parts: &mut Vec<&'b [u8]>) -> Result<Option<Read>, Malformed> {
    parts.clear();
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => Ok(array(bytes, parts)?.map(|len| Read { len, form: Form::Array })),
        Some(_) => Ok(inline(bytes, parts)?.map(|len| Read { len, form: Form::Inline })),
    }
}

fn array<'b>(bytes: &'b [u8], parts: &mut Vec<&'b [u8]>) -> Result<Option<usize>, Malformed> {
    let Some((count, mut at)) = length(bytes, 1, PARTS_MAX, Malformed::Parts)? else { return Ok(None) };
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(Malformed::NoText(*other)),
        }
        let Some((len, start)) = length(bytes, at + 1, PART_LEN_MAX, Malformed::PartLength)? else { return Ok(None) };
        if start + len + 2 > COMMAND_LEN_MAX {
            return Err(Malformed::Length);
        }
        let Some(text) = bytes.get(start..start + len + 2) else { return Ok(None) };
        let Some(text) = text.strip_suffix(b"\r\n") else { return Err(Malformed::NoEnd) };
        parts.push(text);
        at = start + len + 2;
    }
    Ok(Some(at))
}

/// A number from 0 to `max` with its line end, and where what follows it begins.
#[inline]
fn length(bytes: &[u8], at: usize, max: usize, over: Malformed) -> Result<Option<(usize, usize)>, Malformed> {
    let mut number = 0_usize;
    for (place, byte) in bytes[at.min(bytes.len())..].iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                number = number * 10 + usize::from(byte - b'0');
                if number > max || place >= DIGITS_MAX {
                    return Err(over);
                }
            }
            b'-' if place == 0 => return Err(over),
            b'\r' if place > 0 => {
                return match bytes.get(at + place + 1) {
                    Some(b'\n') => Ok(Some((number, at + place + 2))),
                    Some(_) => Err(Malformed::NoEnd),
                    None => Ok(None),
                };
            }
            _ => return Err(Malformed::NoNumber),
        }
    }
    Ok(None)
}

fn inline<'b>(bytes: &'b [u8], parts: &mut Vec<&'b [u8]>) -> Result<Option<usize>, Malformed> {
    let seen = &bytes[..bytes.len().min(INLINE_LEN_MAX)];
    let Some(end) = seen.iter().position(|byte| *byte == b'\n') else {
        return if seen.len() == INLINE_LEN_MAX { Err(Malformed::Line) } else { Ok(None) };
    };
    let words = bytes[..end].split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    for word in words {
        if parts.len() == PARTS_MAX {
            return Err(Malformed::Parts);
        }
        parts.push(word);
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All commands of these bytes: their parts joined by `|`, and what is left over; or why they cannot be read.
    #[track_caller]
    fn check(bytes: &[u8], expected: Result<(&[&str], usize), Malformed>) {
        let (mut at, mut told, mut parts) = (0, Vec::new(), Vec::new());
        let outcome = loop {
            match read(&bytes[at..], &mut parts) {
                Ok(Some(Read { len, .. })) => {
                    told.push(parts.join(&b'|').escape_ascii().to_string());
                    at += len;
                }
                Ok(None) => break Ok((told.iter().map(String::as_str).collect::<Vec<_>>(), bytes.len() - at)),
                Err(malformed) => break Err(malformed),
            }
        };
        let expected = expected.map(|(told, left)| (told.to_vec(), left));
        assert_eq!(outcome, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn commands_are_read_whole_or_not_yet() {
        let all = b"*2\r\n$3\r\nGET\r\n$5\r\na\r\nb\0\r\n*1\r\n$0\r\n\r\nping  a\tb\r\n\r\n*0\r\nQUIT\n";
        check(all, Ok((&["GET|a\\r\\nb\\x00", "", "ping|a|b", "", "", "QUIT"], 0)));
        let mut parts = Vec::new();
        for cut in 0..24 {
            assert_eq!(read(&all[..cut], &mut parts), Ok(None), "cut at {cut}");
        }
        check(b"*1\r\n$4\r\nPI", Ok((&[], 10)));
    }

    #[test]
    fn s1_what_is_no_command_is_refused_before_anything_is_made_of_it() {
        for (bytes, why) in [
            (&b"*2147483647\r\n"[..], Malformed::Parts),
            (b"*2147483647", Malformed::Parts),
            (b"*129\r\n", Malformed::Parts),
            (b"*-1\r\n", Malformed::Parts),
            (b"*99999999999999999999\r\n", Malformed::Parts),
            (b"*x\r\n", Malformed::NoNumber),
            (b"*\r\n", Malformed::NoNumber),
            (b"*+1\r\n", Malformed::NoNumber),
            (b"*1\n", Malformed::NoNumber),
            (b"*1\rx", Malformed::NoEnd),
            (b"*1\r\n$999999999\r\n", Malformed::PartLength),
            (b"*1\r\n$16385\r\n", Malformed::PartLength),
            (b"*1\r\n$-1\r\n", Malformed::PartLength),
            (b"*1\r\n*1\r\n$4\r\nPING\r\n", Malformed::NoText(b'*')),
            (b"*1\r\n:1\r\n", Malformed::NoText(b':')),
            (b"*1\r\n$4\r\nPINGx\r\n", Malformed::NoEnd),
            (&[b'x'; 1_024], Malformed::Line),
        ] {
            check(bytes, Err(why));
        }
        let part = format!("$16384\r\n{}\r\n", "x".repeat(16_384));
        check(format!("*5\r\n{}", part.repeat(4)).as_bytes(), Err(Malformed::Length));
        check("x ".repeat(129).as_bytes(), Ok((&[], 258)));
        check(format!("{}\n", "x ".repeat(129)).as_bytes(), Err(Malformed::Parts));
    }
}
