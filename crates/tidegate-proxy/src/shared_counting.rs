//! Shared counting: the turnstile's quota requests are carried to the store, and its grants back.
//!
//! A client's request that needs the store stands in line like any other; here is the one task that asks for all of
//! them. Many that wait for one key are one quota request.

use crate::metrics::push;
use crate::queue::Queue;
use crate::state::ProxyState;
use crate::window_clock::WindowClock;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tidegate::{Micros, QuotaClient, StoreError};
use tidegate_core::turnstile::{Grant, Name, PendingRequest, QuotaRequest, StoreTerms};
use tidegate_doors::metrics::{Kind, Page};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

/// This replica's requests to the store: how many were granted, how many failed, and why.
#[derive(Default)]
pub(crate) struct Counting {
    client: OnceLock<Arc<QuotaClient>>,
    granted: AtomicU64,
    failed: AtomicU64,
    /// When the store last answered, in microseconds.
    answered_at: AtomicU64,
    outage: Mutex<Option<Outage>>,
}

/// The store does not answer.
struct Outage {
    since: Micros,
    why: String,
}

/// Quota requests that are out at once, each of another key.
const OUT_MAX: usize = 1_000;
/// How long the last quota requests may take when the proxy stops.
const LAST_REPORTS_WITHIN: Duration = Duration::from_secs(1);
/// Longest sleep: the clock may be set ahead meanwhile.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// On which terms the turnstile counts at the store.
pub(crate) fn terms(outage_max: Duration, call_all: bool) -> StoreTerms {
    let outage_max = Micros::saturating(u64::try_from(outage_max.as_micros()).unwrap_or(u64::MAX));
    StoreTerms { outage_max, call_all }
}

impl Counting {
    /// Why the store does not answer, if it has not for so long.
    pub(crate) fn outage(&self, longer_than: Duration, now: Micros) -> Option<String> {
        let outage = self.lock();
        let is_long = |outage: &&Outage| u128::from(now.saturating_sub(outage.since).get()) >= longer_than.as_micros();
        outage.as_ref().filter(is_long).map(|outage| outage.why.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, outcome: Result<Grant, StoreError>, now: Micros) -> Grant {
        let mut outage = self.lock();
        match outcome {
            Ok(grant) => {
                self.answered_at.store(now.get(), Relaxed);
                self.granted.fetch_add(grant.granted.into(), Relaxed);
                if outage.take().is_some() {
                    info!("the store answers again: the replicas share one count");
                }
                grant
            }
            Err(why) => {
                let why = why.to_string();
                self.failed.fetch_add(1, Relaxed);
                if outage.is_none() {
                    warn!("{why}; requests wait for the store, then are answered 503");
                }
                let since = outage.as_ref().map_or(now, |outage| outage.since.min(now));
                *outage = Some(Outage { since, why });
                Grant::FAILED
            }
        }
    }
}

/// Carries quota requests until the last client's request has ended, and then the last reports.
pub(crate) async fn count(state: Arc<ProxyState>, ended: oneshot::Receiver<()>) {
    let pool = state.rules.load().policy.limiter.spec().name.clone();
    let client = Arc::new(QuotaClient::new(state.gate.store().clone(), &pool));
    let _ = state.counting.client.set(Arc::clone(&client));
    let mut carrier = Carrier { state: &state, client, out: JoinSet::new() };
    carrier.carry_until(ended).await;
    let _ = timeout(LAST_REPORTS_WITHIN, carrier.settle()).await;
}

struct Carrier<'a> {
    state: &'a Arc<ProxyState>,
    client: Arc<QuotaClient>,
    out: JoinSet<Back>,
}

/// What came back from the store.
struct Back {
    /// `None`: a probe.
    pending: Option<PendingRequest>,
    /// When it was sent, by the process's clock.
    sent: Micros,
    outcome: Result<Grant, StoreError>,
}

impl Carrier<'_> {
    async fn carry_until(&mut self, mut ended: oneshot::Receiver<()>) {
        let mut beat = interval(self.client.beat());
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut keeping: Option<JoinHandle<_>> = None;
        loop {
            let room = OUT_MAX.saturating_sub(self.out.len());
            tokio::select! {
                _ = &mut ended => return,
                requests = requests(&self.state.queue, &self.state.clock, room) => self.send(requests),
                Some(Ok(back)) = self.out.join_next() => self.receive(back),
                _ = beat.tick() => {
                    self.probe();
                    let client = Arc::clone(&self.client);
                    if keeping.as_ref().is_none_or(JoinHandle::is_finished) {
                        // A failure is logged by the quota requests, which fail for the same reason.
                        keeping = Some(tokio::spawn(async move { client.keep_slots().await }));
                    }
                }
            }
        }
    }

    /// Hands back unused starts and slots, so that other replicas need not wait for a lease to end.
    async fn settle(&mut self) {
        while self.state.queue.next_request_at().is_some() || !self.out.is_empty() {
            let room = OUT_MAX.saturating_sub(self.out.len());
            tokio::select! {
                requests = requests(&self.state.queue, &self.state.clock, room) => self.send(requests),
                Some(Ok(back)) = self.out.join_next() => self.receive(back),
            }
        }
    }

    /// Asks for nothing, if nothing was asked for long: so it is known whether the store answers, also when no request comes
    /// because this replica is not ready.
    fn probe(&mut self) {
        let (now, beat) = (self.state.clock.now(), self.client.beat().as_micros());
        let answered_at = self.state.counting.answered_at.load(Relaxed);
        if u128::from(now.get().abs_diff(answered_at)) < beat || !self.out.is_empty() {
            return;
        }
        let limit = self.state.rules.load().policy.limit();
        let (windows, limit) = (limit.windows(), limit.count());
        let window = windows.number(now);
        let nothing =
            QuotaRequest { name: Name::default(), windows, window, limit, in_flight: 0, held: 0, want: 0, unused: 0 };
        self.spawn(None, nothing);
    }

    fn send(&mut self, requests: Vec<PendingRequest>) {
        for pending in requests {
            let request = pending.request;
            self.spawn(Some(pending), request);
        }
    }

    fn spawn(&mut self, pending: Option<PendingRequest>, request: QuotaRequest) {
        let (client, sent) = (Arc::clone(&self.client), self.state.clock.process_now());
        self.out.spawn(async move { Back { pending, sent, outcome: client.ask(&request).await } });
    }

    fn receive(&mut self, Back { pending, sent, outcome }: Back) {
        let theirs = if let Err(StoreError::OtherWindow { now, .. }) = &outcome { Some(*now) } else { None };
        let set = theirs.and_then(|theirs| self.state.clock.set_by(theirs, sent));
        let grant = match set {
            Some(by_us) => {
                let (by_ms, side) = (by_us.unsigned_abs() / 1_000, if by_us < 0 { "ahead of" } else { "behind" });
                warn!("the clock of the windows was {by_ms} ms {side} the store's, and is set by it; set both by NTP");
                Grant::FAILED
            }
            None => self.state.counting.note(outcome, self.state.clock.now()),
        };
        if let Some(pending) = pending {
            self.state.queue.answered(pending, grant);
        }
        if theirs.is_some() {
            // Also if the clock was right: a thread that had read it before it was set may have turned a window.
            self.state.queue.clock_was_set(Micros::saturating(set.unwrap_or(0).max(0).unsigned_abs()));
        }
    }
}

/// The next quota requests, as soon as there are any.
async fn requests(queue: &Queue, clock: &WindowClock, room: usize) -> Vec<PendingRequest> {
    if room == 0 {
        return std::future::pending().await;
    }
    loop {
        let due = match poll_fn(|cx| Poll::Ready(queue.requests(cx.waker(), room))).await {
            Ok(requests) => return requests,
            Err(due) => due.map_or(SLEEP_MAX, |due| Duration::from_micros(due.saturating_sub(clock.now()).get())),
        };
        let mut is_woken = false;
        tokio::select! {
            () = sleep(due.min(SLEEP_MAX)) => {}
            // Whatever wakes this task: then it looks again.
            () = poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }) => {}
        }
    }
}

/// The figures of shared counting, for Prometheus.
pub(crate) fn push_metrics(state: &ProxyState, page: &mut Page) {
    let Some(client) = state.counting.client.get() else { return };
    let Counting { granted, failed, .. } = &state.counting;
    let answers = u64::from(state.counting.lock().is_none());
    for (name, kind, help, value) in [
        ("granted_total", Kind::Counter, "Starts that the store granted this replica.", granted.load(Relaxed)),
        ("round_trips_total", Kind::Counter, "Round trips to the store.", client.round_trips()),
        ("store_failures_total", Kind::Counter, "Questions that the store did not answer.", failed.load(Relaxed)),
        ("store_up", Kind::Gauge, "1: the store answered last time.", answers),
    ] {
        push(page, &format!("tidegate_proxy_{name}"), kind, help, value);
    }
}

/// The same in the JSON summary, with names.
pub(crate) fn push_json(state: &ProxyState, page: &mut String) {
    let Some(client) = state.counting.client.get() else { return };
    let Counting { granted, failed, answered_at, .. } = &state.counting;
    // The object's own brace.
    page.truncate(page.trim_end().len() - 1);
    let seen = state.clock.now().get().saturating_sub(answered_at.load(Relaxed));
    let _ = writeln!(
        page,
        ",\"replica\":\"{}\",\"granted\":{},\"round_trips\":{},\"store_failures\":{},\"seen_us\":{seen}}}",
        client.me(),
        granted.load(Relaxed),
        client.round_trips(),
        failed.load(Relaxed)
    );
}
