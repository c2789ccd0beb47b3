//! Reads blocks of lines, for whatever format they have. Pure, so that several threads can do it.

use super::access_log::{Attribute, Logged};
use super::format::Format;
use super::input::Block;
use super::parsed::{Asks, How, Parsed, Span};
use super::udp_log::UdpLine;
use super::{access_log, json_log, line, udp_log};
use std::sync::Arc;
use tidegate::LimiterSpec;

/// How lines are read.
#[derive(Clone, Debug)]
pub(super) struct Parser {
    pub(super) format: Format,
    /// Logs: the attributes that are kept, by [`Attribute`].
    pub(super) wanted: [bool; 3],
    /// Logs: the domain of every request.
    pub(super) domain: Option<String>,
    /// Under each policy, by which limiter's keys lines are dealt out to lanes; `None`: all go to the first.
    pub(super) partitions: Vec<Option<Partition>>,
}

/// How lines are dealt out under one policy.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    pub(super) limiter: Arc<LimiterSpec>,
    pub(super) lanes: u8,
}

impl Parser {
    pub(super) fn parse(&self, block: &Block) -> Parsed {
        let mut parsed = Parsed::new(block.first_line, block.text.len());
        match self.format {
            Format::Ndjson => self.trace(block, &mut parsed),
            Format::Clf => self.log(block, &mut parsed, access_log::read),
            Format::NginxJson => self.log(block, &mut parsed, json_log::read),
            Format::Udp => datagrams(block, &mut parsed),
        }
        parsed
    }

    #[expect(clippy::unused_self, reason = "beside the other formats")]
    fn trace(&self, block: &Block, parsed: &mut Parsed) {
        for (place, text) in block.lines() {
            let text = match std::str::from_utf8(text) {
                Ok(text) => text,
                Err(error) => {
                    let byte = error.valid_up_to() + 1;
                    let message = format!("byte {byte} is not UTF-8; write text as UTF-8 or with \\u escapes");
                    parsed.push_bad(place, &message);
                    continue;
                }
            };
            match line::read(text) {
                Ok(read) => parsed.push_line(place, text, &read),
                Err(message) => parsed.push_bad(place, &message),
            }
        }
    }

    fn log<'b, E: ToString>(
        &self,
        block: &'b Block,
        parsed: &mut Parsed,
        read: impl Fn(&'b [u8]) -> Result<Logged<'b>, E>,
    ) {
        let names = Attribute::ALL.map(|attribute| parsed.put(attribute.name().as_bytes()));
        let domain = self.domain.as_ref().map(|domain| parsed.put(domain.as_bytes()));
        for (place, text) in block.lines() {
            match read(text) {
                Ok(logged) => self.logged(parsed, place, names, domain, &logged),
                Err(error) => parsed.push_bad(place, &error.to_string()),
            }
        }
    }

    fn logged(&self, parsed: &mut Parsed, place: usize, names: [Span; 3], domain: Option<Span>, logged: &Logged<'_>) {
        let mut pairs = [None; 3];
        for (index, value) in logged.values.iter().enumerate().filter(|(index, _)| self.wanted[*index]) {
            pairs[index] = value.as_ref().map(|value| (names[index], parsed.put(value)));
        }
        let pairs = parsed.put_pairs(pairs.into_iter().flatten());
        parsed.push(place, logged.at, Span::default(), Asks::Attributes { domain, pairs, how: How::LOGGED });
        if self.partitions.iter().all(Option::is_none) {
            return;
        }
        let lane = |partition: &Partition| {
            let mut attributes = [("", &b""[..]); 3];
            let given =
                Attribute::ALL.iter().zip(&logged.values).filter_map(|(a, value)| Some((a.name(), value.as_deref()?)));
            let count = attributes.iter_mut().zip(given).map(|(slot, pair)| *slot = pair).count();
            let key = partition.limiter.key_of(&attributes[..count]);
            key.map_or(0, |key| lane_of(&key, partition.lanes))
        };
        let mut lanes = [0; 2];
        lanes.iter_mut().zip(&self.partitions).for_each(|(slot, partition)| *slot = partition.as_ref().map_or(0, lane));
        if let Some(entry) = parsed.entries.last_mut() {
            entry.lanes = lanes;
        }
    }
}

/// Lines of a UDP server's log; a reply is passed over.
fn datagrams(block: &Block, parsed: &mut Parsed) {
    for (place, text) in block.lines() {
        match udp_log::read(text) {
            Some(UdpLine::Request { at, datagram }) => {
                let datagram = parsed.put(datagram);
                parsed.push(place, at, Span::default(), Asks::Datagram(datagram));
            }
            Some(UdpLine::Reply) => {}
            None => parsed.push_bad(place, udp_log::PROBLEM),
        }
    }
}

/// Which lane a key belongs to: FNV-1a, its high bits scaled down.
fn lane_of(key: &[u8], lanes: u8) -> u8 {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    u8::try_from(((hash >> 32) * u64::from(lanes)) >> 32).unwrap_or(0)
}
