//! What an X.509 certificate (RFC 5280) says of its owner: its names, and from when until when it is valid.
//!
//! Signatures, chains and key usages are rustls' to verify; a client's certificate comes here after that. rustls tells none of
//! this, webpki tells the DNS and URI names alone, and a general parser of X.509 is a dozen crates for three fields; so they
//! are read here, from strict DER: lengths definite and in their shortest form, nothing behind the end. No recursion.
//!
//! A name that could be read in two ways is no name: one with a control character or a byte that its type does not have is
//! left out, and of two common names neither counts.

use crate::calendar::days_from_date;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Most alternative names of one certificate; the rest is left out.
pub const NAMES_MAX: usize = 256;

/// A certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The names that it was made out to.
    pub names: CertificateNames,
    /// The first second in which it is valid, since the epoch.
    pub not_before: u64,
    /// The last second in which it is valid, since the epoch.
    pub not_after: u64,
}

/// The names that a certificate was made out to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CertificateNames {
    /// The common name of its subject, if it has exactly one.
    pub common_name: Option<String>,
    /// Its subject's alternative names as texts: DNS names in lower case, URIs, mail addresses and IP addresses.
    pub alternative_names: Vec<String>,
}

/// It is no certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no X.509 certificate")
    }
}

impl std::error::Error for Malformed {}

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// Reads a certificate.
///
/// # Errors
/// When it is none.
pub fn parse(der: &[u8]) -> Result<Certificate, Malformed> {
    let mut whole = Der(der);
    let mut certificate = Der(whole.expect(SEQUENCE)?);
    whole.end()?;
    let mut fields = Der(certificate.expect(SEQUENCE)?);
    fields.optional(VERSION)?;
    fields.expect(INTEGER)?;
    fields.expect(SEQUENCE)?; // the signature's algorithm
    fields.expect(SEQUENCE)?; // the issuer
    let mut validity = Der(fields.expect(SEQUENCE)?);
    let (not_before, not_after) = (time(validity.next()?)?, time(validity.next()?)?);
    let common_name = common_name(fields.expect(SEQUENCE)?)?;
    fields.expect(SEQUENCE)?; // the key
    let mut alternative_names = Vec::new();
    while let Some((tag, content)) = fields.maybe_next()? {
        if tag == EXTENSIONS {
            alternative_names = extensions(content)?;
        }
    }
    Ok(Certificate { names: CertificateNames { common_name, alternative_names }, not_before, not_after })
}

/// The only common name in a subject.
fn common_name(subject: &[u8]) -> Result<Option<String>, Malformed> {
    let (mut found, mut subject) = (Vec::new(), Der(subject));
    while !subject.is_empty() {
        let mut set = Der(subject.expect(SET)?);
        while !set.is_empty() {
            let mut attribute = Der(set.expect(SEQUENCE)?);
            let (kind, (tag, value)) = (attribute.expect(OID)?, attribute.next()?);
            if kind == COMMON_NAME {
                found.push(matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING).then_some(value).and_then(text));
            }
        }
    }
    let only = if found.len() == 1 { found.pop().flatten() } else { None };
    Ok(only)
}

/// The alternative names in the extensions.
fn extensions(content: &[u8]) -> Result<Vec<String>, Malformed> {
    let (mut names, mut all) = (Vec::new(), Der(Der(content).expect(SEQUENCE)?));
    while !all.is_empty() {
        let mut extension = Der(all.expect(SEQUENCE)?);
        if extension.expect(OID)? != ALTERNATIVE_NAMES {
            continue;
        }
        // Critical or not.
        let value = match extension.next()? {
            (OCTET_STRING, value) => value,
            _ => extension.expect(OCTET_STRING)?,
        };
        let mut listed = Der(Der(value).expect(SEQUENCE)?);
        while let Some((tag, name)) = listed.maybe_next()? {
            names.extend(alternative_name(tag, name).filter(|_| names.len() < NAMES_MAX));
        }
    }
    Ok(names)
}

fn alternative_name(tag: u8, name: &[u8]) -> Option<String> {
    let ascii = || text(name).filter(|text| text.is_ascii() && !text.contains(' '));
    match tag {
        0x81 | 0x86 => ascii(),
        0x82 => ascii().map(|name| name.to_ascii_lowercase()),
        0x87 => match *name {
            [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).to_string()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(name).ok()?).to_string()),
        },
        // Names in other directories, which nobody writes into a file of ours.
        _ => None,
    }
}

/// A text without control characters.
fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, the only two forms that RFC 5280 allows. A time before 1970 is the epoch.
fn time((tag, text): (u8, &[u8])) -> Result<u64, Malformed> {
    let (digits, century) = match (tag, text) {
        (UTC_TIME, [digits @ .., b'Z']) if digits.len() == 12 => (digits, None),
        (GENERALIZED_TIME, [digits @ .., b'Z']) if digits.len() == 14 => {
            (&digits[2..], Some(i64::from(two(&digits[..2])?)))
        }
        _ => return Err(Malformed),
    };
    let mut parts = [0; 6];
    for (part, digits) in parts.iter_mut().zip(digits.chunks(2)) {
        *part = two(digits)?;
    }
    let [year, month, day, hour, minute, second] = parts;
    let century = century.unwrap_or(if year >= 50 { 19 } else { 20 });
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return Err(Malformed);
    }
    let days = days_from_date(century * 100 + i64::from(year), month.into(), day.into());
    let of_day = u64::from(hour) * 3_600 + u64::from(minute) * 60 + u64::from(second);
    Ok(u64::try_from(days).map_or(0, |days| days * 86_400 + of_day))
}

fn two(digits: &[u8]) -> Result<u32, Malformed> {
    match *digits {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Ok(u32::from(tens - b'0') * 10 + u32::from(ones - b'0')),
        _ => Err(Malformed),
    }
}

/// What is left of a row of elements.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    /// The next element: its tag and its content.
    fn next(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let [tag, length, rest @ ..] = self.0 else { return Err(Malformed) };
        let (length, rest) = match *length {
            short @ ..=0x7f => (usize::from(short), rest),
            // Up to 16 MiB, in as few bytes as it takes.
            long @ 0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f)).ok_or(Malformed)?;
                let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                let is_shortest = length >= 0x80 && bytes[0] != 0;
                (if is_shortest { length } else { return Err(Malformed) }, rest)
            }
            // No length, or a longer one.
            0x80 | 0x84.. => return Err(Malformed),
        };
        let (content, rest) = rest.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok((*tag, content))
    }

    fn maybe_next(&mut self) -> Result<Option<(u8, &'a [u8])>, Malformed> {
        if self.is_empty() { Ok(None) } else { self.next().map(Some) }
    }

    fn expect(&mut self, wanted: u8) -> Result<&'a [u8], Malformed> {
        match self.next()? {
            (tag, content) if tag == wanted => Ok(content),
            _ => Err(Malformed),
        }
    }

    /// Skips an element of this tag, if it is the next.
    fn optional(&mut self, wanted: u8) -> Result<(), Malformed> {
        if self.0.first() == Some(&wanted) { self.next().map(|_| ()) } else { Ok(()) }
    }
}
