//! The Redis protocol from a client's side: commands to bytes, bytes to replies.
//!
//! No I/O. Invariant: whatever a server sends is a reply, "not all here yet", or an error; never a
//! panic, and never more memory than the bounds below.

use std::fmt;

/// What a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Int(i64),
    /// Bytes, or a status such as `OK`.
    Text(Vec<u8>),
    /// An error, as the server words it.
    Error(String),
    /// Several replies.
    List(Vec<Reply>),
}

/// Longest text of a reply. A page of key names is far below.
const TEXT_LEN_MAX: usize = 64 << 20;
/// Most items of a list.
const ITEMS_MAX: usize = 1 << 20;
/// Lists within lists: a script's reply has three levels.
const DEPTH_MAX: u8 = 8;
/// Longest line of a number, a length or an error.
const LINE_LEN_MAX: usize = 64 << 10;

/// Why bytes are not a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Garbled(pub(crate) &'static str);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the Redis protocol: {}", self.0)
    }
}

/// The first reply of `bytes` and how long it is; `None`: it is not all here yet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbled> {
    let mut cursor = Cursor { bytes, at: 0 };
    Ok(cursor.reply(0)?.map(|reply| (reply, cursor.at)))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn reply(&mut self, depth: u8) -> Result<Option<Reply>, Garbled> {
        let Some(line) = self.line()? else { return Ok(None) };
        let Some((kind, rest)) = line.split_first() else { return Err(Garbled("an empty line")) };
        match kind {
            b'+' => Ok(Some(Reply::Text(rest.to_vec()))),
            b'-' => Ok(Some(Reply::Error(String::from_utf8_lossy(rest).into_owned()))),
            b':' => Ok(Some(Reply::Int(number(rest)?))),
            b'$' => self.text(number(rest)?),
            b'*' => self.list(number(rest)?, depth),
            _ => Err(Garbled("an unknown kind of reply")),
        }
    }

    fn line(&mut self) -> Result<Option<&'a [u8]>, Garbled> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().take(LINE_LEN_MAX).position(|byte| *byte == b'\n') else {
            return if rest.len() >= LINE_LEN_MAX { Err(Garbled("a line that does not end")) } else { Ok(None) };
        };
        self.at += end + 1;
        rest[..end].strip_suffix(b"\r").map(Some).ok_or(Garbled("a line without a carriage return"))
    }

    fn text(&mut self, len: i64) -> Result<Option<Reply>, Garbled> {
        let Ok(len) = usize::try_from(len) else { return Ok(Some(Reply::Nil)) };
        if len > TEXT_LEN_MAX {
            return Err(Garbled("a text of more than 64 MiB"));
        }
        let Some(text) = self.bytes.get(self.at..self.at + len + 2) else { return Ok(None) };
        self.at += len + 2;
        text.strip_suffix(b"\r\n").map(|text| Some(Reply::Text(text.to_vec()))).ok_or(Garbled("a text without its end"))
    }

    fn list(&mut self, len: i64, depth: u8) -> Result<Option<Reply>, Garbled> {
        let Ok(len) = usize::try_from(len) else { return Ok(Some(Reply::Nil)) };
        if len > ITEMS_MAX || depth >= DEPTH_MAX {
            return Err(Garbled("a list of too many items or levels"));
        }
        // Reserved as items come: a length alone must not cost memory.
        let mut items = Vec::new();
        for _ in 0..len {
            match self.reply(depth + 1)? {
                Some(item) => items.push(item),
                None => return Ok(None),
            }
        }
        Ok(Some(Reply::List(items)))
    }
}

fn number(digits: &[u8]) -> Result<i64, Garbled> {
    let text = std::str::from_utf8(digits).map_err(|_| Garbled("a number that is none"))?;
    text.parse().map_err(|_| Garbled("a number that is none"))
}

/// Appends commands to bytes that are to be sent.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    /// Starts a command of so many parts; exactly as many must follow.
    pub(crate) fn start(&mut self, parts: usize) {
        self.0.push(b'*');
        self.digits(parts as u64);
        self.0.extend_from_slice(b"\r\n");
    }

    /// One part.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.0.push(b'$');
        self.digits(bytes.len() as u64);
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    /// One part that is a number.
    pub(crate) fn number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let text = decimal(number, &mut digits);
        self.part(text);
    }

    fn digits(&mut self, number: u64) {
        let mut digits = [0; 20];
        let text = decimal(number, &mut digits);
        self.0.extend_from_slice(text);
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// A whole command.
pub(crate) fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.start(parts.len());
    parts.iter().for_each(|part| writer.part(part));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.into())
    }

    #[test]
    fn replies_come_out_whole_or_not_yet() {
        let bytes = b"*4\r\n:-1\r\n$5\r\nhe\r\no\r\n*1\r\n$-1\r\n-NOSCRIPT No.\r\n+OK\r\n";
        let list = vec![
            Reply::Int(-1),
            text("he\r\no"),
            Reply::List(vec![Reply::Nil]),
            Reply::Error("NOSCRIPT No.".to_owned()),
        ];
        let len = bytes.len() - 5;
        assert_eq!(parse(bytes), Ok(Some((Reply::List(list), len))));
        assert_eq!(parse(&bytes[len..]), Ok(Some((text("OK"), 5))));
        for cut in 0..len {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn s1_garbage_is_refused_within_bounds() {
        let deep = "*1\r\n".repeat(9);
        for garbage in ["?\r\n", "\r\n", ":x\r\n", "$70000000\r\n", "*2000000\r\n", "+no return\n", "$1\r\nabc", &deep]
        {
            assert!(parse(garbage.as_bytes()).is_err(), "{garbage:?}");
        }
        assert!(parse(&vec![b'+'; LINE_LEN_MAX]).is_err());
        // A length alone costs nothing.
        assert_eq!(parse(b"*1000000\r\n"), Ok(None));
    }

    #[test]
    fn s1_mangled_replies_never_panic() {
        let seed = b"*3\r\n:12\r\n$3\r\nabc\r\n*2\r\n+OK\r\n-ERR x\r\n";
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for _ in 0..100_000 {
            let mut bytes = seed.to_vec();
            for _ in 0..=random() % 4 {
                let at = usize::try_from(random()).unwrap() % bytes.len();
                bytes[at] = b"*$:+-\r\n0919ab"[usize::try_from(random()).unwrap() % 13];
            }
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn commands_carry_any_bytes() {
        assert_eq!(command(&[b"GET", b"a\r\nb"]), b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n");
        let mut bytes = Vec::new();
        Writer(&mut bytes).number(u64::MAX);
        assert_eq!(bytes, b"$20\r\n18446744073709551615\r\n");
    }
}
