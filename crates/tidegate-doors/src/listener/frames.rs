//! Where bytes of HTTP/2 end: between frames, or inside of a frame or of a head.
//!
//! hyper waits for the rest of a frame, and for the frames that a head is continued in, for as long as a connection lives. So the lengths of
//! frames are followed here, for the time limit that a head of HTTP/1 has. Nothing is kept but where the bytes end, and nothing is judged.

const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// Bytes before a frame's payload: its length, its type, its flags, its stream.
const HEAD_LEN: usize = 9;
/// What a client sends before its first frame.
const PREFACE_LEN: usize = 24;

/// Follows the bytes of one connection, from the preface on.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes of the preface or of the frame's payload that are still to come.
    left: usize,
    /// The beginning of the next frame, and how much of it is here.
    head: [u8; HEAD_LEN],
    head_len: usize,
    /// The last frame began or continued a head, and another has to continue it.
    in_head: bool,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { left: PREFACE_LEN, head: [0; HEAD_LEN], head_len: 0, in_head: false }
    }
}

impl Frames {
    /// Follows these bytes. True: they end inside of the preface, of a frame or of a head.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return self.left > 0 || self.head_len > 0 || self.in_head;
            }
            let (more, rest) = bytes.split_at(bytes.len().min(HEAD_LEN - self.head_len));
            self.head[self.head_len..self.head_len + more.len()].copy_from_slice(more);
            self.head_len += more.len();
            bytes = rest;
            if self.head_len == HEAD_LEN {
                self.begin();
            }
        }
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        self.head_len = 0;
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.in_head = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, len: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, len, kind, flags, 0, 0, 0, 1];
        bytes.extend(vec![0x41; len.into()]);
        bytes
    }

    /// Frames in a row, each with whether the bytes up to its end end inside of something.
    #[track_caller]
    fn check(frames: &[(Vec<u8>, bool)]) {
        let (mut whole, mut by_byte) = (Frames::default(), Frames::default());
        let preface = [0; PREFACE_LEN];
        assert!(whole.follow(&preface[..10]) && !whole.follow(&preface[10..]));
        assert!(!by_byte.follow(&preface));
        for (bytes, inside) in frames {
            assert_eq!(whole.follow(bytes), *inside, "{bytes:?}");
            for (at, byte) in bytes.iter().enumerate() {
                let is_inside = by_byte.follow(&[*byte]);
                assert_eq!(is_inside, at + 1 < bytes.len() || *inside, "byte {at} of {bytes:?}");
            }
        }
        let all: Vec<u8> = preface.into_iter().chain(frames.iter().flat_map(|(bytes, _)| bytes.clone())).collect();
        let last = frames.last().is_some_and(|(_, inside)| *inside);
        assert_eq!(Frames::default().follow(&all), last, "all at once");
    }

    #[test]
    fn a_head_ends_with_its_last_continuation() {
        check(&[
            (frame(4, 0, 6), false),
            (frame(HEADERS, 5, 3), false),
            (frame(0, 1, 100), false),
            (frame(HEADERS, 1, 3), true),
            (frame(CONTINUATION, 0, 0), true),
            (frame(CONTINUATION, 4, 9), false),
            (frame(6, 0, 8), false),
            (frame(HEADERS, 0, 0), true),
        ]);
    }
}
