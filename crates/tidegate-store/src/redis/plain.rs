//! The commonest request, one hit on one token bucket without a block, by a script of its own: `lua/token_bucket_plain.lua`.
//!
//! It asks and answers in a few doubles, as numbers that Redis has to read and write as text cost more than the decision. What follows from
//! the debt (what is left, when to try again) is worked out here, by the core.
//! Invariant: it decides as `lua/decide.lua` does, number for number (`tests/redis_model.rs` plays both).

use super::ask::now_argument;
use super::names::keys;
use super::resp::Reply;
use super::script::plain_token_bucket;
use super::{Redis, StoreError};
use crate::store::{Answers, Asked, Question};
use crate::table::PartAnswer;
use tidegate_core::all_or_nothing::{Intent, Reason, Ruling};
use tidegate_core::{Algorithm, Limit, Micros, token_bucket};

impl Redis {
    /// `None`: the entry is not what the short script knows.
    pub(super) async fn decide_plainly(
        &self,
        question: &Question<'_>,
        asked: &Asked,
    ) -> Result<Option<Answers>, StoreError> {
        let keys = keys(question, self.is_sharded());
        let indexed = question.names && keys.len() > 1;
        let limit = &question.rules.limits()[0];
        let keys = &keys[..if indexed { 2 } else { 1 }];
        let reply = self.run(asked.by, plain_token_bucket(), keys, 2 + usize::from(asked.now.is_some()), |args| {
            args.part(if indexed || self.is_sharded() { self.name_of(question) } else { b"" });
            args.part(&limit_argument(limit, asked.cost));
            if asked.now.is_some() {
                now_argument(args, asked.now);
            }
        });
        let reply = match reply.await? {
            Reply::Nil => return Ok(None),
            reply => reply,
        };
        let said = Said::read(&reply).ok_or_else(|| self.garbled("not a decision"))?;
        self.note_name(asked.by, question, said.now, said.to_list).await;
        Ok(Some((said.now, vec![said.answer(limit, asked.cost)])))
    }
}

/// One token bucket without a block.
pub(super) fn is_plain(question: &Question<'_>, asked: &Asked) -> bool {
    let Asked { cost, intent, explain, .. } = *asked;
    let [limit] = question.rules.limits() else { return false };
    let plain = intent == Intent::Hit && !explain && (1..=limit.burst()).contains(&cost);
    plain && question.rules.algorithm() == Algorithm::TokenBucket && limit.block().is_none()
}

/// The limit and the price of a cost as the script takes them.
#[expect(clippy::cast_precision_loss, reason = "below 2^52, as the limit was checked to be")]
fn limit_argument(limit: &Limit, cost: u32) -> [u8; 40] {
    let bucket = limit.bucket();
    let price = u64::from(cost) * bucket.interval;
    let numbers = [price, bucket.per_micro.into(), bucket.full, bucket.full_micros, limit.period().get()];
    let mut bytes = [0; 40];
    for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        chunk.copy_from_slice(&(number as f64).to_le_bytes());
    }
    bytes
}

/// What the script says.
#[derive(PartialEq, Eq, Debug)]
struct Said {
    now: Micros,
    /// Ticks that the bucket owes, this request's included if it was allowed.
    debt: u64,
    is_denied: bool,
    blocked_until: Micros,
    to_list: Micros,
}

impl Said {
    fn read(reply: &Reply) -> Option<Said> {
        let Reply::Text(bytes) = reply else { return None };
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let (now, debt, denied, blocked_until, to_list) = match *numbers {
            [now, debt] => (now, debt, [0; 8], [0; 8], [0; 8]),
            [now, debt, denied, blocked_until, to_list] => (now, debt, denied, blocked_until, to_list),
            _ => return None,
        };
        Some(Said {
            now: Micros::new(whole(now)?)?,
            debt: whole(debt)?,
            is_denied: whole(denied)? == 1,
            blocked_until: Micros::new(whole(blocked_until)?)?,
            to_list: Micros::new(whole(to_list)?)?,
        })
    }

    fn answer(&self, limit: &Limit, cost: u32) -> PartAnswer {
        let decision = token_bucket::describe(limit, self.debt, self.is_denied.then_some(cost));
        let reason = if self.is_denied { Reason::Limited } else { Reason::Ok };
        let ruling = Ruling { limit_index: 0, decision, reason };
        let left = self.blocked_until.saturating_sub(self.now);
        let (ruling, blocked_until) = match left.is_zero() {
            true => (ruling, Micros::ZERO),
            false => (ruling.blocked(left), self.blocked_until),
        };
        PartAnswer { ruling, blocked_until, sketched: false, is_known: true, decisions: Vec::new() }
    }
}

/// A double that is a whole number which it holds exactly.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
fn whole(bytes: [u8; 8]) -> Option<u64> {
    let number = f64::from_le_bytes(bytes);
    (number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(numbers: &[f64]) -> Option<Said> {
        Said::read(&Reply::Text(numbers.iter().flat_map(|number| number.to_le_bytes()).collect()))
    }

    #[test]
    fn replies_are_two_or_five_whole_numbers() {
        let (now, debt) = (Micros::from_secs(3), 5);
        let allowed = Said { now, debt, is_denied: false, blocked_until: Micros::ZERO, to_list: Micros::ZERO };
        assert_eq!(said(&[3e6, 5.0]), Some(allowed));
        let denied =
            Said { now, debt, is_denied: true, blocked_until: Micros::from_secs(4), to_list: Micros::new(9).unwrap() };
        assert_eq!(said(&[3e6, 5.0, 1.0, 4e6, 9.0]), Some(denied));
        for garbled in [&[3e6][..], &[3e6, 5.0, 1.0], &[3e6, 0.5], &[-1.0, 5.0], &[f64::NAN, 5.0], &[3e6, 1e16], &[]] {
            assert_eq!(said(garbled), None, "{garbled:?}");
        }
        assert_eq!(Said::read(&Reply::Text(vec![0; 15])), None);
        assert_eq!(Said::read(&Reply::Int(1)), None);
    }
}
