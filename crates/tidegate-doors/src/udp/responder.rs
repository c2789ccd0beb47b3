//! Datagrams in, replies out: the door without its sockets.

use super::routes::{Caches, RouteProblem, Routes, Routing};
use arc_swap::ArcSwap;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use tidegate::{Batch, Gate, Limiter, Micros, Ruling};
use tidegate_wire::udp::{Command, REPLY_LEN_MAX, Reply, Request};

/// Answers datagrams on an engine, by routes that can be replaced while it is asked.
#[derive(Debug)]
pub struct Responder {
    gate: Gate,
    live: ArcSwap<Live>,
}

/// The routes in force with their limiters, by number.
#[derive(Debug)]
struct Live {
    routes: Routes,
    limiters: Vec<Limiter>,
}

/// Room for one reply.
#[derive(Clone)]
pub struct Slot {
    bytes: [u8; REPLY_LEN_MAX],
    len: usize,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot { bytes: [0; REPLY_LEN_MAX], len: 0 }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.bytes[..self.len].escape_ascii())
    }
}

impl Slot {
    /// The reply; `None`: silence.
    #[must_use]
    pub fn reply(&self) -> Option<&[u8]> {
        (self.len > 0).then_some(&self.bytes[..self.len])
    }

    fn write(&mut self, request: &Request<'_>, reply: &Reply<'_>) {
        self.len = reply.write(request.id, &mut self.bytes);
    }
}

/// What one thread keeps between batches.
#[derive(Default)]
pub struct Scratch {
    /// The routes as of the last batch, with this thread's caches for them.
    at: Option<(Arc<Live>, Caches)>,
    rulings: Vec<Ruling>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// A use that waits for the rest of its batch.
struct Waiting<'d> {
    index: usize,
    request: Request<'d>,
    limiter: usize,
    key: Cow<'d, [u8]>,
}

impl Responder {
    /// A responder on this engine.
    ///
    /// # Errors
    /// A rule is refused, or names a limiter that the engine does not have.
    pub fn new(gate: Gate, routing: &Routing) -> Result<Responder, RouteProblem> {
        let live = ArcSwap::from_pointee(Live::new(&gate, routing)?);
        Ok(Responder { gate, live })
    }

    /// Puts other routes in force, or the same on the limiters of the engine's new policy.
    ///
    /// # Errors
    /// As [`Responder::new`]; the old ones stay in force then.
    pub fn reload(&self, routing: &Routing) -> Result<(), RouteProblem> {
        self.live.store(Arc::new(Live::new(&self.gate, routing)?));
        Ok(())
    }

    /// The engine.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Answers datagrams as if each came alone, in order, all at `now`; `slots` are as many.
    pub fn answer(&self, scratch: &mut Scratch, datagrams: &[&[u8]], now: Micros, slots: &mut [Slot]) {
        self.answer_seen(scratch, datagrams, now, slots, |_, _, _| {});
    }

    /// The same; `seen` is told of every use of a key: its limiter, if it has one, and the ruling, if
    /// the limiter is enabled.
    pub fn answer_seen(
        &self,
        scratch: &mut Scratch,
        datagrams: &[&[u8]],
        now: Micros,
        slots: &mut [Slot],
        mut seen: impl FnMut(&[u8], Option<&Limiter>, Option<&Ruling>),
    ) {
        let rulings = &mut scratch.rulings;
        let (live, caches) = self.in_force(&mut scratch.at);
        let batch = self.gate.batch(now);
        // Counting all shards takes a while: once a batch is enough.
        let mut size = None;
        let mut waiting: Vec<Waiting<'_>> = Vec::with_capacity(datagrams.len());
        for (index, datagram) in datagrams.iter().enumerate() {
            let slot = &mut slots[index];
            slot.len = 0;
            let Some(request) = Request::parse(datagram) else { continue };
            match request.command {
                Command::Ping => slot.write(&request, &Reply::Pong),
                Command::OverLimit(key) => match live.routes.find(caches, key) {
                    (key, Some(limiter)) if live.limiters[limiter].is_heeded() => {
                        waiting.push(Waiting { index, request, limiter, key });
                    }
                    (key, route) => {
                        let limiter = route.map(|route| &live.limiters[route]);
                        slot.write(&request, &limiter.map_or(Reply::UNLIMITED, disabled));
                        seen(&key, limiter, None);
                    }
                },
                // These tell what the uses before them led to.
                Command::GetStats(key) => {
                    self.decide(live, &mut waiting, &batch, rulings, slots, &mut seen);
                    slots[index].write(&request, &self.stats(live, caches, key));
                }
                Command::GetSize => {
                    self.decide(live, &mut waiting, &batch, rulings, slots, &mut seen);
                    slots[index].write(&request, size.get_or_insert_with(|| self.size()));
                }
            }
        }
        self.decide(live, &mut waiting, &batch, rulings, slots, &mut seen);
    }

    /// The routes in force, with this thread's caches; new ones after a reload.
    fn in_force<'c>(&self, at: &'c mut Option<(Arc<Live>, Caches)>) -> (&'c Live, &'c mut Caches) {
        let live = self.live.load();
        if at.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, &live)) {
            *at = None;
        }
        let (live, caches) = at.get_or_insert_with(|| (Arc::clone(&live), live.routes.caches()));
        (live, caches)
    }

    /// Decides all that wait: here one call for each limiter among them, elsewhere one wait for all.
    /// Uses of one key have one limiter, so that they stay in order.
    fn decide(
        &self,
        live: &Live,
        waiting: &mut Vec<Waiting<'_>>,
        batch: &Batch,
        rulings: &mut Vec<Ruling>,
        slots: &mut [Slot],
        seen: &mut impl FnMut(&[u8], Option<&Limiter>, Option<&Ruling>),
    ) {
        let elsewhere = self.gate.is_elsewhere();
        while let Some(first) = waiting.first() {
            let number = first.limiter;
            let together = |use_: &&Waiting<'_>| elsewhere || use_.limiter == number;
            let same = || waiting.iter().filter(together);
            rulings.clear();
            if elsewhere {
                let uses: Vec<_> = same().map(|use_| (&live.limiters[use_.limiter], use_.key.as_ref())).collect();
                self.gate.hit_each_at(&uses, 1, batch, rulings);
            } else {
                let mut keys: Vec<&[u8]> = Vec::with_capacity(waiting.len());
                keys.extend(same().map(|use_| use_.key.as_ref()));
                self.gate.hit_many_at(&live.limiters[number], &keys, 1, batch.now(), rulings);
            }
            for (use_, ruling) in same().zip(rulings.iter()) {
                let limiter = &live.limiters[use_.limiter];
                slots[use_.index].write(&use_.request, &decided(limiter, ruling));
                seen(&use_.key, Some(limiter), Some(ruling));
            }
            waiting.retain(|use_| !elsewhere && use_.limiter != number);
        }
    }

    fn stats<'k>(&self, live: &Live, caches: &mut Caches, key: &'k [u8]) -> Reply<'k> {
        let limiter = live.routes.find_plain(caches, key).map(|route| &live.limiters[route]);
        let stats = limiter.map(|limiter| self.gate.key_stats_on(limiter, key)).unwrap_or_default();
        Reply::Stats { requests: stats.requests, over: stats.over, last_max_rate: stats.last_max_rate, key }
    }

    fn size(&self) -> Reply<'static> {
        let usage = self.gate.usage();
        Reply::Size { keys: usage.entries as u64, capacity: usage.capacity as u64 }
    }
}

impl Live {
    fn new(gate: &Gate, routing: &Routing) -> Result<Live, RouteProblem> {
        let routes = Routes::new(routing)?;
        let find = |name: &str| gate.limiter(name).map_err(|error| RouteProblem::Whole(error.to_string()));
        let limiters = routing.routes.iter().map(|route| find(&route.limiter)).collect::<Result<_, _>>()?;
        Ok(Live { routes, limiters })
    }
}

fn decided(limiter: &Limiter, ruling: &Ruling) -> Reply<'static> {
    let period =
        limiter.spec().rules.limits().get(usize::from(ruling.limit_index)).map_or(Micros::ZERO, |limit| limit.period());
    Reply::OverLimit {
        over: !ruling.is_allowed(),
        rate: ruling.decision.rate.get(),
        limit: ruling.decision.limit,
        period_s: whole_seconds(period),
    }
}

/// A limiter that is disabled allows all and counts nothing.
fn disabled(limiter: &Limiter) -> Reply<'static> {
    let limit = limiter.spec().rules.limits().first();
    Reply::OverLimit {
        over: false,
        rate: 0.0,
        limit: limit.map_or(0, |limit| limit.burst()),
        period_s: limit.map_or(0, |limit| whole_seconds(limit.period())),
    }
}

/// As the original's `%d`: what is below a second is cut off.
fn whole_seconds(period: Micros) -> u32 {
    u32::try_from(period.get() / 1_000_000).unwrap_or(u32::MAX)
}
