//! Tokens as texts, and their hashes.
//!
//! A token is `tg_` and 256 random bits in base64url. Nobody guesses one, so that a fast hash is enough to keep it off the disk:
//! slow hashes (Argon2, bcrypt) are for words that people choose, and here they would only cost the door time that anybody can
//! make it spend. ring hashes and draws, as TLS has it already.
//! Invariant: hashes are compared in constant time, and all of them, whichever matches.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use ring::rand::SecureRandom as _;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use subtle::ConstantTimeEq as _;

/// What a token begins with, so that people and scanners for leaked secrets know one.
const PREFIX: &str = "tg_";
/// Random bytes in a token.
const SECRET_BYTES: usize = 32;
/// Longest text that is looked up, in bytes: ours have 46. The shortest is 1: the hash of nothing must open nothing.
const TOKEN_LEN_MAX: usize = 256;

/// A token that was just made: the only time that its text is there.
pub struct Secret(String);

impl Secret {
    /// From the operating system's randomness.
    ///
    /// # Errors
    /// When it gives none.
    pub fn random() -> Result<Secret, String> {
        let mut bytes = [0; SECRET_BYTES];
        let drawn = ring::rand::SystemRandom::new().fill(&mut bytes);
        drawn.map_err(|_| "the operating system gave no random bytes; try again".to_owned())?;
        Ok(Secret(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// The text, to be shown once.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash::of(self.0.as_bytes())
    }
}

/// A secret is not for logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The SHA-256 of a token.
#[derive(Clone, Copy, Debug)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Of a text that claims to be a token; `None`: it is too short or too long to be one.
    pub(super) fn of_claimed(text: &[u8]) -> Option<Hash> {
        (1..=TOKEN_LEN_MAX).contains(&text.len()).then(|| Hash::of(text))
    }

    /// Of a token's text.
    #[must_use]
    pub fn of(token: &[u8]) -> Hash {
        let digest = ring::digest::digest(&ring::digest::SHA256, token);
        let mut hash = [0; 32];
        hash.copy_from_slice(digest.as_ref());
        Hash(hash)
    }
}

/// In constant time.
impl PartialEq for Hash {
    fn eq(&self, other: &Hash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Hash {}

/// Are these the same bytes? In constant time for bytes of one length, eight at a time: this is asked with every request of a
/// connection, and subtle's own comparison of slices looks at each byte by itself.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let ((one, one_rest), (other, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let words = one.iter().zip(other).map(|(one, other)| u64::from_ne_bytes(*one) ^ u64::from_ne_bytes(*other));
    let rest = one_rest.iter().zip(other_rest).map(|(one, other)| u64::from(one ^ other));
    let difference = words.chain(rest).fold(0, |all, word| all | word);
    difference.ct_eq(&0).into()
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Hash {
    type Err = String;

    /// 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Hash, String> {
        let refusal = || {
            let mut shown: String = text.chars().take(16).flat_map(char::escape_debug).collect();
            if text.chars().count() > 16 {
                let _ = shown.write_char('…');
            }
            format!("\"{shown}\" is no SHA-256; it has 64 hexadecimal digits, as tidegate token new writes them")
        };
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refusal());
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refusal())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refusal())?;
        }
        Ok(Hash(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_256_bits_and_a_prefix() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert!(one.text().starts_with("tg_") && one.text().len() == 46, "{}", one.text().len());
        assert_ne!(one.text(), other.text());
        assert_eq!(one.hash(), Hash::of(one.text().as_bytes()));
        assert!(one.hash() != other.hash());
        assert_eq!(format!("{one:?}"), "Secret(…)");
    }

    #[test]
    fn texts_are_the_same_when_every_byte_is() {
        for len in [0, 1, 7, 8, 9, 46, 64] {
            let text = vec![b'x'; len];
            assert!(same(&text, &text.clone()));
            assert!(!same(&text, &vec![b'x'; len + 1]));
            for at in 0..len {
                let mut other = text.clone();
                other[at] ^= 1;
                assert!(!same(&text, &other), "{at} of {len}");
            }
        }
    }

    #[test]
    fn a_hash_is_written_and_read() {
        // FIPS 180-2's first example.
        let written = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Hash::of(b"abc").to_string(), written);
        assert_eq!(written.parse(), Ok(Hash::of(b"abc")));
        for wrong in ["", "ba78", &written.replace('a', "g"), &"é".repeat(32)] {
            assert!(wrong.parse::<Hash>().unwrap_err().contains("64 hexadecimal digits"), "{wrong}");
        }
        assert_eq!(
            (Hash::of_claimed(&[b'x'; 257]), Hash::of_claimed(b"")),
            (None, None),
            "no token is so long, or so short"
        );
    }
}
