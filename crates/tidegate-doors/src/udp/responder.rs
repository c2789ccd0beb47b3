//! Datagrams in, replies out: the door without its sockets. Invariant: the responder waits for nothing but
//! the engine.

use super::batch::BATCH;
use super::check::Check;
use super::counts::Counts;
use super::routes::{Caches, Found, RouteProblem, Routes, Routing};
use crate::access::Network;
use arc_swap::ArcSwap;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate::{Batch, Door, Gate, Hit, HitAnswer, KeyStats, Limiter, Micros, Ruling};
use tidegate_wire::udp::{Command, Lines, REPLY_LEN_MAX, Reply, Request, line_room, lines, reply_room};

/// Answers datagrams on an engine, by routes that can be replaced while it is asked.
#[derive(Debug)]
pub struct Responder {
    gate: Gate,
    live: ArcSwap<Live>,
    counts: Arc<Counts>,
    /// Networks that may ask; none: whoever reaches the door.
    allow: ArcSwap<Vec<Network>>,
}

/// Under this name `get_stats` tells how often keys without a route were used.
const UNROUTED: &[u8] = b"default";

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
    /// The reply to several lines, in place of the other.
    lines: Vec<u8>,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot { bytes: [0; REPLY_LEN_MAX], len: 0, lines: Vec::new() }
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
        let reply = if self.lines.is_empty() { &self.bytes[..self.len] } else { &self.lines };
        (!reply.is_empty()).then_some(reply)
    }

    fn clear(&mut self) {
        self.len = 0;
        self.lines.clear();
    }

    fn write(&mut self, id: Option<&[u8]>, reply: &Reply<'_>) {
        self.len = reply.write(id, &mut self.bytes);
    }
}

/// What one thread keeps between batches.
#[derive(Default)]
pub struct Scratch {
    /// The routes as of the last batch, with this thread's caches for them.
    at: Option<(Arc<Live>, Caches)>,
    /// Replies to the lines of one datagram.
    lines: Vec<Slot>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// A use that waits for the rest of its batch.
struct Waiting<'d> {
    index: usize,
    id: Option<&'d [u8]>,
    limiter: usize,
    key: Cow<'d, [u8]>,
}

impl Responder {
    /// A responder on this engine.
    ///
    /// # Errors
    /// A rule is refused, or names a limiter that the engine does not have.
    pub fn new(gate: Gate, routing: &Routing) -> Result<Responder, RouteProblem> {
        let gate = gate.at(Door::Udp);
        let live = ArcSwap::from_pointee(Live::new(&gate, routing)?);
        Ok(Responder { gate, live, counts: Arc::new(Counts::new()), allow: ArcSwap::default() })
    }

    /// Puts other routes in force, or the same on the limiters of the engine's new policy.
    ///
    /// # Errors
    /// As [`Responder::new`]; the old ones stay in force then.
    pub fn reload(&self, routing: &Routing) -> Result<(), RouteProblem> {
        self.live.store(Arc::new(Live::new(&self.gate, routing)?));
        Ok(())
    }

    /// Answers these networks only from now on; none: whoever reaches the door.
    pub fn allow(&self, networks: Vec<Network>) {
        self.allow.store(Arc::new(networks));
    }

    /// May an address ask? `None`: all may.
    pub(super) fn allowed(&self) -> Option<impl Fn(IpAddr) -> bool> {
        let networks = self.allow.load();
        let is_bound = !networks.is_empty();
        is_bound.then_some(move |address| networks.iter().any(|network| network.contains(address)))
    }

    /// The engine.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// What it counts without a limiter.
    #[must_use]
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Answers datagrams as if each came alone, in order, all at `now`; `slots` are as many. On a remote
    /// store the later keys of a `check_limit` are used after the rest of the batch.
    ///
    /// A datagram of several lines is answered line by line, as many at a time as a batch has.
    pub fn answer(&self, scratch: &mut Scratch, datagrams: &[&[u8]], now: Micros, slots: &mut [Slot]) {
        self.answer_seen(scratch, datagrams, now, slots, |_, _, _| {});
    }

    /// The same; `seen` gets every use of a key: its limiter, if it has one, and the ruling, if
    /// the limiter is enabled.
    pub fn answer_seen(
        &self,
        scratch: &mut Scratch,
        datagrams: &[&[u8]],
        now: Micros,
        slots: &mut [Slot],
        mut seen: impl FnMut(&[u8], Option<&Limiter>, Option<&Ruling>),
    ) {
        // Nearly all batches have none of several lines, and are answered in one go.
        let mut at = 0;
        while at < datagrams.len() {
            let run = datagrams[at..].iter().take_while(|datagram| !has_lines(datagram)).count();
            self.answer_run(scratch, &datagrams[at..at + run], reply_room, now, &mut slots[at..at + run], &mut seen);
            at += run;
            if let (Some(datagram), Some(slot)) = (datagrams.get(at), slots.get_mut(at)) {
                self.answer_lines(scratch, datagram, now, slot, &mut seen);
                at += 1;
            }
        }
    }

    /// Answers a datagram of several lines.
    fn answer_lines(
        &self,
        scratch: &mut Scratch,
        datagram: &[u8],
        now: Micros,
        slot: &mut Slot,
        seen: &mut impl FnMut(&[u8], Option<&Limiter>, Option<&Ruling>),
    ) {
        slot.clear();
        let all: Vec<&[u8]> = lines(datagram).into_iter().flatten().collect();
        let mut slots = std::mem::take(&mut scratch.lines);
        slots.resize_with(BATCH, Slot::default);
        let mut reply = Lines::new(&mut slot.lines);
        for lines in all.chunks(BATCH) {
            self.answer_run(scratch, lines, line_room, now, &mut slots[..lines.len()], seen);
            for (line, slot) in lines.iter().zip(&slots) {
                reply.push(line, slot.reply().unwrap_or_default());
            }
        }
        reply.finish();
        scratch.lines = slots;
    }

    /// Answers requests that came together, each in a slot; `room` is what the reply to one of a length may take.
    fn answer_run(
        &self,
        scratch: &mut Scratch,
        requests: &[&[u8]],
        room: fn(usize) -> usize,
        now: Micros,
        slots: &mut [Slot],
        seen: &mut impl FnMut(&[u8], Option<&Limiter>, Option<&Ruling>),
    ) {
        if requests.is_empty() {
            return;
        }
        let (live, caches) = self.in_force(&mut scratch.at);
        let mut round = Round {
            responder: self,
            live,
            caches,
            batch: self.gate.batch(now),
            slots,
            waiting: Vec::with_capacity(requests.len()),
            checks: Vec::new(),
            size: None,
            seen,
        };
        for (index, text) in requests.iter().enumerate() {
            round.slots[index].clear();
            if let Some(request) = Request::parse(text) {
                round.take(index, request, room(text.len()));
            }
        }
        round.settle();
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

    /// A name that a rule counts, a key of a limiter that keeps statistics, or all keys without a route.
    fn stats<'k>(&self, live: &Live, caches: &mut Caches, key: &'k [u8], now: Micros) -> Reply<'k> {
        if let Some((requests, last_max_rate)) = self.counts.get(key, now) {
            return Reply::Stats { requests, over: 0, last_max_rate, key };
        }
        let stats = match live.routes.find_plain(caches, key) {
            Some(route) => self.gate.key_stats_on(&live.limiters[route], key),
            None if key == UNROUTED => KeyStats { requests: self.counts.unrouted(), ..KeyStats::default() },
            None => KeyStats::default(),
        };
        Reply::Stats { requests: stats.requests, over: stats.over, last_max_rate: stats.last_max_rate, key }
    }

    fn size(&self) -> Reply<'static> {
        let usage = self.gate.usage();
        // Never 0, which a reader would divide by.
        Reply::Size { keys: usage.entries as u64, capacity: usage.capacity.max(1) as u64 }
    }
}

/// One batch under way.
struct Round<'c, 'd, S> {
    responder: &'c Responder,
    live: &'c Live,
    caches: &'c mut Caches,
    batch: Batch,
    slots: &'c mut [Slot],
    waiting: Vec<Waiting<'d>>,
    checks: Vec<Check<'d>>,
    /// Counting all shards takes a while: once a batch is enough.
    size: Option<Reply<'static>>,
    seen: S,
}

impl<'d, S: FnMut(&[u8], Option<&Limiter>, Option<&Ruling>)> Round<'_, 'd, S> {
    /// Answers a request, or has it wait for the rest of the batch.
    fn take(&mut self, index: usize, request: Request<'d>, room: usize) {
        match request.command {
            Command::Ping => self.slots[index].write(request.id, &Reply::Pong),
            Command::OverLimit(key) => {
                let found = self.live.routes.find(self.caches, key);
                if found.counted {
                    self.count(key);
                }
                self.use_key(index, request.id, found);
            }
            Command::CheckLimit(json) => {
                if let Some(check) = Check::read(index, request, json, room) {
                    self.checks.push(check);
                    self.use_next_key(self.checks.len() - 1);
                    // The embedded store answers at once, so keys are used in the batch's order; all checks
                    // of a batch wait for a remote store together, at most three times.
                    if self.responder.gate.is_embedded() {
                        self.settle();
                    }
                }
            }
            // These tell what the uses before them led to.
            Command::GetStats(key) => {
                self.settle();
                let stats = self.responder.stats(self.live, self.caches, key, self.batch.now());
                self.slots[index].write(request.id, &stats);
            }
            Command::GetSize => {
                self.settle();
                let size = self.size.get_or_insert_with(|| self.responder.size());
                self.slots[index].write(request.id, size);
            }
        }
    }

    /// Uses a key once: it waits for the rest of the batch, unless no limiter is asked.
    #[inline]
    fn use_key(&mut self, index: usize, id: Option<&'d [u8]>, found: Found<'d>) {
        let Found { key, route, counted } = found;
        match route {
            Some(limiter) => self.waiting.push(Waiting { index, id, limiter, key }),
            None => {
                self.responder.counts.count_unrouted(&key, counted);
                self.slots[index].write(id, &Reply::UNLIMITED);
                (self.seen)(&key, None, None);
            }
        }
    }

    /// Counts a key as it came under the names that the rules give.
    fn count(&self, key: &[u8]) {
        let now = self.batch.now();
        self.live.routes.names(key).for_each(|name| self.responder.counts.count(name, now));
    }

    /// Uses the next key of a check; the reply in its slot is that key's, without an id.
    fn use_next_key(&mut self, number: usize) {
        let check = &self.checks[number];
        let Some(key) = check.next_key() else { return };
        let Found { key: found, route, counted } = self.live.routes.find(self.caches, key.as_bytes());
        if counted {
            self.count(key.as_bytes());
        }
        let (index, found) = (check.index, Found { key: Cow::Owned(found.into_owned()), route, counted });
        self.use_key(index, None, found);
    }

    /// Decides all that wait, and goes on with the checks until each is done.
    fn settle(&mut self) {
        self.decide();
        while !self.checks.is_empty() {
            for check in &mut self.checks {
                let slot = &mut self.slots[check.index];
                check.take(slot.reply().unwrap_or_default());
                if check.next_key().is_none() {
                    check.finish(|request, reply| slot.write(request.id, reply));
                }
            }
            self.checks.retain(|check| check.next_key().is_some());
            (0..self.checks.len()).for_each(|number| self.use_next_key(number));
            self.decide();
        }
    }

    /// Decides all that wait, in one call.
    fn decide(&mut self) {
        let Round { responder, live, waiting, batch, slots, seen, .. } = self;
        let mut hits: Vec<Hit<'_>> = Vec::with_capacity(waiting.len());
        hits.extend(waiting.iter().map(|use_| Hit::from_door(&live.limiters[use_.limiter], &use_.key)));
        responder.gate.hit_each(&hits, batch, |place, answer| {
            let use_ = &waiting[place];
            let limiter = &live.limiters[use_.limiter];
            let (reply, ruling) = match &answer {
                HitAnswer::Ruled { ruling, period } => (decided(ruling, *period), Some(ruling)),
                HitAnswer::Disabled => (disabled(limiter), None),
                HitAnswer::Unlimited => (Reply::UNLIMITED, None),
            };
            slots[use_.index].write(use_.id, &reply);
            seen(&use_.key, Some(limiter), ruling);
        });
        waiting.clear();
    }
}

/// Is it several requests? What it ends with is one newline at most.
fn has_lines(datagram: &[u8]) -> bool {
    lines(datagram).is_some()
}

impl Live {
    fn new(gate: &Gate, routing: &Routing) -> Result<Live, RouteProblem> {
        let routes = Routes::new(routing)?;
        let find = |name: &str| gate.limiter(name).map_err(|error| RouteProblem::Whole(error.to_string()));
        let limiters = routing.routes.iter().map(|route| find(&route.limiter)).collect::<Result<_, _>>()?;
        Ok(Live { routes, limiters })
    }
}

fn decided(ruling: &Ruling, period: Micros) -> Reply<'static> {
    Reply::OverLimit {
        over: !ruling.is_allowed(),
        rate: ruling.decision.rate.get(),
        limit: ruling.decision.limit,
        period_s: whole_seconds(period),
    }
}

/// A limiter that is disabled allows all and counts nothing.
#[cold]
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
