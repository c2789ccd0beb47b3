//! A segment's head: which version wrote it, where the stream stood when it was begun, and how much of it is synced.
//!
//! A mark of 16 bytes, a frame of numbers, and from version two on [how much is synced](super::synced). Segments of versions
//! before are read; the next one that is begun is of this version.

use super::frame::{self, Front};
use super::{Standing, record, synced};
use crate::Epoch;

const MARK_LEN: usize = 16;
const FRAME_HEAD: usize = 12;

/// What a segment's frames are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// Clock and horizon.
    One,
    /// The same, and how much is synced.
    Two,
    /// And the epoch.
    Three,
}

impl Version {
    pub(super) const LATEST: Version = Version::Three;

    pub(super) const fn mark(self) -> &'static [u8; MARK_LEN] {
        match self {
            Version::One => b"tidegate events1",
            Version::Two => b"tidegate events2",
            Version::Three => b"tidegate events3",
        }
    }

    /// Where it is said how much is synced: behind the numbers.
    pub(super) const fn synced_at(self) -> usize {
        MARK_LEN + FRAME_HEAD + if matches!(self, Version::Three) { 24 } else { 16 }
    }

    fn of(bytes: &[u8]) -> Option<Version> {
        [Version::One, Version::Two, Version::Three].into_iter().find(|version| bytes.starts_with(version.mark()))
    }
}

/// What a head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) version: Version,
    pub(super) clock: u64,
    pub(super) horizon_ms: u64,
    /// Versions before have none.
    pub(super) epoch: Option<Epoch>,
    /// So many bytes were synced, at least.
    pub(super) synced: u64,
    /// Where the frames begin.
    pub(super) len: usize,
}

/// Why there is no head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    /// The head was not written to its end.
    Torn,
    /// The bytes are not those that were written: at which byte, and what does not fit.
    Damaged(usize, &'static str),
}

/// A head that is to be written, and how long it is.
pub(super) fn encode(standing: Standing) -> (Vec<u8>, u64) {
    let mut bytes = Version::LATEST.mark().to_vec();
    let Standing { epoch, clock, horizon_ms } = standing;
    frame::push(&mut bytes, &[clock, horizon_ms, epoch.number()].map(u64::to_le_bytes).concat());
    let len = synced::push(&mut bytes);
    (bytes, len)
}

/// Reads the head of a segment.
pub(super) fn read(bytes: &[u8]) -> Result<Head, NoHead> {
    let Some(version) = Version::of(bytes) else {
        let is_beginning = Version::LATEST.mark().starts_with(bytes) || bytes.iter().all(|byte| *byte == 0);
        let other = NoHead::Damaged(0, "it does not begin as a journal of this version does");
        return Err(if is_beginning { NoHead::Torn } else { other });
    };
    let (mut payload, frame_len) = match frame::front(&bytes[MARK_LEN..]) {
        Front::Frame(payload, len) => (payload, len),
        Front::Damaged(_) => return Err(NoHead::Damaged(MARK_LEN, "the head's checksum does not fit")),
        Front::Torn | Front::End => return Err(NoHead::Torn),
    };
    let short = NoHead::Damaged(MARK_LEN, "the head is too short");
    let Some((clock, horizon_ms)) = record::number(&mut payload).zip(record::number(&mut payload)) else {
        return Err(short);
    };
    let epoch = record::number(&mut payload).and_then(Epoch::from_number);
    if version == Version::Three && epoch.is_none() {
        return Err(short);
    }
    let (synced, len) = match version {
        Version::One => (0, MARK_LEN + frame_len),
        version => synced_part(bytes, version.synced_at())?,
    };
    Ok(Head { version, clock, horizon_ms, epoch, synced, len })
}

fn synced_part(bytes: &[u8], at: usize) -> Result<(u64, usize), NoHead> {
    let end = at + synced::LEN;
    match bytes.get(at..).and_then(synced::read) {
        Some(synced) => Ok((synced, end)),
        None if bytes.len() < end => Err(NoHead::Torn),
        None => Err(NoHead::Damaged(at, "the number of synced bytes does not fit its checksum")),
    }
}
