//! A turnstile whose starts are counted at a store: which requests are due, and what their grants change.
//!
//! [`quota`](super::quota) keeps the account of each key; here it is read and filled by the turnstile's own places.

use super::quota::{Needs, QuotaAccounts};
use super::{Closed, Grant, PendingRequest, StoreTerms, Turnstile};
use crate::Micros;

impl<W> Turnstile<W> {
    /// From now on starts are counted at a store.
    pub fn count_at_store(&mut self, terms: StoreTerms) {
        match &mut self.quota {
            Some(quota) => quota.terms = terms,
            None => self.quota = Some(QuotaAccounts::new(terms)),
        }
    }

    /// When the next request to the store is due, if nothing happens before; zero means at once.
    #[must_use]
    pub fn next_request_at(&self) -> Option<Micros> {
        self.quota.as_ref().and_then(QuotaAccounts::next_due)
    }

    /// The next request to the store, if one is due. It must come back through [`Turnstile::answered`].
    pub fn next_request(&mut self, now: Micros) -> Option<PendingRequest> {
        self.note(now);
        loop {
            let at = self.quota.as_mut()?.next(self.now)?;
            let needs = self.needs(at);
            let pending = self.quota.as_mut()?.send(at, needs, &self.bounds, self.window, self.now);
            if pending.is_some() {
                return pending;
            }
            self.line_up(at);
        }
    }

    /// The store has answered a request.
    pub fn answered(&mut self, pending: PendingRequest, grant: Grant, now: Micros) {
        self.note(now);
        let Some(quota) = &mut self.quota else { return };
        quota.receive(&pending, grant, (self.window, self.bounds.limit.windows()), self.now);
        self.line_up(pending.place);
        self.serve(pending.at);
        let calls_all = self.quota.as_ref().is_some_and(|quota| quota.terms.call_all);
        if calls_all || self.closed_to_all(pending.place) == Some(Closed::StoreFailed) {
            self.waiters.call_all(&self.places[pending.place].line, &mut self.called);
        }
    }

    /// The clock was set by the store's: it is `now`, which may be earlier than any time before, and by so much the clock
    /// was set `ahead`. What was granted stays with its window, so that going back starts nothing twice. A clock that went
    /// ahead by a window or more may have done so because the store's did: the window that it comes to is skipped.
    pub fn clock_was_set(&mut self, now: Micros, ahead: Micros) {
        let Some(quota) = &mut self.quota else { return };
        if now < self.now {
            quota.set_back(now);
            (self.now, self.window) = (now, self.bounds.window(now));
        }
        if ahead >= self.bounds.limit.period() {
            quota.skip(self.bounds.window(now));
        }
        self.note(now);
        self.line_up_again(now);
    }

    /// The store knows nothing of what is under way: every account reports it.
    pub(super) fn report_again(&mut self) {
        let Some(quota) = &mut self.quota else { return };
        quota.forget_reports();
        for at in self.places.with_any_under_way() {
            self.arrange(at);
        }
    }

    /// What a place holds, wants and hands back at the store.
    pub(super) fn needs(&self, at: u32) -> Needs {
        let (place, left, bounds) = (&self.places[at], self.left(at), &self.bounds);
        let room = if bounds.in_flight > 0 { bounds.in_flight.saturating_sub(place.in_flight) } else { u32::MAX };
        let free = bounds.total.saturating_sub(self.under_way);
        let skips = self.quota.as_ref().is_some_and(|quota| quota.skips(self.window));
        let could = if skips { 0 } else { place.line.len().min(room).min(free).min(bounds.limit.count()) };
        let unused = if place.line.is_empty() { left } else { 0 };
        let held = if bounds.in_flight > 0 { place.in_flight + left - unused } else { 0 };
        Needs { held, want: could.saturating_sub(left), unused }
    }

    /// Notes in the account of a place what it needs.
    pub(super) fn arrange(&mut self, at: u32) {
        let needs = self.needs(at);
        if let Some(quota) = &mut self.quota {
            quota.arrange(at, needs, self.window, self.now);
            self.places[at].has_open_account = !quota.is_settled(at);
        }
    }
}
