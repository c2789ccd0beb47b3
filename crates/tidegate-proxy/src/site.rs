//! What all threads of a proxy share.

use crate::counting::{self, Counting};
use crate::key::KeyMaker;
use crate::metrics::Metrics;
use crate::pool::Pools;
use crate::queue::Queue;
use crate::reply::Denials;
use crate::settings::{Policy, Settings, WhenLimited};
use crate::sharing::{self, Others};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate::Clock;
use tokio::sync::Notify;

pub(crate) struct Site {
    pub(crate) settings: Settings,
    pub(crate) tick_limits: TickLimits,
    pub(crate) clock: Clock,
    pub(crate) rules: ArcSwap<Rules>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) keys: KeyMaker,
    pub(crate) pools: Pools,
    pub(crate) metrics: Metrics,
    pub(crate) others: Others,
    pub(crate) counting: Counting,
    /// Counted up about every [`TICK`].
    pub(crate) tick: AtomicU64,
    stopping: AtomicBool,
    stop: Notify,
}

/// A policy, ready to be used.
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) denials: Denials,
    /// The policy's `upstream_timeout`.
    pub(crate) upstream_ticks: u64,
    /// Counted up when the upstream changes: links to the one before are not used again.
    pub(crate) generation: u64,
}

impl Rules {
    fn new(policy: Policy, generation: u64) -> Rules {
        let (denials, upstream_ticks) = (Denials::new(policy.limit), ticks(policy.upstream_timeout));
        Rules { policy, denials, upstream_ticks, generation }
    }

    /// Who may not start now does not wait.
    pub(crate) fn rejects(&self) -> bool {
        self.policy.when_limited == WhenLimited::Reject
    }
}

/// The settings' time limits in ticks.
#[derive(Clone, Copy)]
pub(crate) struct TickLimits {
    pub(crate) head: u64,
    pub(crate) idle: u64,
    pub(crate) client: u64,
}

/// A time limit in ticks, rounded up.
fn ticks(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u64::MAX >> 1)
}

/// How often connections are looked at. A time limit may be overstayed by up to two of these.
pub(crate) const TICK: Duration = Duration::from_millis(500);

impl Site {
    pub(crate) fn new(policy: Policy, settings: Settings, clock: Clock) -> Site {
        let site = Site {
            tick_limits: TickLimits {
                head: ticks(settings.head_timeout),
                idle: ticks(settings.idle_timeout),
                client: ticks(settings.client_timeout),
            },
            queue: Arc::new(Queue::new(policy.bounds(), clock.clone())),
            clock,
            keys: KeyMaker::default(),
            pools: Pools::new(settings.workers),
            metrics: Metrics::default(),
            others: Others::default(),
            counting: Counting::default(),
            tick: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
            settings,
            rules: ArcSwap::from_pointee(Rules::new(policy, 0)),
        };
        if let Some(sharing) = &site.settings.sharing {
            site.queue.set_parts(sharing::at_first(sharing));
        }
        site.deal_with_store();
        site
    }

    /// Buys starts of the store, if replicas count together.
    fn deal_with_store(&self) {
        if self.settings.together.is_some() {
            let rejects = self.rules.load().rejects();
            self.queue.deal_with_store(counting::dealings(self.settings.store_patience, rejects));
        }
    }

    /// Puts another policy in force. What was sent to the upstream ends by the one that it began with; who waits
    /// goes on by the new one.
    pub(crate) fn reload(&self, policy: Policy) {
        let old = self.rules.load_full();
        let generation = old.generation + u64::from(!old.policy.upstream.is(&policy.upstream));
        let (bounds, period) = (policy.bounds(), policy.limit.period());
        // First of all: whom other bounds let through goes where the new policy says.
        self.rules.store(Arc::new(Rules::new(policy, generation)));
        self.deal_with_store();
        if let Some(sharing) = &self.settings.sharing
            && old.policy.limit.period() != period
        {
            // What was promised is of windows of another length.
            self.queue.set_parts(sharing::at_first(sharing));
        }
        self.queue.set_bounds(bounds);
    }

    /// Tells everybody to stop.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        self.stop.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Ends when the proxy is told to stop.
    pub(crate) async fn stopped(&self) {
        let notified = self.stop.notified();
        if !self.is_stopping() {
            notified.await;
        }
    }
}
