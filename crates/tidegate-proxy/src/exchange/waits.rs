//! A request that waits: for a slot of its key, or for one of its client's own requests to end.
//!
//! Invariant: a request that waits holds no slot.

use super::{Exchange, Outcome, deny, stopping, store_down};
use crate::body::Reply;
use crate::client_slots::{LineFull, UnderWay, Waits};
use crate::queue::{Slot, Waiting};
use crate::reply::refusal;
use crate::settings::Policy;
use crate::state::{Charge, ProxyState, Rules};
use http::{Response, StatusCode};
use std::time::Duration;
use tidegate_core::turnstile::{self, Closed};
use tokio::time::sleep;

impl Exchange {
    /// No slot at once: a place in line, or why there is none.
    pub(super) fn line_up(&self, rules: &Rules, closed: Closed) -> Outcome<(Waiting, Waits)> {
        self.refuse_blocked(rules)?;
        let state = self.state();
        if state.queue.share().is_none() && state.others.error().is_some() {
            return Err(Box::new(store_down()));
        }
        let goes = match closed {
            Closed::Limited(_) | Closed::Busy => rules.rejects(),
            Closed::Unknown => false,
            Closed::StoreFailed => true,
        };
        if goes {
            return Err(Box::new(deny(state, rules, closed)));
        }
        if state.is_stopping() {
            return Err(Box::new(stopping()));
        }
        let place = self.wait_among_others(&rules.policy)?;
        let waiting = match self.place {
            (key, None) => state.queue.wait(key, self.weight),
            (key, Some(name)) => state.queue.wait_as(key, name, self.weight, rules.rejects()),
        };
        let waiting = waiting.map_err(|turnstile::LineFull| line_full(state, LineFull::OfAll))?;
        Ok((waiting, place))
    }

    /// A request on a blocked key does not wait, and is not told to come back when the window ends: a block may last for days.
    fn refuse_blocked(&self, rules: &Rules) -> Outcome<()> {
        match self.state().peek(rules, &self.key) {
            Charge::Blocked(wait) => Err(self.blocked(rules, wait)),
            Charge::Allowed | Charge::Limited => Ok(()),
        }
    }

    /// A place among the requests that may wait, of this client and of all.
    fn wait_among_others(&self, policy: &Policy) -> Outcome<Waits> {
        let place = self.slots.wait(policy.waiting_per_client(), policy.max_waiting);
        place.map_err(|full| line_full(self.state(), full))
    }

    /// The client has as many requests under way as it may: the slot goes to others until one of its own has ended.
    pub(super) async fn start_later(&self, slot: Slot) -> Outcome<(Slot, UnderWay)> {
        drop(slot);
        let rules = self.state().rules.load_full();
        self.refuse_blocked(&rules)?;
        if rules.rejects() {
            return Err(Box::new(deny(self.state(), &rules, Closed::Busy)));
        }
        let place = self.wait_among_others(&rules.policy)?;
        let ended = self.slots.start_later(|| self.in_flight_per_client());
        let under_way = self.wait(async { Ok(ended.await) }).await?;
        drop(place);
        let slot = match self.state().queue.pass(self.place.0, self.state().clock.now()) {
            Ok(slot) => slot,
            Err(closed) => {
                let (waiting, _place) = self.line_up(&self.state().rules.load(), closed)?;
                self.wait(waiting).await?
            }
        };
        Ok((slot, under_way))
    }

    /// Waits until its turn has come, the client has left, the time is over or the proxy stops.
    pub(super) async fn wait<T>(&self, turn: impl Future<Output = Result<T, Closed>>) -> Outcome<T> {
        let rules = self.state().rules.load_full();
        // From the arrival on, however often it waits.
        let waited = Duration::from_micros(self.state().clock.now().saturating_sub(self.arrived).get());
        let too_long = async {
            match rules.policy.max_wait {
                Some(limit) => sleep(limit.saturating_sub(waited)).await,
                None => std::future::pending().await,
            }
        };
        // Dropped before its turn: the client has left.
        let mut leaves = Leaves(Some(self.state()));
        if !self.reads.can_be_found_out() {
            self.client.connection.answer_half_closed(false);
        }
        let outcome = tokio::select! {
            biased;
            turn = turn => turn.map_err(|closed| Box::new(deny(self.state(), &rules, closed))),
            () = self.state().stopped() => Err(Box::new(stopping())),
            () = self.gone() => Err(self.left()),
            () = too_long => Err(Box::new(deny(self.state(), &rules, Closed::Limited(None)))),
        };
        leaves.0 = None;
        self.client.connection.answer_half_closed(true);
        outcome
    }
}

/// Counts a client that leaves while it waits, unless it is disarmed.
struct Leaves<'a>(Option<&'a ProxyState>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.metrics.note_left();
        }
    }
}

/// 503: no more may wait.
fn line_full(state: &ProxyState, full: LineFull) -> Box<Response<Reply>> {
    state.metrics.note_line_full();
    let (code, detail) = match full {
        LineFull::OfAll => ("line_full", "the line of waiting requests is full; try again later"),
        LineFull::OfClient => (
            "client_line_full",
            "your address has as many requests waiting as one address may have; send fewer at once",
        ),
    };
    Box::new(refusal(StatusCode::SERVICE_UNAVAILABLE, code, detail))
}
