//! The store's errors: how often each kind came, and why the store refuses, while it does.
//!
//! A store may be connected and refuse: every question, when its memory is full, or those of one shard behind a proxy, when
//! that shard is dead. Operators must see that, without a flicker: an answer for one key says nothing about another key,
//! which may be on another shard, nor an answer to a look about what is written. Which shard has a key, a proxy does not say,
//! so refusals are kept apart by key. Each stands
//! - until its key is answered when it is charged: its shard is back, and the others may not be; or
//! - until it was not refused for [`CALM`] while others were charged. Meanwhile the key is looked at again and again
//!   (`flags.rs`), so that few requests for a dead shard are no reason to think that it is back; or
//! - for [`HOLDS`] after its last refusal, when nothing was charged at all.
//!
//! At most [`REFUSALS_MAX`] are kept, and the first of them stay: the keys of a shard that is asked often must not push out those
//! of one that is asked rarely. Invariant: an answer costs one look at a flag here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::all_or_nothing::Intent;
use tidegate_store::{Question, StoreError};
use tokio::time::Instant;

/// The store's errors so far.
#[derive(Debug, Default)]
pub(super) struct ErrorStats {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    refusals: Mutex<Vec<Refusal>>,
    refuses: AtomicBool,
}

/// A key that the store has refused.
#[derive(Debug)]
struct Refusal {
    error: StoreError,
    /// When it did so last.
    at: Instant,
    key: RefusedKey,
    /// True when something was charged since.
    charged: bool,
}

/// A key whose question was refused, at the limiter of this scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RefusedKey {
    pub(super) scope: String,
    pub(super) key: Vec<u8>,
}

/// How long nothing may have been refused for the store to be well again.
const CALM: Duration = Duration::from_secs(5);
/// For how long a refusal is reported when no charge followed it.
const HOLDS: Duration = Duration::from_secs(60);
/// How many refused keys are kept.
const REFUSALS_MAX: usize = 16;

impl ErrorStats {
    /// Notes what came of a request of these keys.
    #[inline]
    pub(super) fn note<T>(&self, questions: &[Question<'_>], intent: Intent, outcome: &Result<T, StoreError>) {
        match outcome {
            Ok(_) if self.refuses.load(Relaxed) && intent == Intent::Hit => self.note_charge(questions, Instant::now()),
            Ok(_) => {}
            Err(error) => {
                self.count(error);
                if is_refusal(error) {
                    self.note_refusal(questions, error, Instant::now());
                }
            }
        }
    }

    fn note_refusal(&self, questions: &[Question<'_>], error: &StoreError, at: Instant) {
        let Some(first) = questions.first() else { return };
        let mut refusals = locked(&self.refusals);
        refusals.retain(|known| !known.is_over(at));
        match refusals.iter_mut().find(|known| known.key.is_of(first)) {
            Some(known) => known.renew(error, at),
            None => {
                refusals.truncate(REFUSALS_MAX - 1);
                let key = RefusedKey { scope: first.limiter.to_owned(), key: first.key.to_vec() };
                refusals.push(Refusal { error: error.clone(), at, key, charged: false });
            }
        }
        self.refuses.store(true, Relaxed);
    }

    fn note_charge(&self, questions: &[Question<'_>], now: Instant) {
        let mut refusals = locked(&self.refusals);
        refusals.iter_mut().for_each(|known| known.charged = true);
        refusals.retain(|known| !known.is_over(now) && !questions.iter().any(|asked| known.key.is_of(asked)));
        self.refuses.store(!refusals.is_empty(), Relaxed);
    }

    /// Counts an error of a background request.
    pub(super) fn count(&self, error: &StoreError) {
        *locked(&self.counts).entry(error.label()).or_default() += 1;
    }

    /// How often each kind came.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        locked(&self.counts).iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Why the store refuses decisions, if it does: the refusal that stands for longest, as the reason would change with every key.
    pub(super) fn refusal(&self, now: Instant) -> Option<StoreError> {
        locked(&self.refusals).iter().find(|known| !known.is_over(now)).map(|known| known.error.clone())
    }

    /// The keys that were refused, while that is reported.
    pub(super) fn refused_keys(&self, now: Instant) -> Vec<RefusedKey> {
        locked(&self.refusals).iter().filter(|known| !known.is_over(now)).map(|known| known.key.clone()).collect()
    }

    /// Notes what came of looking at a key again: a refusal goes on. That a look is answered tells nothing of charges.
    pub(super) fn note_look<T>(&self, key: &RefusedKey, outcome: &Result<T, StoreError>, now: Instant) {
        if let Err(error) = outcome
            && is_refusal(error)
            && let Some(known) = locked(&self.refusals).iter_mut().find(|known| known.key == *key)
        {
            known.renew(error, now);
        }
    }
}

impl Refusal {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= if self.charged { CALM } else { HOLDS }
    }

    fn renew(&mut self, error: &StoreError, now: Instant) {
        self.error = error.clone();
        self.at = now;
        self.charged = false;
    }
}

impl RefusedKey {
    fn is_of(&self, question: &Question<'_>) -> bool {
        self.scope == question.limiter && self.key == question.key
    }
}

fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. } | StoreError::Garbled { .. })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Rules};
    use tidegate_store::{Layout, Meaning};

    /// Plays what came of requests, one a line: `SECONDS KEY charged|refused`, or `SECONDS KEY looks-well|looks-bad`
    /// for the look at a refused key; `-> well|refuses`.
    #[track_caller]
    fn check(script: &str) {
        let rules = Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap()]).unwrap();
        let (stats, began) = (ErrorStats::default(), Instant::now());
        let refused = StoreError::Refused { address: "a".to_owned(), meaning: Meaning::ShardDown, text: String::new() };
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (call, expected) = line.split_once(" -> ").unwrap();
            let words: Vec<&str> = call.split_whitespace().collect();
            let [at, key, outcome] = words[..] else { panic!("{line}") };
            let (now, layout) = (began + Duration::from_secs_f64(at.parse().unwrap()), Layout::Native);
            let asked = [Question {
                limiter: "api",
                rules: &rules,
                names: true,
                key: key.as_bytes(),
                layout,
                role: Default::default(),
                own: None,
            }];
            let looked_at = RefusedKey { scope: "api".to_owned(), key: key.as_bytes().to_vec() };
            match outcome {
                "looks-well" => stats.note_look(&looked_at, &Ok(()), now),
                "looks-bad" => stats.note_look::<()>(&looked_at, &Err(refused.clone()), now),
                "charged" => stats.note_charge(&asked, now),
                "refused" => stats.note_refusal(&asked, &refused, now),
                _ => panic!("{line}"),
            }
            assert!(stats.refused_keys(now).len() <= REFUSALS_MAX);
            assert_eq!(if stats.refusal(now).is_some() { "refuses" } else { "well" }, expected, "{line}");
        }
    }

    /// One dead shard of two, half of the keys on each: the log flipped at every answer of the other shard.
    #[test]
    fn f6_answers_of_other_shards_do_not_hide_a_dead_one() {
        check(
            "0    a    charged    -> well
             1    b    refused    -> refuses
             1.1  a    charged    -> refuses
             5.9  b    looks-bad  -> refuses
             6.5  a    charged    -> refuses
             10.8 b    looks-well -> refuses
             10.9 a    charged    -> well",
        );
    }

    #[test]
    fn f6_the_refused_key_shows_at_once_that_its_shard_is_back() {
        check(
            "0   b    refused    -> refuses
             0.5 b    looks-well -> refuses
             0.6 b    charged    -> well
             0.7 a    charged    -> well",
        );
    }

    /// One refusal in all was remembered: the first shard that came back hid the other until it was refused again.
    #[test]
    fn f6_of_two_dead_shards_the_one_that_comes_back_does_not_hide_the_other() {
        check(
            "0   b    refused   -> refuses
             0.1 c    refused   -> refuses
             1   c    charged   -> refuses
             4   c    charged   -> refuses
             4.5 b    looks-bad -> refuses
             9   c    charged   -> refuses
             9.1 b    charged   -> well",
        );
    }

    /// As many keys as you like of one dead shard leave the first of another their place.
    #[test]
    fn f6_refused_keys_are_bounded_and_the_first_stay() {
        let many: String = (0..100).map(|number| format!("0.1 c{number} refused -> refuses\n")).collect();
        let back: String = (0..100).map(|number| format!("0.2 c{number} charged -> refuses\n")).collect();
        check(&format!("0 b refused -> refuses\n{many}{back}0.3 b charged -> well"));
    }

    #[test]
    fn f6_without_requests_a_refusal_is_told_for_a_minute() {
        check(
            "0    b    refused    -> refuses
             59.9 b    looks-well -> refuses
             60.1 b    looks-well -> well",
        );
    }
}
