//! Frames: one commit each, whole or not at all.
//!
//! A mark of four bytes, the payload's length, the CRC-32 of length and payload, the payload. A commit
//! is on disk before the next is begun, so that only the last frame of the last segment can be torn.
//! Invariant: only what a write can leave when it is broken off is a torn tail, that is a frame's beginning, or zeros
//! where its bytes never came. A frame that is there to its end with another checksum is damage, and so are bytes
//! that are no frame's and have a whole frame behind them.

const MARK: [u8; 4] = [0xf7, b'T', b'G', 0x1d];
const HEAD: usize = 12;
/// So many zeros at the end were never written; a frame ends in an event's text or in a number.
const NEVER_CAME_MIN: usize = 64;

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
    /// The beginning of a frame, or zeros, and nothing behind it.
    Torn,
    /// What no write leaves that was broken off.
    Damaged(&'static str),
}

/// Looks at the front.
pub(super) fn front(bytes: &[u8]) -> Front<'_> {
    if bytes.is_empty() {
        return Front::End;
    }
    if let Some(payload) = whole(bytes) {
        return Front::Frame(payload, HEAD + payload.len());
    }
    let mut behind = (1..bytes.len()).filter(|at| bytes[*at..].starts_with(&MARK));
    if behind.any(|at| whole(&bytes[at..]).is_some()) {
        return Front::Damaged("a frame's checksum does not fit, and whole ones follow");
    }
    if never_came(bytes) {
        return Front::Torn;
    }
    if !bytes.starts_with(&MARK) && !MARK.starts_with(bytes) {
        return Front::Damaged("these bytes are not the beginning of a frame");
    }
    let announced = bytes.get(MARK.len()..HEAD).and_then(|head| head.first_chunk()).map(|len| u32::from_le_bytes(*len));
    match announced.and_then(|len| usize::try_from(len).ok()) {
        Some(len) if len <= bytes.len() - HEAD => Front::Damaged("a whole frame's checksum does not fit"),
        _ => Front::Torn,
    }
}

/// True when the end was never written: a disk that lost its power knows a file's new length before its bytes.
fn never_came(bytes: &[u8]) -> bool {
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    zeros == bytes.len() || zeros >= NEVER_CAME_MIN
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
            assert!(matches!(front(&flipped), Front::Damaged(_)), "bit at {at}");
            // A length that is too large looks like a write that was broken off: the journal knows what was synced.
            let is_length = (MARK.len()..MARK.len() + 4).contains(&at);
            let last = front(&flipped[..one.len()]);
            assert!(matches!(last, Front::Damaged(_)) || (is_length && last == Front::Torn), "bit at {at} of the last");
        }
        assert_eq!(front(&[0; 4_096]), Front::Torn, "a file that grew without its bytes");
        let mut long = Vec::new();
        push(&mut long, &[7; 1_000]);
        let whole = long.len();
        long[512..].fill(0);
        assert_eq!(front(&long), Front::Torn, "a frame of which {} bytes never came", whole - 512);
    }
}
