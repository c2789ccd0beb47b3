//! What a limit counts for: a key of 1 to 512 bytes of any kind.

use std::fmt;

/// Longest key we store. Longer keys are refused at the door, never cut: a cut key would share a
/// bucket with another.
pub const KEY_LEN_MAX: usize = 512;

/// Why a key was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// It has no bytes.
    Empty,
    /// It has more than [`KEY_LEN_MAX`] bytes.
    TooLong(usize),
}

/// Checks a key's length; past this, code trusts it.
///
/// # Errors
/// When it is empty or longer than [`KEY_LEN_MAX`].
pub const fn check_key(key: &[u8]) -> Result<(), KeyError> {
    match key.len() {
        0 => Err(KeyError::Empty),
        1..=KEY_LEN_MAX => Ok(()),
        len => Err(KeyError::TooLong(len)),
    }
}

impl std::error::Error for KeyError {}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Empty => write!(f, "the key is empty; use 1 to {KEY_LEN_MAX} bytes"),
            KeyError::TooLong(len) => {
                write!(f, "the key has {len} bytes, more than {KEY_LEN_MAX}; use a shorter one, such as a hash of it")
            }
        }
    }
}
