//! Time as whole microseconds, bounded so that a double holds it exactly.
//!
//! One type serves for instants (since the epoch) and for spans, as both are compared and
//! subtracted in every algorithm. No clock is read here or anywhere else in this crate.
//! Invariant: the value is below 2^52, so that Lua's doubles and our integers agree.

use std::fmt;

/// Microseconds, always below 2^52 (an instant until the year 2112, or a span of 142 years).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Micros(u64);

impl Micros {
    /// No time at all; as an instant, the epoch.
    pub const ZERO: Micros = Micros(0);
    /// The last representable microsecond.
    pub const MAX: Micros = Micros((1 << 52) - 1);

    /// The value, if it is below 2^52.
    #[must_use]
    pub const fn new(value: u64) -> Option<Micros> {
        if value <= Self::MAX.0 { Some(Micros(value)) } else { None }
    }

    /// The value, or [`Micros::MAX`] if it is larger.
    #[must_use]
    pub const fn saturating(value: u64) -> Micros {
        if value <= Self::MAX.0 { Micros(value) } else { Self::MAX }
    }

    /// Whole milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Micros {
        Self::saturating(ms.saturating_mul(1_000))
    }

    /// Whole seconds, saturating.
    #[must_use]
    pub const fn from_secs(s: u64) -> Micros {
        Self::saturating(s.saturating_mul(1_000_000))
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Milliseconds, rounded up: a wait that a caller is given is never too short.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Seconds, rounded up: a wait that a caller is given is never too short.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// `self + span`, at most [`Micros::MAX`].
    #[must_use]
    pub const fn saturating_add(self, span: Micros) -> Micros {
        Self::saturating(self.0 + span.0)
    }

    /// `self - other`, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// True for zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// `90s`, `1500ms`, `7d`: the largest unit that divides the value, as the configuration writes it.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, us) in crate::text::UNITS {
            if self.0 != 0 && self.0.is_multiple_of(us) {
                return write!(f, "{}{name}", self.0 / us);
            }
        }
        match self.0 {
            0 => f.write_str("0s"),
            us => write!(f, "{us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_below_two_to_the_52() {
        assert_eq!(Micros::new(1 << 52), None);
        assert_eq!(Micros::saturating(u64::MAX), Micros::MAX);
        assert_eq!(Micros::MAX.saturating_add(Micros::MAX), Micros::MAX);
        assert_eq!(Micros::ZERO.saturating_sub(Micros::MAX), Micros::ZERO);
    }

    #[test]
    fn prints_as_the_configuration_writes_it() {
        for text in ["1500ms", "90s", "10m", "2h", "3d", "2w"] {
            assert_eq!(crate::text::duration(text).unwrap().to_string(), text);
        }
    }
}
