//! How long a peer may be silent, without a timer for each request.
//!
//! A timer would be made and unmade for every request, and almost none ever rings. Here whoever waits
//! leaves a waker and the tick at which it becomes too long; the worker's sweep, twice a second, wakes
//! those who are over it. The price: silence may last up to two ticks longer than allowed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Those who wait for a peer, in one worker.
#[derive(Default)]
pub(crate) struct Alarms {
    tick: AtomicU64,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    alarms: Vec<Alarm>,
    free: Vec<usize>,
}

struct Alarm {
    /// `None`: nobody waits, or it has rung.
    due: Option<u64>,
    waker: Waker,
}

impl Alarms {
    /// The next tick: wakes those who have waited for too long.
    pub(crate) fn tick(&self) {
        let tick = self.tick.fetch_add(1, Relaxed) + 1;
        let mut all = self.all();
        let due = all.alarms.iter_mut().filter(|alarm| alarm.due.is_some_and(|due| due <= tick));
        let wakers: Vec<Waker> = due.map(|alarm| alarm.waker.clone()).collect();
        drop(all);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn add(&mut self, alarm: Alarm) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.alarms[at] = alarm;
                at
            }
            None => {
                self.alarms.push(alarm);
                self.alarms.len() - 1
            }
        }
    }
}

/// Runs out when a peer is silent for too long.
pub(crate) struct Patience {
    alarms: Arc<Alarms>,
    limit_ticks: u64,
    /// Where the alarm is, and when it is due, while somebody waits.
    set: Option<(usize, u64)>,
}

impl Patience {
    pub(crate) fn new(alarms: Arc<Alarms>, limit_ticks: u64) -> Patience {
        Patience { alarms, limit_ticks, set: None }
    }

    /// Something came.
    pub(crate) fn heard(&mut self) {
        if let Some((at, _)) = self.set.take() {
            let mut all = self.alarms.all();
            all.alarms[at].due = None;
            all.free.push(at);
        }
    }

    /// Nothing is there. Ready: it was silent for too long.
    pub(crate) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.alarms.tick.load(Relaxed);
        let mut all = self.alarms.all();
        match self.set {
            Some((_, due)) if due <= now => return Poll::Ready(()),
            Some((at, _)) => all.alarms[at].waker.clone_from(cx.waker()),
            None => {
                // One more: the tick under way has begun already.
                let due = now + self.limit_ticks + 1;
                self.set = Some((all.add(Alarm { due: Some(due), waker: cx.waker().clone() }), due));
            }
        }
        Poll::Pending
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.heard();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_out_only_in_silence() {
        let alarms = Arc::<Alarms>::default();
        let mut patience = Patience::new(Arc::clone(&alarms), 2);
        let mut cx = Context::from_waker(Waker::noop());
        let mut silent_for = |patience: &mut Patience, ticks: usize| {
            (0..ticks).all(|_| {
                let pending = patience.poll_silence(&mut cx).is_pending();
                alarms.tick();
                pending
            })
        };
        assert!(silent_for(&mut patience, 3));
        patience.heard();
        assert!(silent_for(&mut patience, 3));
        assert!(!silent_for(&mut patience, 1));
        drop(patience);
        let all = alarms.all();
        assert_eq!(all.free.len(), all.alarms.len(), "alarms are given back");
    }
}
