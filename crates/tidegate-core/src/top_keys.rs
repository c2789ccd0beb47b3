//! The keys that occur most, in bounded memory: Space-Saving over two windows.
//!
//! **Idea.** A fixed number of counters. A key with a counter is counted there. A key without one takes over the smallest:
//! its count goes on from there, as if all of it had been its own, and how much of it may be others' is kept as its error. So a count is
//! never too small, and too large by its error at most; a key that makes up more than 1/[`KEYS`] of what was noted in a window has
//! a counter for certain.
//!
//! **Windows.** Counts since the start would show last week's traffic for ever. There are two summaries, of the window that
//! runs and of the one before, so that a listing covers between one and two windows.
//!
//! **Weights.** At high rates a sample is noted (`sampling.rs`), each of the sample with the number of occurrences that it
//! stands for. Then counts are estimates: the error grows by three standard deviations of what sampling does to them.
//!
//! **Example.** Two counters, a = 5 and b = 2; c occurs: it takes over b's counter and has 3, of which 2 may be b's. If b
//! occurs again, it takes over c's: 4, of which 3 may be others'.
//!
//! **Weakness**: with many keys of the same frequency the smallest counters pass from key to key, and say little; their error
//! says so. Source: Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005).

mod sampling;
mod summary;

pub use sampling::Sampling;

use crate::Micros;
use summary::Summary;

/// Counters of a window.
pub const KEYS: usize = 256;

/// The keys of one kind of occurrence.
#[derive(Clone, Debug)]
pub struct TopKeys {
    window: Micros,
    /// When the running window began; `None`: nothing was noted yet.
    began: Option<Micros>,
    running: Summary,
    before: Summary,
}

/// One of the keys that occurred most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopKey {
    /// Its name.
    pub key: Vec<u8>,
    /// How often it occurred, at most.
    pub count: u64,
    /// How much of that may be wrong.
    pub error: u64,
}

impl TopKeys {
    /// Nothing noted yet.
    #[must_use]
    pub fn new(window: Micros) -> TopKeys {
        TopKeys { window, began: None, running: Summary::default(), before: Summary::default() }
    }

    /// Notes that a key occurred, for `weight` occurrences. `hash` is what the key is known by: two keys of the same hash are
    /// one.
    pub fn note(&mut self, hash: u64, key: &[u8], weight: u16, now: Micros) {
        self.advance(now);
        self.running.note(hash, key, weight);
    }

    /// The `most` keys that occurred most, the first of them most; of those with the same count in the order of their names.
    #[must_use]
    pub fn top(&self, most: usize, now: Micros) -> Vec<TopKey> {
        let empty = Summary::default();
        let (running, before) = match self.age(now) {
            0 => (&self.running, &self.before),
            1 => (&empty, &self.running),
            _ => (&empty, &empty),
        };
        let mut found: Vec<TopKey> = running.known(before).collect();
        // What has no counter in the running window: as those of before count with those of now.
        found.extend(before.known_only_here(running));
        found.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        found.truncate(most);
        found
    }

    /// Since when the occurrences that [`TopKeys::top`] counts were noted.
    #[must_use]
    pub fn since(&self, now: Micros) -> Micros {
        match (self.began, self.age(now)) {
            (Some(began), 0) if !self.before.is_empty() => began.saturating_sub(self.window),
            (Some(began), 0 | 1) => began,
            _ => now,
        }
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.running.bytes() + self.before.bytes()
    }

    /// How many windows ago the running one began.
    fn age(&self, now: Micros) -> u64 {
        self.began.map_or(0, |began| now.saturating_sub(began).get() / self.window.get().max(1))
    }

    fn advance(&mut self, now: Micros) {
        let began = *self.began.get_or_insert(now);
        match self.age(now) {
            // A clock that was set back begins the window again: nothing is kept for longer than a listing says.
            0 => self.began = Some(began.min(now)),
            1 => {
                std::mem::swap(&mut self.running, &mut self.before);
                self.running.clear();
                self.began = Some(began.saturating_add(self.window));
            }
            _ => {
                self.running.clear();
                self.before.clear();
                self.began = Some(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const WINDOW: Micros = Micros::from_secs(600);

    fn name(key: u64) -> Vec<u8> {
        format!("key-{key}").into_bytes()
    }

    fn noted(occurrences: impl IntoIterator<Item = (u64, u64)>) -> TopKeys {
        let mut top = TopKeys::new(WINDOW);
        for (seconds, key) in occurrences {
            top.note(key + 1, &name(key), 1, Micros::from_secs(seconds));
        }
        top
    }

    #[track_caller]
    fn check(top: &TopKeys, at_seconds: u64, expected: &[(u64, u64, u64)]) {
        let found = top.top(expected.len().max(3), Micros::from_secs(at_seconds));
        let found: Vec<_> = found.into_iter().map(|TopKey { key, count, error }| (key, count, error)).collect();
        let expected: Vec<_> = expected.iter().map(|(key, count, error)| (name(*key), *count, *error)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn few_keys_are_counted_exactly_and_in_order() {
        check(&TopKeys::new(WINDOW), 5, &[]);
        check(&noted([(0, 1), (1, 2), (2, 2), (3, 3), (4, 3), (5, 3)]), 6, &[(3, 3, 0), (2, 2, 0), (1, 1, 0)]);
        check(&noted([(0, 2), (0, 1)]), 0, &[(1, 1, 0), (2, 1, 0)]);
    }

    #[test]
    fn what_is_told_covers_one_to_two_windows() {
        let top = noted([(0, 1), (500, 1), (700, 1), (700, 2)]);
        check(&top, 700, &[(1, 3, 0), (2, 1, 0)]);
        assert_eq!(top.since(Micros::from_secs(700)), Micros::ZERO);
        // Asking is enough for old windows to be left out.
        check(&top, 1_300, &[(1, 1, 0), (2, 1, 0)]);
        assert_eq!(top.since(Micros::from_secs(1_300)), Micros::from_secs(600));
        check(&top, 1_800, &[]);
        check(&noted([(0, 1), (5_000, 2)]), 5_000, &[(2, 1, 0)]);
        // Back in time, and on from there.
        check(&noted([(5_000, 1), (100, 2), (650, 3)]), 650, &[(1, 1, 0), (2, 1, 0), (3, 1, 0)]);
        check(&noted([(5_000, 1), (100, 2), (1_300, 3)]), 1_300, &[(3, 1, 0)]);
    }

    /// The two bounds, on skewed traffic of many more keys than counters.
    #[test]
    fn counts_are_never_too_small_and_errors_never_too_small_either() {
        let mut random = 7_u64;
        let mut draw = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (random >> 33) % 1_000_000 + 1;
            30_000_000 / uniform
        };
        let (mut top, mut exact, mut total) = (TopKeys::new(WINDOW), HashMap::<u64, u64>::new(), 0);
        for second in 0..1_100 {
            for _ in 0..200 {
                let key = draw();
                top.note(key + 1, &name(key), 1, Micros::from_secs(second));
                *exact.entry(key).or_default() += 1;
                total += 1;
            }
        }
        assert!(exact.len() > 4 * KEYS, "{} keys", exact.len());
        let found = top.top(usize::MAX, Micros::from_secs(1_100));
        let by_name: HashMap<_, _> = found.iter().map(|key| (key.key.clone(), key)).collect();
        for (key, count) in &exact {
            let Some(listed) = by_name.get(&name(*key)) else {
                assert!(*count <= total / KEYS as u64, "key {key} has {count} of {total} and no counter");
                continue;
            };
            assert!(listed.count >= *count, "{listed:?} has {count}");
            assert!(listed.count - listed.error <= *count, "{listed:?} has {count}");
        }
        assert!(top.bytes() < 2 * KEYS * 128, "{}", top.bytes());
    }

    #[test]
    fn a_sample_of_many_is_told_with_its_spread() {
        let mut top = TopKeys::new(WINDOW);
        (0..100).for_each(|_| top.note(1, b"a", 64, Micros::ZERO));
        let listed = top.top(1, Micros::ZERO).remove(0);
        assert_eq!((listed.count, listed.error), (6_400, (100 * 64 * 63 * 9_u64).isqrt()));
    }
}
