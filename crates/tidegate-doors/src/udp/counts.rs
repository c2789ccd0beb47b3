//! Uses that are counted and not limited, for `get_stats`: by names that the rules give, and those of
//! keys without a route.
//!
//! They live in the door, as no limiter decides anything here: nothing of it waits for a store. Names are
//! bounded by [`NAMES_MAX`]; idle ones make room, and uses that find none are counted as such.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tidegate::{Limit, Micros};
use tidegate_core::{all_or_nothing, average};

/// Most names.
pub(super) const NAMES_MAX: usize = 1_024;
/// Rates are in requests per this time, as in the original.
const PERIOD: Micros = Micros::from_secs(3);
/// Highest rates are kept by five minutes, aligned to the clock.
const BUCKET: Micros = Micros::from_secs(300);
/// Bytes of a key that a report shows.
const EXAMPLE_LEN_MAX: usize = 200;

/// What was counted since start.
#[derive(Debug)]
pub struct Counts {
    /// It is never reached: an average needs a limit to be an average of.
    limit: Limit,
    names: Mutex<HashMap<Vec<u8>, Tally>>,
    homeless: AtomicU64,
    unrouted: AtomicU64,
    /// Those of `unrouted` that no rule counts, either.
    unknown: AtomicU64,
    reported: AtomicU64,
    wants_example: AtomicBool,
    example: Mutex<Vec<u8>>,
}

/// What a name did.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    average: average::Leaky,
    /// The number of the five minutes of the last use, their highest rate and that of those before.
    number: u64,
    highest: f64,
    previous: f64,
}

/// Keys that no rule knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    /// Uses of such keys since the last report.
    pub uses: u64,
    /// One of the keys, its first 200 bytes.
    pub example: Vec<u8>,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts {
            limit: Limit::new(u32::MAX, PERIOD).expect("a limit within the bounds"),
            names: Mutex::default(),
            homeless: AtomicU64::new(0),
            unrouted: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            wants_example: AtomicBool::new(true),
            example: Mutex::default(),
        }
    }

    /// Counts a use under a name.
    pub(super) fn count(&self, name: Vec<u8>, now: Micros) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX && !names.contains_key(&name) {
            names.retain(|_, tally| !tally.is_idle(now));
        }
        if names.len() >= NAMES_MAX && !names.contains_key(&name) {
            self.homeless.fetch_add(1, Relaxed);
            return;
        }
        names.entry(name).or_default().count(&self.limit, now);
    }

    /// What a name did: its uses, and the whole part of the highest rate of the previous five minutes.
    pub(super) fn get(&self, name: &[u8], now: Micros) -> Option<(u64, u32)> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(name).map(|tally| (tally.requests, tally.last_max_rate(now)))
    }

    /// Counts a use of a key without a route; `counted`: a rule counts it, so that it is no stranger.
    pub(super) fn count_unrouted(&self, key: &[u8], counted: bool) {
        self.unrouted.fetch_add(1, Relaxed);
        if counted {
            return;
        }
        self.unknown.fetch_add(1, Relaxed);
        if self.wants_example.load(Relaxed)
            && let Ok(mut example) = self.example.try_lock()
            && self.wants_example.swap(false, Relaxed)
        {
            *example = key[..key.len().min(EXAMPLE_LEN_MAX)].to_vec();
        }
    }

    /// Uses of keys without a route.
    #[must_use]
    pub fn unrouted(&self) -> u64 {
        self.unrouted.load(Relaxed)
    }

    /// Uses that a rule counts and that found no place among the names.
    #[must_use]
    pub fn homeless(&self) -> u64 {
        self.homeless.load(Relaxed)
    }

    /// What came since the last report of keys that no rule knows; `None`: nothing. How often it is asked
    /// is how often one is logged.
    pub fn report(&self) -> Option<Unknown> {
        let example = self.example.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wants_example.swap(true, Relaxed) {
            return None;
        }
        let unknown = self.unknown.load(Relaxed);
        let uses = unknown - self.reported.swap(unknown, Relaxed);
        (uses > 0).then(|| Unknown { uses, example: example.clone() })
    }
}

impl Tally {
    fn count(&mut self, limit: &Limit, now: Micros) {
        self.requests += 1;
        let rate = all_or_nothing::decide_plain(&mut self.average, limit, now, 1)
            .map_or(0.0, |ruling| ruling.decision.rate.get());
        let (highest, previous) = self.rates_at(now);
        self.number = number(now).max(self.number);
        (self.highest, self.previous) = (highest.max(rate), previous);
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
    fn last_max_rate(&self, now: Micros) -> u32 {
        self.rates_at(now).1 as u32
    }

    /// The highest rates of the five minutes that hold `now` and of those before.
    fn rates_at(&self, now: Micros) -> (f64, f64) {
        match number(now).saturating_sub(self.number) {
            0 => (self.highest, self.previous),
            1 => (0.0, self.highest),
            _ => (0.0, 0.0),
        }
    }

    fn is_idle(&self, now: Micros) -> bool {
        number(now) > self.number + 1
    }
}

fn number(now: Micros) -> u64 {
    now.get() / BUCKET.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    #[test]
    fn a_name_has_its_uses_and_the_highest_rate_of_the_previous_five_minutes() {
        let counts = Counts::new();
        // A burst shows one less than its length: the average of a new key is 0.
        (0..10).for_each(|_| counts.count(b"picard".to_vec(), at(100)));
        let told = |seconds| counts.get(b"picard", at(seconds)).unwrap();
        assert_eq!(
            [told(100), told(299), told(300), told(599), told(600)],
            [(10, 0), (10, 0), (10, 9), (10, 9), (10, 0)]
        );
        (0..2).for_each(|_| counts.count(b"picard".to_vec(), at(650)));
        assert_eq!([told(650), told(900)], [(12, 0), (12, 1)]);
        assert_eq!(counts.get(b"xbmc", at(650)), None);
    }

    #[test]
    fn m6_names_are_bounded_and_idle_ones_make_room() {
        let counts = Counts::new();
        let name = |i: usize| i.to_string().into_bytes();
        (0..NAMES_MAX + 7).for_each(|i| counts.count(name(i), at(0)));
        assert_eq!(counts.homeless(), 7);
        assert_eq!(
            (counts.get(&name(NAMES_MAX - 1), at(0)), counts.get(&name(NAMES_MAX), at(0))),
            (Some((1, 0)), None)
        );
        counts.count(name(3), at(300));
        counts.count(name(NAMES_MAX), at(600));
        assert_eq!(
            (counts.get(&name(3), at(600)), counts.get(&name(NAMES_MAX), at(600))),
            (Some((2, 0)), Some((1, 0)))
        );
        assert_eq!((counts.get(&name(4), at(600)), counts.homeless()), (None, 7));
    }

    #[test]
    fn a_report_tells_of_new_strangers_with_an_example() {
        let counts = Counts::new();
        assert_eq!(counts.report(), None);
        counts.count_unrouted(b"known", true);
        assert_eq!((counts.report(), counts.unrouted()), (None, 1));
        [&b"a"[..], b"b", b"c"].iter().for_each(|key| counts.count_unrouted(key, false));
        assert_eq!(counts.report(), Some(Unknown { uses: 3, example: b"a".to_vec() }));
        assert_eq!(counts.report(), None);
        counts.count_unrouted(&[b'x'; 900], false);
        assert_eq!(counts.report(), Some(Unknown { uses: 1, example: vec![b'x'; 200] }));
        assert_eq!(counts.unrouted(), 5);
    }
}
