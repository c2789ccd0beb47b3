//! Asking Redis for a decision: the arguments of its scripts and what they return.

use super::link::Sent;
use super::names::Names;
use super::resp::{Reply, Writer};
use super::script::{Purpose, Script, place, plain_token_bucket, script};
use super::{Meaning, Redis, StoreError};
use crate::table::PartAnswer;
use tidegate_core::all_or_nothing::{Intent, Reason, Ruling};
use tidegate_core::{Algorithm, Decision, Limit, Micros, Rate, Rules, Verdict};

/// One key of a request.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The limiter's name.
    pub limiter: &'a str,
    /// Its rules.
    pub rules: &'a Rules,
    /// Keep the key's name, so that it can be listed.
    pub names: bool,
    /// Whom.
    pub key: &'a [u8],
}

/// A request's cost and what it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) now: Option<Micros>,
    pub(super) cost: u32,
    pub(super) intent: Intent,
    pub(super) explain: bool,
}

impl Redis {
    /// Decides a request of one or several keys, all or nothing; says when, by the server's clock.
    /// One round trip. `now` is for tests: in production the server's clock is asked.
    ///
    /// # Errors
    /// When the server does not answer; [`StoreError::is_ambiguous`] tells whether it may have been charged.
    pub async fn decide(
        &self,
        now: Option<Micros>,
        questions: &[Question<'_>],
        cost: u32,
        intent: Intent,
        explain: bool,
    ) -> Result<(Micros, Vec<PartAnswer>), StoreError> {
        let asked = Asked { now, cost, intent, explain };
        if let [question] = questions
            && is_plain(question, &asked)
            && let Some(answer) = self.decide_plainly(question, &asked).await?
        {
            return Ok(answer);
        }
        self.decide_at_length(questions, &asked).await
    }

    /// `None`: the entry is not what the short script knows.
    async fn decide_plainly(
        &self,
        question: &Question<'_>,
        asked: &Asked,
    ) -> Result<Option<(Micros, Vec<PartAnswer>)>, StoreError> {
        let names = Names::of(question.limiter, question.key);
        let limit = &question.rules.limits()[0];
        let keys: [&[u8]; 2] = [&names.state, names.tracked.as_bytes()];
        let indexed = question.names && !self.is_sharded();
        let keys = if indexed { &keys[..] } else { &keys[..1] };
        let reply = self.run(plain_token_bucket(), keys, 9, |args| {
            now_argument(args, asked.now);
            args.number(asked.cost.into());
            plain_arguments(args, limit);
            args.part(if indexed { question.key } else { b"" });
        });
        let reply = reply.await?;
        if reply == Reply::Nil {
            return Ok(None);
        }
        let answer = plain_answer(&reply, limit).ok_or_else(|| self.link.garbled("not a decision"))?;
        Ok(Some(answer))
    }

    async fn decide_at_length(
        &self,
        questions: &[Question<'_>],
        asked: &Asked,
    ) -> Result<(Micros, Vec<PartAnswer>), StoreError> {
        let names: Vec<Names> = questions.iter().map(|q| Names::of(q.limiter, q.key)).collect();
        let width = if self.is_sharded() { 1 } else { 3 };
        let mut keys: Vec<&[u8]> = Vec::with_capacity(questions.len() * width);
        for (question, names) in questions.iter().zip(&names) {
            keys.push(&names.state);
            if width == 3 {
                keys.push(names.tracked_if(question.names));
                keys.push(names.blocked.as_bytes());
            }
        }
        let count = 5 + questions.iter().map(|q| 3 + limit_arguments(q.rules)).sum::<usize>();
        let script = script(Purpose::Decide, questions.iter().map(|q| q.rules.algorithm()));
        let reply = self.run(script, &keys, count, |args| {
            now_argument(args, asked.now);
            args.part(if asked.intent == Intent::Hit { b"h" } else { b"p" });
            args.number(asked.cost.into());
            args.part(if asked.explain { b"1" } else { b"0" });
            args.number(width as u64);
            for question in questions {
                args.part(question.key);
                rule_arguments(args, question.rules);
            }
        });
        let reply = reply.await?;
        answers(&reply, questions).ok_or_else(|| self.link.garbled("not a decision"))
    }

    /// Runs a script: by its name, and whole if the server does not know it.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        count: usize,
        write: impl Fn(&mut Writer<'_>),
    ) -> Result<Reply, StoreError> {
        let sent = self.send_script(b"EVALSHA", script.sha.as_bytes(), keys, count, &write)?;
        match self.link.receive(sent).await {
            Err(StoreError::Refused { meaning: Meaning::NoScript, .. }) => {
                let sent = self.send_script(b"EVAL", script.source.as_bytes(), keys, count, &write)?;
                self.link.receive(sent).await
            }
            answered => answered,
        }
    }

    fn send_script(
        &self,
        verb: &[u8],
        what: &[u8],
        keys: &[&[u8]],
        count: usize,
        write: &impl Fn(&mut Writer<'_>),
    ) -> Result<Sent, StoreError> {
        self.link.send(|bytes| {
            let mut writer = Writer(bytes);
            writer.start(3 + keys.len() + count);
            writer.part(verb);
            writer.part(what);
            writer.number(keys.len() as u64);
            keys.iter().for_each(|key| writer.part(key));
            write(&mut writer);
        })
    }
}

/// One token bucket without a block: see `token_bucket_plain.lua`.
fn is_plain(question: &Question<'_>, asked: &Asked) -> bool {
    let Asked { cost, intent, explain, .. } = *asked;
    let [limit] = question.rules.limits() else { return false };
    let plain = intent == Intent::Hit && !explain && (1..=limit.burst()).contains(&cost);
    plain && question.rules.algorithm() == Algorithm::TokenBucket && limit.block().is_none()
}

pub(super) fn now_argument(args: &mut Writer<'_>, now: Option<Micros>) {
    match now {
        Some(now) => args.number(now.get()),
        None => args.part(b""),
    }
}

fn plain_arguments(args: &mut Writer<'_>, limit: &Limit) {
    let bucket = limit.bucket();
    args.number(limit.burst().into());
    args.number(limit.period().get());
    for number in [bucket.per_micro.into(), bucket.interval, bucket.full, bucket.full_micros] {
        args.number(number);
    }
}

/// How many arguments the rules' limits are; see `lua/limits.lua`.
pub(super) fn limit_arguments(rules: &Rules) -> usize {
    rules.limits().len() * if rules.algorithm() == Algorithm::TokenBucket { 8 } else { 3 }
}

/// The algorithm and its limits: two arguments more than [`limit_arguments`].
pub(super) fn rule_arguments(args: &mut Writer<'_>, rules: &Rules) {
    args.part(&[place(rules.algorithm()).1]);
    args.number(rules.limits().len() as u64);
    for limit in rules.limits() {
        args.number(limit.count().into());
        args.number(limit.period().get());
        args.number(limit.block().unwrap_or(Micros::ZERO).get());
        if rules.algorithm() == Algorithm::TokenBucket {
            let bucket = limit.bucket();
            for number in
                [limit.burst().into(), bucket.per_micro.into(), bucket.interval, bucket.full, bucket.full_micros]
            {
                args.number(number);
            }
        }
    }
}

fn plain_answer(reply: &Reply, limit: &Limit) -> Option<(Micros, Vec<PartAnswer>)> {
    let [at, verdict, remaining, reset] = list(reply)? else { return None };
    let decision = decision(verdict, remaining, reset, &Reply::Text(Vec::new()), limit)?;
    let reason = if decision.verdict.is_allowed() { Reason::Ok } else { Reason::Limited };
    let ruling = Ruling { limit_index: 0, decision, reason };
    let answer = PartAnswer { ruling, blocked_until: Micros::ZERO, sketched: false, decisions: Vec::new() };
    Some((micros(at)?, vec![answer]))
}

fn answers(reply: &Reply, questions: &[Question<'_>]) -> Option<(Micros, Vec<PartAnswer>)> {
    let (at, parts) = list(reply)?.split_first()?;
    if parts.len() != questions.len() {
        return None;
    }
    let answers = parts.iter().zip(questions).map(|(part, question)| answer(part, question.rules.limits()));
    Some((micros(at)?, answers.collect::<Option<_>>()?))
}

fn answer(part: &Reply, limits: &[Limit]) -> Option<PartAnswer> {
    let [reason, index, verdict, remaining, reset, rate, until, _started, all] = list(part)? else { return None };
    let limit_index = u8::try_from(int(index)?).ok()?;
    let reason = match int(reason)? {
        0 => Reason::Ok,
        1 => Reason::Limited,
        2 => Reason::Blocked,
        3 => Reason::CostAboveLimit,
        _ => return None,
    };
    let decision = decision(verdict, remaining, reset, rate, limits.get(usize::from(limit_index))?)?;
    let one = |(one, limit): (&Reply, &Limit)| match list(one)? {
        [verdict, remaining, reset, rate] => self::decision(verdict, remaining, reset, rate, limit),
        _ => None,
    };
    Some(PartAnswer {
        ruling: Ruling { limit_index, decision, reason },
        blocked_until: micros(until)?,
        sketched: false,
        decisions: list(all)?.iter().zip(limits).map(one).collect::<Option<_>>()?,
    })
}

fn decision(verdict: &Reply, remaining: &Reply, reset: &Reply, rate: &Reply, limit: &Limit) -> Option<Decision> {
    let remaining = u32::try_from(int(remaining)?).ok()?;
    let rate = match rate {
        Reply::Text(text) if text.is_empty() => f64::from(limit.burst().saturating_sub(remaining)),
        Reply::Text(text) => std::str::from_utf8(text).ok()?.parse().ok()?,
        _ => return None,
    };
    let verdict = match int(verdict)? {
        -1 => Verdict::Allow,
        -2 => Verdict::NEVER,
        wait => Verdict::Deny { retry_after: Some(Micros::new(u64::try_from(wait).ok()?)?) },
    };
    Some(Decision { verdict, limit: limit.burst(), remaining, reset_after: micros(reset)?, rate: Rate::new(rate) })
}

pub(super) fn list(reply: &Reply) -> Option<&[Reply]> {
    match reply {
        Reply::List(items) => Some(items),
        _ => None,
    }
}

pub(super) fn int(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Int(number) => Some(*number),
        _ => None,
    }
}

pub(super) fn micros(reply: &Reply) -> Option<Micros> {
    Micros::new(u64::try_from(int(reply)?).ok()?)
}
