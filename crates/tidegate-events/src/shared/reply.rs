//! The replies of the scripts and the entries of the log, as our types.

use crate::{Epoch, Outcome};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_core::timeline::{Step, Timeline};
use tidegate_store::redis::Reply;

/// The outcome of one call of the script.
#[derive(Debug, PartialEq)]
pub(super) struct Transition {
    /// What became of a submission.
    pub(super) outcome: Option<Outcome>,
    /// More is due than one call does.
    pub(super) more: bool,
    pub(super) now_ms: u64,
    pub(super) clock: u64,
    pub(super) frame_ms: u64,
    pub(super) lost: bool,
}

impl Transition {
    pub(super) fn read(reply: &Reply) -> Option<Transition> {
        let [code, value, now_ms, clock, frame_ms, lost] = list(reply)? else { return None };
        let next = Micros::from_millis(number(value)?);
        let outcome = match number(code)? {
            1 => Some(Outcome::Submitted { clock: number(value)? }),
            2 => Some(Outcome::Conflict { next }),
            3 => Some(Outcome::Full { next }),
            0 | 4 => None,
            _ => return None,
        };
        Some(Transition {
            outcome,
            more: number(code)? == 4,
            now_ms: number(now_ms)?,
            clock: number(clock)?,
            frame_ms: number(frame_ms)?,
            lost: number(lost)? == 1,
        })
    }
}

/// A whole stream at one moment.
#[derive(Debug)]
pub(super) struct Dump {
    pub(super) clock: u64,
    /// The clock value of the key frame after the last loss; 0: there was no loss.
    pub(super) anew: u64,
    /// None before a server that knows of epochs has made a transition.
    pub(super) epoch: Option<Epoch>,
    pub(super) timeline: Timeline,
    pub(super) horizon_ms: u64,
    pub(super) events: Vec<Entry>,
}

/// An event that incubates: its text, its time, the clock value of its submission, whether it is valid.
pub(super) type Entry = (Arc<str>, u64, u64, bool);

impl Dump {
    pub(super) fn read(reply: &Reply) -> Option<Dump> {
        let [clock, horizon_ms, anew, epoch, events, records] = list(reply)? else { return None };
        let (clock, horizon_ms, anew) = (number(clock)?, number(horizon_ms)?, number(anew)?);
        let epoch = text(epoch).map(str::parse).transpose().ok()?;
        let entry = |(event, record): (&Reply, &Reply)| {
            let mut parts = text(record)?.split(',').map(|part| part.parse::<u64>().ok());
            let [time_ms, _, submitted, valid] = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
            Some((Arc::from(text(event)?), time_ms, submitted, valid == 1))
        };
        let events = list(events)?.iter().zip(list(records)?).map(entry).collect::<Option<Vec<_>>>()?;
        let timeline = Timeline::copied(clock, horizon_ms, events.iter().cloned());
        Some(Dump { clock, anew, epoch, timeline, horizon_ms, events })
    }
}

/// A step in the log, with the epoch that it names; steps of versions that had no epochs name none.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Logged {
    pub(super) epoch: Option<Epoch>,
    pub(super) step: Step,
}

impl Logged {
    pub(super) fn is_of(&self, epoch: Epoch) -> bool {
        self.epoch.is_none_or(|said| said == epoch)
    }
}

/// The steps in a reply of XREAD for one stream.
pub(super) fn read_steps(reply: &Reply) -> Option<Vec<Logged>> {
    let [stream] = list(reply)? else { return None };
    let [_, entries] = list(stream)? else { return None };
    steps(entries)
}

/// The steps in a reply of XRANGE.
pub(super) fn steps(reply: &Reply) -> Option<Vec<Logged>> {
    list(reply)?.iter().map(step).collect()
}

fn step(entry: &Reply) -> Option<Logged> {
    let [id, fields] = list(entry)? else { return None };
    let clock = text(id)?.strip_suffix("-0")?.parse().ok()?;
    let fields = list(fields)?;
    let field = |name: &str| {
        let mut pairs = fields.chunks_exact(2);
        text(&pairs.find(|pair| text(&pair[0]) == Some(name))?[1])
    };
    let time_ms = field("t")?.parse().ok()?;
    let event = || field("e").map(Arc::from);
    let epoch = field("h").map(str::parse).transpose().ok()?;
    let step = match field("s")? {
        "S" => Step::Submitted { clock, event: event()?, time_ms },
        "P" => Step::Published { clock, event: event()?, time_ms },
        "I" => Step::Invalidated { clock, event: event()?, time_ms, last_ms: field("l")?.parse().ok()? },
        "K" => Step::KeyFrame { clock, time_ms },
        _ => return None,
    };
    Some(Logged { epoch, step })
}

fn list(reply: &Reply) -> Option<&[Reply]> {
    if let Reply::List(items) = reply { Some(items) } else { None }
}

fn number(reply: &Reply) -> Option<u64> {
    if let Reply::Int(number) = reply { u64::try_from(*number).ok() } else { None }
}

fn text(reply: &Reply) -> Option<&str> {
    if let Reply::Text(bytes) = reply { std::str::from_utf8(bytes).ok() } else { None }
}
