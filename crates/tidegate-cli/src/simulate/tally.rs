//! What a replay came to: counts by limiter and by limit, and the keys that were denied.
//!
//! Several threads may count, each its own keys; [`Tally::merged`] is then what one would have counted.

use super::timeline::{Axis, Bars};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate::{Answer, Counts, Explained, Limit, LimiterSpec, Micros, Reason};

/// Most denied keys that are counted one by one, over all limiters; further ones are only counted.
pub(super) const KEYS_MAX: usize = 100_000;

/// Are the charts' bars needed?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Charts {
    Wanted,
    Unwanted,
}

/// When a request came: its time, and its place among all lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub(super) at: Micros,
    pub(super) place: u64,
}

/// What became of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is no request: a peek, an operation, an event.
    None,
    /// No limiter applied.
    Unlimited,
    Allowed,
    Denied,
}

/// Counts of hits, of submissions, and of lines that are neither; peeks are not in it.
#[derive(Debug)]
pub(super) struct Tally {
    charts: Charts,
    pub(super) axis: Axis,
    /// In the order in which they were first asked.
    pub(super) limiters: Vec<LimiterTally>,
    /// Requests that a limiter applied to.
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Requests that no limiter applied to.
    pub(super) unlimited: u64,
    pub(super) submissions: Submissions,
    /// Lines that are no request, no submission and no peek: blocks, increments, lists.
    pub(super) operations: u64,
    keys: usize,
    /// Denials of keys past [`KEYS_MAX`].
    pub(super) untold: u64,
}

/// Events that were submitted to streams.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Submissions {
    pub(super) submitted: u64,
    pub(super) conflict: u64,
    pub(super) full: u64,
}

impl Submissions {
    pub(super) fn all(&self) -> u64 {
        self.submitted + self.conflict + self.full
    }

    /// One more, by its status.
    pub(super) fn count(&mut self, status: &str) {
        match status {
            "submitted" => self.submitted += 1,
            "conflict" => self.conflict += 1,
            _ => self.full += 1,
        }
    }
}

/// What one limiter did.
#[derive(Debug)]
pub(super) struct LimiterTally {
    pub(super) spec: Arc<LimiterSpec>,
    /// Requests that it allowed, whoever decided.
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) allowed_bars: Bars,
    pub(super) denied_bars: Bars,
    /// Requests that it was the one to deny, by its limits.
    pub(super) decided: Vec<u64>,
    /// And those that it denied because the key was blocked.
    pub(super) blocked: u64,
    pub(super) keys: HashMap<Box<[u8]>, KeyTally>,
}

/// What a candidate would have decided of the requests that it was asked about.
#[derive(Clone, Debug)]
pub(super) struct CandidateTally {
    pub(super) limiter: String,
    pub(super) limits: String,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

/// A key that was denied at least once.
#[derive(Clone, Debug)]
pub(super) struct KeyTally {
    pub(super) denied: u64,
    pub(super) first: Micros,
    pub(super) last: Micros,
    pub(super) bars: Bars,
    /// The place of the request that was denied first.
    place: u64,
}

impl Tally {
    pub(super) fn new(charts: Charts) -> Tally {
        Tally {
            charts,
            axis: Axis::default(),
            limiters: Vec::new(),
            allowed: 0,
            denied: 0,
            unlimited: 0,
            submissions: Submissions::default(),
            operations: 0,
            keys: 0,
            untold: 0,
        }
    }

    /// A request that named its limiter and key.
    pub(super) fn count(&mut self, when: When, answer: &Answer, key: &[u8]) -> Verdict {
        let (bar, verdict) = self.request(when, answer);
        if let Some(spec) = answer.limiter.as_ref().filter(|_| answer.reason != Reason::Disabled) {
            self.asked((when, bar), spec, answer.allowed, key);
        }
        self.decided(answer);
        verdict
    }

    /// A request by attributes, and what each limiter that matched had to say.
    pub(super) fn count_explained(&mut self, when: When, answer: &Answer, explained: &[Explained]) -> Verdict {
        let (bar, verdict) = self.request(when, answer);
        for one in explained.iter().filter(|one| one.enabled && !one.candidate) {
            let allows = one.blocked_until.is_none() && one.limits.iter().all(|(_, said)| said.verdict.is_allowed());
            self.asked((when, bar), &one.limiter, allows, &one.key);
        }
        self.decided(answer);
        verdict
    }

    /// A request by what was answered; gives the chart's bar.
    fn request(&mut self, when: When, answer: &Answer) -> (usize, Verdict) {
        let (count, verdict) = match (&answer.limiter, answer.allowed) {
            (None, _) => (&mut self.unlimited, Verdict::Unlimited),
            (Some(_), true) => (&mut self.allowed, Verdict::Allowed),
            (Some(_), false) => (&mut self.denied, Verdict::Denied),
        };
        *count += 1;
        (self.axis.bar(when.at), verdict)
    }

    /// What one limiter said.
    fn asked(&mut self, (when, bar): (When, usize), spec: &Arc<LimiterSpec>, allows: bool, key: &[u8]) {
        let index = self.index_of(spec);
        let (axis, charts, limiter) = (self.axis, self.charts, &mut self.limiters[index]);
        let (count, bars) = match allows {
            true => (&mut limiter.allowed, &mut limiter.allowed_bars),
            false => (&mut limiter.denied, &mut limiter.denied_bars),
        };
        *count += 1;
        if charts == Charts::Wanted {
            bars.add(&axis, bar);
        }
        if !allows {
            self.denied_key(index, key, when, bar);
        }
    }

    /// Which limit denied a request, if one did.
    fn decided(&mut self, answer: &Answer) {
        let Some(spec) = answer.limiter.as_ref().filter(|_| !answer.allowed) else { return };
        let index = self.index_of(spec);
        let limiter = &mut self.limiters[index];
        match limiter.decided.get_mut(answer.limit_index) {
            Some(decided) if answer.reason != Reason::Blocked => *decided += 1,
            _ => limiter.blocked += 1,
        }
    }

    fn index_of(&mut self, spec: &Arc<LimiterSpec>) -> usize {
        let same = |limiter: &LimiterTally| Arc::ptr_eq(&limiter.spec, spec) || limiter.spec.name == spec.name;
        self.limiters.iter().position(same).unwrap_or_else(|| {
            self.limiters.push(LimiterTally::new(Arc::clone(spec)));
            self.limiters.len() - 1
        })
    }

    fn denied_key(&mut self, limiter: usize, key: &[u8], when: When, bar: usize) {
        let known = &mut self.limiters[limiter].keys;
        let When { at, place } = when;
        if !known.contains_key(key) {
            if self.keys == KEYS_MAX {
                self.untold += 1;
                return;
            }
            self.keys += 1;
            known.insert(key.into(), KeyTally { denied: 0, first: at, last: at, bars: Bars::default(), place });
        }
        if let Some(tally) = known.get_mut(key) {
            tally.denied += 1;
            tally.last = at;
            if self.charts == Charts::Wanted {
                tally.bars.add(&self.axis, bar);
            }
        }
    }

    /// What these come to together. No two of them have counted for the same key.
    pub(super) fn merged(tallies: Vec<Tally>) -> Option<Tally> {
        let axis = tallies.iter().map(|tally| tally.axis).reduce(Axis::with)?;
        let mut all = tallies.into_iter().reduce(Tally::with)?;
        all.axis = axis;
        all.keep_first_keys(KEYS_MAX);
        Some(all)
    }

    fn with(mut self, other: Tally) -> Tally {
        let axis = self.axis.with(other.axis);
        self.axis = axis;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unlimited += other.unlimited;
        self.operations += other.operations;
        self.untold += other.untold;
        self.keys += other.keys;
        let (mine, theirs) = (&mut self.submissions, other.submissions);
        mine.submitted += theirs.submitted;
        mine.conflict += theirs.conflict;
        mine.full += theirs.full;
        for limiter in other.limiters {
            let index = self.index_of(&limiter.spec);
            let mine = &mut self.limiters[index];
            mine.allowed += limiter.allowed;
            mine.denied += limiter.denied;
            mine.blocked += limiter.blocked;
            mine.decided.iter_mut().zip(limiter.decided).for_each(|(mine, theirs)| *mine += theirs);
            mine.allowed_bars.add_all(&axis, limiter.allowed_bars);
            mine.denied_bars.add_all(&axis, limiter.denied_bars);
            mine.keys.extend(limiter.keys);
        }
        self
    }

    /// Keeps the keys that were denied first, as one thread would have. Each of several has kept its own first ones, and so
    /// all that are among the first of all.
    fn keep_first_keys(&mut self, most: usize) {
        if self.keys <= most {
            return;
        }
        let mut places: Vec<u64> =
            self.limiters.iter().flat_map(|limiter| limiter.keys.values().map(|key| key.place)).collect();
        places.sort_unstable();
        let last = places[most - 1];
        for limiter in &mut self.limiters {
            let untold = &mut self.untold;
            limiter.keys.retain(|_, key| {
                if key.place > last {
                    *untold += key.denied;
                }
                key.place <= last
            });
        }
        self.keys = self.limiters.iter().map(|limiter| limiter.keys.len()).sum();
    }

    pub(super) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.unlimited
    }

    /// Keys that were denied at least once, as text: `100000+` when there were more than are counted one by one.
    pub(super) fn keys_limited(&self) -> String {
        let more = if self.untold > 0 { "+" } else { "" };
        format!("{}{more}", self.keys)
    }

    /// The keys denied most, at most `most`; ties by limiter, then key.
    pub(super) fn top(&self, most: usize) -> Vec<(&LimiterSpec, &[u8], &KeyTally)> {
        let mut all: Vec<(&LimiterSpec, &[u8], &KeyTally)> = self
            .limiters
            .iter()
            .flat_map(|limiter| limiter.keys.iter().map(|(key, tally)| (&*limiter.spec, &**key, tally)))
            .collect();
        all.sort_unstable_by(|a, b| (b.2.denied, &a.0.name, a.1).cmp(&(a.2.denied, &b.0.name, b.1)));
        all.truncate(most);
        all
    }

    /// Which limits denied how many requests, in definition order: the limiter, its limit (`None`: a block), and the count.
    pub(super) fn deciding_limits(&self) -> Vec<(&LimiterSpec, Option<String>, u64)> {
        let of = |limiter: &LimiterTally| {
            let limits = limiter.spec.rules.limits().iter().map(|limit| Some(limit.to_string()));
            let counts = limiter.decided.iter().copied().chain([limiter.blocked]);
            limits.chain([None]).zip(counts).collect::<Vec<_>>()
        };
        let rows = self
            .limiters
            .iter()
            .flat_map(|limiter| of(limiter).into_iter().map(|(limit, n)| (&*limiter.spec, limit, n)));
        rows.filter(|(_, _, denied)| *denied > 0).collect()
    }
}

impl CandidateTally {
    pub(super) fn new(limiter: &str, limits: &[Limit], counts: Counts) -> CandidateTally {
        let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
        let Counts { allowed, denied, .. } = counts;
        CandidateTally { limiter: limiter.to_owned(), limits: limits.join(", "), allowed, denied }
    }

    /// Those of two threads, which have replayed other keys by the same policy.
    pub(super) fn added(mut one: Vec<CandidateTally>, other: Vec<CandidateTally>) -> Vec<CandidateTally> {
        for (one, other) in one.iter_mut().zip(other) {
            one.allowed += other.allowed;
            one.denied += other.denied;
        }
        one
    }
}

impl LimiterTally {
    fn new(spec: Arc<LimiterSpec>) -> LimiterTally {
        LimiterTally {
            allowed: 0,
            denied: 0,
            allowed_bars: Bars::default(),
            denied_bars: Bars::default(),
            decided: vec![0; spec.rules.limits().len()],
            blocked: 0,
            keys: HashMap::new(),
            spec,
        }
    }
}
