//! Watches the bytes of an HTTP/1 connection and lets nothing ambiguous through.
//!
//! hyper reads a few things kindly that other servers read otherwise: a line that ends without CR, a
//! length beside a transfer coding, the same length twice. Whoever finds two servers that disagree on
//! where a request ends can hide one inside another. A `#` in a request line, which no client may send, hyper takes
//! with all behind it for a fragment and drops it: so a user named `r1#` would cut off the parameters that a proxy wrote
//! behind the name. Here such bytes are overwritten with a zero before hyper sees them, which it answers with 400 and a closed connection.
//!
//! It follows the framing only: heads, bodies by length, chunks, trailers. It knows nothing of sockets.
//! Invariant: a head that passes has at most one length, at most one transfer coding, `chunked`, and not
//! both, so that there is one way to read it.

/// The watch over one connection.
#[derive(Debug, Default)]
pub struct Strict {
    state: State,
    head: Head,
    /// What stands in for bytes that must not pass.
    poison: u8,
}

/// No part of HTTP/1 allows it, and hyper refuses it at once everywhere but in a chunk's extension.
const POISON: u8 = 0;
/// There it is this: hyper reads an extension to its end, and refuses a line end in it.
const POISON_IN_EXTENSION: u8 = b'\n';

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Between two messages; an empty line may stand here.
    #[default]
    Between,
    BetweenCr,
    RequestLine,
    RequestLineCr,
    /// At the beginning of a field's line, or of the empty one.
    LineStart,
    Name,
    Value,
    ValueCr,
    HeadEndCr,
    Body(u64),
    ChunkSize {
        size: u64,
        digits: u8,
    },
    ChunkExtension(u64),
    ChunkSizeCr(u64),
    Chunk(u64),
    ChunkEnd,
    ChunkEndCr,
    /// Something was wrong: nothing passes any more.
    Bad,
}

/// What a head says of its framing.
#[derive(Debug, Default)]
struct Head {
    is_trailer: bool,
    /// The last bytes of the request line, to know the version.
    version: [u8; 8],
    name: [u8; LONGEST_NAME],
    name_len: usize,
    field: Field,
    lengths: u8,
    length: u64,
    digits: u8,
    codings: u8,
    coding: [u8; CHUNKED.len()],
    coding_len: usize,
    /// Only blanks may follow a value that had some behind it.
    value_ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Field {
    #[default]
    Other,
    Length,
    Coding,
}

const LONGEST_NAME: usize = TRANSFER_ENCODING.len();
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";
const CONTENT_LENGTH: &[u8] = b"content-length";
const CHUNKED: &[u8] = b"chunked";
/// More digits than these make a number that some server cannot hold.
const LENGTH_DIGITS_MAX: u8 = 18;
const CHUNK_DIGITS_MAX: u8 = 15;

impl Strict {
    /// Looks at bytes that came in, in order; overwrites the first that must not pass and all behind it.
    pub fn look(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += match self.state {
                State::Bad => break,
                State::Body(_) | State::Chunk(_) => self.skip(bytes.len() - at),
                State::Between if let Some((length, body)) = plain_head(&bytes[at..]) => {
                    self.head.is_trailer = matches!(body, State::ChunkSize { .. });
                    self.state = body;
                    length
                }
                State::Value if self.head.field == Field::Other && bytes[at] >= b' ' => end_of_line(&bytes[at..]),
                state => {
                    self.state = self.head.next(state, bytes[at]);
                    let in_extension = matches!(state, State::ChunkExtension(_));
                    self.poison = if in_extension { POISON_IN_EXTENSION } else { POISON };
                    usize::from(self.state != State::Bad)
                }
            };
        }
        bytes[at..].fill(self.poison);
    }

    /// Has every message that began ended?
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.state == State::Between
    }

    /// Has a head begun that has not ended?
    #[must_use]
    pub fn is_in_head(&self) -> bool {
        !self.head.is_trailer
            && matches!(
                self.state,
                State::RequestLine
                    | State::RequestLineCr
                    | State::LineStart
                    | State::Name
                    | State::Value
                    | State::ValueCr
                    | State::HeadEndCr
            )
    }

    /// Bytes of a body, all at once.
    fn skip(&mut self, available: usize) -> usize {
        let (State::Body(left) | State::Chunk(left)) = self.state else { return 0 };
        let skipped = left.min(available as u64);
        self.state = match (self.state, left - skipped) {
            (State::Body(_), 0) => State::Between,
            (State::Body(_), left) => State::Body(left),
            (_, 0) => State::ChunkEnd,
            (_, left) => State::Chunk(left),
        };
        usize::try_from(skipped).unwrap_or(available)
    }
}

/// The length of a head that is all here and written as nearly all clients write it, and what follows it. `None`: it is looked at
/// byte by byte, which says what is wrong with it, if anything is.
fn plain_head(bytes: &[u8]) -> Option<(usize, State)> {
    let (line, mut rest) = bytes.split_at(find(bytes, |word| below(word, b' ') | equal(word, b'#')));
    rest = rest.strip_prefix(b"\r\n").filter(|_| line.first().is_some_and(u8::is_ascii_graphic))?;
    let mut body = None;
    while !rest.starts_with(b"\r\n") {
        let (name, behind) = rest.split_at(find(rest, end_of_name));
        let value = behind.strip_prefix(b":").filter(|_| !name.is_empty())?;
        rest = match Field::of(name) {
            Field::Other => value[end_of_line(value)..].strip_prefix(b"\r\n")?,
            Field::Length if body.is_none() => {
                let (length, behind) = plain_length(value)?;
                body = Some(body_of(length));
                behind
            }
            Field::Coding if body.is_none() && line.ends_with(b"HTTP/1.1") => {
                body = Some(State::ChunkSize { size: 0, digits: 0 });
                value.strip_prefix(b" chunked\r\n")?
            }
            Field::Length | Field::Coding => return None,
        };
    }
    Some((bytes.len() - rest.len() + 2, body.unwrap_or(State::Between)))
}

/// A length, and what is behind its line: one blank and digits.
fn plain_length(value: &[u8]) -> Option<(u64, &[u8])> {
    let digits = value.strip_prefix(b" ")?;
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, behind) =
        digits.split_at_checked(count).filter(|_| (1..=LENGTH_DIGITS_MAX.into()).contains(&count))?;
    let length = digits.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0'));
    Some((length, behind.strip_prefix(b"\r\n")?))
}

fn body_of(length: u64) -> State {
    if length == 0 { State::Between } else { State::Body(length) }
}

/// Where the first control character is: at the end of a value, unless a tab stands in it.
fn end_of_line(value: &[u8]) -> usize {
    find(value, |word| below(word, b' '))
}

/// Where the first byte of a kind is, or the end. Eight bytes are looked at as one word, in which `marks` sets the highest bit of
/// each byte of the kind; only the first mark need be right.
#[inline]
fn find(bytes: &[u8], marks: impl Fn(u64) -> u64) -> usize {
    let marks = |word: [u8; 8]| marks(u64::from_le_bytes(word));
    let first = |marks: u64| marks.trailing_zeros() as usize / 8;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marked = marks(*word);
        if marked != 0 {
            return index * 8 + first(marked);
        }
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    bytes.len() - rest.len() + first(marks(last)).min(rest.len())
}

/// A byte in each of the eight places of a word.
const fn in_each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Marks bytes below a bound, at most 128: they borrow from their highest bit, which others have already.
fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(in_each(bound)) & !word & in_each(0x80)
}

fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ in_each(byte), 1)
}

/// Marks a colon, and whatever is not graphic: up to a space, and from DEL on.
fn end_of_name(word: u64) -> u64 {
    let from_del = ((word & in_each(0x7f)) + in_each(1)) | word;
    equal(word, b':') | below(word, b'!') | (from_del & in_each(0x80))
}

impl Field {
    fn of(name: &[u8]) -> Field {
        match name.len() {
            14 if is_name(name, CONTENT_LENGTH) => Field::Length,
            17 if is_name(name, TRANSFER_ENCODING) => Field::Coding,
            _ => Field::Other,
        }
    }
}

/// Are they the same but for case? Both are as long, and graphic: then the bit that makes a letter a small one makes no other byte
/// equal to a letter or a hyphen. Eight bytes are compared as one word.
#[inline]
fn is_name(name: &[u8], small: &[u8]) -> bool {
    let last = small.len() - 8;
    let word = |bytes: &[u8], at: usize| bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
    [0, last.min(8), last].iter().all(|at| word(name, *at).map(|word| word | in_each(0x20)) == word(small, *at))
}

impl Head {
    /// One byte further.
    fn next(&mut self, state: State, byte: u8) -> State {
        match (state, byte) {
            (State::Between, b'\r') => State::BetweenCr,
            (State::BetweenCr, b'\n') => State::Between,
            (State::Between, b'!'..=b'~') if byte != b'#' => {
                *self = Head::default();
                self.request_line(byte)
            }
            (State::RequestLine, b'\r') => State::RequestLineCr,
            (State::RequestLine, b' '..) if byte != b'#' => self.request_line(byte),
            (State::RequestLineCr, b'\n') | (State::ValueCr, b'\n') => State::LineStart,
            (State::LineStart, b'\r') => State::HeadEndCr,
            // A blank here would go on with the line before; some servers take it so, and some do not.
            (State::LineStart, b'!'..=b'~') if byte != b':' => {
                self.name_len = 0;
                self.name(byte)
            }
            (State::Name, b':') => self.field(),
            (State::Name, b'!'..=b'~') => self.name(byte),
            (State::Value, b'\r') => self.value_end(),
            (State::Value, _) => self.value(byte),
            (State::HeadEndCr, b'\n') => self.end(),
            _ => chunks(state, byte),
        }
    }

    fn request_line(&mut self, byte: u8) -> State {
        self.version.rotate_left(1);
        self.version[7] = byte;
        State::RequestLine
    }

    fn name(&mut self, byte: u8) -> State {
        if let Some(slot) = self.name.get_mut(self.name_len) {
            *slot = byte.to_ascii_lowercase();
        }
        self.name_len += 1;
        State::Name
    }

    fn field(&mut self) -> State {
        self.begin_value(self.name.get(..self.name_len).map_or(Field::Other, Field::of))
    }

    fn begin_value(&mut self, field: Field) -> State {
        self.field = field;
        match field {
            // Framing that comes after the body would be a second opinion.
            _ if self.is_trailer && field != Field::Other => return State::Bad,
            Field::Other => {}
            Field::Length => self.lengths += 1,
            Field::Coding => self.codings += 1,
        }
        self.value_ended = false;
        if self.lengths + self.codings > 1 { State::Bad } else { State::Value }
    }

    /// One byte of a value. Of a length or a coding, blanks may stand on both sides and nowhere else.
    fn value(&mut self, byte: u8) -> State {
        let begun = if self.field == Field::Length { self.digits > 0 } else { self.coding_len > 0 };
        match (self.field, byte) {
            (Field::Other, b'\t' | b' '..) => {}
            (_, b' ' | b'\t') => self.value_ended = begun,
            _ if self.value_ended => return State::Bad,
            (Field::Length, b'0'..=b'9') if self.digits < LENGTH_DIGITS_MAX => {
                self.digits += 1;
                self.length = self.length * 10 + u64::from(byte - b'0');
            }
            (Field::Coding, byte) if self.coding_len < CHUNKED.len() => {
                self.coding[self.coding_len] = byte.to_ascii_lowercase();
                self.coding_len += 1;
            }
            _ => return State::Bad,
        }
        State::Value
    }

    fn value_end(&self) -> State {
        let whole = match self.field {
            Field::Length => self.digits > 0,
            Field::Coding => self.coding == CHUNKED && self.coding_len == CHUNKED.len(),
            Field::Other => true,
        };
        if whole { State::ValueCr } else { State::Bad }
    }

    /// The empty line: what follows?
    fn end(&mut self) -> State {
        match (self.codings, self.length) {
            _ if self.is_trailer => State::Between,
            (1, _) if &self.version != b"HTTP/1.1" => State::Bad,
            (1, _) => {
                self.is_trailer = true;
                State::ChunkSize { size: 0, digits: 0 }
            }
            (_, length) => body_of(length),
        }
    }
}

/// The framing of chunks. After the last one the trailer is read like a head.
fn chunks(state: State, byte: u8) -> State {
    match (state, byte) {
        (State::ChunkSize { size, digits }, _) if byte.is_ascii_hexdigit() && digits < CHUNK_DIGITS_MAX => {
            let digit = char::from(byte).to_digit(16).unwrap_or(0);
            State::ChunkSize { size: size * 16 + u64::from(digit), digits: digits + 1 }
        }
        (State::ChunkSize { size, digits: 1.. }, b';') => State::ChunkExtension(size),
        (State::ChunkSize { size, digits: 1.. } | State::ChunkExtension(size), b'\r') => State::ChunkSizeCr(size),
        (State::ChunkExtension(size), b'\t' | b' '..=b'~') => State::ChunkExtension(size),
        (State::ChunkSizeCr(0), b'\n') => State::LineStart,
        (State::ChunkSizeCr(size), b'\n') => State::Chunk(size),
        (State::ChunkEnd, b'\r') => State::ChunkEndCr,
        (State::ChunkEndCr, b'\n') => State::ChunkSize { size: 0, digits: 0 },
        _ => State::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text passes up to `|`, and nothing behind it. Without a `|` all of it passes.
    /// Cut into pieces at every place, the outcome is the same.
    #[track_caller]
    fn check(text: &str) {
        let passes = text.find('|').unwrap_or(text.len());
        let whole = text.replacen('|', "", 1).into_bytes();
        for cut in 0..=whole.len() {
            let (mut strict, mut bytes) = (Strict::default(), whole.clone());
            let (first, second) = bytes.split_at_mut(cut);
            strict.look(first);
            strict.look(second);
            assert_eq!(bytes[..passes], whole[..passes], "cut at {cut}: {text:?}");
            let in_extension = text[..passes].rsplit('\n').next().is_some_and(|line| line.contains(";a"));
            let poison = if in_extension { POISON_IN_EXTENSION } else { POISON };
            assert!(bytes[passes..].iter().all(|byte| *byte == poison), "cut at {cut}: {text:?}");
        }
    }

    #[test]
    fn messages_with_one_reading_pass() {
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        check("GET / HTTP/1.1\r\n\r\nGET /2 HTTP/1.0\r\nA: b\r\n\r\n");
        check("\r\nGET / HTTP/1.1\r\nA:\r\nB: \t\r\n\r\n");
        check(
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n\n\0\r\n\nGET / HTTP/1.1\r\n\r\n".replace('\0', "x").as_str(),
        );
        check("POST / HTTP/1.1\r\ncontent-length:0 \r\n\r\nGET / HTTP/1.1\r\n\r\n");
        check(
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\t\r\n\r\n5;a=\"b\"\r\n\r\n\r\n\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        );
        check(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n000\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        );
        check("GET / HTTP/1.1\r\nX-Content-Length: 5, 5\r\nTransfer-Encoding-X: y\r\n\r\n");
        check("GET / HTTP/1.1\r\nA: caf\u{e9}\r\n\r\n");
    }

    #[test]
    fn p8_messages_with_two_readings_do_not() {
        check("GET / HTTP/1.1|\nHost: a\n\n");
        check("GET / HTTP/1.1\r\nHost: a|\n\r\n");
        check("GET / HTTP/1.1\r\nHost: a\r|Evil: b\r\n\r\n");
        check("GET / HTTP/1.1\r\nHost: a\r\n\r|GET");
        check("GET / HTTP/1.1\r\nHost: a\r\n|\n");
        check("|\nGET / HTTP/1.1\r\n\r\n");
        check("GET / HTTP/1.1\r\nHost| : a\r\n\r\n");
        check("GET / HTTP/1.1\r\n| Folded: a\r\n\r\n");
        check("GET / HTTP/1.1\r\nA: b\r\n|\tfolded\r\n\r\n");
        check("GET / HTTP/1.1\r\n|: a\r\n\r\n");
        check("GET / HTTP/1.1\r\nA: b\u{1}\r\n".replace('\u{1}', "|\u{1}").as_str());
        let post = "POST / HTTP/1.1\r\n";
        check(&format!("{post}Content-Length: 5\r\nTransfer-Encoding|: chunked\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: chunked\r\nContent-Length|: 5\r\n\r\n"));
        check(&format!("{post}Content-Length: 5\r\ncontent-length|: 5\r\n\r\n"));
        check(&format!("{post}Content-Length: 5|, 5\r\n\r\n"));
        check(&format!("{post}Content-Length: 5 |5\r\n\r\n"));
        check(&format!("{post}Content-Length: |+5\r\n\r\n"));
        check(&format!("{post}Content-Length: |-5\r\n\r\n"));
        check(&format!("{post}Content-Length: 0|x5\r\n\r\n"));
        check(&format!("{post}Content-Length: |\r\n\r\n"));
        check(&format!("{post}Content-Length: 123456789012345678|9\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding|: chunked\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: chunked|, chunked\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: gzip, |chunked\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: chunke|\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: xchunke|d\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: \u{b}chunke|d\r\n\r\n"));
        check(&format!("{post}Transfer-Encoding: |\r\n\r\n"));
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r|\n");
        check("POST / HTTP/1.1 \r\nTransfer-Encoding: chunked\r\n\r|\n");
    }

    #[test]
    fn p8_a_request_line_has_no_fragment() {
        check("GET /v1/allowed?user=r1|#&ip=192.0.2.1 HTTP/1.1\r\nHost: a\r\n\r\n");
        check("GET /|# HTTP/1.0\r\n\r\n");
        check("|#GET / HTTP/1.1\r\n\r\n");
        check("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n#GET /|# HTTP/1.1\r\n\r\n");
        check("GET / HTTP/1.1\r\nReferer: /a#b\r\n\r\n");
    }

    #[test]
    fn p8_chunks_with_two_readings_do_not() {
        let post = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        check(&format!("{post}5|\nhello"));
        check(&format!("{post}5| \r\nhello\r\n"));
        check(&format!("{post}0|x5\r\nhello\r\n"));
        check(&format!("{post}|\r\n"));
        check(&format!("{post}|;a=b\r\n"));
        check(&format!("{post}|-5\r\n"));
        check(&format!("{post}5\r\nhello|\n0\r\n"));
        check(&format!("{post}5\r\nhello|x\r\n0\r\n"));
        check(&format!("{post}5;a|\nhello\r\n0\r\n"));
        check(&format!("{post}0\r\n|\n"));
        check(&format!("{post}0\r\nContent-Length|: 5\r\n\r\n"));
        check(&format!("{post}FFFFFFFFFFFFFFF|F\r\n"));
    }
}
