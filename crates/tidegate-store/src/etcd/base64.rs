//! Bytes as etcd's gateway writes them in JSON: base64 with padding (RFC 4648, section 4).

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends bytes to a text.
pub(crate) fn encode(bytes: &[u8], text: &mut String) {
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
}

/// The bytes of a text, if it is one that [`encode`] writes.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (fours, []) = text.as_bytes().as_chunks::<4>() else { return None };
    for (index, four) in fours.iter().enumerate() {
        let letters = 4 - four.iter().rev().take_while(|letter| **letter == b'=').count();
        if letters < 2 || letters < 4 && index + 1 < fours.len() {
            return None;
        }
        let mut bits = 0;
        for letter in &four[..letters] {
            bits = bits << 6 | u32::from(value(*letter)?);
        }
        let [_, three @ ..] = (bits << (6 * (4 - letters))).to_be_bytes();
        let (kept, dropped) = three.split_at(letters - 1);
        if dropped.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

const fn value(letter: u8) -> Option<u8> {
    match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            let mut written = String::new();
            encode(bytes.as_bytes(), &mut written);
            assert_eq!((written.as_str(), decode(text)), (text, Some(bytes.as_bytes().to_vec())));
        }
    }

    #[test]
    fn all_bytes_come_back_at_all_lengths() {
        let all: Vec<u8> = (0..=255).rev().collect();
        for len in 0..all.len() {
            let mut text = String::new();
            encode(&all[..len], &mut text);
            assert_eq!(decode(&text).as_deref(), Some(&all[..len]));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9*", "Zm 9", "Zh==", "Zm9="] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
