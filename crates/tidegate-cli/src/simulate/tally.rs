//! What a replay came to: counts by limiter, and the keys that were denied.

use super::timeline::{Axis, Bars};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate::{Answer, Explained, LimiterSpec, Micros, Reason};

/// Most denied keys that are counted one by one, over all limiters; further ones are only counted.
pub(super) const KEYS_MAX: usize = 100_000;

/// Are the charts' bars needed?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Charts {
    Wanted,
    Unwanted,
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

/// One limiter's part: what it said to the requests that it applied to, whichever limiter decided.
#[derive(Debug)]
pub(super) struct LimiterTally {
    pub(super) spec: Arc<LimiterSpec>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) allowed_bars: Bars,
    pub(super) denied_bars: Bars,
    pub(super) keys: HashMap<Box<[u8]>, KeyTally>,
}

/// One denied key.
#[derive(Clone, Debug)]
pub(super) struct KeyTally {
    pub(super) denied: u64,
    pub(super) first: Micros,
    pub(super) last: Micros,
    pub(super) bars: Bars,
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
    pub(super) fn count(&mut self, at: Micros, answer: &Answer, key: &[u8]) {
        let bar = self.request(at, answer);
        if let Some(spec) = answer.limiter.as_ref().filter(|_| answer.reason != Reason::Disabled) {
            self.asked((at, bar), spec, answer.allowed, key);
        }
    }

    /// A request by attributes, and what each limiter that matched had to say.
    pub(super) fn count_explained(&mut self, at: Micros, answer: &Answer, explained: &[Explained]) {
        let bar = self.request(at, answer);
        for one in explained.iter().filter(|one| one.enabled) {
            let allows = one.blocked_until.is_none() && one.limits.iter().all(|(_, said)| said.verdict.is_allowed());
            self.asked((at, bar), &one.limiter, allows, &one.key);
        }
    }

    /// A request by what was answered; gives the chart's bar.
    fn request(&mut self, at: Micros, answer: &Answer) -> usize {
        match (&answer.limiter, answer.allowed) {
            (None, _) => self.unlimited += 1,
            (Some(_), true) => self.allowed += 1,
            (Some(_), false) => self.denied += 1,
        }
        self.axis.bar(at)
    }

    /// What one limiter said.
    fn asked(&mut self, (at, bar): (Micros, usize), spec: &Arc<LimiterSpec>, allows: bool, key: &[u8]) {
        let index = self.limiters.iter().position(|limiter| Arc::ptr_eq(&limiter.spec, spec)).unwrap_or_else(|| {
            self.limiters.push(LimiterTally::new(Arc::clone(spec)));
            self.limiters.len() - 1
        });
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
            self.denied_key(index, key, at, bar);
        }
    }

    fn denied_key(&mut self, limiter: usize, key: &[u8], at: Micros, bar: usize) {
        let known = &mut self.limiters[limiter].keys;
        if !known.contains_key(key) {
            if self.keys == KEYS_MAX {
                self.untold += 1;
                return;
            }
            self.keys += 1;
            known.insert(key.into(), KeyTally { denied: 0, first: at, last: at, bars: Bars::default() });
        }
        if let Some(tally) = known.get_mut(key) {
            tally.denied += 1;
            tally.last = at;
            if self.charts == Charts::Wanted {
                tally.bars.add(&self.axis, bar);
            }
        }
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
}

impl LimiterTally {
    fn new(spec: Arc<LimiterSpec>) -> LimiterTally {
        LimiterTally {
            spec,
            allowed: 0,
            denied: 0,
            allowed_bars: Bars::default(),
            denied_bars: Bars::default(),
            keys: HashMap::new(),
        }
    }
}
