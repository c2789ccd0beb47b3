//! An answer on its way from the upstream: its head, and how its body is framed.
//!
//! Pure: bytes in a buffer become words. What can be read in two ways is an error, and the client gets 502.

use crate::fields::{may_trail, names_no_field};
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};
use hyper::body::Frame;
use smallvec::SmallVec;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
    pub(crate) keeps_alive: bool,
}

/// What is left of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    Done,
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chunks {
    Size,
    Data(u64),
    DataEnd,
    Trailers,
}

/// Largest head, and largest trailer.
const HEAD_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 100;
/// Longest line with a chunk's size.
const SIZE_LINE_MAX: usize = 1 << 10;

/// Takes a head out of the buffer; `None`: it is not all there yet. Interim answers (1xx) are passed over.
///
/// # Errors
/// When it is no head, too large, or ambiguous.
pub(crate) fn read_head(input: &mut BytesMut, method: &Method) -> io::Result<Option<Head>> {
    while !input.is_empty() {
        let Some(head) = read_one(input, method)? else { return Ok(None) };
        if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fn read_one(input: &mut BytesMut, method: &Method) -> io::Result<Option<Head>> {
    if is_http2(input) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, SpeaksHttp2));
    }
    let (mut fields, mut parsed) = ([const { MaybeUninit::uninit() }; FIELDS_MAX], httparse::Response::new(&mut []));
    let parser = httparse::ParserConfig::default();
    let outcome = parser.parse_response_with_uninit_headers(&mut parsed, input, &mut fields);
    let httparse::Status::Complete(length) = outcome.map_err(|error| bad(&error.to_string()))? else {
        // Bytes that can be no head are refused at once.
        has_no_bare_lf(input)?;
        return if input.len() < HEAD_MAX { Ok(None) } else { Err(bad("the answer's head is too large")) };
    };
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default())
        .map_err(|_| bad("the status is not a number from 100 to 999"))?;
    let is_http11 = parsed.version == Some(1);
    // Filled where it is: what `collect` returns would be copied.
    let mut places = SmallVec::<[Place; 16]>::new();
    places.extend(parsed.headers.iter().map(|field| Place::of(input, field)));
    let bytes = input.split_to(length).freeze();
    check_line_ends(&bytes, &places)?;
    let (headers, about) = fields_of(&bytes, &places)?;
    let framing = framing_of(status, method, &about)?;
    let is_plain = framing != Framing::UntilClose && !(status == StatusCode::NO_CONTENT && about.names_body(method));
    let keeps_alive = is_http11 && is_plain && !about.wants_close;
    Ok(Some(Head { status, headers, framing, keeps_alive }))
}

/// Where a field stands in its head.
struct Place {
    name: Range<usize>,
    value: Range<usize>,
}

impl Place {
    fn of(head: &[u8], field: &httparse::Header<'_>) -> Place {
        let range = |part: &[u8]| {
            let start = part.as_ptr().addr() - head.as_ptr().addr();
            start..start + part.len()
        };
        Place { name: range(field.name.as_bytes()), value: range(field.value) }
    }
}

/// The parser takes a bare LF for a line's end. Before each field, and twice at the end of the head, there must be a whole one; so it
/// must be with the empty lines that may stand in front.
fn check_line_ends(head: &[u8], fields: &[Place]) -> io::Result<()> {
    let blank = head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let are_whole = head[..blank].chunks(2).all(|line| line == b"\r\n")
        && fields.iter().all(|field| head[..field.name.start].ends_with(b"\r\n"))
        && head.ends_with(b"\r\n\r\n");
    if are_whole { Ok(()) } else { Err(bare_lf()) }
}

/// Some clients take a bare LF for a line's end, and some do not.
fn bare_lf() -> io::Error {
    bad("a line of the answer ends without CR")
}

fn has_no_bare_lf(head: &[u8]) -> io::Result<()> {
    let mut before = 0;
    for byte in head {
        if *byte == b'\n' && before != b'\r' {
            return Err(bare_lf());
        }
        before = *byte;
    }
    Ok(())
}

/// The upstream speaks HTTP/2 and nothing else, as servers of gRPC do.
#[derive(Debug)]
pub(crate) struct SpeaksHttp2;

impl std::fmt::Display for SpeaksHttp2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the upstream speaks HTTP/2 only, and requests are forwarded in HTTP/1.1; gRPC cannot be forwarded")
    }
}

impl std::error::Error for SpeaksHttp2 {}

/// Does it begin with a SETTINGS or GOAWAY frame of a whole connection (RFC 9113, 4.1)? So does every server of HTTP/2.
fn is_http2(input: &[u8]) -> bool {
    matches!(input, [0, _, _, 4 | 7, _, 0, 0, 0, 0, ..])
}

/// The fields, whose values stay where they were read: in `head`.
fn fields_of(head: &Bytes, fields: &[Place]) -> io::Result<(HeaderMap, About)> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    let mut about = About::default();
    for Place { name, value } in fields {
        let name = HeaderName::from_bytes(&head[name.clone()]).map_err(|_| bad("a field's name is not valid"))?;
        about.note(&name, &head[value.clone()]);
        if name == CONNECTION && names_no_field(&head[value.clone()]) {
            // Such a field is for the proxy alone, and is noted by now.
            continue;
        }
        let value = HeaderValue::from_maybe_shared(head.slice(value.clone()));
        headers.append(name, value.map_err(|_| bad("a field's value is not valid"))?);
    }
    Ok((headers, about))
}

/// What the fields say of the connection and of the body, noted as they are read.
#[derive(Default)]
struct About {
    codings: u32,
    is_chunked: bool,
    lengths: u32,
    length: Option<u64>,
    wants_close: bool,
}

impl About {
    /// Do the fields speak of a body that this answer itself has? Where there can be none, bytes may follow all the same.
    fn names_body(&self, method: &Method) -> bool {
        *method != Method::HEAD && (self.codings > 0 || self.lengths > 0 && self.length != Some(0))
    }

    fn note(&mut self, name: &HeaderName, value: &[u8]) {
        if *name == CONTENT_LENGTH {
            self.lengths += 1;
            self.length = number(value, 10);
        } else if *name == TRANSFER_ENCODING {
            self.codings += 1;
            self.is_chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if *name == CONNECTION {
            let mut options = value.split(|byte| *byte == b',');
            self.wants_close |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
    }
}

/// How the body ends (RFC 9112, 6.3).
fn framing_of(status: StatusCode, method: &Method, about: &About) -> io::Result<Framing> {
    let bodiless = status.is_informational() || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    if bodiless || *method == Method::HEAD {
        return Ok(Framing::Done);
    }
    match (about.codings, about.lengths, about.length) {
        (1, 0, _) if about.is_chunked => Ok(Framing::Chunks(Chunks::Size)),
        (1.., _, _) => Err(bad("the answer's transfer coding is not chunked alone")),
        (0, 0, _) => Ok(Framing::UntilClose),
        (0, 1, Some(0)) => Ok(Framing::Done),
        (0, 1, Some(length)) => Ok(Framing::Length(length)),
        _ => Err(bad("the answer's length is none, or there are several")),
    }
}

/// Digits and nothing else, and few enough to count.
fn number(digits: &[u8], base: u32) -> Option<u64> {
    let mut values = digits.iter().map(|digit| char::from(*digit).to_digit(base).map(u64::from));
    let is_short = (1..=15).contains(&digits.len());
    is_short.then(|| values.try_fold(0, |number, digit| Some(number * u64::from(base) + digit?))).flatten()
}

impl Framing {
    /// The next piece that is in the buffer; `None`: more must be read, or it is done.
    ///
    /// # Errors
    /// When chunks are broken.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> io::Result<Option<Frame<Bytes>>> {
        match self {
            Framing::Done => Ok(None),
            _ if input.is_empty() => Ok(None),
            Framing::Length(left) => {
                let data = take(input, left);
                if *left == 0 {
                    *self = Framing::Done;
                }
                Ok(Some(Frame::data(data)))
            }
            Framing::UntilClose => Ok(Some(Frame::data(input.split().freeze()))),
            Framing::Chunks(_) => self.next_chunk(input),
        }
    }

    fn next_chunk(&mut self, input: &mut BytesMut) -> io::Result<Option<Frame<Bytes>>> {
        while let Framing::Chunks(chunks) = self {
            match chunks {
                Chunks::Size => match size_line(input)? {
                    None => return Ok(None),
                    Some(0) => *chunks = Chunks::Trailers,
                    Some(size) => *chunks = Chunks::Data(size),
                },
                Chunks::Data(_) if input.is_empty() => return Ok(None),
                Chunks::Data(left) => {
                    let data = take(input, left);
                    if *left == 0 {
                        *chunks = Chunks::DataEnd;
                    }
                    // The end behind it, if it is here: a caller that asks whether the body is over must see it.
                    let frame = Frame::data(data);
                    self.skip_ends(input)?;
                    return Ok(Some(frame));
                }
                Chunks::DataEnd => {
                    if !skip_line_end(input)? {
                        return Ok(None);
                    }
                    *chunks = Chunks::Size;
                }
                Chunks::Trailers => return self.trailers(input),
            }
        }
        Ok(None)
    }

    /// Goes over the end of a chunk, and over that of the body if nothing but it follows.
    fn skip_ends(&mut self, input: &mut BytesMut) -> io::Result<()> {
        if *self == Framing::Chunks(Chunks::DataEnd) && skip_line_end(input)? {
            *self = Framing::Chunks(Chunks::Size);
        }
        if *self == Framing::Chunks(Chunks::Size) && input.starts_with(b"0\r\n\r\n") {
            let _ = input.split_to(5);
            *self = Framing::Done;
        }
        Ok(())
    }

    fn trailers(&mut self, input: &mut BytesMut) -> io::Result<Option<Frame<Bytes>>> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let (length, trailers) = match httparse::parse_headers(input, &mut fields) {
            Ok(httparse::Status::Partial) if input.len() < HEAD_MAX => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(bad("the answer's trailer is too large")),
            Err(error) => return Err(bad(&error.to_string())),
            Ok(httparse::Status::Complete((length, fields))) => {
                has_no_bare_lf(&input[..length])?;
                let mut trailers = HeaderMap::with_capacity(fields.len());
                for field in fields {
                    let name = HeaderName::from_bytes(field.name.as_bytes());
                    let value = HeaderValue::from_bytes(field.value);
                    let (Ok(name), Ok(value)) = (name, value) else {
                        return Err(bad("a trailer is not a valid field"));
                    };
                    if may_trail(&name) {
                        trailers.append(name, value);
                    }
                }
                (length, trailers)
            }
        };
        let _ = input.split_to(length);
        *self = Framing::Done;
        Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)))
    }

    pub(crate) fn is_done(&self) -> bool {
        *self == Framing::Done
    }

    pub(crate) fn ends_with_connection(&self) -> bool {
        *self == Framing::UntilClose
    }

    /// How much is left, if that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Framing::Done => Some(0),
            Framing::Length(left) => Some(*left),
            Framing::Chunks(_) | Framing::UntilClose => None,
        }
    }
}

/// What is here of the next `left` bytes.
fn take(input: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= length as u64;
    input.split_to(length).freeze()
}

/// Takes the line with a chunk's size; `None`: it is not all there yet.
fn size_line(input: &mut BytesMut) -> io::Result<Option<u64>> {
    let Some(end) = input.windows(2).take(SIZE_LINE_MAX).position(|two| two == b"\r\n") else {
        return if input.len() > SIZE_LINE_MAX { Err(bad("a chunk's size is too long")) } else { Ok(None) };
    };
    let line = input.split_to(end + 2);
    if line[..end].contains(&b'\n') {
        return Err(bare_lf());
    }
    let digits = line[..end].split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    number(digits, 16).map(Some).ok_or_else(|| bad("a chunk's size is not a hexadecimal number"))
}

/// Takes CR LF; false: it is not all there yet.
fn skip_line_end(input: &mut BytesMut) -> io::Result<bool> {
    match input.get(..2) {
        None => Ok(false),
        Some(b"\r\n") => {
            let _ = input.split_to(2);
            Ok(true)
        }
        Some(_) => Err(bad("a chunk does not end where it should")),
    }
}

fn bad(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer to GET, given in two pieces cut at every place:
    /// `STATUS BODY[+TRAILERS] [keep]`, or what the error says.
    #[track_caller]
    fn check(answer: &str, expected: &str) {
        for cut in 0..=answer.len() {
            let got =
                read(&answer.as_bytes()[..cut], &answer.as_bytes()[cut..]).unwrap_or_else(|error| error.to_string());
            assert_eq!(got, expected, "cut at {cut}: {answer:?}");
        }
    }

    fn read(first: &[u8], second: &[u8]) -> io::Result<String> {
        let mut input = BytesMut::from(first);
        let mut head = read_head(&mut input, &Method::GET)?;
        let mut rest = Some(second);
        let (mut body, mut trailers) = (Vec::new(), String::new());
        loop {
            if let Some(head) = &mut head {
                while let Some(frame) = head.framing.next(&mut input)? {
                    match frame.into_data() {
                        Ok(data) => body.extend_from_slice(&data),
                        Err(frame) => trailers = format!("+{:?}", frame.into_trailers().unwrap()),
                    }
                }
            }
            let Some(more) = rest.take() else { break };
            input.extend_from_slice(more);
            if head.is_none() {
                head = read_head(&mut input, &Method::GET)?;
            }
        }
        let Some(head) = head else { return Ok("no head".to_owned()) };
        let state = match head.framing {
            Framing::Done => "",
            Framing::UntilClose => " until close",
            _ => " unfinished",
        };
        let keep = if head.keeps_alive { " keep" } else { "" };
        let left = if input.is_empty() { String::new() } else { format!(" left {}", input.len()) };
        let body = String::from_utf8(body).unwrap();
        Ok(format!("{} {body}{trailers}{state}{keep}{left}", head.status.as_u16()))
    }

    #[test]
    fn answers_of_every_framing() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 hello keep");
        check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200  keep");
        check("HTTP/1.1 204 No\r\n\r\n", "204  keep");
        check("HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", "204  keep");
        // A body where none can be: an upstream that sends these may send a body too, which would be read as the next answer.
        check("HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", "204 ");
        check("HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", "204 ");
        check("HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n", "304  keep");
        check("HTTP/1.1 304 Not\r\n\r\n", "304  keep");
        check("HTTP/1.1 200 OK\r\n\r\nhello", "200 hello until close");
        check("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "200 ok");
        check("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok", "200 ok");
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP", "200 ok keep left 4");
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "200 ok keep",
        );
        check("HTTP/1.1 101 Switch\r\nUpgrade: websocket\r\n\r\nbytes", "101  keep left 5");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        check(&format!("{chunked}5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"), "200 hello world keep");
        check(&format!("{chunked}0\r\n\r\n"), "200  keep");
        check(&format!("{chunked}2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"), "200 ok+{\"x-sum\": \"7\"} keep");
        check(
            &format!(
                "{chunked}2\r\nok\r\n0\r\nContent-Length: 0\r\nSet-Cookie: a=b\r\nX-Sum: 7\r\nConnection: x\r\n\r\n"
            ),
            "200 ok+{\"x-sum\": \"7\"} keep",
        );
        check(&format!("{chunked}2\r\nok\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), "200 ok keep");
        check(&format!("{chunked}5\r\nhel"), "200 hel unfinished keep");
    }

    #[test]
    fn answers_with_two_readings_are_errors() {
        let ok = "HTTP/1.1 200 OK\r\n";
        check(
            &format!("{ok}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "the answer's transfer coding is not chunked alone",
        );
        check(
            &format!("{ok}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            "the answer's transfer coding is not chunked alone",
        );
        let lengths = "the answer's length is none, or there are several";
        check(&format!("{ok}Content-Length: 5\r\nContent-Length: 5\r\n\r\n"), lengths);
        check(&format!("{ok}Content-Length: 5, 5\r\n\r\n"), lengths);
        check(&format!("{ok}Content-Length: +5\r\n\r\n"), lengths);
        check(&format!("{ok}Content-Length: 9999999999999999\r\n\r\n"), lengths);
        let chunked = format!("{ok}Transfer-Encoding: chunked\r\n\r\n");
        check(&format!("{chunked}x\r\n"), "a chunk's size is not a hexadecimal number");
        check(&format!("{chunked}\r\n"), "a chunk's size is not a hexadecimal number");
        check(&format!("{chunked}2\r\nokk\r\n"), "a chunk does not end where it should");
    }

    /// The guide says 502 to these, and they were forwarded: httparse reads a bare LF as a line's end.
    #[test]
    fn p8_an_answer_with_a_bare_lf_is_an_error() {
        let without_cr = "a line of the answer ends without CR";
        check("HTTP/1.1 200 OK\nContent-Length: 2\n\nok", without_cr);
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nok", without_cr);
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\nok", without_cr);
        check("HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok", without_cr);
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\nok\r\n\r\n", without_cr);
        check("HTTP/1.1 200 OK\r\nX: y\nContent-Length: 2\r\n\r\nok", without_cr);
        check("HTTP/1.1 200 OK\r\nX: y\nContent-Le", without_cr);
        check("\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", without_cr);
        check("\r\n\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", without_cr);
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        check(&format!("{chunked}2;a\nb\r\nok\r\n0\r\n\r\n"), without_cr);
        check(&format!("{chunked}2\r\nok\r\n0\r\nX-Sum: 7\n\r\n"), without_cr);
    }

    /// The first thing that servers of gRPC send.
    #[test]
    fn an_upstream_of_http2_is_named() {
        let settings = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00";
        let error = read(settings, b"").unwrap_err();
        assert!(error.to_string().contains("the upstream speaks HTTP/2 only"), "{error}");
    }
}
