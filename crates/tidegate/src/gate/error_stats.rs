//! The store's errors: how often each kind came, and why the store refuses, while it does.
//!
//! A store may be connected and refuse: every question, when its memory is full, or those of one shard behind a proxy, when
//! that shard is dead. Operators must see that, without a flicker: an answer for one key says nothing about another key,
//! which may be on another shard, nor an answer to a look about what is written. So a refusal stands
//! - until the key that was refused is answered when it is charged: its shard is back, however many there are; or
//! - until no question was refused for [`CALM`] while others were charged. Meanwhile the refused key is looked at again
//!   and again (`flags.rs`), so that few requests for a dead shard are no reason to think that it is back; or
//! - for [`HOLDS`] after the last refusal, when nothing was charged at all.
//!
//! Invariant: an answer costs one look at a flag here.

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
    refusal: Mutex<Option<Refusal>>,
    refuses: AtomicBool,
}

/// What the store has refused.
#[derive(Debug)]
struct Refusal {
    error: StoreError,
    /// When it did so last.
    at: Instant,
    /// The key that was refused last, at the limiter of this scope.
    key: RefusedKey,
    /// True when something was charged since.
    charged: bool,
}

/// A key whose question was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RefusedKey {
    pub(super) scope: String,
    pub(super) key: Vec<u8>,
}

/// How long nothing may have been refused for the store to be well again.
const CALM: Duration = Duration::from_secs(5);
/// For how long a refusal is reported when no charge followed it.
const HOLDS: Duration = Duration::from_secs(60);

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
        let key = RefusedKey { scope: first.limiter.to_owned(), key: first.key.to_vec() };
        *locked(&self.refusal) = Some(Refusal { error: error.clone(), at, key, charged: false });
        self.refuses.store(true, Relaxed);
    }

    fn note_charge(&self, questions: &[Question<'_>], now: Instant) {
        let mut refusal = locked(&self.refusal);
        let Some(known) = refusal.as_mut() else { return };
        known.charged = true;
        let RefusedKey { scope, key } = &known.key;
        if known.is_over(now) || questions.iter().any(|asked| asked.limiter == scope && asked.key == key) {
            self.refuses.store(false, Relaxed);
            *refusal = None;
        }
    }

    /// Counts an error of a background request.
    pub(super) fn count(&self, error: &StoreError) {
        *locked(&self.counts).entry(error.label()).or_default() += 1;
    }

    /// How often each kind came.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        locked(&self.counts).iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Why the store refuses decisions, if it does.
    pub(super) fn refusal(&self, now: Instant) -> Option<StoreError> {
        let refusal = locked(&self.refusal);
        refusal.as_ref().filter(|known| !known.is_over(now)).map(|known| known.error.clone())
    }

    /// The key that was refused last, while that is reported.
    pub(super) fn refused_key(&self, now: Instant) -> Option<RefusedKey> {
        let refusal = locked(&self.refusal);
        refusal.as_ref().filter(|known| !known.is_over(now)).map(|known| known.key.clone())
    }

    /// Notes what came of looking at that key again: a refusal goes on. That a look is answered tells nothing of charges.
    pub(super) fn note_look<T>(&self, outcome: &Result<T, StoreError>, now: Instant) {
        if let Err(error) = outcome
            && is_refusal(error)
            && let Some(known) = &mut *locked(&self.refusal)
        {
            known.at = now;
            known.charged = false;
        }
    }
}

impl Refusal {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= if self.charged { CALM } else { HOLDS }
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

    /// Plays what came of requests, one a line: `SECONDS KEY charged|refused`, or `SECONDS look answered|refused` for the
    /// look at the refused key; `-> well|refuses`.
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
            match (key, outcome) {
                ("look", "answered") => stats.note_look(&Ok(()), now),
                ("look", _) => stats.note_look::<()>(&Err(refused.clone()), now),
                (_, "charged") => stats.note_charge(&asked, now),
                (..) => stats.note_refusal(&asked, &refused, now),
            }
            assert_eq!(if stats.refusal(now).is_some() { "refuses" } else { "well" }, expected, "{line}");
        }
    }

    /// One dead shard of two, half of the keys on each: the log flipped at every answer of the other shard.
    #[test]
    fn f6_answers_of_other_shards_do_not_hide_a_dead_one() {
        check(
            "0    a    charged  -> well
             1    b    refused  -> refuses
             1.1  a    charged  -> refuses
             5.9  look refused  -> refuses
             6.5  a    charged  -> refuses
             10.8 look answered -> refuses
             10.9 a    charged  -> well",
        );
    }

    #[test]
    fn f6_the_refused_key_shows_at_once_that_its_shard_is_back() {
        check(
            "0   b    refused  -> refuses
             0.5 look answered -> refuses
             0.6 b    charged  -> well
             0.7 a    charged  -> well",
        );
    }

    #[test]
    fn f6_without_requests_a_refusal_is_told_for_a_minute() {
        check(
            "0    b    refused  -> refuses
             59.9 look answered -> refuses
             60.1 look answered -> well",
        );
    }
}
