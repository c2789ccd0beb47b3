//! A block of lines, read: what each line asks, ready to be decided.
//!
//! Lines are read by several threads and decided by others, so nothing here borrows from the input: texts lie end to end in
//! one buffer and entries say where. A block's entries are in the order of its lines.

use super::line::{Ask, Line, Subject};
use tidegate::{Intent, Micros};

/// A block, read.
#[derive(Default, Debug)]
pub(super) struct Parsed {
    text: Vec<u8>,
    pairs: Vec<(Span, Span)>,
    /// The number of the block's first line, from 1.
    pub(super) first_line: u64,
    pub(super) entries: Vec<Entry>,
}

/// Where a text lies in its block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Span {
    start: u32,
    len: u32,
}

/// One line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: Micros,
    /// Its place in the block, from 0.
    pub(super) line: u32,
    /// Which thread decides it, under each policy: see `lanes`.
    pub(super) lanes: [u8; 2],
    /// The time as it was written; empty: it is printed from `at`.
    pub(super) at_text: Span,
    pub(super) asks: Asks,
}

/// What a line asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    /// One limiter, by name.
    Named { limiter: Span, key: Span, how: How },
    /// Every limiter of the domain that the attributes match.
    Attributes { domain: Option<Span>, pairs: (u32, u32), how: How },
    /// A datagram to the UDP door.
    Datagram(Span),
    /// Any other line of a trace, which is read again where it is answered: these are few.
    Other(Span),
    /// The line cannot be read: why, with the remedy.
    Bad(Span),
}

/// How a request counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) cost: u32,
    pub(super) intent: Intent,
    pub(super) op: Option<&'static str>,
}

impl How {
    /// A line of a log: a hit of cost 1.
    pub(super) const LOGGED: How = How { cost: 1, intent: Intent::Hit, op: None };

    /// Is it a request, and no look?
    pub(super) fn counts(&self) -> bool {
        self.intent == Intent::Hit && self.cost > 0
    }
}

impl Parsed {
    pub(super) fn new(first_line: u64, text_len: usize) -> Parsed {
        // A line of a log is about 150 bytes, of which a key of 16 is kept.
        let (text, entries) = (Vec::with_capacity(text_len / 4), Vec::with_capacity(text_len / 64));
        Parsed { text, pairs: Vec::new(), first_line, entries }
    }

    /// The bytes of a text.
    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        &self.text[span.start as usize..][..span.len as usize]
    }

    /// A text that was UTF-8 when it was put in.
    pub(super) fn str(&self, span: Span) -> &str {
        std::str::from_utf8(self.bytes(span)).unwrap_or_default()
    }

    /// The attributes of a request.
    pub(super) fn pairs(&self, (start, end): (u32, u32)) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.pairs[start as usize..end as usize].iter().map(|(name, value)| (self.str(*name), self.bytes(*value)))
    }

    pub(super) fn put(&mut self, text: &[u8]) -> Span {
        let span = Span { start: place(self.text.len()), len: place(text.len()) };
        self.text.extend_from_slice(text);
        span
    }

    pub(super) fn put_pairs(&mut self, pairs: impl Iterator<Item = (Span, Span)>) -> (u32, u32) {
        let start = place(self.pairs.len());
        self.pairs.extend(pairs);
        (start, place(self.pairs.len()))
    }

    /// Takes in the block's `line`-th line.
    pub(super) fn push(&mut self, line: usize, at: Micros, at_text: Span, asks: Asks) {
        self.entries.push(Entry { at, line: place(line), lanes: [0; 2], at_text, asks });
    }

    /// Takes in a line that cannot be read.
    pub(super) fn push_bad(&mut self, line: usize, message: &str) {
        let message = self.put(message.as_bytes());
        self.push(line, Micros::ZERO, Span::default(), Asks::Bad(message));
    }

    /// Takes in a line of a trace.
    pub(super) fn push_line(&mut self, line: usize, text: &str, read: &Line<'_>) {
        let at_text = self.put(read.at_text.as_bytes());
        let asks = match &read.ask {
            Ask::Decide { target, cost, intent, op } => {
                let how = How { cost: *cost, intent: *intent, op: *op };
                match target {
                    Subject::Limiter { name, key } => {
                        let (limiter, key) = (self.put(name.as_bytes()), self.put(key.as_bytes()));
                        Asks::Named { limiter, key, how }
                    }
                    Subject::Domain { domain, attributes } => {
                        let domain = domain.as_ref().map(|domain| self.put(domain.as_bytes()));
                        let put = |(name, value): &(std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
                            (self.put(name.as_bytes()), self.put(value.as_bytes()))
                        };
                        let pairs: Vec<(Span, Span)> = attributes.iter().map(put).collect();
                        Asks::Attributes { domain, pairs: self.put_pairs(pairs.into_iter()), how }
                    }
                }
            }
            Ask::Udp(datagram) => Asks::Datagram(self.put(datagram.as_bytes())),
            _ => Asks::Other(self.put(text.as_bytes())),
        };
        self.push(line, read.at, at_text, asks);
    }
}

/// A place in a block, which is a few MiB at most.
fn place(at: usize) -> u32 {
    u32::try_from(at).expect("a block and what is made of it are far below 4 GiB")
}
