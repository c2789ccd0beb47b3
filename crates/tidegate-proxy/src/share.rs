//! This process's part of the limit, when replicas share it.
//!
//! A task keeps the membership and passes the assigned windows to the queue. A request looks at the queue only: there
//! is no store on its path.

use crate::metrics::push;
use crate::state::ProxyState;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::{Micros, Replicas, Seen};
use tidegate_doors::metrics::{Kind, Page, seconds};
use tracing::{info, warn};

/// What was last seen of the other replicas.
#[derive(Default)]
pub(crate) struct Others(Mutex<Seen>);

impl Others {
    /// Why the register cannot be read, if it cannot.
    pub(crate) fn error(&self) -> Option<String> {
        self.seen().error.clone()
    }

    fn note(&self, seen: &Seen) {
        let mut known = self.seen();
        match (&known.error, &seen.error) {
            (None, Some(error)) => warn!("{error}; this replica starts requests by its assigned shares only"),
            (Some(_), None) => info!("the register of the replicas is read again"),
            _ => {}
        }
        if known.members != seen.members {
            info!("replicas: {}; this one is {}", seen.members.join(" "), seen.me);
        }
        known.clone_from(seen);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this replica holds, how many members there are, and the horizon.
    fn figures(&self, part: Option<u32>) -> [(&'static str, &'static str, u64); 4] {
        let seen = self.seen();
        [
            ("share", "Starts per key that this replica holds in the current window.", part.unwrap_or(0).into()),
            ("promised", "1: the current window is assigned; 0: nothing may start.", part.is_some().into()),
            ("replicas", "Replicas that share the limit, by what was last seen.", seen.members.len() as u64),
            ("horizon", "The first window, by number, that is not assigned.", seen.horizon),
        ]
    }

    /// How long ago the register was last read.
    fn age(&self, now: Micros) -> Micros {
        now.saturating_sub(self.seen().at)
    }

    /// The other replicas, as members of a JSON object.
    fn push_names(&self, text: &mut String) {
        let seen = self.seen();
        let members: Vec<String> = seen.members.iter().map(|member| format!("\"{member}\"")).collect();
        let _ = write!(text, ",\"replica\":\"{}\",\"members\":[{}]", seen.me, members.join(","));
    }
}

/// This replica's share and the other replicas, for Prometheus.
pub(crate) fn push_metrics(state: &ProxyState, page: &mut Page) {
    if state.is_shared() {
        for (name, help, value) in state.others.figures(state.queue.share()) {
            push(page, &format!("tidegate_proxy_{name}"), Kind::Gauge, help, value);
        }
        let age = seconds(state.others.age(state.clock.now()).get());
        push(page, "tidegate_proxy_seen_seconds", Kind::Gauge, "How long ago the register was last read.", age);
    }
}

/// The same in the JSON summary, with names.
pub(crate) fn push_json(state: &ProxyState, page: &mut String) {
    if state.is_shared() {
        // The object's own brace.
        page.truncate(page.trim_end().len() - 1);
        for (name, _, value) in state.others.figures(state.queue.share()) {
            let _ = write!(page, ",\"{name}\":{value}");
        }
        let _ = write!(page, ",\"seen_us\":{}", state.others.age(state.clock.now()).get());
        state.others.push_names(page);
        page.push_str("}\n");
    }
}

/// Renews this process's share through the gate until the proxy stops.
pub(crate) async fn renew(state: Arc<ProxyState>) {
    while !state.is_stopping() && state.replicas() == Replicas::Share(None) {
        let limiter = state.rules.load().policy.limiter.clone();
        let (name, windows) = (limiter.spec().name.clone(), state.rules.load().policy.limit().windows());
        let note = |seen: &Seen| {
            if let Some(schedule) = state.gate.schedule(&name) {
                state.queue.set_share(schedule);
            }
            state.others.note(seen);
        };
        state.gate.renew_share((&name, windows), state.stopped(), note).await;
    }
}
