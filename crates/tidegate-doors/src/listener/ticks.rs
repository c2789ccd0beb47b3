//! Time limits in ticks, without a timer for each.
//!
//! A timer would be made and unmade for every request, and almost none ever rings. Here a task that waits for its peer leaves a waker and
//! the tick at which the wait becomes too long; the sweep, twice a second, wakes those that are over it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How often connections are looked at. A time limit may be overstayed by up to two of these.
pub const TICK: Duration = Duration::from_millis(500);

/// A time limit in ticks, rounded up.
#[must_use]
pub fn ticks(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u64::MAX >> 2)
}

/// The ticks of one thread, and the tasks in it that wait for a peer.
#[derive(Debug)]
pub struct TickClock {
    /// From 1 on, so that 0 can stand for never.
    now: AtomicU64,
    alarms: Mutex<Alarms>,
}

#[derive(Default, Debug)]
struct Alarms {
    all: Vec<Alarm>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Alarm {
    /// `None`: no task waits.
    due: Option<u64>,
    waker: Waker,
}

impl Default for TickClock {
    fn default() -> TickClock {
        TickClock { now: AtomicU64::new(1), alarms: Mutex::default() }
    }
}

impl TickClock {
    pub(super) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// The next tick: wakes the tasks that have waited for too long.
    pub(super) fn tick(&self) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        let mut alarms = self.alarms();
        let due = alarms.all.iter_mut().filter(|alarm| alarm.due.is_some_and(|due| due <= now));
        let wakers: Vec<Waker> = due.map(|alarm| alarm.waker.clone()).collect();
        drop(alarms);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarms {
    fn add(&mut self, alarm: Alarm) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.all[at] = alarm;
                at
            }
            None => {
                self.all.push(alarm);
                self.all.len() - 1
            }
        }
    }
}

/// Runs out when a peer is silent for too long.
#[derive(Debug)]
pub struct IdleTimeout {
    clock: Arc<TickClock>,
    limit_ticks: u64,
    /// Where the alarm is, and when it is due, while the peer is silent.
    set: Option<(usize, u64)>,
}

impl IdleTimeout {
    pub(super) fn new(clock: Arc<TickClock>, limit_ticks: u64) -> IdleTimeout {
        IdleTimeout { clock, limit_ticks, set: None }
    }

    /// Something came: the next silence begins anew.
    pub fn reset(&mut self) {
        if let Some((at, _)) = self.set.take() {
            let mut alarms = self.clock.alarms();
            let waker = std::mem::replace(&mut alarms.all[at], Alarm { due: None, waker: Waker::noop().clone() });
            alarms.free.push(at);
            drop(alarms);
            // Not under the lock: the waker may hold the last of what has alarms of its own.
            drop(waker);
        }
    }

    /// Nothing is there. Ready: the peer was silent for too long.
    pub fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        let mut alarms = self.clock.alarms();
        match self.set {
            Some((_, due)) if due <= now => return Poll::Ready(()),
            Some((at, _)) => alarms.all[at].waker.clone_from(cx.waker()),
            None => {
                // One more: the tick under way has begun already.
                let due = now.saturating_add(self.limit_ticks) + 1;
                self.set = Some((alarms.add(Alarm { due: Some(due), waker: cx.waker().clone() }), due));
            }
        }
        Poll::Pending
    }
}

impl Drop for IdleTimeout {
    fn drop(&mut self) {
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_out_only_in_silence() {
        let clock = Arc::<TickClock>::default();
        let mut timeout = IdleTimeout::new(Arc::clone(&clock), 2);
        let mut cx = Context::from_waker(Waker::noop());
        let mut silent_for = |timeout: &mut IdleTimeout, ticks: usize| {
            (0..ticks).all(|_| {
                let pending = timeout.poll_silence(&mut cx).is_pending();
                clock.tick();
                pending
            })
        };
        assert!(silent_for(&mut timeout, 3));
        timeout.reset();
        assert!(silent_for(&mut timeout, 3));
        assert!(!silent_for(&mut timeout, 1));
        drop(timeout);
        let alarms = clock.alarms();
        assert_eq!(alarms.free.len(), alarms.all.len(), "alarms are given back");
    }

    #[test]
    fn limits_are_rounded_up() {
        for (limit_ms, expected) in [(0, 0), (1, 1), (500, 1), (501, 2), (60_000, 120)] {
            assert_eq!(ticks(Duration::from_millis(limit_ms)), expected, "{limit_ms} ms");
        }
    }
}
