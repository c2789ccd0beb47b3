//! Texts with mistakes in them: nothing that reads them may panic (promise S1).

/// The text with `count` sets of random changes; the same seed makes the same ones.
pub(crate) fn texts(text: &str, seed: u64, count: usize) -> impl Iterator<Item = Vec<u8>> {
    const SPICE: &[u8] = b"\"'[]{}=:.,#\\\n -+eE09x\0\xff\xc3";
    let mut state = seed;
    let mut draw = move |below: usize| {
        // A linear congruential generator; the high bits are random enough to make mistakes with.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % below
    };
    let text = text.as_bytes().to_vec();
    (0..count).map(move |_| {
        let mut bytes = text.clone();
        for _ in 0..=draw(4) {
            let at = draw(bytes.len().max(1));
            match draw(4) {
                0 if at < bytes.len() => bytes[at] = SPICE[draw(SPICE.len())],
                1 => bytes.truncate(at),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at.min(bytes.len()), SPICE[draw(SPICE.len())]),
            }
        }
        bytes
    })
}
