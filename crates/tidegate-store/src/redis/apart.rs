//! Several keys of one request that no script can see together: on shards, or in slots of a cluster (A5).
//!
//! All are looked at first, at once, and a denial charges nothing. Then they are charged one after the other; a key that
//! denies now, as others were faster, has those before it refunded, by the mark that each charge returned. Keys
//! whose limits block come last, so that a charge that is taken back is seen by as few of them as can be, and
//! a race that was lost starts no block.
//! Invariants: no answer allows unless every key was charged. A charge of which we do not know whether it was made is
//! not refunded, as that could admit too much; like one that a crash left behind it counts for at most its period.

use super::ask::{Answers, Asked, now_argument, subject_len};
use super::script::Purpose;
use super::{Layout, Question, Redis, StoreError};
use crate::table::PartAnswer;
use futures_util::future::{join_all, try_join_all};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Intent, Reason};
use tokio::time::Instant;

/// How long a refund may take at least, when the deadline is near; it is on its way at once.
const REFUND_TIME_MIN: Duration = Duration::from_millis(10);

/// What one key said, and when.
type One = (Micros, PartAnswer);

impl Redis {
    pub(super) async fn decide_apart(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let peek = Asked { intent: Intent::Peek, ..*asked };
        let looks = questions.iter().map(|question| self.look(question, &peek));
        let looked: Vec<One> = try_join_all(looks).await?;
        let all_allow = looked.iter().all(|(_, answer)| answer.ruling.is_allowed());
        let said = match asked.intent {
            Intent::Hit if asked.cost > 0 && all_allow => self.charge_all(questions, asked, looked).await?,
            Intent::Hit if asked.cost > 0 => self.deny_all(questions, asked, looked).await,
            _ => looked,
        };
        let at = said.iter().map(|(at, _)| *at).max().unwrap_or(Micros::ZERO);
        Ok((at, said.into_iter().map(|(_, answer)| answer).collect()))
    }

    async fn look(&self, question: &Question<'_>, peek: &Asked) -> Result<One, StoreError> {
        let (at, answers) = self.decide_sharded(question, peek).await?;
        answers.into_iter().next().map(|answer| (at, answer)).ok_or_else(|| self.garbled("not one decision"))
    }

    /// Those that deny remember it and start their blocks; the others stay as they are. What was seen at the
    /// look is the answer, whatever becomes of that: nothing was charged.
    async fn deny_all(&self, questions: &[Question<'_>], asked: &Asked, looked: Vec<One>) -> Vec<One> {
        let denials = questions.iter().zip(looked).map(async |(question, seen)| {
            if seen.1.ruling.is_allowed() {
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
        let (at, answers) = self.step(b'd', &[*question], asked).await?.answers;
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
        let looked = said.clone();
        let mut charged: Vec<(usize, Vec<Vec<u8>>)> = Vec::new();
        for place in order(questions) {
            let told = self.step(b'c', &[questions[place]], asked).await;
            let one = told.and_then(|told| {
                let (at, answers) = told.answers;
                let answer = answers.into_iter().next().ok_or_else(|| self.garbled("not one decision"))?;
                Ok(((at, answer), told.marks))
            });
            match one {
                Ok((one, marks)) if one.1.ruling.is_allowed() => {
                    said[place] = one;
                    charged.push((place, marks));
                }
                Ok((denied, _)) => {
                    self.refund_all(questions, asked, &charged).await;
                    said = looked;
                    said[place] = denied;
                    return Ok(said);
                }
                Err(error) => {
                    self.refund_all(questions, asked, &charged).await;
                    return Err(error);
                }
            }
        }
        Ok(said)
    }

    /// What cannot be refunded counts for at most its period.
    async fn refund_all(&self, questions: &[Question<'_>], asked: &Asked, charged: &[(usize, Vec<Vec<u8>>)]) {
        let by = asked.by.max(Instant::now() + REFUND_TIME_MIN);
        let asked = Asked { by, ..*asked };
        let refunds = charged.iter().map(|(place, marks)| self.give_back(&questions[*place], &asked, marks));
        drop(join_all(refunds).await);
    }

    async fn give_back(&self, question: &Question<'_>, asked: &Asked, marks: &[Vec<u8>]) -> Result<(), StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Refund, &[*question])?;
        let count = 4 + marks.len() + subject_len(question);
        let reply = self.run(asked.by, script, &keys, count, |args| {
            now_argument(args, asked.now);
            args.number(width);
            args.number(asked.cost.into());
            args.number(marks.len() as u64);
            marks.iter().for_each(|mark| args.part(mark));
            self.subject(args, question);
        });
        reply.await.map(drop)
    }
}

/// The order of charging: keys that can be blocked last.
fn order(questions: &[Question<'_>]) -> Vec<usize> {
    let blocks = |place: &usize| {
        let question = &questions[*place];
        question.layout != Layout::Native || question.rules.checks().any(|check| check.block().is_some())
    };
    let (last, first): (Vec<usize>, Vec<usize>) = (0..questions.len()).partition(blocks);
    [first, last].concat()
}
