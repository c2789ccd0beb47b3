//! The replay: requests one after another on the engine, at their own time.
//!
//! Always a fresh embedded store and a clock set by the trace, so that a run depends on nothing but
//! the policy and the trace.

use super::line::{Ask, Line, Subject};
use super::output::{self, Deed, Head, Outcome};
use super::streams::Streams;
use super::tally::{Charts, Tally};
use std::io::{self, Write};
use tidegate::{AskError, Clock, Gate, IfBlocked, Micros, Policy, Request, Settings, Target, Which};
use tidegate_doors::udp::{Responder, Routing, Scratch, Slot};
use tidegate_events::StreamSpec;

/// Memory that a replay may take; past it new keys are counted together, as in a full server.
pub(super) const MEMORY_MAX: usize = 4 << 30;
/// Idle keys are dropped every so many lines.
const TEND_EVERY: u64 = 65_536;
/// Keys that a listing fetches at a time.
const PAGE: usize = 1_000;

/// An engine that is being replayed to.
pub(super) struct Replay<W> {
    gate: Gate,
    responder: Responder,
    scratch: Scratch,
    streams: Streams,
    out: W,
    tally: Tally,
    now: Micros,
    lines: u64,
}

/// Why a line ended the replay.
#[derive(Debug)]
pub(super) enum ReplayError {
    /// The line is at fault; a sentence with the remedy.
    Line(String),
    /// The output cannot be written.
    Output(io::Error),
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> ReplayError {
        ReplayError::Output(error)
    }
}

impl From<String> for ReplayError {
    fn from(message: String) -> ReplayError {
        ReplayError::Line(message)
    }
}

impl From<AskError> for ReplayError {
    fn from(error: AskError) -> ReplayError {
        ReplayError::Line(error.to_string())
    }
}

impl<W: Write> Replay<W> {
    pub(super) fn new(
        policy: Policy,
        routing: &Routing,
        streams: Vec<StreamSpec>,
        out: W,
        charts: Charts,
    ) -> Result<Replay<W>, String> {
        let settings = Settings { max_memory: MEMORY_MAX, path: None };
        let gate =
            Gate::open(policy, &settings, Clock::manual(Micros::ZERO)).map_err(|error| format!("error: {error}"))?;
        let responder = Responder::new(gate.clone(), routing).map_err(|error| format!("error: udp: {error}"))?;
        Ok(Replay {
            gate,
            responder,
            scratch: Scratch::default(),
            streams: Streams::new(streams),
            out,
            tally: Tally::new(charts),
            now: Micros::ZERO,
            lines: 0,
        })
    }

    /// Did the table fill up, so that some keys were counted together?
    pub(super) fn sketched(&self) -> u64 {
        let counts = self.gate.limiters().into_iter().map(|limiter| limiter.counts);
        counts.map(|counts| counts.sketched_allowed + counts.sketched_denied).sum()
    }

    /// Writes what is left to write.
    pub(super) fn finish(mut self) -> io::Result<Tally> {
        self.out.flush()?;
        Ok(self.tally)
    }

    /// Writes what was answered so far.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Does what a line of a trace asks for.
    pub(super) fn line(&mut self, line: &Line<'_>) -> Result<(), ReplayError> {
        if line.at < self.now {
            return Err(ReplayError::Line(format!(
                "at: {} is before the line above, at {}; sort the trace by time",
                line.at_text,
                super::at::Seconds(self.now)
            )));
        }
        self.advance(line.at);
        self.streams.start_once(line.at);
        match &line.ask {
            Ask::Decide { target, cost, intent, op } => {
                let head = Head { at: line.at_text, op: *op };
                match target {
                    Subject::Limiter { name, key } => {
                        let target = Target::Limiter { name, key: key.as_bytes() };
                        let request = Request { target, cost: *cost, intent: *intent, explain: false };
                        let answer = self.gate.decide(&request)?;
                        if counts(&request) {
                            self.tally.count(self.now, &answer, key.as_bytes());
                        }
                        output::decision(&mut self.out, &head, Some(key.as_bytes()), &answer)?;
                    }
                    Subject::Domain { domain, attributes } => {
                        let attributes: Vec<(&str, &[u8])> =
                            attributes.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
                        let target = Target::Attributes { domain: domain.as_deref(), attributes: &attributes };
                        self.attributes(&head, &Request { target, cost: *cost, intent: *intent, explain: true })?;
                    }
                }
            }
            Ask::Udp(datagram) => self.datagram(line.at_text, datagram.as_bytes())?,
            Ask::Stream { name, submit } => {
                let (status, messages) = self.streams.line(name, line.at, submit.as_deref())?;
                status.into_iter().for_each(|status| self.tally.submissions.count(status));
                output::stream(&mut self.out, line.at_text, name, submit.as_deref().zip(status), &messages)?;
            }
            other => {
                self.tally.operations += 1;
                self.administer(line.at_text, other)?;
            }
        }
        Ok(())
    }

    /// A request by attributes; its key is the one of the limiter that decided.
    pub(super) fn attributes(&mut self, head: &Head<'_>, request: &Request<'_>) -> Result<(), ReplayError> {
        let mut answer = self.gate.decide(request)?;
        let explained = std::mem::take(&mut answer.explanation);
        let decided = explained.iter().find(|one| one.decided).or(explained.first());
        if counts(request) {
            self.tally.count_explained(self.now, &answer, &explained);
        }
        Ok(output::decision(&mut self.out, head, decided.map(|one| one.key.as_slice()), &answer)?)
    }

    /// A datagram to the UDP door.
    fn datagram(&mut self, at: &str, datagram: &[u8]) -> Result<(), ReplayError> {
        let (now, tally) = (self.now, &mut self.tally);
        let mut slot = [Slot::default()];
        self.responder.answer_seen(&mut self.scratch, &[datagram], now, &mut slot, |key, limiter, ruling| {
            match (limiter, ruling) {
                (Some(limiter), Some(ruling)) => tally.count(now, &limiter.answer(ruling, now), key),
                (Some(limiter), None) => tally.count(now, &limiter.disabled_answer(now), key),
                (None, _) => tally.unlimited += 1,
            }
        });
        Ok(output::datagram(&mut self.out, at, slot[0].reply())?)
    }

    /// Moves the clock on.
    pub(super) fn advance(&mut self, at: Micros) {
        self.now = at;
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
        Ok(output::deed(&mut self.out, &Head { at, op: Some(op) }, &deed)?)
    }
}

/// Is it a request, and no look?
fn counts(request: &Request<'_>) -> bool {
    request.intent == tidegate::Intent::Hit && request.cost > 0
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
