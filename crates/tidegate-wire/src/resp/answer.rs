//! Answers as a server writes them, in RESP 2 or RESP 3.
//!
//! Numbers, texts, errors and lists look alike in both; a map is a list of twice as many items in RESP 2, and nothing (null) is
//! written in another way. Invariant: an error and a status are one line, whatever is in them.

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// RESP 2: what every client speaks until it says otherwise.
    #[default]
    Resp2,
    /// RESP 3: after `HELLO 3`.
    Resp3,
}

impl Protocol {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

/// Appends answers to bytes that are to be sent.
#[derive(Debug)]
pub struct Answers<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Answers<'a> {
    /// Writes to the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Answers<'a> {
        Answers { out, protocol }
    }

    /// A status, such as `OK`.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: its first word is a code that clients know, such as `ERR` or `NOAUTH`.
    pub fn error(&mut self, code: &str, text: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.line(b' ', text);
    }

    /// A number.
    #[inline]
    pub fn number(&mut self, number: i64) {
        self.prefixed(b':', number);
    }

    /// A text of any bytes.
    pub fn text(&mut self, bytes: &[u8]) {
        self.prefixed(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Nothing.
    pub fn nothing(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// A list; as many items must follow.
    #[inline]
    pub fn list(&mut self, items: u32) {
        self.prefixed(b'*', items.into());
    }

    /// A map; as many names with their values must follow.
    pub fn map(&mut self, pairs: u32) {
        match self.protocol {
            Protocol::Resp2 => self.prefixed(b'*', 2 * i64::from(pairs)),
            Protocol::Resp3 => self.prefixed(b'%', pairs.into()),
        }
    }

    /// Five numbers in a list, as decisions are answered: put together beside the answers, so that they are copied once.
    #[inline]
    pub fn numbers(&mut self, numbers: [i64; 5]) {
        let mut text = [0; 5 * LINE_LEN_MAX];
        let mut at = text.len();
        for number in numbers.into_iter().rev() {
            at = push_front(&mut text, at, b':', number);
        }
        self.out.reserve(4 + text.len());
        self.out.extend_from_slice(b"*5\r\n");
        self.out.extend_from_slice(&text[at..]);
    }

    #[inline]
    fn prefixed(&mut self, kind: u8, number: i64) {
        // Put together beside it: one copy is cheaper than four.
        let mut line = [0; LINE_LEN_MAX];
        let at = push_front(&mut line, LINE_LEN_MAX, kind, number);
        self.out.extend_from_slice(&line[at..]);
    }

    /// A line, in which a line end would begin another answer.
    fn line(&mut self, kind: u8, text: &str) {
        self.out.push(kind);
        self.out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A kind, a sign, 19 digits and a line end.
const LINE_LEN_MAX: usize = 23;

/// Writes a line that ends before `end`, from its end on. Returns where it begins.
#[inline]
fn push_front(text: &mut [u8], end: usize, kind: u8, number: i64) -> usize {
    let (mut at, mut left) = (end - 2, number.unsigned_abs());
    text[at..end].copy_from_slice(b"\r\n");
    loop {
        at -= 1;
        text[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    text[at - 1] = kind;
    at - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Replies, Reply};

    fn written(protocol: Protocol, write: impl FnOnce(&mut Answers<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Answers::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn five_numbers_are_a_list_of_them() {
        for numbers in [[0, -1, 7, 10, 99], [i64::MIN, i64::MAX, i64::MIN, i64::MAX, i64::MIN]] {
            let one_by_one = |answers: &mut Answers<'_>| {
                answers.list(5);
                numbers.into_iter().for_each(|number| answers.number(number));
            };
            assert_eq!(
                written(Protocol::Resp2, |answers| answers.numbers(numbers)),
                written(Protocol::Resp2, one_by_one)
            );
        }
    }

    #[test]
    fn answers_are_what_a_client_reads() {
        let all = |answers: &mut Answers<'_>| {
            answers.list(6);
            answers.number(i64::MIN);
            answers.text(b"a\r\nb");
            answers.nothing();
            answers.status("OK");
            answers.error("ERR", "two\r\nlines");
            answers.map(1);
            answers.text(b"k");
            answers.number(7);
        };
        let mut replies = Replies::default();
        replies.room().extend_from_slice(written(Protocol::Resp2, all).as_bytes());
        let text = |text: &str| Reply::Text(text.into());
        let expected = vec![
            Reply::Int(i64::MIN),
            text("a\r\nb"),
            Reply::Nil,
            text("OK"),
            Reply::Error("ERR two  lines".to_owned()),
            Reply::List(vec![text("k"), Reply::Int(7)]),
        ];
        assert_eq!(replies.take(), Ok(Some(Reply::List(expected))));
        assert!(replies.is_empty());
        let resp3 = written(Protocol::Resp3, all);
        assert!(resp3.ends_with("_\r\n+OK\r\n-ERR two  lines\r\n%1\r\n$1\r\nk\r\n:7\r\n"), "{resp3}");
    }
}
