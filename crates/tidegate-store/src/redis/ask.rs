//! Asking Redis for a decision: the arguments of its scripts and what they return.

use super::names::keys;
use super::plain::is_plain;
use super::resp::{Reply, Writer};
use super::script::{Purpose, Script, pause_script, place, script};
use super::{Kind, Redis, StoreError};
use crate::store::{Answers, Asked, Layout, Meaning, Question};
use crate::table::PartAnswer;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Reason, Role, Ruling};
use tidegate_core::{Algorithm, Decision, Limit, Micros, Rate, Rules, Verdict};

/// What `lua/decide.lua` is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Decide and charge.
    Hit,
    /// Decide.
    Peek,
    /// Leave behind what a denial does, if it is one.
    Deny,
    /// Charge, if it is allowed, and leave nothing behind otherwise.
    Charge {
        /// For how long the charge is taken for one that may be taken back; zero: it will not be.
        pending: Micros,
    },
    /// Decide and charge, and say what giving back has to know.
    Reserve,
}

impl Step {
    const fn letter(self) -> u8 {
        match self {
            Step::Hit => b'h',
            Step::Peek => b'p',
            Step::Deny => b'd',
            Step::Charge { .. } => b'c',
            Step::Reserve => b'r',
        }
    }

    /// How many arguments come before the subjects.
    const fn len(self) -> usize {
        if let Step::Charge { .. } = self { 6 } else { 5 }
    }
}

impl Redis {
    /// Decides a request of one or several keys, all or nothing. One round trip; for several
    /// keys on shards or in slots one to look and one for each key, see `cross_slot.rs`.
    ///
    /// # Errors
    /// When the server does not answer; [`StoreError::is_ambiguous`] tells whether it may have been charged.
    pub async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let has_candidates = questions.iter().any(|question| matches!(question.role, Role::Candidate { .. }));
        if !has_candidates {
            return self.decide_enforced(questions, asked).await;
        }
        // One script knows one layout, and of keys on several servers only one.
        let is_apart = self.is_sharded() || questions.iter().any(|question| question.layout != Layout::Native);
        if is_apart {
            return self.decide_candidates(questions, asked).await;
        }
        match self.decide_at_length(questions, asked).await {
            // Something else may lie at a candidate's key, which must not matter. Nothing was charged.
            Err(StoreError::Refused { meaning: Meaning::WrongType, .. }) => {
                self.decide_candidates(questions, asked).await
            }
            outcome => outcome,
        }
    }

    /// Candidates after the others, one by one. What becomes of them changes no decision.
    async fn decide_candidates(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let is_enforced = |question: &&Question<'_>| !matches!(question.role, Role::Candidate { .. });
        let enforced: Vec<Question<'_>> = questions.iter().filter(is_enforced).copied().collect();
        let (at, told) = match enforced.is_empty() {
            true => (asked.now.unwrap_or_default(), Vec::new()),
            false => self.decide_enforced(&enforced, asked).await?,
        };
        let mut told = told.into_iter();
        let mut answers: Vec<PartAnswer> =
            questions
                .iter()
                .map(|question| {
                    if is_enforced(&question) {
                        told.next().unwrap_or(PartAnswer::UNKNOWN)
                    } else {
                        PartAnswer::UNKNOWN
                    }
                })
                .collect();
        let roles: Vec<Role> = questions.iter().map(|question| question.role).collect();
        // Its own word is its script's to say.
        let allowed: Vec<bool> = answers.iter().map(|answer| !answer.is_known || answer.ruling.is_allowed()).collect();
        let mut at = at;
        for (index, question) in questions.iter().enumerate().filter(|(_, question)| !is_enforced(question)) {
            let step = match (asked.of(question).intent, all_or_nothing::all_allow(&roles, &allowed, index)) {
                (Intent::Peek, _) => Step::Peek,
                (Intent::Hit, true) => Step::Hit,
                (Intent::Hit, false) => Step::Deny,
            };
            let alone = [Question { role: Role::Enforced, ..*question }];
            if let Ok(said) = self.step(step, &alone, asked).await
                && let Some(answer) = said.answers.1.into_iter().next()
            {
                answers[index] = answer;
                at = at.max(said.answers.0);
            }
        }
        Ok((at, answers))
    }

    async fn decide_enforced(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let (alone, own);
        let (questions, asked) = match questions {
            [question] if question.own.is_some() => {
                (alone, own) = ([Question { own: None, ..*question }], asked.of(question));
                (&alone[..], &own)
            }
            several => (several, asked),
        };
        match questions {
            [question] if is_plain(question, asked) => match self.decide_plainly(question, asked).await? {
                Some(answer) => Ok(answer),
                None => self.decide_at_length(questions, asked).await,
            },
            [question] if self.is_sharded() => self.decide_sharded(question, asked).await,
            [_, _, ..] if self.is_sharded() => self.decide_cross_slot(questions, asked).await,
            _ => self.decide_at_length(questions, asked).await,
        }
    }

    pub(super) async fn decide_at_length(
        &self,
        questions: &[Question<'_>],
        asked: &Asked,
    ) -> Result<Answers, StoreError> {
        let step = if asked.intent == Intent::Hit { Step::Hit } else { Step::Peek };
        Ok(self.step(step, questions, asked).await?.answers)
    }

    /// One step of a decision.
    pub(super) async fn step(
        &self,
        step: Step,
        questions: &[Question<'_>],
        asked: &Asked,
    ) -> Result<ScriptReply, StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Decide, questions)?;
        let count = step.len() + questions.iter().map(|question| 1 + subject_len(question)).sum::<usize>();
        let reply = self.run(asked.by, script, &keys, count, |args| {
            now_argument(args, asked.now);
            args.number(width);
            args.part(&[step.letter()]);
            args.number(asked.cost.into());
            args.part(if asked.explain { b"1" } else { b"0" });
            if let Step::Charge { pending } = step {
                args.number(pending.get());
            }
            for question in questions {
                own_argument(args, question.own);
                self.subject(args, question);
            }
        });
        let said = script_reply(&reply.await?, questions).ok_or_else(|| self.garbled("not a decision"))?;
        for (question, listed) in questions.iter().zip(&said.listed) {
            self.note_name(asked.by, question, said.answers.0, *listed).await;
        }
        Ok(said)
    }

    /// The script for these questions, its keys, and how many each question has.
    pub(super) fn scripted(
        &self,
        purpose: Purpose,
        questions: &[Question<'_>],
    ) -> Result<(&'static Script, Vec<Vec<u8>>, u64), StoreError> {
        let of_pause = |question: &&Question<'_>| question.layout != Layout::Native;
        let script = match questions.iter().filter(of_pause).count() {
            0 => script(purpose, questions.iter().map(|question| question.rules.algorithm())),
            n if n == questions.len() => pause_script(purpose),
            _ => {
                let what = "one request of limiters in Pause's layout and of others";
                return Err(StoreError::Unsupported(what.to_owned()));
            }
        };
        let keys: Vec<_> = questions.iter().flat_map(|question| keys(question, self.is_sharded())).collect();
        let width = keys.len() / questions.len().max(1);
        Ok((script, keys, width as u64))
    }
}

impl Redis {
    /// Writes a subject's arguments.
    pub(super) fn subject(&self, args: &mut Writer<'_>, question: &Question<'_>) {
        let rules: &Rules = question.rules;
        args.part(self.name_of(question));
        args.part(&[place(rules.algorithm()).1]);
        match question.role {
            Role::Enforced => args.part(b""),
            Role::Alternative => args.part(b"a"),
            Role::Candidate { replaces } => args.number(replaces.map_or(0, |index| u64::from(index) + 1)),
        }
        args.number(rules.limits().len() as u64);
        for check in rules.checks() {
            let limit = check.limit();
            args.number(limit.count().into());
            args.number(limit.period().get());
            args.number(check.block().unwrap_or(Micros::ZERO).get());
            match rules.algorithm() {
                Algorithm::TokenBucket => {
                    args.number(limit.burst().into());
                    bucket_arguments(args, limit);
                }
                Algorithm::Buckets => {
                    args.number(rules.grid().resolution().get());
                    args.number(rules.grid().history().get());
                }
                Algorithm::AlignedWindow => args.number(limit.lead().get()),
                _ => {}
            }
        }
    }

    /// The name by which a script knows the key; none where the script sees no index and no other place keeps it.
    pub(super) fn name_of<'a>(&self, question: &Question<'a>) -> &'a [u8] {
        let is_kept = match self.url().kind {
            Kind::Twemproxy => false,
            Kind::Cluster => question.names,
            _ => true,
        };
        if is_kept || question.layout != Layout::Native { question.key } else { b"" }
    }
}

pub(super) fn now_argument(args: &mut Writer<'_>, now: Option<Micros>) {
    match now {
        Some(now) => args.number(now.get()),
        None => args.part(b""),
    }
}

/// What is asked of a key where it is not what is asked of all: its cost, with a minus where it is a peek.
fn own_argument(args: &mut Writer<'_>, own: Option<Demand>) {
    match own {
        None => args.part(b""),
        Some(Demand { cost, intent: Intent::Hit }) => args.number(cost.into()),
        Some(Demand { cost, intent: Intent::Peek }) => args.part(format!("-{cost}").as_bytes()),
    }
}

/// How many arguments a subject is; see `lua/arguments.lua`.
pub(super) fn subject_len(question: &Question<'_>) -> usize {
    let each = match question.rules.algorithm() {
        Algorithm::TokenBucket => 8,
        Algorithm::Buckets => 5,
        Algorithm::AlignedWindow => 4,
        _ => 3,
    };
    4 + question.rules.limits().len() * each
}

fn bucket_arguments(args: &mut Writer<'_>, limit: &Limit) {
    let bucket = limit.bucket();
    for number in [bucket.per_micro.into(), bucket.interval, bucket.full, bucket.full_micros] {
        args.number(number);
    }
}

/// A script's reply, parsed.
pub(super) struct ScriptReply {
    pub(super) answers: Answers,
    /// Until when each name is to be listed, if that has changed.
    listed: Vec<Micros>,
    /// What a refund of the first subject has to know.
    pub(super) marks: Vec<Vec<u8>>,
}

fn script_reply(reply: &Reply, questions: &[Question<'_>]) -> Option<ScriptReply> {
    let (at, parts) = list(reply)?.split_first()?;
    if parts.len() != questions.len() {
        return None;
    }
    let answers = parts.iter().zip(questions).map(|(part, question)| answer(part, question.rules.limits()));
    let mark = |mark: &Reply| if let Reply::Text(mark) = mark { Some(mark.clone()) } else { None };
    let marks = list(list(parts.first()?)?.get(8)?)?.iter().map(mark);
    Some(ScriptReply {
        answers: (micros(at)?, answers.collect::<Option<_>>()?),
        listed: parts.iter().map(|part| micros(list(part)?.last()?)).collect::<Option<_>>()?,
        marks: marks.collect::<Option<_>>()?,
    })
}

fn answer(part: &Reply, limits: &[Limit]) -> Option<PartAnswer> {
    let [reason, index, verdict, remaining, reset, rate, until, all, _marks, _listed] = list(part)? else {
        return None;
    };
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
        is_known: true,
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
