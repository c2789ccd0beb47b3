//! The breaker: a server that was silent is not asked any more, only probed, until it speaks again.
//!
//! Invariant: looking whether it answers costs one load of a flag.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Whether one server is worth asking.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// True while the server is there and answers: what a caller looks at first.
    answers: AtomicBool,
    /// How many microseconds the caller waited that found it silent.
    waited_us: AtomicU64,
}

/// A caller that can wait this many times as long as the one that found the server silent asks it all the same: a
/// listing must not fail because decisions, which have milliseconds, get no answer while it is made.
#[allow(dead_code, reason = "etcd has no call that takes longer than a decision")]
const TIMES_AS_LONG: u32 = 2;
/// A caller that could wait for less than this is no sign that the server is silent.
const WAITED_MIN: Duration = Duration::from_millis(1);
/// How often a silent server is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How long it may take to say so in the end. At first it must be as fast as callers need it, or they would
/// be sent to it only to wait in vain; then slower and slower, as the caller that found it silent may have had
/// little time.
pub(crate) const PROBE_TIME_MAX: Duration = Duration::from_secs(1);

impl Breaker {
    /// False: do not ask.
    pub(crate) fn answers(&self) -> bool {
        self.answers.load(Relaxed)
    }

    /// False: a caller that can wait for so long is not to ask.
    #[allow(dead_code, reason = "etcd has no call that takes longer than a decision")]
    pub(crate) fn is_worth_asking(&self, within: Duration) -> bool {
        self.answers() || within > TIMES_AS_LONG * Duration::from_micros(self.waited_us.load(Relaxed))
    }

    /// It was reached, or lost.
    pub(crate) fn set(&self, answers: bool) {
        self.answers.store(answers, Relaxed);
    }

    /// A caller waited in vain. A server that has said nothing in time while half of that passed is not asked
    /// any more. Not while all of it passed: it may have stopped just after it answered others, and those who
    /// come next would wait in vain. A caller whose deadline was all but over says nothing about the server.
    pub(crate) fn waited_in_vain(&self, waited: Duration, silence: Duration) {
        // Of a server that is known to be silent the first to find it so tells how fast it has to be.
        if self.answers() && waited >= WAITED_MIN && silence >= waited / 2 {
            self.waited_us.store(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Relaxed);
            self.set(false);
        }
    }

    /// While it does not answer, probes it now and then, giving it so much time. `None`: it cannot be probed now.
    pub(crate) async fn probe<F>(&self, probe: impl Fn(Duration) -> F) -> Infallible
    where
        F: Future<Output = Option<bool>>,
    {
        let mut slower = 1;
        loop {
            tokio::time::sleep(jittered(PROBE_EVERY)).await;
            if self.answers() {
                slower = 1;
                continue;
            }
            let waited = Duration::from_micros(self.waited_us.load(Relaxed)).max(Duration::from_millis(1));
            let within = waited.saturating_mul(slower).min(PROBE_TIME_MAX.max(waited));
            match probe(within).await {
                Some(true) => self.set(true),
                Some(false) => slower = slower.saturating_mul(2),
                None => slower = 1,
            }
        }
    }
}

/// Between a half and the whole, so that many processes do not come back all at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(0_u8) % 512;
    pause / 2 + pause * u32::try_from(random).unwrap_or(0) / 1024
}
