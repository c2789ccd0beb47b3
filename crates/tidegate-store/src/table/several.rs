//! Requests of several keys, which live in several tables.
//!
//! Invariant: shards are locked in one global order, so that two such requests cannot wait for each other.

use super::change::Current;
use super::{Cell, Part, PartAnswer, shard_of, subject};
use crate::bare::Guard;
use crate::shard::{Place, Prepared, Shard};
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Intent, Ruling, Subject};
use tidegate_core::{Decision, Micros, Rules};

/// Decides a request of several keys, all or nothing. `clock` is read once all shards are locked.
pub fn decide_all(
    parts: &[Part<'_>],
    intent: Intent,
    explain: bool,
    clock: impl FnOnce() -> Micros,
) -> (Micros, Vec<PartAnswer>) {
    let mut keys: Vec<HashedKey<'_>> = parts.iter().enumerate().map(HashedKey::new).collect();
    keys.sort_unstable_by_key(HashedKey::place);
    if keys.windows(2).any(|pair| pair[0].place() == pair[1].place()) {
        return decide_in_turn(keys, intent, explain, clock);
    }
    let locked = lock_in_order(keys);
    let now = clock();
    let mut keys: Vec<PreparedKey<'_>> = locked.into_iter().map(|key| key.prepare(now, intent)).collect();
    let mut subjects: Vec<(Subject<'_>, u32)> = keys.iter_mut().map(PreparedKey::subject).collect();
    let mut answers = answer_all(&mut subjects, now, intent, explain);
    drop(subjects);
    let all_allow = answers.iter().all(|answer| answer.ruling.is_allowed());
    // No shard is unlocked before the last one has its states back.
    let mut shards: Vec<Guard<'_, Shard>> = Vec::with_capacity(parts.len());
    for (key, answer) in keys.into_iter().zip(&mut answers) {
        answer.sketched = key.prepared.place == Place::Sketched;
        shards.push(key.conclude(answer, all_allow, now, intent));
    }
    drop(shards);
    (now, answers)
}

/// Locks the shard of each key in the global order: by table, then by shard; the keys come in this order. Returns them in the
/// order of the parts.
fn lock_in_order<'a>(keys: Vec<HashedKey<'a>>) -> Vec<LockedKey<'a>> {
    let mut locked: Vec<LockedKey<'a>> = keys.into_iter().map(HashedKey::lock).collect();
    locked.sort_unstable_by_key(|locked| locked.key.index);
    locked
}

/// One key of the request, and where it stands among the others.
struct HashedKey<'a> {
    index: usize,
    part: &'a Part<'a>,
    hash: u64,
}

/// The same with its shard locked.
struct LockedKey<'a> {
    key: HashedKey<'a>,
    shard: Guard<'a, Shard>,
}

/// The same with its states taken out of the shard, for the rule of all or nothing to work on.
struct PreparedKey<'a> {
    key: HashedKey<'a>,
    shard: Guard<'a, Shard>,
    /// The rules in force, where the table has gone over to others than the caller's.
    current: Option<Arc<Current>>,
    prepared: Prepared,
}

impl<'a> HashedKey<'a> {
    fn new((index, part): (usize, &'a Part<'a>)) -> HashedKey<'a> {
        HashedKey { index, part, hash: part.table.hash(part.key) }
    }

    fn place(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.part.table).addr(), shard_of(self.hash))
    }

    fn cell(&self) -> &'a Cell {
        self.part.table.cell(self.hash)
    }

    fn lock(self) -> LockedKey<'a> {
        let shard = self.part.table.locked(self.cell());
        LockedKey { key: self, shard }
    }
}

impl<'a> LockedKey<'a> {
    fn prepare(self, now: Micros, intent: Intent) -> PreparedKey<'a> {
        let LockedKey { key, mut shard } = self;
        let (table, mut current) = (key.part.table, None);
        let rules = table.in_force(key.cell(), &mut shard, key.part.rules, &mut current);
        let frame = table.frame(&shard, rules, now);
        let prepared = shard.prepare(&frame, key.hash, key.part.key, key.part.cost, intent);
        PreparedKey { key, shard, current, prepared }
    }
}

impl<'a> PreparedKey<'a> {
    fn subject(&mut self) -> (Subject<'_>, u32) {
        let part = self.key.part;
        (subject(rules_in_force(part, self.current.as_ref()), &mut self.prepared), part.cost)
    }

    /// Puts the states back, charged if all keys allow. The shard stays locked.
    fn conclude(self, answer: &PartAnswer, all_allow: bool, now: Micros, intent: Intent) -> Guard<'a, Shard> {
        let PreparedKey { key, mut shard, current, prepared } = self;
        let table = key.part.table;
        let frame = table.frame(&shard, rules_in_force(key.part, current.as_ref()), now);
        let prepared = Prepared { blocked_until: answer.blocked_until, ..prepared };
        let (cell, name, cost) = (key.cell(), key.part.key, key.part.cost);
        table.conclude(cell, &mut shard, &frame, key.hash, name, cost, intent, prepared, &answer.ruling, all_allow);
        shard
    }
}

fn rules_in_force<'a>(part: &Part<'a>, current: Option<&'a Arc<Current>>) -> &'a Rules {
    current.map_or(part.rules, |current| &current.rules)
}

/// What each subject says of a request, all or nothing. `explain`: with each limit's verdict before and its
/// counters afterwards.
pub(crate) fn answer_all(
    subjects: &mut [(Subject<'_>, u32)],
    now: Micros,
    intent: Intent,
    explain: bool,
) -> Vec<PartAnswer> {
    let verdicts: Vec<Vec<Decision>> = match explain {
        true => subjects.iter_mut().map(|(subject, cost)| subject.decisions(now, *cost)).collect(),
        false => Vec::new(),
    };
    let rulings = all_or_nothing::decide_all(subjects, now, intent);
    let mut answers: Vec<PartAnswer> = Vec::with_capacity(subjects.len());
    for (index, ((subject, _), ruling)) in subjects.iter_mut().zip(rulings).enumerate() {
        let before = verdicts.get(index).map(Vec::as_slice);
        answers.push(answer(subject, ruling, before, now));
    }
    answers
}

/// A ruling as an answer; with `before`, each limit's verdict before, its counters afterwards are told too.
fn answer(subject: &mut Subject<'_>, ruling: Ruling, before: Option<&[Decision]>, now: Micros) -> PartAnswer {
    let after = if before.is_some() { subject.decisions(now, 0) } else { Vec::new() };
    let decisions = after.into_iter().zip(before.into_iter().flatten());
    PartAnswer {
        ruling,
        blocked_until: subject.blocked_until,
        sketched: false,
        decisions: decisions.map(|(after, before)| Decision { verdict: before.verdict, ..after }).collect(),
    }
}

/// The same where several keys lie in one shard. A shard lends the states of one key at a time, as finding room for the next one
/// may move entries: so all keys are looked at first, one after the other, and then decided. All shards stay locked, each once.
fn decide_in_turn(
    mut keys: Vec<HashedKey<'_>>,
    intent: Intent,
    explain: bool,
    clock: impl FnOnce() -> Micros,
) -> (Micros, Vec<PartAnswer>) {
    let mut shards: Vec<Guard<'_, Shard>> = Vec::with_capacity(keys.len());
    let mut at: Vec<(usize, usize)> = Vec::with_capacity(keys.len());
    for (place, key) in keys.iter().enumerate() {
        if place == 0 || keys[place - 1].place() != key.place() {
            shards.push(key.part.table.locked(key.cell()));
        }
        at.push((key.index, shards.len() - 1));
    }
    at.sort_unstable();
    keys.sort_unstable_by_key(|key| key.index);
    let now = clock();
    let mut keys: Vec<(HashedKey<'_>, usize)> = keys.into_iter().zip(at.into_iter().map(|(_, shard)| shard)).collect();
    let mut all_allow = true;
    for (key, shard) in &mut keys {
        let allows = key.with_states(&mut shards[*shard], now, Intent::Peek, |subject, cost| {
            all_or_nothing::would_allow(subject, now, cost)
        });
        all_allow &= allows;
    }
    let answers = keys.iter_mut().map(|(key, shard)| key.decide(&mut shards[*shard], all_allow, now, intent, explain));
    let answers = answers.collect();
    drop(shards);
    (now, answers)
}

impl HashedKey<'_> {
    /// Looks at the key's states, and puts them back as they were.
    fn with_states<R>(
        &self,
        shard: &mut Shard,
        now: Micros,
        intent: Intent,
        look: impl FnOnce(&mut Subject<'_>, u32) -> R,
    ) -> R {
        let (Part { table, rules, key, cost }, mut current) = (*self.part, None);
        let rules = table.in_force(self.cell(), shard, rules, &mut current);
        let frame = table.frame(shard, rules, now);
        let mut prepared = shard.prepare(&frame, self.hash, key, cost, intent);
        let looked = look(&mut subject(rules, &mut prepared), cost);
        shard.put_away(prepared);
        looked
    }

    fn decide(&self, shard: &mut Shard, all_allow: bool, now: Micros, intent: Intent, explain: bool) -> PartAnswer {
        let (Part { table, rules, key, cost }, mut current) = (*self.part, None);
        let cell = self.cell();
        let rules = table.in_force(cell, shard, rules, &mut current);
        let frame = table.frame(shard, rules, now);
        let mut prepared = shard.prepare(&frame, self.hash, key, cost, intent);
        let mut subject = subject(rules, &mut prepared);
        let before = explain.then(|| subject.decisions(now, cost));
        let ruling = all_or_nothing::decide_among(&mut subject, all_allow, now, cost, intent);
        let mut answer = answer(&mut subject, ruling, before.as_deref(), now);
        answer.sketched = prepared.place == Place::Sketched;
        let prepared = Prepared { blocked_until: answer.blocked_until, ..prepared };
        table.conclude(cell, shard, &frame, self.hash, key, cost, intent, prepared, &answer.ruling, all_allow);
        answer
    }
}
