//! The rule of all or nothing: several limits on one key, and several keys in one request, are
//! charged together or not at all.
//!
//! This is the one place that knows it. Stores bring the states, this decides and changes them, the
//! stores put them back. Blocks are here too, as they are what a denial leaves behind.
//! Invariant: unless every limit of every subject allows, no state is charged. What a strict average
//! makes of a hit that it denied itself is its own memory of the denial, not a charge.
//! Counting without asking, and asking without counting, are beside it in `separate`; reservations in `reserve`.

mod reserve;
mod separate;
#[cfg(test)]
mod tests;

pub use reserve::{Mark, Settlement, Terms, marks, settle};
pub use separate::{Analysis, IfBlocked, analyze, increment};

use crate::{Check, Decision, Limit, Meter, Micros, Rate, Rules, State, Verdict};

/// Does the request count, or does it only ask?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Charge what is allowed; a denial may start a block.
    Hit,
    /// Answer as a hit would be answered, and change nothing.
    Peek,
}

/// What is asked of one key: how much, and whether it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// How much.
    pub cost: u32,
    /// Hit or peek.
    pub intent: Intent,
}

/// May a state take more memory?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Yes.
    Free,
    /// No: what would need more is kept more coarsely instead.
    Exhausted,
}

/// Why a request was answered as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Allowed.
    Ok,
    /// A limit is used up.
    Limited,
    /// The key is blocked.
    Blocked,
    /// The cost is above what the limit ever allows.
    CostAboveLimit,
}

/// Whether a subject's verdict decides.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Role {
    /// It decides, and is charged with all the others that do.
    #[default]
    Enforced,
    /// One of the alternatives has to allow, and those that do are charged. One that denies while another allows changes nothing for the request.
    Alternative,
    /// It decides nothing. It is charged if it allows and every enforced subject does, except the one that it would replace.
    Candidate {
        /// The subject in whose place it would be, by its index.
        replaces: Option<u8>,
    },
}

/// Do all subjects allow that a subject's charge depends on? `allowed` is each subject's own verdict.
#[must_use]
pub fn all_allow(roles: &[Role], allowed: &[bool], index: usize) -> bool {
    let (itself, replaced) = match roles[index] {
        Role::Enforced => (true, None),
        Role::Alternative => (allowed[index], None),
        Role::Candidate { replaces } => (allowed[index], replaces.map(usize::from)),
    };
    itself && pass((0..roles.len()).filter(|at| Some(*at) != replaced).map(|at| (roles[at], allowed[at])))
}

/// Does a request pass, by the roles and the words of what it is asked of? All that are enforced have to allow, and one of the alternatives, if there
/// are any.
pub fn pass(words: impl IntoIterator<Item = (Role, bool)>) -> bool {
    let (mut all, mut alternatives) = (true, None);
    for (role, allows) in words {
        match role {
            Role::Enforced => all &= allows,
            Role::Alternative => alternatives = Some(alternatives.unwrap_or(false) | allows),
            Role::Candidate { .. } => {}
        }
    }
    all && alternatives.unwrap_or(true)
}

/// One key at one limiter, as a store hands it over. For a peek, hand over a copy.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The limits.
    pub rules: &'a Rules,
    /// Until when the key is blocked; not in the future: it is not.
    pub blocked_until: Micros,
    /// One state for each limit; one for all of them in buckets.
    pub states: &'a mut [State],
    /// May the states grow?
    pub room: Room,
    /// Whether its verdict decides.
    pub role: Role,
    /// What is asked of this key, where it is not what the request asks of all its keys. A peek among hits counts in the verdict, and is
    /// not charged.
    pub own: Option<Demand>,
}

/// What one subject says of the request. The decision describes the denying limit with the longest
/// wait, or when all allow the one with the least remaining; ties in definition order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Ruling {
    /// The limit that the decision describes, from 0. A byte: rulings are copied around by the million.
    pub limit_index: u8,
    /// Its decision.
    pub decision: Decision,
    /// Why.
    pub reason: Reason,
}

impl Ruling {
    /// The ruling while a block lasts for so long still: it hides what the limits would say, but for a cost that could not pass after it either.
    pub fn blocked(self, left: Micros) -> Ruling {
        if self.reason == Reason::CostAboveLimit {
            return self;
        }
        let wait = match self.decision.verdict {
            Verdict::Deny { retry_after: Some(wait) } => wait.max(left),
            _ => left,
        };
        let decision = Decision {
            verdict: Verdict::Deny { retry_after: Some(wait) },
            remaining: 0,
            reset_after: self.decision.reset_after.max(left),
            ..self.decision
        };
        Ruling { decision, reason: Reason::Blocked, ..self }
    }

    /// True when this subject allows the request.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.decision.verdict.is_allowed()
    }

    /// The index of the ruling that decides a request: the denial with the longest wait, or when all
    /// allow the one with the least remaining.
    #[must_use]
    pub fn deciding<'a>(rulings: impl IntoIterator<Item = &'a Ruling>) -> Option<usize> {
        let rulings = rulings.into_iter().enumerate();
        rulings
            .reduce(|best, other| if outweighs(&other.1.decision, &best.1.decision) { other } else { best })
            .map(|(i, _)| i)
    }
}

/// Decides one key's request.
#[inline]
pub fn decide(subject: &mut Subject<'_>, now: Micros, cost: u32, intent: Intent) -> Ruling {
    subject.settle(now);
    let allowed = subject.allows(now, cost);
    subject.conclude(allowed, now, cost, intent)
}

/// The plain case of [`decide`]: a hit on one limit without a block, for a key that is not blocked.
/// `None`: it is not plain, and `decide` has to be asked; nothing was charged.
///
/// It is what nearly all requests are, and free of the generality that the others need.
#[inline]
pub fn decide_plain<M: Meter>(state: &mut M, limit: &Limit, now: Micros, cost: u32) -> Option<Ruling> {
    if cost == 0 || cost > M::capacity(limit) {
        return None;
    }
    let decision = state.decide(limit, now, cost);
    let reason = match decision.verdict {
        Verdict::Allow => Reason::Ok,
        Verdict::Deny { .. } if limit.block().is_none() => Reason::Limited,
        Verdict::Deny { .. } => return None,
    };
    Some(Ruling { limit_index: 0, decision, reason })
}

/// Decides a request of several keys: all of those that are enforced are charged, or none. A candidate changes nothing for any other.
/// `cost` and `intent` are for the keys that have none of their own.
pub fn decide_all(subjects: &mut [Subject<'_>], now: Micros, cost: u32, intent: Intent) -> Vec<Ruling> {
    subjects.iter_mut().for_each(|subject| subject.settle(now));
    let of_all = Demand { cost, intent };
    let roles: Vec<Role> = subjects.iter().map(|subject| subject.role).collect();
    let allows = |subject: &Subject<'_>| subject.allows(now, subject.own.unwrap_or(of_all).cost);
    let allowed: Vec<bool> = subjects.iter().map(allows).collect();
    let conclude = |(index, subject): (usize, &mut Subject<'_>)| {
        let Demand { cost, intent } = subject.own.unwrap_or(of_all);
        subject.conclude(all_allow(&roles, &allowed, index), now, cost, intent)
    };
    subjects.iter_mut().enumerate().map(conclude).collect()
}

/// Gives back what was charged before, the latest first, and says how things stand then. Nobody gets more than the limit: what is not charged any
/// more is not given back. An average and the sketch give nothing back.
pub fn give_back(subject: &mut Subject<'_>, now: Micros, cost: u32) -> Ruling {
    subject.settle(now);
    subject.states_mut().for_each(|(check, state)| state.give_back(check, now, cost));
    subject.look(now, 0)
}

impl Subject<'_> {
    /// What every limit says as things stand, in definition order; for explanations.
    pub fn decisions(&mut self, now: Micros, cost: u32) -> Vec<Decision> {
        self.settle(now);
        self.pairs().map(|(check, state)| state.decision(check, now, state.verdict(check, now, cost))).collect()
    }

    /// Each limit with the state that it reads. Buckets have one for all limits; but the sketch, when it
    /// answers in their place, has one for each.
    #[inline]
    fn pairs(&self) -> impl Iterator<Item = (Check<'_>, &State)> {
        let last = self.states.len().wrapping_sub(1);
        self.rules.checks().filter_map(move |check| Some((check, self.states.get(check.index().min(last))?)))
    }

    /// Each state with the limit that it counts, or the first that reads it.
    #[inline]
    fn states_mut(&mut self) -> impl Iterator<Item = (Check<'_>, &mut State)> {
        self.rules.checks().zip(self.states.iter_mut())
    }

    #[inline]
    fn settle(&mut self, now: Micros) {
        self.states_mut().for_each(|(check, state)| state.settle(check, now));
    }

    #[inline]
    fn allows(&self, now: Micros, cost: u32) -> bool {
        let mut pairs = self.pairs();
        self.blocked_until <= now && pairs.all(|(check, state)| state.verdict(check, now, cost).is_allowed())
    }

    /// Charges if every subject allows; otherwise says why this one does not, and starts its block.
    #[inline]
    fn conclude(&mut self, all_allow: bool, now: Micros, cost: u32, intent: Intent) -> Ruling {
        match intent {
            Intent::Hit if all_allow && cost > 0 => self.charge(now, cost),
            Intent::Hit if !all_allow && cost > 0 => {
                let ruling = self.look(now, cost);
                let ruling = self.note_denial(ruling, now, cost);
                self.start_block(ruling, now, cost)
            }
            _ => self.look(now, cost),
        }
    }

    fn look(&self, now: Micros, cost: u32) -> Ruling {
        let ruling = self.weigh(now, |check, state| state.verdict(check, now, cost));
        if self.blocked_until > now { ruling.blocked(self.blocked_until.saturating_sub(now)) } else { ruling }
    }

    #[inline]
    fn charge(&mut self, now: Micros, cost: u32) -> Ruling {
        let room = self.room;
        for (check, state) in self.states_mut() {
            match room {
                Room::Free => state.charge(check, now, cost),
                Room::Exhausted => state.charge_coarsely(check, now, cost),
            }
        }
        self.weigh(now, |_, _| Verdict::Allow)
    }

    /// Notes the denial in the states of the limits that deny, and in no others; the ruling then says what is left. A denial by
    /// a block, or by another subject, is not theirs.
    fn note_denial(&mut self, ruling: Ruling, now: Micros, cost: u32) -> Ruling {
        if ruling.is_allowed() || self.blocked_until > now {
            return ruling;
        }
        for (check, state) in self.states_mut() {
            if !state.verdict(check, now, cost).is_allowed() {
                state.note_denial(check, now, cost);
            }
        }
        let described = self.pairs().nth(usize::from(ruling.limit_index));
        match described {
            Some((check, state)) => Ruling { decision: state.decision(check, now, ruling.decision.verdict), ..ruling },
            None => ruling,
        }
    }

    /// The deciding limit's decision, given each limit's verdict.
    #[inline]
    fn weigh(&self, now: Micros, verdict: impl Fn(Check<'_>, &State) -> Verdict) -> Ruling {
        let mut pairs = self.pairs();
        let decide = |(check, state): (Check<'_>, &State)| state.decision(check, now, verdict(check, state));
        let first = pairs.next().map(decide).unwrap_or(UNLIMITED);
        let mut best = (0, first);
        for (index, pair) in pairs.enumerate() {
            let decision = decide(pair);
            if outweighs(&decision, &best.1) {
                best = (index + 1, decision);
            }
        }
        let reason = match best.1.verdict {
            Verdict::Allow => Reason::Ok,
            Verdict::Deny { retry_after: Some(_) } => Reason::Limited,
            Verdict::Deny { retry_after: None } => Reason::CostAboveLimit,
        };
        Ruling { limit_index: u8::try_from(best.0).unwrap_or(u8::MAX), decision: best.1, reason }
    }

    /// A denial starts the blocks of the limits that denied; the longest counts. A block that lasts
    /// already is not extended, a cost above the limit starts none, nor does a sketch's guess.
    fn start_block(&mut self, ruling: Ruling, now: Micros, cost: u32) -> Ruling {
        if ruling.reason != Reason::Limited {
            return ruling;
        }
        let denying = self.pairs().filter(|(check, state)| {
            !matches!(state, State::Sketched(_)) && !state.verdict(*check, now, cost).is_allowed()
        });
        let Some(block) = denying.filter_map(|(check, _)| check.block()).max() else {
            return ruling;
        };
        self.blocked_until = now.saturating_add(block);
        Ruling { reason: Reason::Limited, ..ruling.blocked(self.blocked_until.saturating_sub(now)) }
    }
}

/// Stands in for a limiter without limits, which cannot be made.
const UNLIMITED: Decision = Decision {
    verdict: Verdict::Allow,
    limit: u32::MAX,
    remaining: u32::MAX,
    reset_after: Micros::ZERO,
    rate: Rate::new(0.0),
};

/// Does `a` describe a request better than `b`? A longer wait, or less remaining.
fn outweighs(a: &Decision, b: &Decision) -> bool {
    let (of_a, of_b) = (a.verdict.severity(), b.verdict.severity());
    of_a > of_b || (of_a == of_b && a.verdict.is_allowed() && a.remaining < b.remaining)
}
