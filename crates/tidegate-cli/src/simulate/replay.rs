//! The replay: lines one after another on the engine, at their own time.
//!
//! Always a fresh embedded store and a clock set by the trace, so that a run depends on nothing but
//! the policy and the trace.

use super::at;
use super::line::{self, Ask};
use super::order::Due;
use super::output::{self, Deed, Head, Outcome};
use super::parsed::{Asks, How};
use super::streams::Streams;
use super::tally::{CandidateTally, Charts, Tally, Verdict, When};
use crate::config::Config;
use tidegate::{AskError, Clock, Gate, IfBlocked, Limiter, Micros, Request, Settings, Target, Which};
use tidegate_doors::udp::{Responder, Scratch, Slot};

/// Memory that a replay may take; past it new keys are counted together, as in a full server.
pub(super) const MEMORY_MAX: usize = 4 << 30;
/// Idle keys are dropped every so many lines.
const TEND_EVERY: u64 = 65_536;
/// Keys that a listing fetches at a time.
const PAGE: usize = 1_000;
/// Most attributes of a request.
const ATTRIBUTES_MAX: usize = super::attributes::ATTRIBUTES_MAX;

/// Are answers written, or only counted?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answers {
    Written,
    Counted,
}

/// An engine that is being replayed to.
pub(super) struct Replay {
    gate: Gate,
    responder: Responder,
    scratch: Scratch,
    streams: Streams,
    /// Domains in which one limiter alone applies: no lists are made for it.
    alone: Vec<(Option<String>, Limiter)>,
    answers: Answers,
    /// What was answered and not taken yet.
    pub(super) out: Vec<u8>,
    pub(super) tally: Tally,
    when: When,
    lines: u64,
}

/// Why a line was not answered: a sentence with the remedy.
#[derive(Debug)]
pub(super) struct ReplayError(pub(super) String);

impl From<std::io::Error> for ReplayError {
    fn from(error: std::io::Error) -> ReplayError {
        ReplayError(error.to_string())
    }
}

impl From<String> for ReplayError {
    fn from(message: String) -> ReplayError {
        ReplayError(message)
    }
}

impl From<AskError> for ReplayError {
    fn from(error: AskError) -> ReplayError {
        ReplayError(error.to_string())
    }
}

impl Replay {
    /// An engine with the policy of `config` and at most `max_memory` bytes of states.
    pub(super) fn new(config: &Config, max_memory: usize, answers: Answers, charts: Charts) -> Result<Replay, String> {
        let settings = Settings { max_memory, path: None };
        let gate = Gate::open(config.policy.clone(), &settings, Clock::manual(Micros::ZERO))
            .map_err(|error| format!("error: {error}"))?;
        let responder = Responder::new(gate.clone(), &config.udp).map_err(|error| format!("error: udp: {error}"))?;
        Ok(Replay {
            alone: alone(&gate, config),
            gate,
            responder,
            scratch: Scratch::default(),
            streams: Streams::new(config.streams.clone()),
            answers,
            out: Vec::new(),
            tally: Tally::new(charts),
            when: When { at: Micros::ZERO, place: 0 },
            lines: 0,
        })
    }

    /// Decisions for which the table was full, so that keys were counted together.
    pub(super) fn sketched(&self) -> u64 {
        let counts = self.gate.limiters().into_iter().map(|limiter| limiter.counts);
        counts.map(|counts| counts.sketched_allowed + counts.sketched_denied).sum()
    }

    /// What candidates would have decided.
    pub(super) fn candidates(&self) -> Vec<CandidateTally> {
        let limiters = self.gate.limiters();
        let tried = limiters.iter().filter_map(|info| match (&info.spec.candidate_rules, info.candidate) {
            (Some(rules), Some(counts)) => Some((&info.spec.name, rules, counts)),
            _ => info.spec.candidate.then_some((&info.spec.name, &info.spec.rules, info.counts)),
        });
        tried.map(|(name, rules, counts)| CandidateTally::new(name, rules.limits(), counts)).collect()
    }

    /// Does what a line asks for; `place` is its place among all lines.
    pub(super) fn line(&mut self, due: Due<'_>, place: u64) -> Result<Verdict, ReplayError> {
        let Due { at, block, entry } = due;
        self.advance(at, place);
        self.streams.start_once(at);
        let own_text;
        let at_text = match block.str(entry.at_text) {
            "" => {
                own_text = at::Text::of(at);
                own_text.as_str()
            }
            text => text,
        };
        match entry.asks {
            Asks::Named { limiter, key, how } => {
                let (key, head) = (block.bytes(key), Head { at: at_text, op: how.op });
                let target = Target::Limiter { name: block.str(limiter), key };
                let request = Request { target, cost: how.cost, intent: how.intent, explain: false };
                let answer = self.gate.decide(&request)?;
                self.write(|out| output::decision(out, &head, Some(key), &answer))?;
                Ok(if how.counts() { self.tally.count(self.when, &answer, key) } else { Verdict::None })
            }
            Asks::Attributes { domain, pairs, how } => {
                let mut attributes = [("", &b""[..]); ATTRIBUTES_MAX];
                let count = attributes.iter_mut().zip(block.pairs(pairs)).map(|(slot, pair)| *slot = pair).count();
                let domain = domain.map(|domain| block.str(domain));
                self.attributes(&Head { at: at_text, op: how.op }, domain, &attributes[..count], how)
            }
            Asks::Datagram(datagram) => self.datagram(at_text, block.bytes(datagram)),
            Asks::Other(text) => self.other(at_text, block.str(text)),
            Asks::Bad(message) => Err(block.str(message).to_owned().into()),
        }
    }

    /// A request by attributes; its key is the one of the limiter that decided.
    fn attributes(
        &mut self,
        head: &Head<'_>,
        domain: Option<&str>,
        attributes: &[(&str, &[u8])],
        how: How,
    ) -> Result<Verdict, ReplayError> {
        let alone = self.alone.iter().find(|(known, _)| known.as_deref() == domain).map(|(_, limiter)| limiter);
        if let Some(limiter) = alone.filter(|_| how.counts())
            && let Some(key) = limiter.spec().key_of(attributes)
        {
            let answer = match self.gate.hit_on(limiter, &key, how.cost)? {
                Some(ruling) => limiter.answer(&ruling, self.when.at),
                None => limiter.disabled_answer(self.when.at),
            };
            self.write(|out| output::decision(out, head, Some(&key), &answer))?;
            return Ok(self.tally.count(self.when, &answer, &key));
        }
        let target = Target::Attributes { domain, attributes };
        let mut answer = self.gate.decide(&Request { target, cost: how.cost, intent: how.intent, explain: true })?;
        let explained = std::mem::take(&mut answer.explanation);
        let decided = explained.iter().find(|one| one.decided).or(explained.first());
        self.write(|out| output::decision(out, head, decided.map(|one| one.key.as_slice()), &answer))?;
        Ok(if how.counts() { self.tally.count_explained(self.when, &answer, &explained) } else { Verdict::None })
    }

    /// A datagram to the UDP door: it is denied if one of its keys is.
    fn datagram(&mut self, at: &str, datagram: &[u8]) -> Result<Verdict, ReplayError> {
        let (when, tally) = (self.when, &mut self.tally);
        let (mut slot, mut verdict) = ([Slot::default()], Verdict::None);
        self.responder.answer_seen(&mut self.scratch, &[datagram], when.at, &mut slot, |key, limiter, ruling| {
            let one = match (limiter, ruling) {
                (Some(limiter), Some(ruling)) => tally.count(when, &limiter.answer(ruling, when.at), key),
                (Some(limiter), None) => tally.count(when, &limiter.disabled_answer(when.at), key),
                (None, _) => {
                    tally.unlimited += 1;
                    Verdict::Unlimited
                }
            };
            if verdict != Verdict::Denied {
                verdict = one;
            }
        });
        self.write(|out| output::datagram(out, at, slot[0].reply()))?;
        Ok(verdict)
    }

    /// An operation or an event.
    fn other(&mut self, at: &str, text: &str) -> Result<Verdict, ReplayError> {
        match &line::read(text)?.ask {
            Ask::Stream { name, submit } => {
                let (status, messages) = self.streams.line(name, self.when.at, submit.as_deref())?;
                status.into_iter().for_each(|status| self.tally.submissions.count(status));
                let submitted = submit.as_deref().zip(status);
                self.write(|out| output::stream(out, at, name, submitted, &messages))?;
            }
            operation => {
                self.tally.operations += 1;
                self.administer(at, operation)?;
            }
        }
        Ok(Verdict::None)
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> std::io::Result<()> {
        match self.answers {
            Answers::Written => write(&mut self.out),
            Answers::Counted => Ok(()),
        }
    }

    /// Moves the clock on.
    fn advance(&mut self, at: Micros, place: u64) {
        self.when = When { at, place };
        self.gate.clock().set(at);
        self.lines += 1;
        if self.lines.is_multiple_of(TEND_EVERY) {
            self.gate.tend();
        }
    }

    fn administer(&mut self, at: &str, ask: &Ask<'_>) -> Result<(), ReplayError> {
        let gate = &self.gate;
        let (op, limiter, key, result) = match ask {
            Ask::Block { limiter, key, span } => {
                let until = gate.at_once(gate.block(limiter, key.as_bytes(), *span))?;
                ("block", limiter, Some(key), Outcome::BlockedUntil(until))
            }
            Ask::Unblock { limiter, key } => {
                let unblocked = gate.at_once(gate.unblock(limiter, key.as_bytes()))?;
                ("unblock", limiter, Some(key), Outcome::Unblocked(unblocked))
            }
            Ask::UnblockAll { limiter } => {
                let unblocked = gate.at_once(gate.unblock_all(limiter))?;
                ("unblock_all", limiter, None, Outcome::UnblockedAll(unblocked))
            }
            Ask::Increment { limiter, key, count, timestamp } => {
                let told = gate.at_once(gate.increment(limiter, key.as_bytes(), *count, *timestamp))?;
                let result = Outcome::Incremented { count: *count, told };
                ("increment", limiter, Some(key), result)
            }
            Ask::Analyze { limiter, key } => {
                let analyzed = gate.at_once(gate.analyze(limiter, key.as_bytes(), IfBlocked::Tell))?;
                ("analyze", limiter, Some(key), Outcome::Analyzed(analyzed))
            }
            Ask::Override { limiter, key, limits, span } => {
                let until = gate.at_once(gate.set_override(limiter, key.as_bytes(), limits, *span, None))?;
                ("override", limiter, Some(key), Outcome::OverriddenUntil(until))
            }
            Ask::ClearOverride { limiter, key } => {
                let cleared = gate.at_once(gate.clear_override(limiter, key.as_bytes()))?;
                ("clear_override", limiter, Some(key), Outcome::Cleared(cleared))
            }
            Ask::Enable { limiter, yes } => {
                gate.at_once(gate.set_enabled(limiter, *yes))?;
                (if *yes { "enable" } else { "disable" }, limiter, None, Outcome::Done)
            }
            Ask::List { limiter, blocked } => {
                let which = if *blocked { Which::Blocked } else { Which::Tracked };
                let keys = all_keys(gate, limiter, which)?;
                (if *blocked { "blocked" } else { "keys" }, limiter, None, Outcome::Keys(keys))
            }
            Ask::Decide { .. } | Ask::Udp(_) | Ask::Stream { .. } => return Ok(()),
        };
        let deed = Deed { limiter, key: key.map(|key| &**key), result };
        Ok(self.write(|out| output::deed(out, &Head { at, op: Some(op) }, &deed))?)
    }
}

/// The limiters that are the only one of their domain.
fn alone(gate: &Gate, config: &Config) -> Vec<(Option<String>, Limiter)> {
    let by_attributes = || config.policy.limiters().iter().filter(|spec| !spec.by.is_empty());
    let alone = by_attributes().filter(|spec| by_attributes().filter(|other| other.domain == spec.domain).count() == 1);
    alone.filter_map(|spec| Some((spec.domain.clone(), gate.limiter(&spec.name).ok()?))).collect()
}

fn all_keys(gate: &Gate, limiter: &str, which: Which) -> Result<Vec<Vec<u8>>, AskError> {
    let mut keys = Vec::new();
    let mut after = None;
    loop {
        let page = gate.at_once(gate.keys(limiter, which, after, PAGE))?;
        keys.extend(page.keys);
        after = page.next;
        if after.is_none() {
            keys.sort_unstable();
            return Ok(keys);
        }
    }
}
