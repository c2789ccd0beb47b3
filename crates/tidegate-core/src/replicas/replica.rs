//! One replica: what it knows of the register, and what it wants to write there.
//!
//! The way: read the register, [`Replica::learn`] it, write [`Replica::renewed`] by compare-and-swap against
//! what was read; if that fails, again with what is there now. [`Terms::beat`] says how often. What was learnt
//! stays true, whatever happens to the writing: so a reply that is lost, late or for another replica does no harm.

use super::roster::{MEMBERS_MAX, Roster, SPANS_MAX, Span};
use super::{ReplicaId, Schedule, Terms};
use crate::Micros;

/// See the module.
#[derive(Clone, Debug)]
pub struct Replica {
    id: ReplicaId,
    terms: Terms,
    schedule: Schedule,
    /// The others' numbers, and since when they have not changed, by this replica's clock.
    renewals: Vec<Renewal>,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    id: ReplicaId,
    beat: u64,
    since: Micros,
}

impl Replica {
    /// A replica that knows nothing yet.
    #[must_use]
    pub fn new(id: ReplicaId, terms: Terms) -> Replica {
        Replica { id, terms, schedule: Schedule::NONE, renewals: Vec::new() }
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> ReplicaId {
        self.id
    }

    /// What all agree on.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What it may start.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The register holds this: it was read, or written by this replica.
    pub fn learn(&mut self, roster: &Roster, now: Micros) {
        // A late reply knows of fewer windows, and takes none back.
        let schedule = roster.schedule(self.id);
        if schedule.horizon() >= self.schedule.horizon() {
            self.schedule = schedule;
        }
        self.renewals = roster.beats.iter().map(|(id, beat)| self.last_renewal(*id, *beat, now)).collect();
    }

    fn last_renewal(&self, id: ReplicaId, beat: u64, now: Micros) -> Renewal {
        let known = self.renewals.iter().find(|renewal| renewal.id == id && renewal.beat == beat);
        known.copied().unwrap_or(Renewal { id, beat, since: now })
    }

    /// What to write over `seen`, which was learnt before: this replica has renewed its number, silent members
    /// are gone, and the windows of the next lease are assigned. `None`: the register is empty.
    #[must_use]
    pub fn renewed(&self, seen: Option<&Roster>, now: Micros) -> Roster {
        let Some(seen) = seen else { return self.new_roster(now) };
        let mut members: Vec<_> = seen.members().filter(|id| *id == self.id || !self.is_silent(*id, now)).collect();
        if !members.contains(&self.id) && members.len() < MEMBERS_MAX {
            members.push(self.id);
        }
        let mut roster = seen.clone();
        // A new register opens here; what the one before it may have assigned is over by then.
        let open = seen.horizon.unwrap_or_else(|| self.after_all_assigned(now));
        if seen.horizon.is_none() {
            roster.spans.iter_mut().for_each(|span| span.first = open);
        }
        roster.change(members, open);
        roster.horizon = Some(open.max(self.terms.window(now.saturating_add(self.terms.lease)) + 1));
        roster.forget_before(self.terms.window(now).saturating_sub(PAST_KEPT));
        roster.count_up(self.id);
        roster
    }

    /// What to write over `seen` when this replica ends: from the horizon on it has no part.
    #[must_use]
    pub fn without_me(&self, seen: &Roster) -> Option<Roster> {
        let members: Vec<_> = seen.members().filter(|id| *id != self.id).collect();
        let open = seen.horizon.filter(|_| members.len() < seen.members().count() && !members.is_empty())?;
        let mut roster = seen.clone();
        roster.change(members, open);
        Some(roster)
    }

    /// Assigns nothing: how long it took until it was written is not known. The replica that reads it opens it.
    fn new_roster(&self, now: Micros) -> Roster {
        let first = self.after_all_assigned(now);
        let beats = vec![(self.id, now.get())];
        Roster { horizon: None, spans: vec![Span { first, members: vec![self.id] }], beats }
    }

    /// The first window that no register can have assigned by now.
    fn after_all_assigned(&self, now: Micros) -> u64 {
        let reach = self.terms.lease.saturating_add(self.terms.margin);
        self.terms.window(now.saturating_add(reach)) + 1
    }

    fn is_silent(&self, id: ReplicaId, now: Micros) -> bool {
        let renewal = self.renewals.iter().find(|renewal| renewal.id == id);
        renewal.is_some_and(|renewal| now.saturating_sub(renewal.since) > self.terms.lease)
    }
}

/// How many windows that are past stay in the register, for replicas whose clocks are behind.
const PAST_KEPT: u64 = 2;

impl Roster {
    /// From window `first` on, which is not assigned yet, these are the members.
    fn change(&mut self, mut members: Vec<ReplicaId>, first: u64) {
        members.sort_unstable();
        let Some(last) = self.spans.last_mut() else { return };
        match () {
            () if last.members == members => return,
            () if last.first >= first => last.members = members,
            () if self.spans.len() < SPANS_MAX => self.spans.push(Span { first, members }),
            // Later: the spans before are forgotten one by one.
            () => return,
        }
        let members: Vec<_> = self.members().collect();
        self.beats.retain(|(id, _)| members.contains(id));
    }

    fn count_up(&mut self, id: ReplicaId) {
        if !self.members().any(|member| member == id) {
            return;
        }
        match self.beats.iter_mut().find(|(known, _)| *known == id) {
            Some((_, beat)) => *beat += 1,
            None => self.beats.push((id, 1)),
        }
    }

    fn forget_before(&mut self, window: u64) {
        let past = self.spans.iter().skip(1).take_while(|span| span.first <= window).count();
        self.spans.drain(..past);
    }
}
