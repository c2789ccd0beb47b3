//! What replicas that count together have started and have under way: what a store keeps of one key.
//!
//! [`grant`] is the whole arithmetic. [`Tally`] is all of what a store does, with the replicas that died and the
//! questions that came too late: the model of the Redis script, and the store of simulations.

use super::ReplicaId;
use crate::Micros;
use crate::turnstile::{Outlook, Question, Told};
use std::collections::BTreeMap;

/// Answers a question when `started` have started in its window and the other replicas hold `others`. Returns how
/// many have started then.
#[must_use]
pub fn grant(started: u32, others: u32, ask: &Question) -> (u32, Told) {
    let started = started.saturating_sub(ask.unused);
    let left = ask.limit.saturating_sub(started);
    let room = match ask.in_flight {
        0 => u32::MAX,
        in_flight => in_flight.saturating_sub(others.saturating_add(ask.held)),
    };
    let granted = ask.want.min(left).min(room);
    let outlook = match () {
        () if granted == left => Outlook::Exhausted,
        () if granted == room => Outlook::Full,
        () => Outlook::Open,
    };
    (started + granted, Told { granted, outlook })
}

/// How far clocks of replicas may differ from the store's. A window is served so much too early and too late.
pub const CLOCKS_DIFFER: Micros = Micros::from_millis(50);

/// How long a replica that is not heard keeps its slots.
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
    /// The number of the question that said so.
    number: u64,
    until: Micros,
}

impl Tally {
    /// Answers a replica's question. Its questions are numbered: one that was overtaken is not heard. `None`: by the
    /// store's clock this is not the window.
    pub fn answer(&mut self, me: ReplicaId, number: u64, ask: &Question, now: Micros) -> Option<Told> {
        let begins = ask.window * ask.period.get();
        let served = begins.saturating_sub(CLOCKS_DIFFER.get())..begins + ask.period.get() + CLOCKS_DIFFER.get();
        if !served.contains(&now.get()) {
            return None;
        }
        if self.slots.get(&me).is_some_and(|slots| slots.number >= number) {
            return Some(Told::FAILED);
        }
        self.slots.retain(|_, slots| slots.until > now);
        let others = self.slots.iter().filter(|(id, _)| **id != me).map(|(_, slots)| slots.held).sum();
        if ask.window > self.window {
            (self.window, self.started) = (ask.window, 0);
        }
        let mut told = Told { granted: 0, outlook: Outlook::Exhausted };
        // Another replica may be a window ahead: for this one it is over.
        if ask.window == self.window {
            (self.started, told) = grant(self.started, others, ask);
        }
        if ask.in_flight > 0 {
            let slots = Slots { held: ask.held + told.granted, number, until: now.saturating_add(SLOTS_LEASE) };
            self.slots.insert(me, slots);
        }
        Some(told)
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
