//! The turnstile: which requests may start now, and which stand in line until then.
//!
//! **The idea.** A key may start `limit.count()` times in each window of `limit.period()`, and have at
//! most `in_flight` of those under way at once; over all keys at most `total` are under way. A request
//! that may not start yet waits in its key's line: first come, first served. When a start frees up, keys
//! take turns: each lets one of its requests start, then goes behind the other keys.
//!
//! **Windows** begin at multiples of the period since the epoch. Nothing is ever refilled: a place
//! remembers the window in which it counted, and a count from another window is no count. So it does
//! not matter when, or whether, a timer fires: the first call in a new window turns it.
//!
//! **An example.** 3 per minute, six requests at 12:00:10. Three pass; three wait, and the key is
//! *parked* until 12:01:00. There the three get a permit each, of the window 12:01, in the order in
//! which they came. Had one of them left meanwhile, its place in line would be gone with it. If one gets its
//! permit and leaves before it uses it, its start is given back, and the next request in line has it.
//! A permit that was not used before 12:02:00 is exchanged with [`Turnstile::again`].
//!
//! **Units.** Times are [`Micros`]; a window is named by the time at which it starts, so that names
//! stay true when the limit's period changes.
//!
//! **Known weakness.** Windows are fixed: 2 × count can start around a boundary, in less than a period.
//!
//! **Shares of a limit.** A process may hold only a share of each limit ([`Turnstile::set_share`]), or none of its own: then
//! starts are requested of a store, key by key, and a request waits for the store's grant ([`Turnstile::count_at_store`]).
//!
//! What is not here: sockets, wakers, locks. `W` is whatever the caller wants back when a request's turn
//! has come. Invariant: after every call, no request is in line that could start.

mod at_store;
mod bounds;
mod line;
mod places;
mod quota;
mod waiters;

use crate::Micros;
use crate::replicas::Schedule;
use places::{Place, Places, Standing};
use quota::QuotaAccounts;
use waiters::Waiters;

pub use bounds::{Bounds, KeyHash};
pub use quota::{Grant, Name, Outlook, PendingRequest, QuotaRequest, StoreTerms};

/// The right to start once, before [`Permit::until`]. It must come back through
/// [`Turnstile::finish`], [`Turnstile::give_back`] or [`Turnstile::again`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a permit that is dropped is never free again"]
pub struct Permit {
    place: u32,
    window: Micros,
    until: Micros,
    possible: Micros,
}

impl Permit {
    /// The end of its window. It must not be used then or later.
    #[must_use]
    pub const fn until(&self) -> Micros {
        self.until
    }

    /// Since when it could be had: the beginning of the window, if that was waited for, or else
    /// the time at which it was given.
    #[must_use]
    pub const fn possible(&self) -> Micros {
        self.possible
    }
}

/// A place in line. It must come back through [`Turnstile::claim`] or [`Turnstile::leave`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a request whose ticket is dropped stands in line for ever"]
pub struct Ticket(u32);

/// Why a request may not start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// The key has no starts left before this time. `None`: it never has any.
    Limited(Option<Micros>),
    /// As many requests as the bounds allow are under way, of this key or of all keys.
    Busy,
    /// The store must be asked: stand in line with [`Turnstile::wait_as`].
    Unknown,
    /// The store must be asked, and has failed for longer than [`StoreTerms::outage_max`].
    StoreFailed,
}

/// The line has reached its bound in requests or in weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineFull;

/// See the module.
#[derive(Debug)]
pub struct Turnstile<W> {
    bounds: Bounds,
    /// The latest time of any call: an earlier one changes nothing.
    now: Micros,
    window: Micros,
    places: Places,
    waiters: Waiters<W>,
    under_way: u32,
    called: Vec<W>,
    /// What this process may start, if it holds only a share of the limit.
    schedule: Option<Schedule>,
    /// The accounts at the store, if starts are counted there.
    quota: Option<QuotaAccounts>,
}

impl<W> Turnstile<W> {
    /// A turnstile that no request has passed.
    #[must_use]
    pub fn new(bounds: Bounds) -> Turnstile<W> {
        let (places, waiters) = (Places::default(), Waiters::default());
        let (now, window) = (Micros::ZERO, Micros::ZERO);
        Turnstile {
            bounds,
            now,
            window,
            places,
            waiters,
            under_way: 0,
            called: Vec::new(),
            schedule: None,
            quota: None,
        }
    }

    /// Starts at once, or says why not.
    ///
    /// # Errors
    /// When the request must wait, for its key's limits or because earlier requests of the key are in line.
    pub fn pass(&mut self, key: KeyHash, now: Micros) -> Result<Permit, Closed> {
        self.note(now);
        let at = self.places.of(key, self.window, self.bounds.keys);
        match self.closed(at) {
            None => Ok(self.start(at, now)),
            Some(closed) => Err(closed),
        }
    }

    /// Stands in line. `call` is given back by [`Turnstile::called`] when the turn has come.
    ///
    /// # Errors
    /// When the line is full.
    pub fn wait(&mut self, key: KeyHash, weight: u32, call: W, now: Micros) -> Result<Ticket, LineFull> {
        self.note(now);
        if self.is_full_line(weight) {
            return Err(LineFull);
        }
        let at = self.places.of(key, self.window, self.bounds.keys);
        Ok(self.join(at, weight, call, now))
    }

    /// The same, for a key that has this name at the store.
    ///
    /// # Errors
    /// When the line is full, or the bound of keys is reached: the store grants starts to one key, never to a shared place.
    pub fn wait_as(&mut self, key: KeyHash, name: Name, weight: u32, call: W, now: Micros) -> Result<Ticket, LineFull> {
        self.note(now);
        let at = self.places.of(key, self.window, self.bounds.keys);
        if self.is_full_line(weight) || !self.places.is_own(at, key) {
            return Err(LineFull);
        }
        if let Some(quota) = &mut self.quota {
            quota.open(at, key, name);
        }
        Ok(self.join(at, weight, call, now))
    }

    fn is_full_line(&self, weight: u32) -> bool {
        let heavy = self.waiters.weight() + u64::from(weight) > self.bounds.waiting_weight;
        heavy || self.waiters.in_line() >= self.bounds.waiting
    }

    fn join(&mut self, at: u32, weight: u32, call: W, now: Micros) -> Ticket {
        let who = self.waiters.join(&mut self.places[at].line, at, weight, call);
        self.line_up(at);
        self.serve(now);
        Ticket(who)
    }

    /// Why the request with this ticket must wait.
    #[must_use]
    pub fn why(&self, ticket: &Ticket) -> Option<Closed> {
        let at = self.waiters[ticket.0].place;
        self.closed_to_all(at)
    }

    /// Has the turn come? Then the ticket is exchanged for the permit.
    ///
    /// # Errors
    /// The ticket back, when its request must go on waiting.
    pub fn claim(&mut self, ticket: Ticket) -> Result<Permit, Ticket> {
        self.waiters.claim(ticket.0).map_err(|()| ticket)
    }

    /// Replaces what [`Turnstile::called`] gives back; nothing happens if that was already given.
    pub fn set_call(&mut self, ticket: &Ticket, call: W) {
        self.waiters[ticket.0].call = Some(call);
    }

    /// Steps out of the line. A permit that was already given goes to the next.
    pub fn leave(&mut self, ticket: Ticket, now: Micros) {
        match self.waiters.claim(ticket.0) {
            Ok(permit) => self.give_back(permit, now),
            Err(()) => {
                let at = self.waiters[ticket.0].place;
                self.waiters.leave(&mut self.places[at].line, ticket.0);
                self.line_up(at);
                self.note(now);
            }
        }
    }

    /// What was started has ended.
    pub fn finish(&mut self, permit: Permit, now: Micros) {
        self.end(&permit);
        if self.is_quiet() {
            return self.note(now);
        }
        self.line_up(permit.place);
        self.note(now);
        self.serve(now);
    }

    /// No request is in line, and starts are counted in this process: it does not matter when a request ends, so that
    /// the caller may pass a time that it read before.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.waiters.in_line() == 0 && self.quota.is_none()
    }

    /// The request was permitted and not started: its start is not counted.
    pub fn give_back(&mut self, permit: Permit, now: Micros) {
        let place = &mut self.places[permit.place];
        if place.window == permit.window {
            place.started -= 1;
        }
        self.finish(permit, now);
    }

    /// Lets no other request of this permit's key start in its window: a limiter that counts outside this turnstile says
    /// that all starts are taken. The permit itself comes back as always.
    pub fn exhaust(&mut self, permit: &Permit) {
        let may = self.share().unwrap_or(0);
        let place = &mut self.places[permit.place];
        if place.window == permit.window {
            // One more, which comes back with the permit.
            place.started = place.started.max(may.saturating_add(1));
        }
    }

    /// Exchanges a permit that was not used in time for the next place in the key's line, in front
    /// of all requests that came later; `order` is when this one came. Never refused.
    pub fn again(&mut self, permit: Permit, order: Micros, weight: u32, call: W, now: Micros) -> Ticket {
        let at = permit.place;
        let who = self.waiters.rejoin(&mut self.places[at].line, at, weight, call, order);
        self.give_back(permit, now);
        Ticket(who)
    }

    /// Notes the time. To be called at [`Turnstile::next_turn`].
    pub fn turn(&mut self, now: Micros) {
        self.note(now);
    }

    /// Looks at some of the keys, and forgets those that are idle. To be called now and then: new keys
    /// make room for themselves, but in quiet times there are none.
    pub fn tend(&mut self, now: Micros) {
        self.note(now);
        self.places.tend(self.window);
    }

    /// After how many calls of [`Turnstile::tend`] every key was looked at.
    #[must_use]
    pub fn tends(&self) -> usize {
        self.places.slices()
    }

    fn note(&mut self, now: Micros) {
        self.now = self.now.max(now);
        if self.now >= self.window_end() {
            self.window = self.bounds.window(self.now);
            self.places.release_parked();
            self.serve(self.window);
        }
    }

    /// When the next window begins, if a request waits for it.
    #[must_use]
    pub fn next_turn(&self) -> Option<Micros> {
        let hope = self.bounds.limit.count() > 0 && self.places.any_parked();
        hope.then(|| self.window_end())
    }

    /// The callers' values of the requests whose turn has come since the last call.
    pub fn called(&mut self) -> Vec<W> {
        std::mem::take(&mut self.called)
    }

    /// Puts other bounds in force. Counts of the current window stay with their keys, if this process counts; at a
    /// store, windows of another length are other windows, and what is under way is reported there again.
    pub fn set_bounds(&mut self, bounds: Bounds, now: Micros) {
        self.turn(now);
        let window = bounds.window(self.now);
        let is_other_period = self.bounds.limit.windows() != bounds.limit.windows();
        match &self.quota {
            None => self.places.rename_window(self.window, window),
            // What was counted at the store was of windows of another length, also if one of them begins now.
            Some(_) if is_other_period => self.places.rename_window(self.window, Micros::ZERO),
            Some(_) => {}
        }
        (self.bounds, self.window) = (bounds, window);
        if is_other_period {
            self.report_again();
        }
        self.line_up_again(now);
    }

    /// This process holds only a share of the limit, by this schedule. Requests that waited for it may start.
    pub fn set_share(&mut self, schedule: Schedule, now: Micros) {
        self.turn(now);
        if self.schedule.as_ref() != Some(&schedule) {
            self.schedule = Some(schedule);
            self.line_up_again(now);
        }
    }

    /// How often a key may start in the current window; `None`: no share is assigned yet.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        let (count, windows) = (self.bounds.limit.count(), self.bounds.limit.windows());
        match &self.schedule {
            None => Some(count),
            Some(schedule) => schedule.share(count, windows.number(self.window)),
        }
    }

    fn line_up_again(&mut self, now: Micros) {
        for at in self.places.with_a_line() {
            self.line_up(at);
        }
        self.serve(now);
    }

    /// How many are in line.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiters.in_line()
    }

    /// The weights of all requests in line.
    #[must_use]
    pub fn waiting_weight(&self) -> u64 {
        self.waiters.weight()
    }

    /// How many permits are out, or given and not yet claimed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.under_way
    }

    /// How many keys have a place.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.places.len()
    }

    /// Why a new request at this place must wait, if it must.
    fn closed(&self, at: u32) -> Option<Closed> {
        let behind = || (!self.places[at].line.is_empty()).then_some(Closed::Busy);
        self.closed_to_all(at).or_else(behind)
    }

    /// Why no request of this place can start, if none can.
    fn closed_to_all(&self, at: u32) -> Option<Closed> {
        let place = &self.places[at];
        if self.left(at) == 0 {
            let limited = || Closed::Limited((self.bounds.limit.count() > 0).then(|| self.window_end()));
            return Some(match &self.quota {
                Some(quota) if self.bounds.limit.count() > 0 => {
                    match quota.outlook(at, place.key, self.window, self.now) {
                        Outlook::Open => Closed::Unknown,
                        Outlook::Exhausted => limited(),
                        Outlook::Full => Closed::Busy,
                        Outlook::Failed => Closed::StoreFailed,
                    }
                }
                _ => limited(),
            });
        }
        (self.is_full(place) || self.under_way >= self.bounds.total).then_some(Closed::Busy)
    }

    fn left(&self, at: u32) -> u32 {
        let place = &self.places[at];
        let started = if place.window == self.window { place.started } else { 0 };
        let may = match &self.quota {
            None => self.share().unwrap_or(0),
            Some(quota) => quota.granted(at, self.window),
        };
        may.saturating_sub(started)
    }

    fn is_full(&self, place: &Place) -> bool {
        self.bounds.in_flight > 0 && place.in_flight >= self.bounds.in_flight
    }

    fn window_end(&self) -> Micros {
        self.window.saturating_add(self.bounds.limit.period())
    }

    fn start(&mut self, at: u32, possible: Micros) -> Permit {
        let (window, until) = (self.window, self.window_end());
        let place = &mut self.places[at];
        if place.window != window {
            (place.window, place.started) = (window, 0);
        }
        place.started += 1;
        place.in_flight += 1;
        self.under_way += 1;
        Permit { place: at, window, until, possible }
    }

    fn end(&mut self, permit: &Permit) {
        self.places[permit.place].in_flight -= 1;
        self.under_way -= 1;
    }

    /// Puts a place where it belongs: ready, parked until the next window, or in no line at all
    /// (no request waits, or one that is under way must end first).
    fn line_up(&mut self, at: u32) {
        let place = &self.places[at];
        // A start that is granted and cannot be used yet is withheld from the other replicas: so it is not requested yet.
        let too_soon = self.quota.is_some() && self.under_way >= self.bounds.total;
        let standing = match () {
            () if place.line.is_empty() || self.is_full(place) => Standing::Aside,
            () if self.left(at) == 0 && !too_soon => Standing::Parked,
            () => Standing::Ready,
        };
        self.places.stand(at, standing);
        if self.quota.is_some() {
            self.arrange(at);
        }
    }

    /// Gives permits to the requests in line, key by key in turn, until nothing is free.
    fn serve(&mut self, possible: Micros) {
        while self.under_way < self.bounds.total {
            let Some(at) = self.places.next_ready() else { return };
            // Behind the others: the next turn is theirs.
            self.line_up(at);
            if self.places[at].standing != Standing::Ready {
                continue;
            }
            let permit = self.start(at, possible);
            let call = self.waiters.call_first(&mut self.places[at].line, permit);
            self.called.extend(call);
            self.line_up(at);
        }
    }
}

#[cfg(test)]
mod tests;
