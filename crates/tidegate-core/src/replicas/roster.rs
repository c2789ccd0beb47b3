//! The register's value: which replicas take part from which window on, and up to where windows are assigned.
//!
//! It is text, so that a person can read it in the store:
//!
//! ```text
//! tidegate roster 1
//! open 29000120
//! from 29000100 00000000000000a1 00000000000000b2
//! from 29000118 00000000000000a1
//! beat 00000000000000a1 412
//! ```
//!
//! Invariant: between two values of one register, what is said of windows before the earlier `open` differs
//! only by lines that are left out because they are past.

use super::schedule::{Schedule, Stretch};
use std::fmt;

/// A process that shares a limit. Drawn at random when it starts: a new process is a new replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Most replicas of one limit.
pub const MEMBERS_MAX: usize = 1_000;
/// Most changes that are kept at a time; further ones wait until the oldest is past.
pub(super) const SPANS_MAX: usize = 32;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    /// The first window that is not assigned. `None`: the register is new, and assigns nothing yet.
    pub(super) horizon: Option<u64>,
    /// The members, in order of the windows from which on they take part.
    pub(super) spans: Vec<Span>,
    /// A number for each member of the last span, which the member counts up to show that it is alive.
    pub(super) beats: Vec<(ReplicaId, u64)>,
}

/// From `first` on these take part, in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) members: Vec<ReplicaId>,
}

impl Roster {
    /// The members from the last change on.
    pub fn members(&self) -> impl Iterator<Item = ReplicaId> {
        self.spans.last().into_iter().flat_map(|span| span.members.iter().copied())
    }

    /// The first window that is not assigned, unless the register is new.
    #[must_use]
    pub fn horizon(&self) -> Option<u64> {
        self.horizon
    }

    /// What is assigned to one of them.
    #[must_use]
    pub fn schedule(&self, id: ReplicaId) -> Schedule {
        let Some(horizon) = self.horizon else { return Schedule::NONE };
        let ends = self.spans.iter().skip(1).map(|span| span.first).chain([u64::MAX]);
        let stretches = self.spans.iter().zip(ends).map(|(span, end)| {
            let of = u32::try_from(span.members.len()).unwrap_or(u32::MAX);
            let rank = span.members.iter().position(|member| *member == id);
            let rank = rank.map_or(of, |rank| u32::try_from(rank).unwrap_or(of));
            Stretch { first: span.first, end: end.min(horizon), rank, of }
        });
        Schedule::new(stretches.filter(|stretch| stretch.first < stretch.end).collect())
    }
}

impl fmt::Display for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tidegate roster 1\n")?;
        if let Some(horizon) = self.horizon {
            writeln!(f, "open {horizon}")?;
        }
        for span in &self.spans {
            write!(f, "from {}", span.first)?;
            span.members.iter().try_for_each(|member| write!(f, " {member}"))?;
            f.write_str("\n")?;
        }
        self.beats.iter().try_for_each(|(member, beat)| writeln!(f, "beat {member} {beat}"))
    }
}

/// The register holds something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RosterError(String);

impl fmt::Display for RosterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; delete the key, and the replicas make a new one", self.0)
    }
}

impl std::error::Error for RosterError {}

impl std::str::FromStr for Roster {
    type Err = RosterError;

    fn from_str(text: &str) -> Result<Roster, RosterError> {
        let refused = |why: String| RosterError(why);
        let body = text.strip_prefix("tidegate roster 1\n");
        let body = body.ok_or_else(|| refused("it does not begin with \"tidegate roster 1\"".to_owned()))?;
        let mut roster = Roster { horizon: None, spans: Vec::new(), beats: Vec::new() };
        for line in body.lines() {
            roster.read(line).ok_or_else(|| refused(format!("its line {line:.60?} is none of open, from and beat")))?;
        }
        let rising = roster.spans.windows(2).all(|pair| pair[0].first < pair[1].first);
        let few = roster.spans.len() <= SPANS_MAX && roster.spans.iter().all(|span| span.members.len() <= MEMBERS_MAX);
        if roster.spans.is_empty() || !rising || !few {
            return Err(refused(format!("its windows do not rise, or are more than {SPANS_MAX} × {MEMBERS_MAX}")));
        }
        Ok(roster)
    }
}

impl Roster {
    fn read(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let mut parts = rest.split(' ');
        match word {
            "open" => self.horizon = Some(parts.next()?.parse().ok()?),
            "from" => {
                let first = parts.next()?.parse().ok()?;
                self.spans.push(Span { first, members: parts.map(id).collect::<Option<_>>()? });
            }
            "beat" => self.beats.push((id(parts.next()?)?, parts.next()?.parse().ok()?)),
            _ => return None,
        }
        Some(())
    }
}

fn id(text: &str) -> Option<ReplicaId> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok().map(ReplicaId))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "tidegate roster 1\nopen 120\nfrom 100 00000000000000a1 00000000000000b2\n\
                        from 118 00000000000000a1\nbeat 00000000000000a1 412\n";

    #[test]
    fn what_is_written_is_read() {
        let roster: Roster = TEXT.parse().unwrap();
        assert_eq!(roster.to_string(), TEXT);
        let shares: Vec<_> =
            [99, 100, 117, 118, 119, 120].map(|w| roster.schedule(ReplicaId(0xa1)).share(10, w)).into();
        assert_eq!(shares, [None, Some(5), Some(5), Some(10), Some(10), None]);
        let shares: Vec<_> = [117, 118, 120].map(|w| roster.schedule(ReplicaId(0xb2)).share(10, w)).into();
        assert_eq!(shares, [Some(5), Some(0), None]);
    }

    #[test]
    fn anything_else_is_refused() {
        let bad = [
            "",
            "hello",
            "tidegate roster 1\n",
            "tidegate roster 1\nopen x\nfrom 1 00000000000000a1\n",
            "tidegate roster 1\nopen 1\nfrom 1 a1\n",
            "tidegate roster 1\nopen 1\nfrom 2 00000000000000a1\nfrom 2 00000000000000a1\n",
            "tidegate roster 1\nclosed 1\nfrom 2 00000000000000a1\n",
        ];
        for text in bad {
            let error = text.parse::<Roster>().unwrap_err().to_string();
            assert!(error.contains("delete the key"), "{text:?}: {error}");
        }
    }
}
