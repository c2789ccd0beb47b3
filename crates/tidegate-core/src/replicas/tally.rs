//! Shared counting at a store: what all replicas together have started and have under way, for one key.
//!
//! [`grant`] is the whole arithmetic. [`Tally`] is all of what a store does, with the replicas that died and the
//! requests that came too late: the model of the Redis script, and the store of simulations.

use super::ReplicaId;
use crate::Micros;
use crate::turnstile::{Grant, Outlook, QuotaRequest};
use std::collections::BTreeMap;

/// What the other replicas have under way.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Others {
    /// How many, together.
    pub held: u32,
    /// The slots of each replica whose last grant fell short.
    pub short: Vec<u32>,
    /// This replica's own last grant fell short.
    pub me_too: bool,
}

impl Others {
    /// Adds one of them.
    pub fn add(&mut self, held: u32, is_short: bool) {
        self.held = self.held.saturating_add(held);
        if is_short {
            self.short.push(held);
        }
    }

    /// How many more this replica may have under way. While others come short, it leaves them what they lack of their
    /// share: a replica that has all slots and always requests in line would otherwise keep them for ever. Where there
    /// are fewer slots than replicas, a replica that came short is first.
    fn room(&self, request: &QuotaRequest) -> u32 {
        if request.in_flight == 0 {
            return u32::MAX;
        }
        let claims = u32::try_from(self.short.len()).unwrap_or(u32::MAX).saturating_add(1);
        let share = (request.in_flight / claims).max(1);
        let own = if request.in_flight < claims && !self.me_too { 0 } else { share };
        let free = request.in_flight.saturating_sub(self.held.saturating_add(request.held));
        let reserved = self.short.iter().fold(0_u32, |sum, held| sum.saturating_add(share.saturating_sub(*held)));
        free.min(own.saturating_sub(request.held).max(free.saturating_sub(reserved)))
    }
}

/// Answers a request when so many have `started` in its window. Returns how many have started afterwards.
#[must_use]
pub fn grant(started: u32, others: &Others, request: &QuotaRequest) -> (u32, Grant) {
    let started = started.saturating_sub(request.unused);
    let left = request.limit.saturating_sub(started);
    let room = others.room(request);
    let granted = request.want.min(left).min(room);
    let outlook = match () {
        () if granted == left => Outlook::Exhausted,
        () if granted == room => Outlook::Full,
        () => Outlook::Open,
    };
    (started + granted, Grant { granted, outlook })
}

/// How far clocks of replicas may differ from the store's. A window is served so much too early and too late.
pub const CLOCKS_DIFFER: Micros = Micros::from_millis(50);

/// How long a replica that sends nothing keeps its slots.
pub const SLOTS_LEASE: Micros = Micros::from_secs(10);

/// What is known of one key.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    window: u64,
    started: u32,
    slots: BTreeMap<ReplicaId, Slots>,
}

/// What one replica holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slots {
    held: u32,
    /// It wanted more, and there was no room.
    is_short: bool,
    /// The number of the request that said so.
    number: u64,
    until: Micros,
}

impl Tally {
    /// Answers a replica's request. Requests are numbered: one that was overtaken grants nothing. `None`: by the
    /// store's clock this is not the window.
    ///
    /// A count of a window that is more than a period ahead was made while the store's clock was. It is dropped, and
    /// the current window counts as used up: what was started on it may have been started just now.
    pub fn answer(&mut self, me: ReplicaId, number: u64, request: &QuotaRequest, now: Micros) -> Option<Grant> {
        let (begins, period) = (request.windows.begin(request.window), request.windows.period());
        let served = begins.saturating_sub(CLOCKS_DIFFER)..begins.saturating_add(period).saturating_add(CLOCKS_DIFFER);
        if !served.contains(&now) {
            return None;
        }
        if self.slots.get(&me).is_some_and(|slots| slots.number >= number) {
            return Some(Grant::FAILED);
        }
        for slots in self.slots.values_mut() {
            slots.until = slots.until.min(now.saturating_add(SLOTS_LEASE));
        }
        self.slots.retain(|_, slots| slots.until > now);
        let me_too = self.slots.get(&me).is_some_and(|slots| slots.is_short);
        let mut others = Others { me_too, ..Others::default() };
        for (_, slots) in self.slots.iter().filter(|(id, _)| **id != me) {
            others.add(slots.held, slots.is_short);
        }
        if request.windows.begin(self.window) > now.saturating_add(period) {
            (self.window, self.started) = (request.window, request.limit);
        }
        if request.window > self.window {
            (self.window, self.started) = (request.window, 0);
        }
        let mut answer = Grant { granted: 0, outlook: Outlook::Exhausted };
        // Another replica may be a window ahead: for this one it is over.
        if request.window == self.window {
            (self.started, answer) = grant(self.started, &others, request);
        }
        if request.in_flight > 0 {
            let (held, until) = (request.held + answer.granted, now.saturating_add(SLOTS_LEASE));
            self.slots.insert(me, Slots { held, is_short: answer.is_short_of(request.want), number, until });
        }
        Some(answer)
    }

    /// How many have started in a window.
    #[must_use]
    pub fn started(&self, window: u64) -> u32 {
        if self.window == window { self.started } else { 0 }
    }

    /// How many are under way, as far as is known.
    #[must_use]
    pub fn held(&self, now: Micros) -> u32 {
        self.slots.values().filter(|slots| slots.until > now).map(|slots| slots.held).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Windows;
    use crate::turnstile::Name;

    /// How many more a replica with `held` may have of `in_flight`, when those of `others` marked `+` want more.
    #[track_caller]
    fn check(in_flight: u32, held: u32, me_too: bool, others: &str, room: u32) {
        let (name, windows) = (Name::default(), Windows::of(Micros::from_secs(1)));
        let request = QuotaRequest { name, windows, window: 1, limit: 100, in_flight, held, want: 100, unused: 0 };
        let mut all = Others { me_too, ..Others::default() };
        for one in others.split_whitespace() {
            all.add(one.trim_end_matches('+').parse().unwrap(), one.ends_with('+'));
        }
        assert_eq!(grant(0, &all, &request).1.granted, room, "{held} of {in_flight}, others {others}");
    }

    #[test]
    fn slots_go_round() {
        check(4, 0, false, "", 4);
        check(4, 1, false, "2", 1);
        check(4, 3, false, "0+", 0);
        check(4, 2, false, "0+", 0);
        check(4, 0, true, "2", 2);
        // All want more: what is left over is not lost.
        check(4, 1, true, "1+ 1+", 1);
        check(8, 2, true, "2+ 2+", 2);
        check(5, 0, true, "2+ 2+", 1);
        // Fewer slots than replicas: the one that came short is first.
        check(1, 0, false, "0+", 0);
        check(1, 0, true, "0+", 1);
        check(2, 0, true, "1 0+", 1);
        check(0, 9, true, "9+", 100);
    }
}
