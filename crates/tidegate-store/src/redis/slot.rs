//! Which slot of a cluster a key is in.

/// Slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// The slot of a key: of what is between its first braces, if there is something.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM: polynomial 0x1021, starting with 0. Hash tags are short, so that a table would not pay.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // CLUSTER KEYSLOT
        for (key, expected) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("user{foo}x", 12_182),
            ("{}foo", 9_500),
            ("tg:{api/ab}:s:user-1", slot(b"api/ab")),
            ("", 0),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(SLOTS, 16_384);
    }
}
