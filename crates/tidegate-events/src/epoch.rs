//! Which history of a stream a clock value belongs to.
//!
//! A stream that lost everything, as one that is kept in memory only does with its server, counts from one again: the same
//! clock value then means two things. So a history has an epoch, which is drawn when it begins and kept where the history
//! is. Invariant: within one epoch a clock value means one thing.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;

/// So many bits, shown as 13 digits: a double holds them, and no two histories of a stream draw the same.
const BITS: u32 = 52;
const DIGITS: usize = 13;

/// A history's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch(u64);

impl Epoch {
    /// A name for a history that begins.
    #[must_use]
    pub fn draw() -> Epoch {
        // The hasher's keys come from the operating system's randomness.
        Epoch(RandomState::new().hash_one(0_u8) >> (u64::BITS - BITS))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Option<Epoch> {
        (number >> BITS == 0).then_some(Epoch(number))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

/// A text that no epoch is shown as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEpoch;

impl std::error::Error for NoEpoch {}

impl fmt::Display for NoEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an epoch has {DIGITS} of 0-9 a-f; send it as a key frame has it")
    }
}

impl FromStr for Epoch {
    type Err = NoEpoch;

    fn from_str(text: &str) -> Result<Epoch, NoEpoch> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != DIGITS || !text.bytes().all(is_digit) {
            return Err(NoEpoch);
        }
        u64::from_str_radix(text, 16).map(Epoch).map_err(|_| NoEpoch)
    }
}

/// How far a subscriber has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The clock value of the last message.
    pub clock: u64,
    /// In which history; `None`: the subscriber does not say, and is taken to mean the one that there is.
    pub epoch: Option<Epoch>,
}

impl From<u64> for Seen {
    fn from(clock: u64) -> Seen {
        Seen { clock, epoch: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_comes_back_from_its_text_and_nothing_else_is_one() {
        for epoch in [Epoch(0), Epoch(0x5f3a), Epoch((1 << BITS) - 1), Epoch::draw()] {
            assert_eq!(epoch.to_string().parse(), Ok(epoch));
            assert_eq!(Epoch::from_number(epoch.number()), Some(epoch));
        }
        for text in ["", "5f3a", "000000000005F", "+00000000005f", "0000000000005f"] {
            assert_eq!(text.parse::<Epoch>(), Err(NoEpoch), "{text}");
        }
        assert_eq!(Epoch::from_number(1 << BITS), None);
        assert_ne!(Epoch::draw(), Epoch::draw());
    }
}
