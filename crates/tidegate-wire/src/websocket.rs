//! WebSocket frames of a server (RFC 6455): masked ones in, plain ones out.
//!
//! Only framing: the handshake is HTTP's, and what messages mean is another's business.
//! Invariant: no frame is longer than [`PAYLOAD_MAX`], and none is kept that is not all there.

use std::fmt;

/// Largest message of a client, over all its frames.
pub const PAYLOAD_MAX: usize = 64 * 1024;
/// Longest head of a frame.
pub const HEAD_MAX: usize = 14;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode {
    /// More of the message before.
    Continuation,
    /// Text.
    Text,
    /// Bytes.
    Binary,
    /// The end.
    Close,
    /// Are you there?
    Ping,
    /// I am.
    Pong,
}

const OPCODES: [(u8, Opcode); 6] = [
    (0, Opcode::Continuation),
    (1, Opcode::Text),
    (2, Opcode::Binary),
    (8, Opcode::Close),
    (9, Opcode::Ping),
    (10, Opcode::Pong),
];

/// A frame's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it is.
    pub opcode: Opcode,
    /// Whether its message ends with it.
    pub is_last: bool,
    /// How long the head is.
    pub head_len: usize,
    /// How long the payload is.
    pub payload_len: usize,
    mask: [u8; 4],
}

/// Why a client's bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Clients must mask.
    Unmasked,
    /// Reserved bits or an opcode that is not defined.
    Reserved,
    /// A control frame of more than 125 bytes, or in parts.
    Control,
    /// A continuation of nothing, or a message within a message.
    Order,
    /// More than [`PAYLOAD_MAX`] bytes.
    TooLarge,
}

impl Violation {
    /// The status of the close frame that answers it.
    #[must_use]
    pub fn status(self) -> u16 {
        if self == Violation::TooLarge { 1009 } else { 1002 }
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Unmasked => f.write_str("a client's frames must be masked"),
            Violation::Reserved => f.write_str("the frame has reserved bits or an unknown opcode"),
            Violation::Control => f.write_str("a control frame has at most 125 bytes and is whole"),
            Violation::Order => f.write_str("the frame does not follow the one before"),
            Violation::TooLarge => write!(f, "the message has more than {PAYLOAD_MAX} bytes; send less"),
        }
    }
}

/// Reads the head at the front; `None`: more bytes are needed.
///
/// # Errors
/// When no frame of a client begins like this.
pub fn read_head(bytes: &[u8]) -> Result<Option<Head>, Violation> {
    let [first, second, ..] = *bytes else { return Ok(None) };
    let known = OPCODES.iter().find(|(code, _)| *code == first & 0x0f);
    let Some((_, opcode)) = known.filter(|_| first & 0x70 == 0) else { return Err(Violation::Reserved) };
    if second & 0x80 == 0 {
        return Err(Violation::Unmasked);
    }
    let is_last = first & 0x80 != 0;
    let short = second & 0x7f;
    let is_control = matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong);
    if is_control && (short > 125 || !is_last) {
        return Err(Violation::Control);
    }
    let (len_bytes, rest) = bytes[2..].split_at(match short {
        126 => 2.min(bytes.len() - 2),
        127 => 8.min(bytes.len() - 2),
        _ => 0,
    });
    let len = match (short, len_bytes) {
        (126, [a, b]) => u64::from(u16::from_be_bytes([*a, *b])),
        (127, bytes) if bytes.len() == 8 => bytes.iter().fold(0, |len, byte| len << 8 | u64::from(*byte)),
        (126 | 127, _) => return Ok(None),
        (short, _) => u64::from(short),
    };
    let payload_len = usize::try_from(len).ok().filter(|len| *len <= PAYLOAD_MAX).ok_or(Violation::TooLarge)?;
    let Some(mask) = rest.first_chunk::<4>() else { return Ok(None) };
    let head_len = 2 + len_bytes.len() + 4;
    Ok(Some(Head { opcode: *opcode, is_last, head_len, payload_len, mask: *mask }))
}

impl Head {
    /// Takes the mask off a payload.
    pub fn unmask(&self, payload: &mut [u8]) {
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte ^= self.mask[at % 4];
        }
    }
}

/// Puts messages together from their frames.
#[derive(Debug, Default)]
pub struct Assembly {
    message: Vec<u8>,
    is_open: bool,
}

impl Assembly {
    /// Takes a data frame's payload, without its mask; gives the message when it is whole.
    ///
    /// # Errors
    /// When the frame does not follow the one before, or the message is too large.
    pub fn push(&mut self, head: &Head, payload: &[u8]) -> Result<Option<Vec<u8>>, Violation> {
        if (head.opcode == Opcode::Continuation) != self.is_open {
            return Err(Violation::Order);
        }
        if self.message.len() + payload.len() > PAYLOAD_MAX {
            return Err(Violation::TooLarge);
        }
        self.message.extend_from_slice(payload);
        self.is_open = !head.is_last;
        Ok(head.is_last.then(|| std::mem::take(&mut self.message)))
    }
}

/// Appends the head of a whole frame of a server; the payload must follow.
pub fn push_head(out: &mut Vec<u8>, opcode: Opcode, len: usize) {
    let code = OPCODES.iter().find(|(_, known)| *known == opcode).map_or(0, |(code, _)| *code);
    out.push(0x80 | code);
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(len @ ..=125), _) => out.push(len),
        (_, Ok(len)) => {
            out.push(126);
            out.extend_from_slice(&len.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

/// Appends a whole frame of a server.
pub fn push(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    push_head(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// Appends a close frame.
pub fn push_close(out: &mut Vec<u8>, status: u16) {
    push(out, Opcode::Close, &status.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's frame.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut out = vec![first];
        match payload.len() {
            len @ 0..=125 => out.push(0x80 | u8::try_from(len).unwrap()),
            len @ 126..=65_535 => {
                out.push(0x80 | 126);
                out.extend_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            }
            len => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(&mask);
        out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        out
    }

    #[test]
    fn frames_of_every_length_come_through_and_parts_wait() {
        for len in [0, 1, 125, 126, 127, 65_535, 65_536] {
            let payload: Vec<u8> = (0..len).map(|i: usize| i.to_le_bytes()[0]).collect();
            let mut bytes = masked(0x82, &payload);
            let head = read_head(&bytes).unwrap().unwrap();
            assert_eq!((head.opcode, head.is_last, head.payload_len), (Opcode::Binary, true, len));
            for cut in 0..head.head_len {
                assert_eq!(read_head(&bytes[..cut]), Ok(None), "{len} cut to {cut}");
            }
            let rest = &mut bytes[head.head_len..];
            head.unmask(rest);
            assert_eq!(Assembly::default().push(&head, rest).unwrap().unwrap(), payload);
        }
    }

    #[test]
    fn s1_what_clients_must_not_send_is_refused() {
        let check = |bytes: &[u8], expected| assert_eq!(read_head(bytes), Err(expected), "{bytes:?}");
        check(&[0x81, 0x01, b'a'], Violation::Unmasked);
        check(&[0xc1, 0x81, 0, 0, 0, 0, b'a'], Violation::Reserved);
        check(&[0x83, 0x80, 0, 0, 0, 0], Violation::Reserved);
        check(&[0x09, 0x80, 0, 0, 0, 0], Violation::Control);
        check(&masked(0x89, &[0; 126]), Violation::Control);
        check(&masked(0x82, &vec![0; PAYLOAD_MAX + 1]), Violation::TooLarge);
        check(&[0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Violation::TooLarge);
    }

    #[test]
    fn messages_are_put_together_in_order() {
        let head = |bytes: &[u8]| read_head(bytes).unwrap().unwrap();
        let (begin, more, end) = (head(&masked(0x01, b"")), head(&masked(0x00, b"")), head(&masked(0x80, b"")));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.push(&begin, b"a"), Ok(None));
        assert_eq!(assembly.push(&more, b"b"), Ok(None));
        assert_eq!(assembly.push(&end, b"c"), Ok(Some(b"abc".to_vec())));
        assert_eq!(assembly.push(&end, b"c"), Err(Violation::Order));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.push(&begin, &[0; PAYLOAD_MAX]), Ok(None));
        assert_eq!(assembly.push(&begin, b"a"), Err(Violation::Order));
        assert_eq!(assembly.push(&more, b"a"), Err(Violation::TooLarge));
    }

    #[test]
    fn a_servers_frames_are_plain() {
        for (len, head) in
            [(5, vec![0x81, 5]), (126, vec![0x81, 126, 0, 126]), (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0])]
        {
            let mut out = Vec::new();
            push_head(&mut out, Opcode::Text, len);
            assert_eq!(out, head);
        }
        let mut out = Vec::new();
        push_close(&mut out, 1001);
        assert_eq!(out, [0x88, 2, 0x03, 0xe9]);
    }
}
