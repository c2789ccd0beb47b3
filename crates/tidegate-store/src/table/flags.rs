//! What a plain decision has to look at besides its key: one word of flags.

use super::Table;
use std::sync::atomic::Ordering::Relaxed;

/// Its limiter is disabled.
pub(super) const DISABLED: u32 = 1;
/// It is asked with several rules.
pub(super) const VARIANTS: u32 = 2;
/// Some keys have limits that were set by hand.
pub(super) const OVERRIDDEN: u32 = 4;
/// The keys that come first are not noted.
pub(super) const UNRANKED: u32 = 8;
/// The latest decisions are kept.
pub(super) const LATEST: u32 = 16;
/// Denials are kept for the log.
pub(super) const DENIALS: u32 = 32;

impl Table {
    /// True when the limiter was disabled.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.flags.load(Relaxed) & DISABLED != 0
    }

    /// Sets the disabled flag, which lives and is saved with the table.
    pub fn set_disabled(&self, disabled: bool) {
        self.set_flag(DISABLED, disabled);
    }

    /// False: the limiter is disabled, or some keys have limits of their own.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.flags.load(Relaxed) & (DISABLED | OVERRIDDEN) == 0
    }

    /// True when some keys have limits that were set by hand.
    #[must_use]
    pub fn is_overridden(&self) -> bool {
        self.flags.load(Relaxed) & OVERRIDDEN != 0
    }

    /// Says whether some keys have limits that were set by hand; see [`Table::is_plain`].
    pub fn set_overridden(&self, overridden: bool) {
        self.set_flag(OVERRIDDEN, overridden);
    }

    /// Says whether the keys that come first are noted; they are from the start.
    pub fn set_ranked(&self, ranked: bool) {
        self.set_flag(UNRANKED, !ranked);
    }

    pub(super) fn is_ranked(&self) -> bool {
        self.flags.load(Relaxed) & UNRANKED == 0
    }

    pub(super) fn set_keeping(&self, latest: bool, denials: bool) {
        self.set_flag(LATEST, latest);
        self.set_flag(DENIALS, denials);
    }

    pub(super) fn keeps_latest(&self) -> bool {
        self.flags.load(Relaxed) & LATEST != 0
    }

    pub(super) fn logs_denials(&self) -> bool {
        self.flags.load(Relaxed) & DENIALS != 0
    }

    pub(super) fn set_flag(&self, flag: u32, is_set: bool) {
        match is_set {
            true => self.flags.fetch_or(flag, Relaxed),
            false => self.flags.fetch_and(!flag, Relaxed),
        };
    }
}
