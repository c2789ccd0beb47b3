//! How `buckets` cuts time into blocks, and how much of it is kept.
//!
//! A parameter of the rules, never part of a state. Block starts are multiples of the resolution.

use crate::{Micros, PERIOD_MAX, PERIOD_MIN};
use std::fmt;

/// A resolution and a history that suit each other.
///
/// ```
/// use tidegate_core::{Micros, buckets::Grid};
/// let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60))?;
/// assert_eq!(grid.block(Micros::from_secs(29)), Micros::from_secs(20));
/// assert_eq!(grid.blocks(), 6);
/// # Ok::<(), tidegate_core::buckets::GridError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grid {
    resolution: Micros,
    history: Micros,
}

/// Most blocks that a key may have: a bound on its memory (256 KiB) and on the work of a decision.
pub const BLOCKS_MAX: u64 = 1 << 14;

impl Grid {
    /// Blocks of `resolution`, kept for `history`.
    ///
    /// # Errors
    /// When either is out of bounds, the history is shorter than one block or has more than
    /// [`BLOCKS_MAX`] of them.
    pub fn new(resolution: Micros, history: Micros) -> Result<Grid, GridError> {
        let bounds = PERIOD_MIN..=PERIOD_MAX;
        if !bounds.contains(&resolution) {
            return Err(GridError::Resolution(resolution));
        }
        if history < resolution {
            return Err(GridError::TooShort { resolution, history });
        }
        if !bounds.contains(&history) {
            return Err(GridError::History(history));
        }
        if history.get() / resolution.get() > BLOCKS_MAX {
            return Err(GridError::TooMany { resolution, history });
        }
        Ok(Grid { resolution, history })
    }

    /// How long a block is.
    #[must_use]
    pub const fn resolution(&self) -> Micros {
        self.resolution
    }

    /// For how long counts are kept.
    #[must_use]
    pub const fn history(&self) -> Micros {
        self.history
    }

    /// How many blocks are kept, at most [`BLOCKS_MAX`].
    #[must_use]
    pub fn blocks(&self) -> usize {
        usize::try_from(self.history.get() / self.resolution.get()).unwrap_or(usize::MAX)
    }

    /// The start of the block that holds this time.
    #[must_use]
    pub const fn block(&self, at: Micros) -> Micros {
        Micros::saturating(at.get() - at.get() % self.resolution.get())
    }

    /// Is this time kept at `now`?
    pub(crate) fn keeps(&self, at: Micros, now: Micros) -> bool {
        self.block(at) >= self.first(self.history, now)
    }

    /// The first block that a check of this period counts at `now`.
    pub(super) const fn first(&self, period: Micros, now: Micros) -> Micros {
        self.block(now).saturating_sub(period)
    }

    /// When a check of this period stops counting the block: at the first block that starts more
    /// than a period after it.
    pub(super) const fn leaves(&self, block: Micros, period: Micros) -> Micros {
        self.block(block.saturating_add(period)).saturating_add(self.resolution)
    }
}

/// Ten minutes, for a day.
impl Default for Grid {
    fn default() -> Grid {
        Grid { resolution: Micros::from_secs(600), history: Micros::from_secs(86_400) }
    }
}

/// Why a resolution and a history were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GridError {
    /// The resolution is out of bounds.
    Resolution(Micros),
    /// The history is out of bounds.
    History(Micros),
    /// The history does not hold one block: it would count nothing.
    TooShort {
        /// The resolution.
        resolution: Micros,
        /// The history.
        history: Micros,
    },
    /// More than [`BLOCKS_MAX`] blocks.
    TooMany {
        /// The resolution.
        resolution: Micros,
        /// The history.
        history: Micros,
    },
}

impl std::error::Error for GridError {}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GridError::Resolution(span) => {
                write!(f, "resolution {span} is outside {PERIOD_MIN} to {PERIOD_MAX}; choose one inside")
            }
            GridError::History(span) => {
                write!(f, "history {span} is outside {PERIOD_MIN} to {PERIOD_MAX}; choose one inside")
            }
            GridError::TooShort { resolution, history } => write!(
                f,
                "history {history} is shorter than one block of resolution {resolution}, so nothing would be counted; \
                 use a history of {resolution} or more, or a finer resolution"
            ),
            GridError::TooMany { resolution, history } => {
                let least = Micros::saturating(history.get().div_ceil(BLOCKS_MAX).div_ceil(1_000) * 1_000);
                write!(
                    f,
                    "history {history} has more than {BLOCKS_MAX} blocks of resolution {resolution}; \
                     use a resolution of {least} or more, or a shorter history"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(resolution: &str, history: &str, part: &str) {
        let span = |text| crate::text::duration(text).unwrap();
        let error = Grid::new(span(resolution), span(history)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn refusals_name_the_remedy() {
        check("10m", "5m", "history 5m is shorter than one block of resolution 10m");
        check("10m", "5m", "use a history of 10m or more");
        check("10m", "367d", "history 367d is outside 1ms to 366d");
        check("367d", "367d", "resolution 367d is outside 1ms to 366d");
        check("1s", "1d", "more than 16384 blocks of resolution 1s; use a resolution of 5274ms or more");
    }
}
