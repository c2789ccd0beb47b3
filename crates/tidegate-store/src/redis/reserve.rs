//! Reservations in Redis: charges that may be given back for a time.
//!
//! The charge is an ordinary one, made by `decide.lua`, which returns its marks. What giving back has to know is then remembered in a hash of the
//! key, a field for each open reservation, under a number that nobody guesses: any process on this Redis can end it. To end it, the field is taken
//! out first: only one caller gets it, and only then is something given back. So a crash or a lost reply between any two of
//! these steps leaves the charge, and nothing is given back twice. That they are separate commands lets them work where keys are on several
//! servers, too.
//! Whoever unblocks a key forgets its charges, and so its reservations first.

use super::ask::{Step, int, list, micros, now_argument, subject_len};
use super::names::reservations;
use super::resp::Reply;
use super::script::{Purpose, claim, place, remember};
use super::{Redis, StoreError};
use crate::store::{Asked, Backend as _, Layout, Question, Reserve, Reserved, Settled, When};
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Intent, Reason, Settlement, Terms};
use tokio::time::Instant;

/// What is remembered of one: `UNTIL MADE COST LETTER MARK;MARK`.
#[derive(Debug, PartialEq)]
struct Record {
    terms: Terms,
    /// The algorithm's letter.
    letter: u8,
    marks: Vec<Vec<u8>>,
}

impl Redis {
    /// Charges a key, and remembers how to give it back. Two round trips.
    ///
    /// # Errors
    /// When the server does not answer, or the limiter is in Pause's layout. A charge that could not be remembered is an answer without a
    /// reservation.
    pub async fn reserve(
        &self,
        question: &Question<'_>,
        reserve: &Reserve,
        when: When,
    ) -> Result<Reserved, StoreError> {
        if question.layout != Layout::Native {
            return Err(self.cannot("reserve in Pause's layout"));
        }
        let Reserve { nonce, cost, span, .. } = *reserve;
        let asked = Asked { now: when.now, cost, intent: Intent::Hit, explain: false, by: when.by };
        let said = self.step(Step::Reserve, &[*question], &asked).await?;
        let (at, answers) = said.answers;
        let answer = answers.into_iter().next().ok_or_else(|| self.garbled("not one decision"))?;
        if self.is_sharded() && answer.ruling.reason == Reason::Limited && answer.blocked_until > at {
            // The block is in the state already, and the list is only a list.
            drop(self.note_block(when.by, question, at, answer.blocked_until).await);
        }
        if !answer.ruling.is_allowed() {
            return Ok(Reserved { at, answer, until: None });
        }
        let terms = Terms { made_at: at, until: at.saturating_add(span), cost };
        let record = Record { terms, letter: place(question.rules.algorithm()).1, marks: said.marks };
        let kept = self.remember(question, nonce, &record, when).await;
        Ok(Reserved { at, answer, until: kept.is_ok().then_some(terms.until) })
    }

    /// Ends a reservation at its real cost. `None`: it is not open. Three round trips.
    ///
    /// # Errors
    /// When the server does not answer: then the charge stays, and the reservation may have ended.
    pub async fn settle(
        &self,
        question: &Question<'_>,
        nonce: u128,
        cost: u32,
        when: When,
    ) -> Result<Option<Settled>, StoreError> {
        let (now, record) = self.claim(question, nonce, when).await?;
        let settled = record.and_then(|record| Some((record.terms.settlement(now, cost)?, record)));
        let Some((settlement, record)) = settled else { return Ok(None) };
        let is_same = record.letter == place(question.rules.algorithm()).1;
        let marks = if is_same { record.marks } else { Vec::new() };
        let given_back = self.settle_charge(question, settlement, &marks, when).await?;
        let asked = Asked { now: when.now, cost: 0, intent: Intent::Peek, explain: false, by: when.by };
        let (at, answer) = self.look(question, &asked).await?;
        Ok(Some(Settled { at, answer, given_back, excess: settlement.excess }))
    }

    /// Forgets all of a key: its charges are forgotten, too.
    pub(super) async fn forget_reservations(&self, question: &Question<'_>, by: Instant) -> Result<(), StoreError> {
        let key = reservations(question.limiter, question.key);
        self.call(&key, &[b"DEL", &key], by).await.map(drop)
    }

    async fn remember(
        &self,
        question: &Question<'_>,
        nonce: u128,
        record: &Record,
        when: When,
    ) -> Result<(), StoreError> {
        let keys = [reservations(question.limiter, question.key)];
        let reply = self.run(when.by, remember(), &keys, 4, |args| {
            now_argument(args, when.now);
            args.part(field(nonce).as_bytes());
            args.number(record.terms.until.get());
            args.part(&record.rest());
        });
        reply.await.map(drop)
    }

    /// Takes a reservation out; with the server's time.
    async fn claim(
        &self,
        question: &Question<'_>,
        nonce: u128,
        when: When,
    ) -> Result<(Micros, Option<Record>), StoreError> {
        let keys = [reservations(question.limiter, question.key)];
        let reply = self.run(when.by, claim(), &keys, 2, |args| {
            now_argument(args, when.now);
            args.part(field(nonce).as_bytes());
        });
        let reply = reply.await?;
        let claimed = |reply: &[Reply]| match reply {
            [at] | [at, Reply::Nil] => Some((micros(at)?, None)),
            [at, Reply::Text(record)] => Some((micros(at)?, Some(Record::read(record)?))),
            _ => None,
        };
        list(&reply).and_then(claimed).ok_or_else(|| self.garbled("not a reservation"))
    }

    async fn settle_charge(
        &self,
        question: &Question<'_>,
        Settlement { give_back, excess }: Settlement,
        marks: &[Vec<u8>],
        when: When,
    ) -> Result<u32, StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Settle, &[*question])?;
        let reply = self.run(when.by, script, &keys, 5 + marks.len() + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            args.number(give_back.into());
            args.number(excess.into());
            args.number(marks.len() as u64);
            marks.iter().for_each(|mark| args.part(mark));
            self.subject(args, question);
        });
        let reply = reply.await?;
        let told = |reply: &[Reply]| match reply {
            [at, given, listed] => Some((micros(at)?, u32::try_from(int(given)?).ok()?, micros(listed)?)),
            _ => None,
        };
        let (at, given, listed) = list(&reply).and_then(told).ok_or_else(|| self.garbled("not an answer"))?;
        self.note_name(when.by, question, at, listed).await;
        Ok(given)
    }
}

fn field(nonce: u128) -> String {
    format!("{nonce:032x}")
}

impl Record {
    /// All but the time until when, which the script looks at.
    fn rest(&self) -> Vec<u8> {
        let Terms { made_at, cost, .. } = self.terms;
        let head = format!("{} {cost} {} ", made_at.get(), char::from(self.letter));
        [head.as_bytes(), &self.marks.join(&b';')].concat()
    }

    fn read(text: &[u8]) -> Option<Record> {
        let mut words = std::str::from_utf8(text).ok()?.splitn(5, ' ');
        let mut time = || Micros::new(words.next()?.parse().ok()?);
        let (until, made_at) = (time()?, time()?);
        let (cost, letter, marks) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
        Some(Record {
            terms: Terms { made_at, until, cost },
            letter: *letter.as_bytes().first()?,
            marks: marks.split(';').map(|mark| mark.as_bytes().to_vec()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let terms = Terms { made_at: Micros::from_secs(3), until: Micros::from_secs(33), cost: u32::MAX };
        for marks in [vec![b"5 6 7 8 9".to_vec(), b"1 2 3 4 5".to_vec()], vec![b"100".to_vec()]] {
            let record = Record { terms, letter: b'T', marks };
            let written = [b"33000000 ", record.rest().as_slice()].concat();
            assert_eq!(Record::read(&written), Some(record));
            assert!((0..25).all(|end| Record::read(&written[..end.min(written.len())]).is_none()));
        }
    }
}
