//! A key's bytes as they may stand in a path.

/// Percent-encodes all but letters, digits and `-._~`. Dots are encoded in a key of dots alone, which
/// a path would take for its own.
pub(super) fn encode(bytes: &[u8]) -> String {
    let only_dots = bytes.iter().all(|byte| *byte == b'.');
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') || (*byte == b'.' && !only_dots);
        if plain {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_fit_into_a_path() {
        assert_eq!(encode(b"a-Z_0.9~"), "a-Z_0.9~");
        assert_eq!(encode(b"a/b?c d%\xff\0"), "a%2Fb%3Fc%20d%25%FF%00");
        assert_eq!(encode(b".."), "%2E%2E");
    }
}
