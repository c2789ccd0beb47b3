//! A key's bytes as they may stand in a path.

/// Percent-encodes all but letters, digits and `-._~`. Dots are encoded in a key of dots alone, which
/// a path would take for its own.
pub(super) fn encode(bytes: &[u8]) -> String {
    let text = tidegate_wire::percent::encode(bytes);
    if bytes.iter().all(|byte| *byte == b'.') { text.replace('.', "%2E") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_fit_into_a_path() {
        assert_eq!(encode(b"a.b/c\xff"), "a.b%2Fc%FF");
        assert_eq!(encode(b".."), "%2E%2E");
    }
}
