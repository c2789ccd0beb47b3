//! Requests of several keys, which live in several tables or in one.
//!
//! Invariant: shards are locked in one global order, each once, so that two such requests cannot wait for each other; and none is unlocked
//! before the last key has its states back.

use super::change::Current;
use super::{Cell, Part, PartAnswer, Single, shard_of, subject};
use crate::bare::Guard;
use crate::shard::{Making, Place, Prepared, Shard};
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Role, Subject};
use tidegate_core::{Decision, Micros, Rules};

/// Decides a request of several keys, all or nothing. `cost` and `intent` are for keys that have none of their own. `clock` is read once all
/// shards are locked.
pub fn decide_all(
    parts: &[Part<'_>],
    cost: u32,
    intent: Intent,
    explain: bool,
    clock: impl FnOnce() -> Micros,
) -> (Micros, Vec<PartAnswer>) {
    let (mut shards, keys) = lock_in_order(parts, Demand { cost, intent });
    let now = clock();
    let making = if shards.len() == keys.len() { Making::Room } else { Making::Reserved };
    if making == Making::Reserved {
        // Twice: making room for a later key may drop an earlier one, which is still as fresh as it came.
        (0..2).for_each(|_| keys.iter().for_each(|key| key.reserve(&mut shards[key.shard], now)));
    }
    let mut keys: Vec<PreparedKey<'_>> = keys.into_iter().map(|key| key.prepare(&mut shards, now, making)).collect();
    let mut subjects: Vec<Subject<'_>> = keys.iter_mut().map(PreparedKey::subject).collect();
    let mut answers = answer_all(&mut subjects, now, cost, intent, explain);
    drop(subjects);
    let roles: Vec<Role> = parts.iter().map(|part| part.role).collect();
    let allowed: Vec<bool> = answers.iter().map(|answer| answer.ruling.is_allowed()).collect();
    for (index, (key, answer)) in keys.into_iter().zip(&mut answers).enumerate() {
        let all_allow = all_or_nothing::all_allow(&roles, &allowed, index);
        answer.sketched = key.prepared.place == Place::Sketched;
        key.conclude(&mut shards, answer, all_allow, now);
    }
    drop(shards);
    (now, answers)
}

/// Locks the shards of the parts in the global order: by table, then by shard. Returns the keys in the order of the parts.
fn lock_in_order<'a>(parts: &'a [Part<'a>], of_all: Demand) -> (Vec<Guard<'a, Shard>>, Vec<HashedKey<'a>>) {
    let mut keys: Vec<HashedKey<'a>> =
        parts.iter().enumerate().map(|(index, part)| HashedKey::new(index, part, of_all)).collect();
    keys.sort_unstable_by_key(HashedKey::place);
    let mut shards: Vec<Guard<'a, Shard>> = Vec::with_capacity(keys.len());
    let mut last = None;
    for key in &mut keys {
        if last != Some(key.place()) {
            last = Some(key.place());
            shards.push(key.part.table.locked(key.cell()));
        }
        key.shard = shards.len() - 1;
    }
    keys.sort_unstable_by_key(|key| key.index);
    (shards, keys)
}

/// One key of the request, and where it stands among the others.
struct HashedKey<'a> {
    index: usize,
    part: &'a Part<'a>,
    demand: Demand,
    hash: u64,
    /// Which of the locked shards is its own.
    shard: usize,
}

/// The same with its states taken out of the shard, for the rule of all or nothing to work on.
struct PreparedKey<'a> {
    key: HashedKey<'a>,
    /// The rules in force, where the table has gone over to others than the caller's.
    current: Option<Arc<Current>>,
    prepared: Prepared,
}

impl<'a> HashedKey<'a> {
    fn new(index: usize, part: &'a Part<'a>, of_all: Demand) -> HashedKey<'a> {
        HashedKey { index, part, demand: part.own.unwrap_or(of_all), hash: part.table.hash(part.key), shard: 0 }
    }

    fn place(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.part.table).addr(), shard_of(self.hash))
    }

    fn cell(&self) -> &'a Cell {
        self.part.table.cell(self.hash)
    }

    /// Finds a slot for a key that is to be charged, before the states of any are out.
    fn reserve(&self, shard: &mut Shard, now: Micros) {
        let (table, mut current) = (self.part.table, None);
        if self.demand.intent == Intent::Hit && self.demand.cost > 0 {
            let rules = table.in_force(self.cell(), shard, self.part.rules, &mut current);
            let frame = table.frame(shard, rules, now);
            shard.reserve(&frame, self.hash, self.part.key);
        }
    }

    fn prepare(self, shards: &mut [Guard<'a, Shard>], now: Micros, making: Making) -> PreparedKey<'a> {
        let shard = &mut *shards[self.shard];
        let (table, mut current) = (self.part.table, None);
        let rules = table.in_force(self.cell(), shard, self.part.rules, &mut current);
        let frame = table.frame(shard, rules, now);
        let prepared = shard.prepare(&frame, self.hash, self.part.key, self.demand, making);
        PreparedKey { key: self, current, prepared }
    }
}

impl<'a> PreparedKey<'a> {
    fn subject(&mut self) -> Subject<'_> {
        let rules = rules_in_force(self.key.part, self.current.as_ref());
        Subject { role: self.key.part.role, own: Some(self.key.demand), ..subject(rules, &mut self.prepared) }
    }

    /// Puts the states back, charged if all keys allow.
    fn conclude(self, shards: &mut [Guard<'a, Shard>], answer: &PartAnswer, all_allow: bool, now: Micros) {
        let PreparedKey { key, current, prepared } = self;
        let (table, shard) = (key.part.table, &mut *shards[key.shard]);
        let frame = table.frame(shard, rules_in_force(key.part, current.as_ref()), now);
        let prepared = Prepared { blocked_until: answer.blocked_until, ..prepared };
        let Demand { cost, intent } = key.demand;
        let single = Single::new(frame.rules, key.part.key, cost, intent).at(key.part.door);
        table.conclude(key.cell(), shard, &frame, key.hash, &single, prepared, &answer.ruling, all_allow);
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
    let before = |subject: &mut Subject<'_>| subject.decisions(now, subject.own.map_or(cost, |own| own.cost));
    let verdicts: Vec<Vec<Decision>> = match explain {
        true => subjects.iter_mut().map(before).collect(),
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
