//! Several keys of one request that no script can see together: on shards, or in slots of a cluster (A5).
//!
//! All are looked at first, at once, and a denial charges nothing. Then they are charged one after the other; a key that
//! denies now, as others were faster, has those before it refunded, by the mark that each charge returned.
//!
//! A charge that may be taken back must start no block, nor may another's denial that it causes. So keys whose limits
//! block come last, and of those every charge but the very last, which is never taken back, is pending until it is
//! refunded or confirmed; while a key has pending charges, its denials start no block. What a crash leaves pending is
//! taken for such for as long as its request could have gone on.
//! Invariants: no answer allows unless every key was charged. A charge of which we do not know whether it was made is
//! not refunded, as that could admit too much; like one that a crash left behind it counts for at most its period.

use super::ask::{Step, now_argument, subject_len};
use super::script::Purpose;
use super::{Redis, StoreError};
use crate::store::{Answers, Asked, Layout, Question};
use crate::table::PartAnswer;
use futures_util::future::{join_all, try_join_all};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{self, Intent, Reason, Role};
use tokio::time::Instant;

/// How long the end of a charge may take at least, when the deadline is near; it is on its way at once.
const END_TIME_MIN: Duration = Duration::from_millis(10);

/// How long a charge is pending beyond its request's deadline: a refund may be on its way.
const PENDING_MARGIN: Micros = Micros::from_secs(1);

/// A charge that was made.
struct Charge {
    /// The place of its question.
    place: usize,
    pending: bool,
    /// What a refund has to know.
    marks: Vec<Vec<u8>>,
}

/// What one key said, and when.
type One = (Micros, PartAnswer);

impl Redis {
    pub(super) async fn decide_cross_slot(
        &self,
        questions: &[Question<'_>],
        asked: &Asked,
    ) -> Result<Answers, StoreError> {
        let looks = questions.iter().map(|question| self.look(question, asked));
        let looked: Vec<One> = try_join_all(looks).await?;
        let words =
            questions.iter().zip(&looked).map(|(question, (_, answer))| (question.role, answer.ruling.is_allowed()));
        let passes = all_or_nothing::pass(words);
        let said = match questions.iter().any(|question| counts(question, asked)) {
            true if passes => self.charge_all(questions, asked, looked).await?,
            true => self.deny_all(questions, asked, looked).await,
            false => looked,
        };
        let at = said.iter().map(|(at, _)| *at).max().unwrap_or(Micros::ZERO);
        Ok((at, said.into_iter().map(|(_, answer)| answer).collect()))
    }

    pub(super) async fn look(&self, question: &Question<'_>, asked: &Asked) -> Result<One, StoreError> {
        let (question, asked) = (Question { own: None, ..*question }, asked.of(question));
        let (at, answers) = self.decide_sharded(&question, &Asked { intent: Intent::Peek, ..asked }).await?;
        answers.into_iter().next().map(|answer| (at, answer)).ok_or_else(|| self.garbled("not one decision"))
    }

    /// Those that deny remember it and start their blocks; the others stay as they are. What was seen at the
    /// look is the answer, whatever becomes of that: nothing was charged.
    async fn deny_all(&self, questions: &[Question<'_>], asked: &Asked, looked: Vec<One>) -> Vec<One> {
        let denials = questions.iter().zip(looked).map(async |(question, seen)| {
            if seen.1.ruling.is_allowed() || !counts(question, asked) {
                return seen;
            }
            match self.deny(question, asked).await {
                Ok(Some(denied)) => denied,
                _ => seen,
            }
        });
        join_all(denials).await
    }

    /// `None`: it would allow by now, and nothing was done; or the block was known before.
    async fn deny(&self, question: &Question<'_>, asked: &Asked) -> Result<Option<One>, StoreError> {
        let (at, answers) = self.step(Step::Deny, &[*question], asked).await?.answers;
        let Some(answer) = answers.into_iter().next() else { return Ok(None) };
        if answer.ruling.reason == Reason::Limited && answer.blocked_until > at {
            self.note_block(asked.by, question, at, answer.blocked_until).await?;
        }
        Ok((!answer.ruling.is_allowed()).then_some((at, answer)))
    }

    async fn charge_all(
        &self,
        questions: &[Question<'_>],
        asked: &Asked,
        mut said: Vec<One>,
    ) -> Result<Vec<One>, StoreError> {
        let mut looked = said.clone();
        let mut charges: Vec<Charge> = Vec::new();
        // An alternative that denies, beside one that allows, is not charged.
        let is_charged = |at: &usize| counts(&questions[*at], asked) && looked[*at].1.ruling.is_allowed();
        let charged: Vec<usize> = order(questions).into_iter().filter(is_charged).collect();
        let is_alternative = |at: usize| questions[at].role == Role::Alternative;
        let mut alternatives = charged.iter().filter(|at| is_alternative(**at)).count();
        for (turn, place) in charged.iter().copied().enumerate() {
            let pending = turn + 1 < charged.len() && keeps_pending(&questions[place]);
            match self.charge(&questions[place], asked, pending).await {
                Ok((one, marks)) if one.1.ruling.is_allowed() => {
                    said[place] = one;
                    charges.push(Charge { place, pending, marks });
                }
                Ok((denied, _)) if is_alternative(place) && alternatives > 1 => {
                    alternatives -= 1;
                    said[place] = denied.clone();
                    looked[place] = denied;
                }
                Ok((denied, _)) => {
                    self.refund_all(questions, asked, &charges).await;
                    said = looked;
                    said[place] = denied;
                    return Ok(said);
                }
                Err(error) => {
                    self.refund_all(questions, asked, &charges).await;
                    return Err(error);
                }
            }
        }
        self.confirm_all(questions, asked, &charges).await;
        // Alternatives that deny remember it, as where nothing is charged.
        for (question, one) in questions.iter().zip(&mut said) {
            if counts(question, asked)
                && !one.1.ruling.is_allowed()
                && let Ok(Some(denied)) = self.deny(question, asked).await
            {
                *one = denied;
            }
        }
        Ok(said)
    }

    async fn charge(
        &self,
        question: &Question<'_>,
        asked: &Asked,
        pending: bool,
    ) -> Result<(One, Vec<Vec<u8>>), StoreError> {
        let left = asked.by.saturating_duration_since(Instant::now()).as_micros();
        let left = u64::try_from(left).ok().and_then(Micros::new).unwrap_or(Micros::ZERO);
        let pending = if pending { left.saturating_add(PENDING_MARGIN) } else { Micros::ZERO };
        let said = self.step(Step::Charge { pending }, &[*question], asked).await?;
        let (at, answers) = said.answers;
        let answer = answers.into_iter().next().ok_or_else(|| self.garbled("not one decision"))?;
        Ok(((at, answer), said.marks))
    }

    /// What cannot be refunded counts for at most its period.
    async fn refund_all(&self, questions: &[Question<'_>], asked: &Asked, charges: &[Charge]) {
        let asked = in_any_case(asked);
        let refunds = charges.iter().map(|charge| self.end_charge(&questions[charge.place], &asked, &charge.marks));
        drop(join_all(refunds).await);
    }

    /// What cannot be confirmed is pending for a while longer.
    async fn confirm_all(&self, questions: &[Question<'_>], asked: &Asked, charges: &[Charge]) {
        let asked = in_any_case(asked);
        let pending = charges.iter().filter(|charge| charge.pending);
        drop(join_all(pending.map(|charge| self.end_charge(&questions[charge.place], &asked, &[]))).await);
    }

    /// Ends a pending charge; without marks it stays.
    async fn end_charge(&self, question: &Question<'_>, asked: &Asked, marks: &[Vec<u8>]) -> Result<(), StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Refund, &[*question])?;
        let count = 4 + marks.len() + subject_len(question);
        let reply = self.run(asked.by, script, &keys, count, |args| {
            now_argument(args, asked.now);
            args.number(width);
            args.number(asked.of(question).cost.into());
            args.number(marks.len() as u64);
            marks.iter().for_each(|mark| args.part(mark));
            self.subject(args, question);
        });
        reply.await.map(drop)
    }
}

/// Is this key charged if all allow?
fn counts(question: &Question<'_>, asked: &Asked) -> bool {
    let Asked { cost, intent, .. } = asked.of(question);
    intent == Intent::Hit && cost > 0
}

/// The end of a charge is sent though the deadline may have passed.
fn in_any_case(asked: &Asked) -> Asked {
    Asked { by: asked.by.max(Instant::now() + END_TIME_MIN), ..*asked }
}

/// The order of charging: keys that can be blocked last.
fn order(questions: &[Question<'_>]) -> Vec<usize> {
    let (last, first): (Vec<usize>, Vec<usize>) = (0..questions.len()).partition(|place| blocks(&questions[*place]));
    [first, last].concat()
}

fn blocks(question: &Question<'_>) -> bool {
    question.layout != Layout::Native || question.rules.checks().any(|check| check.block().is_some())
}

/// Pause's layout has no room for it.
fn keeps_pending(question: &Question<'_>) -> bool {
    question.layout == Layout::Native && blocks(question)
}

#[cfg(test)]
mod tests;
