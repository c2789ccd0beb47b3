//! Requests of several keys, which live in several tables.
//!
//! Invariant: shards are locked in one global order, so that two such requests cannot wait for each other.

use super::change::Current;
use super::{Cell, Part, PartAnswer, shard_of, subject};
use crate::bare::Guard;
use crate::shard::{Place, Prepared, Shard};
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Intent, Role, Subject};
use tidegate_core::{Decision, Micros, Rules};

/// Decides a request of several keys, all or nothing. `clock` is read once all shards are locked.
pub fn decide_all(
    parts: &[Part<'_>],
    cost: u32,
    intent: Intent,
    explain: bool,
    clock: impl FnOnce() -> Micros,
) -> (Micros, Vec<PartAnswer>) {
    let locked = lock_in_order(parts);
    let now = clock();
    let mut keys: Vec<PreparedKey<'_>> = locked.into_iter().map(|key| key.prepare(now, cost, intent)).collect();
    let mut subjects: Vec<Subject<'_>> = keys.iter_mut().map(PreparedKey::subject).collect();
    let mut answers = answer_all(&mut subjects, now, cost, intent, explain);
    drop(subjects);
    let roles: Vec<Role> = parts.iter().map(|part| part.role).collect();
    let allowed: Vec<bool> = answers.iter().map(|answer| answer.ruling.is_allowed()).collect();
    // No shard is unlocked before the last one has its states back.
    let mut shards: Vec<Guard<'_, Shard>> = Vec::with_capacity(parts.len());
    for (index, (key, answer)) in keys.into_iter().zip(&mut answers).enumerate() {
        let all_allow = all_or_nothing::all_allow(&roles, &allowed, index);
        answer.sketched = key.prepared.place == Place::Sketched;
        shards.push(key.conclude(answer, all_allow, now, cost, intent));
    }
    drop(shards);
    (now, answers)
}

/// Locks the shard of each part in the global order: by table, then by shard. Returns them in the order of the parts.
fn lock_in_order<'a>(parts: &'a [Part<'a>]) -> Vec<LockedKey<'a>> {
    let mut keys: Vec<HashedKey<'a>> = parts.iter().enumerate().map(HashedKey::new).collect();
    keys.sort_unstable_by_key(HashedKey::place);
    debug_assert!(keys.windows(2).all(|pair| pair[0].place().0 != pair[1].place().0), "distinct tables");
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
    fn prepare(self, now: Micros, cost: u32, intent: Intent) -> PreparedKey<'a> {
        let LockedKey { key, mut shard } = self;
        let (table, mut current) = (key.part.table, None);
        let rules = table.in_force(key.cell(), &mut shard, key.part.rules, &mut current);
        let frame = table.frame(&shard, rules, now);
        let prepared = shard.prepare(&frame, key.hash, key.part.key, cost, intent);
        PreparedKey { key, shard, current, prepared }
    }
}

impl<'a> PreparedKey<'a> {
    fn subject(&mut self) -> Subject<'_> {
        let subject = subject(rules_in_force(self.key.part, self.current.as_ref()), &mut self.prepared);
        Subject { role: self.key.part.role, ..subject }
    }

    /// Puts the states back, charged if all keys allow. The shard stays locked.
    fn conclude(
        self,
        answer: &PartAnswer,
        all_allow: bool,
        now: Micros,
        cost: u32,
        intent: Intent,
    ) -> Guard<'a, Shard> {
        let PreparedKey { key, mut shard, current, prepared } = self;
        let table = key.part.table;
        let frame = table.frame(&shard, rules_in_force(key.part, current.as_ref()), now);
        let prepared = Prepared { blocked_until: answer.blocked_until, ..prepared };
        let (cell, name) = (key.cell(), key.part.key);
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
    subjects: &mut [Subject<'_>],
    now: Micros,
    cost: u32,
    intent: Intent,
    explain: bool,
) -> Vec<PartAnswer> {
    let verdicts: Vec<Vec<Decision>> = match explain {
        true => subjects.iter_mut().map(|subject| subject.decisions(now, cost)).collect(),
        false => Vec::new(),
    };
    let rulings = all_or_nothing::decide_all(subjects, now, cost, intent);
    let mut answers: Vec<PartAnswer> = Vec::with_capacity(subjects.len());
    for (index, (subject, ruling)) in subjects.iter_mut().zip(rulings).enumerate() {
        let after = if explain { subject.decisions(now, 0) } else { Vec::new() };
        let decisions = after.into_iter().zip(verdicts.get(index).into_iter().flatten());
        answers.push(PartAnswer {
            ruling,
            blocked_until: subject.blocked_until,
            sketched: false,
            is_known: true,
            decisions: decisions.map(|(after, before)| Decision { verdict: before.verdict, ..after }).collect(),
        });
    }
    answers
}
