//! The Redis protocol. Here is the client's side, in RESP 2: commands to bytes, bytes to replies. The server's side has a file for what comes
//! in, [`mod@command`], and one for what goes out, [`answer`].
//!
//! No I/O. Invariant: whatever a server sends is a reply, "not all here yet", or an error, and never a panic. Each
//! text, line, list and nesting has a bound below; memory grows with the bytes that came, never with a length
//! that a server only claims.

pub mod answer;
pub mod command;

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
pub const TEXT_LEN_MAX: usize = 64 << 20;
/// Most items of a list.
pub const ITEMS_MAX: usize = 1 << 20;
/// Lists within lists: a script's reply has three levels.
pub const DEPTH_MAX: usize = 8;
/// Longest line of a number, a length, a status or an error.
pub const LINE_LEN_MAX: usize = 64 << 10;

/// Room for replies that is kept while there are none.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Why bytes are not a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Garbled(&'static str);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the Redis protocol: {}", self.0)
    }
}

impl std::error::Error for Garbled {}

/// Replies out of bytes as they come. Whatever is whole is read once, in however many pieces the rest comes.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// How many of them are read.
    used: usize,
    /// Lists whose items are not all here yet, the outermost first.
    open: Vec<Open>,
}

/// A list of which `left` items are to come.
#[derive(Debug)]
struct Open {
    items: Vec<Reply>,
    left: usize,
}

/// What a line starts.
enum Part {
    Whole(Reply),
    /// A list of so many items.
    List(usize),
}

impl Replies {
    /// Where more bytes are to be appended.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.used);
        self.used = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES_MAX);
        }
        &mut self.bytes
    }

    /// The next reply; `None`: it is not all here yet.
    ///
    /// # Errors
    /// When the bytes are not the protocol, or more than its bounds allow. Nothing that follows can be read then.
    pub fn take(&mut self) -> Result<Option<Reply>, Garbled> {
        while let Some(part) = self.part()? {
            let whole = match part {
                Part::Whole(reply) => self.enter(reply),
                Part::List(0) => self.enter(Reply::List(Vec::new())),
                Part::List(left) => {
                    // Reserved as items come: a length alone must not cost memory.
                    self.open.push(Open { items: Vec::new(), left });
                    None
                }
            };
            if whole.is_some() {
                return Ok(whole);
            }
        }
        Ok(None)
    }

    /// True when there is nothing but whole replies, all of them taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == self.bytes.len() && self.open.is_empty()
    }

    /// Puts an item into the list that it belongs to; the reply that is whole by it, if one is.
    fn enter(&mut self, mut reply: Reply) -> Option<Reply> {
        while let Some(mut open) = self.open.pop() {
            open.items.push(reply);
            open.left -= 1;
            if open.left > 0 {
                self.open.push(open);
                return None;
            }
            reply = Reply::List(open.items);
        }
        Some(reply)
    }

    fn part(&mut self) -> Result<Option<Part>, Garbled> {
        let rest = &self.bytes[self.used..];
        let Some(line) = line(rest)? else { return Ok(None) };
        let behind = line.len() + 2;
        let Some((kind, word)) = line.split_first() else { return Err(Garbled("an empty line")) };
        let (part, len) = match kind {
            b'+' => (Part::Whole(Reply::Text(word.to_vec())), behind),
            b'-' => (Part::Whole(Reply::Error(String::from_utf8_lossy(word).into_owned())), behind),
            b':' => (Part::Whole(Reply::Int(number(word)?)), behind),
            b'$' => match text(&rest[behind..], number(word)?)? {
                Some((reply, len)) => (Part::Whole(reply), behind + len),
                None => return Ok(None),
            },
            b'*' => (list(number(word)?, self.open.len())?, behind),
            _ => return Err(Garbled("an unknown kind of reply")),
        };
        self.used += len;
        Ok(Some(part))
    }
}

/// The first line, without its end.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Garbled> {
    let Some(end) = bytes.iter().take(LINE_LEN_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() >= LINE_LEN_MAX { Err(Garbled("a line that does not end")) } else { Ok(None) };
    };
    bytes[..end].strip_suffix(b"\r").map(Some).ok_or(Garbled("a line without a carriage return"))
}

/// A text of this length, or nil, and how many bytes it is with its end.
fn text(bytes: &[u8], len: i64) -> Result<Option<(Reply, usize)>, Garbled> {
    let Ok(len) = usize::try_from(len) else { return Ok(Some((Reply::Nil, 0))) };
    if len > TEXT_LEN_MAX {
        return Err(Garbled("a text of more than 64 MiB"));
    }
    let Some(text) = bytes.get(..len + 2) else { return Ok(None) };
    let text = text.strip_suffix(b"\r\n").ok_or(Garbled("a text without its end"))?;
    Ok(Some((Reply::Text(text.to_vec()), len + 2)))
}

fn list(len: i64, depth: usize) -> Result<Part, Garbled> {
    let Ok(len) = usize::try_from(len) else { return Ok(Part::Whole(Reply::Nil)) };
    if len > ITEMS_MAX || depth >= DEPTH_MAX {
        return Err(Garbled("a list of too many items or levels"));
    }
    Ok(Part::List(len))
}

fn number(digits: &[u8]) -> Result<i64, Garbled> {
    let text = std::str::from_utf8(digits).map_err(|_| Garbled("a number that is none"))?;
    text.parse().map_err(|_| Garbled("a number that is none"))
}

/// Appends commands to bytes that are to be sent.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// Starts a command of so many parts; exactly as many must follow.
    pub fn start(&mut self, parts: usize) {
        self.0.push(b'*');
        self.digits(parts as u64);
        self.0.extend_from_slice(b"\r\n");
    }

    /// One part.
    pub fn part(&mut self, bytes: &[u8]) {
        self.0.push(b'$');
        self.digits(bytes.len() as u64);
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    /// One part that is a number.
    pub fn number(&mut self, number: u64) {
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
#[must_use]
pub fn command(parts: &[&[u8]]) -> Vec<u8> {
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

    /// The first reply of these bytes.
    fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbled> {
        let mut replies = Replies::default();
        replies.room().extend_from_slice(bytes);
        Ok(replies.take()?.map(|reply| (reply, replies.used)))
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
        // Byte by byte it is the same.
        let (mut replies, mut taken) = (Replies::default(), Vec::new());
        for byte in bytes {
            replies.room().push(*byte);
            taken.extend(replies.take().unwrap());
        }
        assert_eq!(taken, [parse(bytes).unwrap().unwrap().0, text("OK")]);
        assert!(replies.is_empty());
    }

    /// A page of names that comes in many small pieces was read from its start with each of them.
    #[test]
    fn a_long_reply_in_many_pieces_is_read_once() {
        let items = 200_000;
        let name = "n".repeat(20);
        let text = format!("*2\r\n:7\r\n*{items}\r\n{}", format!("$20\r\n{name}\r\n").repeat(items));
        let (mut replies, mut taken, since) = (Replies::default(), Vec::new(), std::time::Instant::now());
        for piece in text.as_bytes().chunks(100) {
            replies.room().extend_from_slice(piece);
            taken.extend(replies.take().unwrap());
        }
        let names = vec![Reply::Text(name.into_bytes()); items];
        assert_eq!(taken, [Reply::List(vec![Reply::Int(7), Reply::List(names)])]);
        // It is 54,000 pieces of 5.4 MB: reading all that is there with each would be 1.5 * 10^11 bytes.
        assert!(since.elapsed().as_secs() < 20, "{:?}", since.elapsed());
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
    fn commands_carry_any_bytes() {
        assert_eq!(command(&[b"GET", b"a\r\nb"]), b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n");
        let mut bytes = Vec::new();
        Writer(&mut bytes).number(u64::MAX);
        assert_eq!(bytes, b"$20\r\n18446744073709551615\r\n");
    }
}
