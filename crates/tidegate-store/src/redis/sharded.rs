//! Where keys are spread over shards (twemproxy) or slots (cluster): a key's script sees its own key and no other.
//!
//! Admission is exact all the same, as it is decided at that key. What may lie on another shard follows
//! one round trip later: the lists of names, and in Pause's layout the block itself, which is
//! asked for together with the decision. Nothing that twemproxy refuses is sent. In a cluster the lists are in
//! their key's slot, yet they are keys of their own, and while a slot moves, key by key, they may be on another node.

use super::ask::now_argument;
use super::names;
use super::resp::Reply;
use super::script::note_block;
use super::{Kind, Redis, StoreError};
use crate::store::{Answers, Asked, Layout, Question, When};
use crate::table::{PartAnswer, Which};
use futures_util::future::try_join;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent, Reason};
use tidegate_core::{Decision, Micros, Verdict};
use tokio::time::Instant;

impl Redis {
    pub(super) async fn decide_sharded(&self, question: &Question<'_>, asked: &Asked) -> Result<Answers, StoreError> {
        let questions = [*question];
        let (noted, (at, mut answers)) =
            try_join(self.noted_block(asked.by, question), self.decide_at_length(&questions, asked)).await?;
        let [answer] = answers.as_mut_slice() else { return Err(self.garbled("not one decision")) };
        let charged = answer.ruling.is_allowed() && asked.intent == Intent::Hit && question.cost > 0;
        match noted {
            Some(until) if until > at => {
                if charged {
                    self.refund(asked.by, question, at, question.cost).await?;
                }
                if asked.intent == Intent::Hit {
                    // The script knew nothing of the block: what it charged or thought to start is not so.
                    let peek = Asked { now: Some(at), intent: Intent::Peek, ..*asked };
                    answers = self.decide_at_length(&questions, &peek).await?.1;
                }
                answers.iter_mut().for_each(|answer| blocked(answer, at, until));
            }
            _ if answer.ruling.reason == Reason::Limited && answer.blocked_until > at => {
                let noted = self.note_block(asked.by, question, at, answer.blocked_until).await;
                // In the native layout the block is in the state already, and the list is only a list.
                if question.layout != Layout::Native {
                    noted?;
                }
            }
            _ => {}
        }
        Ok((at, answers))
    }

    pub(super) async fn analyze_sharded(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        let (noted, (at, analysis)) =
            try_join(self.noted_block(when.by, question), self.analyze_key(question, if_blocked, when)).await?;
        let noted = noted.filter(|until| *until > at);
        let told = match (noted, analysis) {
            (Some(until), Analysis::Limited { limit_index, sum, .. }) if if_blocked == IfBlocked::Recompute => {
                Analysis::Limited { limit_index, sum, blocked_until: until }
            }
            (Some(until), _) => Analysis::Blocked { until },
            (None, Analysis::Limited { blocked_until, .. }) => {
                self.note_block(when.by, question, at, blocked_until).await?;
                analysis
            }
            (None, _) => analysis,
        };
        Ok((at, told))
    }

    /// Until when the list of Pause's layout says that a key is blocked; the native layout has that in the key.
    async fn noted_block(&self, by: Instant, question: &Question<'_>) -> Result<Option<Micros>, StoreError> {
        if question.layout == Layout::Native {
            return Ok(None);
        }
        let list = names::blocks(question.limiter);
        let reply = self.call(list.as_bytes(), &[b"ZSCORE", list.as_bytes(), question.key], by).await?;
        self.until(&reply)
    }

    fn until(&self, reply: &Reply) -> Result<Option<Micros>, StoreError> {
        let Reply::Text(score) = reply else { return Ok(None) };
        let seconds = std::str::from_utf8(score).ok().and_then(|score| score.parse::<f64>().ok());
        let seconds = seconds.ok_or_else(|| self.garbled("not a score"))?;
        // A part of a second lasts until the next whole one, as in `lua/entry_pause.lua`.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
        Ok(Some(Micros::saturating((seconds.ceil() as u64).saturating_mul(1_000_000))))
    }

    /// Enters a block that has begun into the list of its limiter.
    pub(super) async fn note_block(
        &self,
        by: Instant,
        question: &Question<'_>,
        at: Micros,
        until: Micros,
    ) -> Result<(), StoreError> {
        match question.layout {
            Layout::Native => {
                let index = names::blocked(question.limiter, self.group_of(question));
                self.enter(by, index, question.key, at, until).await?;
            }
            Layout::Pause => {
                let list = names::blocks(question.limiter);
                let (list, now) = (list.as_bytes(), whole_seconds(at));
                let until = whole_seconds(until);
                let (purge, add): ([&[u8]; 4], [&[u8]; 4]) = (
                    [b"ZREMRANGEBYSCORE", list, b"-inf", now.as_bytes()],
                    [b"ZADD", list, until.as_bytes(), question.key],
                );
                try_join(self.call(list, &purge, by), self.call(list, &add, by)).await?;
            }
        }
        Ok(())
    }

    /// Enters a name into an index.
    async fn enter(
        &self,
        by: Instant,
        index: String,
        name: &[u8],
        at: Micros,
        until: Micros,
    ) -> Result<Reply, StoreError> {
        let keys = [index.into_bytes()];
        let reply = self.run(by, note_block(), &keys, 3, |args| {
            now_argument(args, Some(at));
            args.part(name);
            args.number(until.get());
        });
        reply.await
    }

    /// Enters a key that its script could not enter into the list of tracked names; zero: it has not to be.
    /// A list is no reason to take an answer back, so that a failure to list is not reported.
    pub(super) async fn note_name(&self, by: Instant, question: &Question<'_>, at: Micros, listed: Micros) {
        if !listed.is_zero() {
            let index = names::tracked(question.limiter, names::group(question.key));
            let _ = self.enter(by, index, question.key, at, listed).await;
        }
    }

    /// Behind twemproxy blocked names are in one list, as its shards cannot be asked for all.
    fn group_of(&self, question: &Question<'_>) -> u32 {
        if self.url().kind == Kind::Twemproxy { 0 } else { names::group(question.key) }
    }

    /// Names of an index whose keys are tracked or blocked now; each is asked for by itself.
    pub(super) async fn list_split(
        &self,
        question: &Question<'_>,
        which: Which,
        index: &str,
        when: When,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let asked = Asked { now: when.now, intent: Intent::Peek, explain: true, by: when.by };
        let is_listed = async |key: &Vec<u8>| {
            let (at, answers) = self.decide_at_length(&[Question { key, cost: 0, ..*question }], &asked).await?;
            let lives = |answer: &PartAnswer| answer.decisions.iter().any(|decision| !decision.reset_after.is_zero());
            let is_blocked = answers.iter().any(|answer| answer.blocked_until > at);
            Ok(is_blocked || which == Which::Tracked && answers.iter().any(lives))
        };
        let mut names = self.later(index, 1, when).await?.keys;
        let listed = futures_util::future::try_join_all(names.iter().map(is_listed)).await?;
        let mut listed = listed.into_iter();
        names.retain(|_| listed.next().unwrap_or(false));
        Ok(names)
    }

    /// Takes a key off the list of blocked names; until when it stood there, where that is what counts.
    pub(super) async fn forget_block(
        &self,
        question: &Question<'_>,
        by: Instant,
    ) -> Result<Option<Micros>, StoreError> {
        let score = self.noted_block(by, question).await?;
        let lists = match question.layout {
            Layout::Native if self.url().kind == Kind::Twemproxy => vec![names::blocked(question.limiter, 0)],
            Layout::Native => {
                let group = names::group(question.key);
                vec![names::blocked(question.limiter, group), names::tracked(question.limiter, group)]
            }
            Layout::Pause => vec![names::blocks(question.limiter)],
        };
        for list in lists {
            self.call(list.as_bytes(), &[b"ZREM", list.as_bytes(), question.key], by).await?;
        }
        Ok(score)
    }

    /// Takes back what was counted for a hit that a block turns out to deny.
    async fn refund(&self, by: Instant, question: &Question<'_>, at: Micros, cost: u32) -> Result<(), StoreError> {
        if question.layout == Layout::Native {
            return Ok(());
        }
        let (key, less) = (names::history(question.limiter, question.key), format!("-{cost}"));
        let block = whole_seconds(question.rules.grid().block(at));
        self.call(&key, &[b"ZINCRBY", &key, less.as_bytes(), block.as_bytes()], by).await?;
        Ok(())
    }
}

fn whole_seconds(time: Micros) -> String {
    (time.get() / 1_000_000).to_string()
}

/// The answer while a block lasts that its script did not know of; as the core words it.
fn blocked(answer: &mut PartAnswer, at: Micros, until: Micros) {
    answer.blocked_until = until;
    if answer.ruling.reason == Reason::CostAboveLimit {
        return;
    }
    let left = until.saturating_sub(at);
    let wait = match answer.ruling.decision.verdict {
        Verdict::Deny { retry_after: Some(wait) } => wait.max(left),
        _ => left,
    };
    let decision = answer.ruling.decision;
    answer.ruling.decision = Decision {
        verdict: Verdict::Deny { retry_after: Some(wait) },
        remaining: 0,
        reset_after: decision.reset_after.max(left),
        ..decision
    };
    answer.ruling.reason = Reason::Blocked;
}
