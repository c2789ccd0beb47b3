//! What is asked and answered, as bytes: each type is written and read side by side.

use super::frame::{Reader, Writer};
use crate::store::{Answers, Layout, Question};
use crate::table::{Listing, PartAnswer};
use tidegate_core::all_or_nothing::{Analysis, Demand, Intent, Reason, Role, Ruling};
use tidegate_core::buckets::Grid;
use tidegate_core::{Algorithm, Decision, LIMITS_MAX, Limit, Rate, Rules, Verdict};

/// What a request asks for: the number that it begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Ping,
    Decide,
    Disabled,
    SetDisabled,
    Increment,
    Analyze,
    Block,
    Unblock,
    UnblockAll,
    List,
}

impl Operation {
    const ALL: [Operation; 10] = [
        Operation::Ping,
        Operation::Decide,
        Operation::Disabled,
        Operation::SetDisabled,
        Operation::Increment,
        Operation::Analyze,
        Operation::Block,
        Operation::Unblock,
        Operation::UnblockAll,
        Operation::List,
    ];

    pub(super) fn write(self, to: &mut Writer) {
        to.number(self as u64);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Operation> {
        Operation::ALL.get(usize::try_from(from.number()?).ok()?).copied()
    }
}

/// A question as the server keeps it while it answers.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) limiter: String,
    pub(super) rules: Rules,
    pub(super) names: bool,
    key: Vec<u8>,
    role: Role,
    own: Option<Demand>,
}

impl Asked {
    pub(super) fn question(&self) -> Question<'_> {
        let Asked { limiter, rules, names, key, role, own } = self;
        Question { limiter, rules, names: *names, key, layout: Layout::Native, role: *role, own: *own }
    }
}

pub(super) fn write_question(to: &mut Writer, question: &Question<'_>) {
    to.text(question.limiter.as_bytes());
    write_rules(to, question.rules);
    to.flag(question.names);
    to.text(question.key);
    let replaces = if let Role::Candidate { replaces } = question.role { Some(replaces) } else { None };
    to.flag(replaces.is_some());
    to.flag(question.role == Role::Alternative);
    to.maybe(replaces.flatten().map(u64::from));
    to.maybe(question.own.map(|own| own.cost.into()));
    to.flag(question.own.is_none_or(|own| own.intent == Intent::Hit));
}

pub(super) fn read_question(from: &mut Reader<'_>) -> Option<Asked> {
    let limiter = from.name()?.to_owned();
    let (rules, names, key) = (read_rules(from)?, from.flag()?, from.text()?.to_owned());
    let role = match (from.flag()?, from.flag()?, from.maybe()?) {
        (false, false, _) => Role::Enforced,
        (false, true, _) => Role::Alternative,
        (true, _, None) => Role::Candidate { replaces: None },
        (true, _, Some(index)) => Role::Candidate { replaces: Some(u8::try_from(index).ok()?) },
    };
    let (cost, is_hit) = (from.maybe()?, from.flag()?);
    let intent = if is_hit { Intent::Hit } else { Intent::Peek };
    let own = match cost {
        Some(cost) => Some(Demand { cost: u32::try_from(cost).ok()?, intent }),
        None => None,
    };
    Some(Asked { limiter, rules, names, key, role, own })
}

fn write_rules(to: &mut Writer, rules: &Rules) {
    to.number(Algorithm::ALL.iter().position(|known| *known == rules.algorithm()).unwrap_or(0) as u64);
    to.number(rules.grid().resolution().get());
    to.number(rules.grid().history().get());
    to.count(rules.limits().len());
    for limit in rules.limits() {
        to.number(limit.count().into());
        to.number(limit.period().get());
        to.maybe(limit.has_burst().then(|| limit.burst().into()));
        to.maybe(limit.block().map(|block| block.get()));
    }
}

fn read_rules(from: &mut Reader<'_>) -> Option<Rules> {
    let algorithm = *Algorithm::ALL.get(usize::try_from(from.number()?).ok()?)?;
    let grid = Grid::new(from.micros()?, from.micros()?).ok()?;
    let limits = from.list(read_limit)?;
    if limits.len() > LIMITS_MAX {
        return None;
    }
    match algorithm {
        Algorithm::Buckets => Rules::buckets(grid, &limits).ok(),
        _ => Rules::new(algorithm, &limits).ok(),
    }
}

fn read_limit(from: &mut Reader<'_>) -> Option<Limit> {
    let mut limit = Limit::new(from.small()?, from.micros()?).ok()?;
    if let Some(burst) = from.maybe()? {
        limit = limit.with_burst(u32::try_from(burst).ok()?).ok()?;
    }
    match from.maybe_micros()? {
        Some(block) => limit.with_block(block).ok(),
        None => Some(limit),
    }
}

const REASONS: [Reason; 4] = [Reason::Ok, Reason::Limited, Reason::Blocked, Reason::CostAboveLimit];

pub(super) fn write_answers(to: &mut Writer, (at, answers): &Answers) {
    to.number(at.get());
    to.count(answers.len());
    for answer in answers {
        to.number(answer.ruling.limit_index.into());
        write_decision(to, &answer.ruling.decision);
        to.number(REASONS.iter().position(|known| *known == answer.ruling.reason).unwrap_or(0) as u64);
        to.number(answer.blocked_until.get());
        to.flag(answer.sketched);
        to.count(answer.decisions.len());
        answer.decisions.iter().for_each(|decision| write_decision(to, decision));
    }
}

pub(super) fn read_answers(from: &mut Reader<'_>) -> Option<Answers> {
    Some((from.micros()?, from.list(read_answer)?))
}

fn read_answer(from: &mut Reader<'_>) -> Option<PartAnswer> {
    let limit_index = u8::try_from(from.number()?).ok()?;
    let decision = read_decision(from)?;
    let reason = *REASONS.get(usize::try_from(from.number()?).ok()?)?;
    Some(PartAnswer {
        ruling: Ruling { limit_index, decision, reason },
        blocked_until: from.micros()?,
        sketched: from.flag()?,
        is_known: true,
        decisions: from.list(read_decision)?,
    })
}

/// A verdict is whether it allows, and how long to wait if there is an end to it.
fn write_decision(to: &mut Writer, decision: &Decision) {
    let wait = if let Verdict::Deny { retry_after } = decision.verdict { retry_after } else { None };
    to.flag(decision.verdict.is_allowed());
    to.maybe(wait.map(|wait| wait.get()));
    to.number(decision.limit.into());
    to.number(decision.remaining.into());
    to.number(decision.reset_after.get());
    to.number(decision.rate.get().to_bits());
}

fn read_decision(from: &mut Reader<'_>) -> Option<Decision> {
    let (is_allowed, retry_after) = (from.flag()?, from.maybe_micros()?);
    Some(Decision {
        verdict: if is_allowed { Verdict::Allow } else { Verdict::Deny { retry_after } },
        limit: from.small()?,
        remaining: from.small()?,
        reset_after: from.micros()?,
        rate: Rate::new(f64::from_bits(from.number()?)),
    })
}

pub(super) fn write_analysis(to: &mut Writer, analysis: &Analysis) {
    let (kind, limit_index, sum, until) = match *analysis {
        Analysis::Ok => (0, 0, 0, 0),
        Analysis::Limited { limit_index, sum, blocked_until } => (1, limit_index, sum, blocked_until.get()),
        Analysis::Blocked { until } => (2, 0, 0, until.get()),
    };
    for number in [kind, limit_index.into(), sum, until] {
        to.number(number);
    }
}

pub(super) fn read_analysis(from: &mut Reader<'_>) -> Option<Analysis> {
    let (kind, limit_index, sum, until) = (from.number()?, from.number()?, from.number()?, from.micros()?);
    match kind {
        0 => Some(Analysis::Ok),
        1 => Some(Analysis::Limited { limit_index: u8::try_from(limit_index).ok()?, sum, blocked_until: until }),
        2 => Some(Analysis::Blocked { until }),
        _ => None,
    }
}

pub(super) fn write_listing(to: &mut Writer, listing: &Listing) {
    to.count(listing.keys.len());
    listing.keys.iter().for_each(|key| to.text(key));
    to.maybe(listing.next);
}

pub(super) fn read_listing(from: &mut Reader<'_>) -> Option<Listing> {
    Some(Listing { keys: from.list(|from| Some(from.text()?.to_vec()))?, next: from.maybe()? })
}
