//! Counting and asking apart, for limiters of buckets on the embedded store.

use super::{Gate, Limiter};
use crate::{Analyzed, AskError, Event, Incremented};
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::{Micros, check_key};

impl Gate {
    /// Counts for a key at the time `at` (`None`: now), whatever its limits say. A time that is older than
    /// the history is not counted, and a disabled limiter counts nothing. A time further ahead than the
    /// shortest period counts now.
    ///
    /// # Errors
    /// An unknown limiter, one that does not count in buckets, or a bad key.
    pub fn increment(
        &self,
        limiter: &str,
        key: &[u8],
        count: u32,
        at: Option<Micros>,
    ) -> Result<Incremented, AskError> {
        self.here()?;
        check_key(key)?;
        let live = self.0.live.load();
        let limiter = live.limiter(limiter)?;
        limiter.check_buckets("increment")?;
        if !limiter.is_heeded() {
            return Ok(Incremented { timestamp: at.unwrap_or(self.now()), counted: false });
        }
        let told = limiter.table.increment(&limiter.spec.rules, key, count, at, || self.now());
        let (now, counted) = told.ok_or_else(|| limiter.needs_buckets("increment"))?;
        Ok(Incremented { timestamp: at.unwrap_or(now), counted })
    }

    /// Has a key reached a limit? The first that it has, in definition order, blocks it. Nothing is
    /// counted; a disabled limiter is always fine.
    ///
    /// # Errors
    /// As [`Gate::increment`].
    pub fn analyze(&self, limiter: &str, key: &[u8], if_blocked: IfBlocked) -> Result<Analyzed, AskError> {
        self.here()?;
        check_key(key)?;
        let live = self.0.live.load();
        let limiter = live.limiter(limiter)?;
        limiter.check_buckets("analyze")?;
        if !limiter.is_heeded() {
            return Ok(Analyzed::Ok { at: self.now() });
        }
        let found = limiter.table.analyze(&limiter.spec.rules, key, if_blocked, || self.now());
        let (at, analysis) = found.ok_or_else(|| limiter.needs_buckets("analyze"))?;
        Ok(limiter.analyzed(key, at, analysis))
    }
}

impl Limiter {
    pub(super) fn check_buckets(&self, doing: &'static str) -> Result<(), AskError> {
        match self.spec.rules.algorithm() {
            tidegate_core::Algorithm::Buckets => Ok(()),
            _ => Err(self.needs_buckets(doing)),
        }
    }

    fn needs_buckets(&self, doing: &'static str) -> AskError {
        let algorithm = self.spec.rules.algorithm();
        AskError::NeedsBuckets { limiter: self.spec.name.clone(), algorithm, doing }
    }

    /// A store's analysis with the words for it.
    pub(crate) fn analyzed(&self, key: &[u8], at: Micros, analysis: Analysis) -> Analyzed {
        match analysis {
            Analysis::Ok => Analyzed::Ok { at },
            Analysis::Blocked { until } => Analyzed::Blocked { at, until },
            Analysis::Limited { limit_index, sum, blocked_until } => {
                // A store that answers by other rules in the middle of a reload may know more limits.
                let limits = self.spec.rules.limits();
                let check = limits.get(usize::from(limit_index)).or(limits.first()).copied();
                match check {
                    Some(check) => {
                        Analyzed::Limited(Event { identifier: key.to_vec(), sum, timestamp: at, check, blocked_until })
                    }
                    None => Analyzed::Blocked { at, until: blocked_until },
                }
            }
        }
    }
}
