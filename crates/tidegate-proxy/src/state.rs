//! What all threads of a proxy share.

use crate::client_slots::Clients;
use crate::key::KeyMaker;
use crate::metrics::Metrics;
use crate::pool::Pools;
use crate::queue::Queue;
use crate::reply::Denials;
use crate::settings::{Policy, Settings, WhenLimited};
use crate::share::Others;
use crate::shared_counting::{self, Counting};
use crate::window_clock::WindowClock;
use arc_swap::ArcSwap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Waker};
use tidegate::{Door, Gate, Hit, HitAnswer, Limit, Limiter, Micros, Replicas, Verdict};
use tidegate_core::all_or_nothing::{Reason, Ruling};
use tidegate_core::replicas::Schedule;
use tidegate_core::turnstile::Bounds;
use tidegate_doors::listener::ticks;
use tokio::sync::Notify;

pub(crate) struct ProxyState {
    pub(crate) settings: Settings,
    /// The settings' `client_timeout`.
    pub(crate) client_ticks: u64,
    /// The engine: its clock is the one clock of the process, its store the one store.
    pub(crate) gate: Gate,
    /// That clock, set by the store's where replicas count there.
    pub(crate) clock: WindowClock,
    /// Fixed at the start.
    shares_counts: bool,
    /// Whether the turnstile's bounds are the limiter's; see [`ProxyState::follow_flag`].
    is_enforced: AtomicBool,
    pub(crate) rules: ArcSwap<Rules>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) keys: KeyMaker,
    pub(crate) pools: Pools,
    pub(crate) clients: Arc<Clients>,
    pub(crate) metrics: Metrics,
    pub(crate) others: Others,
    pub(crate) counting: Counting,
    stopping: AtomicBool,
    stop: Notify,
}

/// What the gate's limiter says of a start.
pub(crate) enum Charge {
    Allowed,
    /// The limit was used up through another door.
    Limited,
    /// The key is blocked, for so long.
    Blocked(Option<Micros>),
}

impl Charge {
    fn of(ruling: &Ruling) -> Charge {
        match ruling.decision.verdict {
            Verdict::Allow => Charge::Allowed,
            Verdict::Deny { retry_after } if ruling.reason == Reason::Blocked => Charge::Blocked(retry_after),
            Verdict::Deny { .. } => Charge::Limited,
        }
    }
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
        let (denials, upstream_ticks) = (Denials::new(&policy.limiter), ticks(policy.upstream_timeout));
        Rules { policy, denials, upstream_ticks, generation }
    }

    /// A request that may not start now does not wait.
    pub(crate) fn rejects(&self) -> bool {
        self.policy.when_limited == WhenLimited::Reject
    }
}

impl ProxyState {
    pub(crate) fn new(gate: Gate, policy: Policy, settings: Settings) -> ProxyState {
        let gate = gate.at(Door::Proxy);
        let clock = WindowClock::new(gate.clock().clone());
        let schedule = assigned(&policy.limiter);
        let is_enforced = policy.limiter.is_enforced();
        let shares_counts = gate.store().capabilities().shared && policy.limiter.spec().replicas == Replicas::Exact;
        let state = ProxyState {
            shares_counts,
            is_enforced: AtomicBool::new(is_enforced),
            client_ticks: ticks(settings.client_timeout),
            queue: Arc::new(Queue::new(bounds(&policy, is_enforced), clock.clone())),
            clock,
            gate,
            keys: KeyMaker::default(),
            pools: Pools::new(settings.workers),
            clients: Arc::default(),
            metrics: Metrics::new(settings.connection_caps()),
            others: Others::default(),
            counting: Counting::default(),
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
            settings,
            rules: ArcSwap::from_pointee(Rules::new(policy, 0)),
        };
        if let Some(schedule) = schedule {
            state.queue.set_share(schedule);
        }
        state.count_at_store();
        state
    }

    /// Counts starts at the store, if replicas share one count.
    fn count_at_store(&self) {
        if self.shares_counts() {
            let rejects = self.rules.load().rejects();
            self.queue.count_at_store(shared_counting::terms(self.settings.store_outage, rejects));
            self.gate.count_together(&self.rules.load().policy.limiter.spec().name);
        }
    }

    /// Charges a start at the gate. Where replicas share one count, the store has charged it, and only a block is looked for.
    pub(crate) fn charge(&self, rules: &Rules, key: &[u8]) -> Charge {
        if self.shares_counts {
            return self.shared_block(rules, key);
        }
        match self.gate.hit_on(&rules.policy.limiter, key, 1) {
            Ok(Some(ruling)) => Charge::of(&ruling),
            // A disabled limiter, or a key that cannot be one.
            Ok(None) | Err(_) => Charge::Allowed,
        }
    }

    /// What the gate would say of a start; charges nothing.
    pub(crate) fn peek(&self, rules: &Rules, key: &[u8]) -> Charge {
        if self.shares_counts {
            return self.shared_block(rules, key);
        }
        let Ok(hit) = Hit::new(&rules.policy.limiter, key) else { return Charge::Allowed };
        let (hits, batch, mut charge) = ([hit.peek()], self.gate.batch(self.gate.now()), Charge::Allowed);
        let asked = self.gate.ask_each(&hits, &batch, |_, answer| {
            if let HitAnswer::Ruled { ruling, .. } = answer {
                charge = Charge::of(&ruling);
            }
        });
        // The limiter's states are in this process, as replicas do not share one count: it is answered at once.
        let _ = pin!(asked).poll(&mut Context::from_waker(Waker::noop()));
        charge
    }

    /// A key's block where replicas share one count.
    fn shared_block(&self, rules: &Rules, key: &[u8]) -> Charge {
        let until = self.gate.blocked_together(key).filter(|_| rules.policy.limiter.is_enforced());
        match until.unwrap_or(Micros::ZERO).saturating_sub(self.clock.now()) {
            Micros::ZERO => Charge::Allowed,
            left => Charge::Blocked(Some(left)),
        }
    }

    /// Follows the limiter's flag: while it is disabled, the turnstile lets every request start that finds a slot.
    pub(crate) fn follow_flag(&self) {
        let policy = &self.rules.load().policy;
        let is_enforced = policy.limiter.is_enforced();
        if self.is_enforced.swap(is_enforced, Relaxed) != is_enforced {
            self.queue.set_bounds(bounds(policy, is_enforced));
        }
    }

    /// Do replicas share one count, at the store?
    pub(crate) fn shares_counts(&self) -> bool {
        self.shares_counts
    }

    /// Does this process hold a share of the limit?
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.replicas(), Replicas::Share(_))
    }

    /// How several processes keep the limit.
    pub(crate) fn replicas(&self) -> Replicas {
        self.rules.load().policy.limiter.spec().replicas
    }

    /// Puts another policy in force. What was sent to the upstream ends by the one that it began with; a request that
    /// waits goes on by the new one.
    pub(crate) fn reload(&self, policy: Policy) {
        let old = self.rules.load_full();
        let generation = old.generation + u64::from(!old.policy.upstream.is(&policy.upstream));
        let is_enforced = policy.limiter.is_enforced();
        self.is_enforced.store(is_enforced, Relaxed);
        let (bounds, period) = (bounds(&policy, is_enforced), policy.limit().period());
        let schedule = assigned(&policy.limiter).filter(|_| old.policy.limit().period() != period);
        // First of all: a request that the new bounds let through goes to the new policy's upstream.
        self.rules.store(Arc::new(Rules::new(policy, generation)));
        self.count_at_store();
        if let Some(schedule) = schedule {
            // What was assigned is of windows of another length.
            self.queue.set_share(schedule);
        }
        self.queue.set_bounds(bounds);
    }

    /// Why no request can be started here, if none can: the proxy stops, or what it shares with other replicas has been out
    /// of reach for so long that requests are answered 503.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.is_stopping() {
            return Some("stopping".to_owned());
        }
        if self.queue.share().is_none() {
            return self.others.error();
        }
        self.counting.outage(self.settings.store_outage, self.clock.now())
    }

    /// Has all threads and waiting requests stop.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        self.stop.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Ends when the proxy is to stop.
    pub(crate) async fn stopped(&self) {
        let notified = self.stop.notified();
        if !self.is_stopping() {
            notified.await;
        }
    }
}

/// What this process holds of the limit before anything was read; `None`: all of it.
fn assigned(limiter: &Limiter) -> Option<Schedule> {
    match limiter.spec().replicas {
        Replicas::Exact => None,
        Replicas::Share(Some((rank, of))) => Some(Schedule::fixed(rank, of)),
        Replicas::Share(None) => Some(Schedule::NONE),
    }
}

/// What the turnstile keeps to. A limiter that is disabled limits no starts; slots are not its business.
fn bounds(policy: &Policy, is_enforced: bool) -> Bounds {
    let bounds = policy.bounds();
    match Limit::new(u32::MAX, bounds.limit.period()) {
        Ok(limit) if !is_enforced => Bounds { limit: limit.with_weeks_of(&bounds.limit), ..bounds },
        _ => bounds,
    }
}
