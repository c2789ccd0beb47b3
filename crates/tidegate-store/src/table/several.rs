//! Requests of several keys, which live in several tables.
//!
//! Invariant: shards are locked in one global order, so that two such requests cannot wait for each other.

use super::change::Current;
use super::{Part, PartAnswer, shard_of, subject};
use crate::bare::Guard;
use crate::shard::{Place, Prepared, Shard};
use std::sync::Arc;
use tidegate_core::all_or_nothing::{self, Intent, Subject};
use tidegate_core::{Decision, Micros, Rules};

/// Decides a request of several keys, all or nothing. `clock` is read once all shards are locked.
pub fn decide_all(
    parts: &[Part<'_>],
    cost: u32,
    intent: Intent,
    explain: bool,
    clock: impl FnOnce() -> Micros,
) -> (Micros, Vec<PartAnswer>) {
    let hashes: Vec<u64> = parts.iter().map(|part| part.table.hash(part.key)).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    let place = |index: usize| (std::ptr::from_ref(parts[index].table).addr(), shard_of(hashes[index]));
    order.sort_unstable_by_key(|index| place(*index));
    debug_assert!(order.windows(2).all(|pair| place(pair[0]).0 != place(pair[1]).0), "distinct tables");

    let mut guards: Vec<(usize, Guard<'_, Shard>)> = Vec::with_capacity(parts.len());
    for index in order {
        let table = parts[index].table;
        guards.push((index, table.locked(table.cell(hashes[index]))));
    }
    guards.sort_unstable_by_key(|(index, _)| *index);
    let now = clock();
    let mut held: Vec<Option<Arc<Current>>> = parts.iter().map(|_| None).collect();
    let mut rules: Vec<&Rules> = Vec::with_capacity(parts.len());
    for ((part, held), (index, shard)) in parts.iter().zip(&mut held).zip(&mut guards) {
        rules.push(part.table.in_force(part.table.cell(hashes[*index]), shard, part.rules, held));
    }

    let mut prepared: Vec<Prepared> = Vec::with_capacity(parts.len());
    for (part, (index, shard)) in parts.iter().zip(&mut guards) {
        let frame = part.table.frame(shard, rules[*index], now);
        prepared.push(shard.prepare(&frame, hashes[*index], part.key, cost, intent));
    }
    let mut subjects: Vec<Subject<'_>> =
        rules.iter().zip(&mut prepared).map(|(rules, prepared)| subject(rules, prepared)).collect();
    let mut answers = answer_all(&mut subjects, now, cost, intent, explain);
    let blocked: Vec<Micros> = subjects.iter().map(|subject| subject.blocked_until).collect();
    drop(subjects);

    let all_allow = answers.iter().all(|answer| answer.ruling.is_allowed());
    for (index, (mut prepared, part)) in prepared.into_iter().zip(parts).enumerate() {
        prepared.blocked_until = blocked[index];
        answers[index].sketched = prepared.place == Place::Sketched;
        let (cell, hash) = (part.table.cell(hashes[index]), hashes[index]);
        let shard = &mut guards[index].1;
        let frame = part.table.frame(shard, rules[index], now);
        part.table.conclude(
            cell,
            shard,
            &frame,
            hash,
            part.key,
            cost,
            intent,
            prepared,
            &answers[index].ruling,
            all_allow,
        );
    }
    (now, answers)
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
    for (index, subject) in subjects.iter_mut().enumerate() {
        let after = if explain { subject.decisions(now, 0) } else { Vec::new() };
        let decisions = after.into_iter().zip(verdicts.get(index).into_iter().flatten());
        answers.push(PartAnswer {
            ruling: rulings[index],
            blocked_until: subject.blocked_until,
            sketched: false,
            decisions: decisions.map(|(after, before)| Decision { verdict: before.verdict, ..after }).collect(),
        });
    }
    answers
}
