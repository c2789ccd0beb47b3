//! The turnstile between threads: one lock, and wakers for the requests that wait.
//!
//! What may happen is decided by [`Turnstile`]; here it is only locked and given the time, and the requests whose
//! turn has come are woken. No request is woken while the lock is held, and nothing waits under it.
//! Invariant: every permit and every ticket lives in a value whose drop returns it, so that a client that
//! leaves at any point keeps no slot and no place in line.

use super::sync::{Arc, Mutex, MutexGuard};
use super::window_clock::WindowClock;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tidegate::Micros;
use tidegate_core::replicas::Schedule;
use tidegate_core::turnstile::{
    Bounds, Closed, Grant, KeyHash, LineFull, Name, PendingRequest, Permit, StoreTerms, Ticket, Turnstile,
};

/// Shared by all connections.
pub(crate) struct Queue {
    turnstile: Mutex<Turnstile<Waker>>,
    clock: WindowClock,
    /// Wakes the window timer, when a request begins to wait for a window.
    timer: Mutex<Option<Waker>>,
    /// Wakes the task that asks the store, when there is something to ask before the time for which it has set its alarm.
    carrier: Mutex<Option<(Waker, Micros)>>,
}

/// What the queue holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Census {
    pub(crate) waiting: u32,
    pub(crate) in_flight: u32,
    pub(crate) keys: usize,
}

impl Queue {
    pub(crate) fn new(bounds: Bounds, clock: WindowClock) -> Queue {
        Queue {
            turnstile: Mutex::new(Turnstile::new(bounds)),
            clock,
            timer: Mutex::new(None),
            carrier: Mutex::new(None),
        }
    }

    /// A slot at once, or why not, for the request that arrived at `arrived`, a moment ago. Never inlined, so that a profile
    /// can tell what limiting costs.
    #[inline(never)]
    pub(crate) fn pass(self: &Arc<Self>, key: KeyHash, arrived: Micros) -> Result<Slot, Closed> {
        let permit = self.at(arrived, |turnstile, now| turnstile.pass(key, now))?;
        Ok(Slot { queue: Arc::clone(self), permit: Some(permit), waited: false, started: false })
    }

    /// A place in line.
    pub(crate) fn wait(self: &Arc<Self>, key: KeyHash, weight: u32) -> Result<Waiting, LineFull> {
        let ticket = self.with(|turnstile, now| turnstile.wait(key, weight, Waker::noop().clone(), now))?;
        self.wake_timer();
        Ok(Waiting { queue: Arc::clone(self), ticket: Some(ticket), goes: false })
    }

    /// The same, for a key that has this name at the store. `goes`: when the store refuses, the request leaves the line.
    pub(crate) fn wait_as(
        self: &Arc<Self>,
        key: KeyHash,
        name: Name,
        weight: u32,
        goes: bool,
    ) -> Result<Waiting, LineFull> {
        let ticket = self.with(|turnstile, now| turnstile.wait_as(key, name, weight, Waker::noop().clone(), now))?;
        self.wake_timer();
        Ok(Waiting { queue: Arc::clone(self), ticket: Some(ticket), goes })
    }

    /// From now on starts are counted at a store.
    pub(crate) fn count_at_store(&self, terms: StoreTerms) {
        self.with(|turnstile, _| turnstile.count_at_store(terms));
    }

    /// Requests to the store, up to so many, each of another key. If there are none, `carrier` is woken when one is
    /// due earlier than [`Queue::next_request_at`] said in the same call.
    pub(crate) fn requests(&self, carrier: &Waker, max: usize) -> Result<Vec<PendingRequest>, Option<Micros>> {
        let (requests, next, called) = {
            let mut turnstile = lock(&self.turnstile);
            let now = self.clock.now();
            let requests: Vec<PendingRequest> = std::iter::from_fn(|| turnstile.next_request(now)).take(max).collect();
            let next = turnstile.next_request_at();
            // Under the turnstile's lock: what is to be asked after the look finds the alarm.
            *lock(&self.carrier) = Some((carrier.clone(), next.unwrap_or(Micros::MAX)));
            (requests, next, turnstile.called())
        };
        called.into_iter().for_each(Waker::wake);
        if requests.is_empty() { Err(next) } else { Ok(requests) }
    }

    /// When the next request to the store is due, if nothing happens before; zero means at once.
    pub(crate) fn next_request_at(&self) -> Option<Micros> {
        lock(&self.turnstile).next_request_at()
    }

    /// The store has answered a request.
    pub(crate) fn answered(&self, pending: PendingRequest, grant: Grant) {
        self.with(|turnstile, now| turnstile.answered(pending, grant, now));
    }

    /// The clock was set by the store's, `ahead` by so much, or back.
    pub(crate) fn clock_was_set(&self, ahead: Micros) {
        self.with(|turnstile, now| turnstile.clock_was_set(now, ahead));
        self.wake_timer();
    }

    /// Turns the window if it is time, and returns when the next one begins that a request waits for.
    pub(crate) fn turn(&self) -> Option<Micros> {
        self.with(|turnstile, now| {
            turnstile.turn(now);
            turnstile.next_turn()
        })
    }

    /// The same, and `timer` is woken as soon as a request waits for a window.
    pub(crate) fn turn_and_watch(&self, timer: &Waker) -> Option<Micros> {
        // Set before looking: a request that begins to wait after the look finds the waker.
        *lock(&self.timer) = Some(timer.clone());
        let turn = self.turn();
        if turn.is_some() {
            // The timer sets its alarm, and need not be woken for requests that wait for the same window.
            lock(&self.timer).take();
        }
        turn
    }

    /// Forgets idle keys, if there are any among those that it looks at.
    pub(crate) fn tend(&self) {
        self.with(Turnstile::tend);
    }

    /// After how many calls of [`Queue::tend`] every key was looked at.
    pub(crate) fn tends(&self) -> usize {
        lock(&self.turnstile).tends()
    }

    pub(crate) fn set_bounds(&self, bounds: Bounds) {
        self.with(|turnstile, now| turnstile.set_bounds(bounds, now));
        self.wake_timer();
    }

    /// What this process holds of the limit.
    pub(crate) fn set_share(&self, schedule: Schedule) {
        self.with(|turnstile, now| turnstile.set_share(schedule, now));
        self.wake_timer();
    }

    /// Starts per key in the current window; `None`: not known yet.
    pub(crate) fn share(&self) -> Option<u32> {
        self.with(|turnstile, now| {
            turnstile.turn(now);
            turnstile.share()
        })
    }

    pub(crate) fn census(&self) -> Census {
        let turnstile = lock(&self.turnstile);
        Census { waiting: turnstile.waiting(), in_flight: turnstile.in_flight(), keys: turnstile.keys() }
    }

    /// Does one thing under the lock, now, and wakes the requests that it called.
    fn with<T>(&self, act: impl FnOnce(&mut Turnstile<Waker>, Micros) -> T) -> T {
        self.at(self.clock.now(), act)
    }

    /// The same, at a time that was read before. Another thread may have passed a later one: the later time stands.
    fn at<T>(&self, now: Micros, act: impl FnOnce(&mut Turnstile<Waker>, Micros) -> T) -> T {
        let (outcome, called, next_request, turns) = {
            let mut turnstile = lock(&self.turnstile);
            let outcome = act(&mut turnstile, now);
            (outcome, turnstile.called(), turnstile.next_request_at(), turnstile.next_turn().is_some())
        };
        if turns {
            self.wake_timer();
        }
        if let Some(at) = next_request {
            self.wake_carrier(at);
        }
        if !called.is_empty() {
            called.into_iter().for_each(Waker::wake);
        }
        outcome
    }

    fn wake_carrier(&self, next_request: Micros) {
        let mut carrier = lock(&self.carrier);
        if carrier.as_ref().is_some_and(|(_, alarm)| next_request < *alarm)
            && let Some((waker, _)) = carrier.take()
        {
            drop(carrier);
            waker.wake();
        }
    }

    fn wake_timer(&self) {
        if let Some(timer) = lock(&self.timer).take() {
            timer.wake();
        }
    }
}

/// The right to forward one request, and to have it under way until this is dropped. Dropped before it is
/// started, wherever that is, its start counts for nothing, and the next in line has it.
pub(crate) struct Slot {
    queue: Arc<Queue>,
    permit: Option<Permit>,
    waited: bool,
    started: bool,
}

impl Slot {
    /// Since when it could be had.
    pub(crate) fn possible(&self) -> Micros {
        self.permit.as_ref().map_or(Micros::ZERO, Permit::possible)
    }

    /// Did its holder stand in line?
    pub(crate) fn was_waited_for(&self) -> bool {
        self.waited
    }

    /// Is its window still the current one at `now`?
    pub(crate) fn is_good(&self, now: Micros) -> bool {
        self.permit.as_ref().is_some_and(|permit| now < permit.until())
    }

    /// The end of its window.
    pub(crate) fn until(&self) -> Micros {
        self.permit.as_ref().map_or(Micros::ZERO, Permit::until)
    }

    /// Lets no other request of its key start in its window.
    pub(crate) fn exhaust(&self) {
        if let Some(permit) = &self.permit {
            self.queue.with(|turnstile, _| turnstile.exhaust(permit));
        }
    }

    /// It came too late: back into line, in front of the requests that came after `arrived`.
    pub(crate) fn again(mut self, arrived: Micros, weight: u32, goes: bool) -> Waiting {
        let queue = Arc::clone(&self.queue);
        let permit = self.permit.take();
        let ticket = permit.map(|permit| {
            queue.with(|turnstile, now| turnstile.again(permit, arrived, weight, Waker::noop().clone(), now))
        });
        queue.wake_timer();
        Waiting { queue, ticket, goes }
    }

    /// The request goes out now: from here on its start counts.
    pub(crate) fn start(&mut self) {
        self.started = true;
    }
}

impl Drop for Slot {
    #[inline(never)]
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if !self.started {
            return self.queue.with(|turnstile, now| turnstile.give_back(permit, now));
        }
        let mut turnstile = lock(&self.queue.turnstile);
        if turnstile.is_quiet() {
            // Almost always no request waits, so that the end needs no time; reading the clock is most of what it costs.
            return turnstile.finish(permit, Micros::ZERO);
        }
        drop(turnstile);
        self.queue.with(|turnstile, now| turnstile.finish(permit, now));
    }
}

/// Waits for a slot. Dropping it leaves the line. It ends without one when the store has failed for long, and, for
/// requests that do not wait, when the store refuses.
pub(crate) struct Waiting {
    queue: Arc<Queue>,
    ticket: Option<Ticket>,
    goes: bool,
}

impl Waiting {
    fn goes_for(&self, closed: Closed) -> bool {
        match closed {
            Closed::StoreFailed => true,
            Closed::Limited(_) | Closed::Busy => self.goes,
            Closed::Unknown => false,
        }
    }
}

impl Future for Waiting {
    type Output = Result<Slot, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Slot, Closed>> {
        let queue = Arc::clone(&self.queue);
        // Polled again after it was ready: nothing more will come.
        let Some(ticket) = self.ticket.take() else { return Poll::Pending };
        let mut turnstile = lock(&queue.turnstile);
        match turnstile.claim(ticket) {
            Ok(permit) => {
                drop(turnstile);
                Poll::Ready(Ok(Slot { queue, permit: Some(permit), waited: true, started: false }))
            }
            Err(ticket) => {
                let closed = turnstile.why(&ticket);
                turnstile.set_call(&ticket, cx.waker().clone());
                self.ticket = Some(ticket);
                match closed {
                    // The request leaves the line when this is dropped.
                    Some(closed) if self.goes_for(closed) => Poll::Ready(Err(closed)),
                    _ => Poll::Pending,
                }
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue.with(|turnstile, now| turnstile.leave(ticket, now));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics half way; what a poisoned one holds is whole.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
