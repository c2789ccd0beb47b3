//! How many bytes of a segment were synced: a number and its CRC-32, rewritten in place after every sync.
//!
//! It lies within a file's first sector, which a disk writes as a whole. Invariant: the number is written after the sync that
//! it counts, so that it is never too large.

use super::head::Version;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

pub(super) const LEN: usize = 12;
/// Where the number is in segments of this version, and where their frames begin.
pub(super) const AT: usize = Version::LATEST.synced_at();
pub(super) const END: usize = AT + LEN;
const _: () = assert!(END <= 512);

/// Appends the number to a head that is to be written, and returns the length of the two.
pub(super) fn push(head: &mut Vec<u8>) -> u64 {
    let len = (head.len() + LEN) as u64;
    head.extend_from_slice(&bytes(len));
    len
}

/// The number; `None`: there is none, or its checksum does not fit.
pub(super) fn read(front: &[u8]) -> Option<u64> {
    let (len, rest) = front.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*len);
    rest.starts_with(&bytes(len)[8..]).then_some(len)
}

/// Rewrites the number, which comes to disk with the next sync at the latest.
pub(super) fn write(file: &mut File, len: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(AT as u64))?;
    file.write_all(&bytes(len))
}

fn bytes(len: u64) -> [u8; LEN] {
    let (mut all, number) = ([0; LEN], len.to_le_bytes());
    all[..8].copy_from_slice(&number);
    all[8..].copy_from_slice(&crc32fast::hash(&number).to_le_bytes());
    all
}
