//! Frames: one commit each, whole or not at all.
//!
//! A mark of four bytes, the payload's length, the CRC-32 of length and payload, the payload. A commit
//! is on disk before the next is begun, so that only the last frame of the last segment can be torn.
//! Invariant: bytes that are no frame and have a whole frame behind them are damage, never a torn tail.

const MARK: [u8; 4] = [0xf7, b'T', b'G', 0x1d];
const HEAD: usize = 12;

/// Appends a frame.
pub(super) fn push(out: &mut Vec<u8>, payload: &[u8]) {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&checksum(len, payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// What stands at the front of some bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Front<'a> {
    /// A frame's payload, and how long the frame is.
    Frame(&'a [u8], usize),
    /// Nothing more.
    End,
    /// No whole frame, and none behind it.
    Torn,
    /// No whole frame, but there is one behind it.
    Damaged,
}

/// Looks at the front.
pub(super) fn front(bytes: &[u8]) -> Front<'_> {
    if bytes.is_empty() {
        return Front::End;
    }
    if let Some(payload) = whole(bytes) {
        return Front::Frame(payload, HEAD + payload.len());
    }
    let behind = (1..bytes.len()).filter(|at| bytes[*at..].starts_with(&MARK));
    match behind.into_iter().any(|at| whole(&bytes[at..]).is_some()) {
        true => Front::Damaged,
        false => Front::Torn,
    }
}

fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(&MARK)?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len);
    let payload = rest.get(..usize::try_from(len).ok()?)?;
    (checksum(len, payload) == u32::from_le_bytes(*sum)).then_some(payload)
}

fn checksum(len: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_tail_is_told_from_damage() {
        let mut one = Vec::new();
        push(&mut one, b"first");
        let mut two = one.clone();
        push(&mut two, b"second");
        assert_eq!(front(&two), Front::Frame(b"first", one.len()));
        assert_eq!(front(&[]), Front::End);
        for len in 1..one.len() {
            assert_eq!(front(&one[..len]), Front::Torn, "cut to {len}");
        }
        for at in 0..one.len() {
            let mut flipped = two.clone();
            flipped[at] ^= 1;
            assert_eq!(front(&flipped), Front::Damaged, "bit at {at}");
            assert_eq!(front(&flipped[..one.len()]), Front::Torn, "bit at {at} of the last");
        }
        assert_eq!(front(&[0; 4_096]), Front::Torn, "a file that grew without its bytes");
    }
}
