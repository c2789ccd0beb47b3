//! Requests by key: when each came, and what it cost.

use super::super::Stop;
use super::super::order::Due;
use super::super::parsed::Asks;
use super::Subject;
use std::collections::HashMap;
use tidegate::Micros;

/// Most requests that are looked at: they are all in memory, 28 bytes each at most.
const REQUESTS_MAX: usize = 200_000_000;

/// All requests of a subject.
#[derive(Default)]
pub(in super::super) struct Traffic {
    numbers: HashMap<Box<[u8]>, u32>,
    /// The key of each request as they came, until they are grouped.
    keys: Vec<u32>,
    /// When each request came, and what it cost; grouped: those of one key stand together, in their order.
    at: Vec<Micros>,
    costs: Costs,
    /// Where each key's requests begin; grouped, the busiest key first.
    starts: Vec<usize>,
    pub(super) span: Option<(Micros, Micros)>,
    /// Requests whose keys no limiter takes.
    pub(super) skipped: u64,
}

/// What requests cost: nearly always 1.
#[derive(Default)]
enum Costs {
    #[default]
    One,
    Each(Vec<u32>),
}

/// One key's requests.
#[derive(Clone, Copy)]
pub(super) struct OfKey<'a> {
    pub(super) at: &'a [Micros],
    costs: Option<&'a [u32]>,
}

impl<'a> OfKey<'a> {
    pub(super) fn requests(self) -> impl Iterator<Item = (Micros, u32)> + 'a {
        self.at.iter().enumerate().map(move |(index, at)| (*at, self.costs.map_or(1, |costs| costs[index])))
    }

    /// What they cost together.
    pub(super) fn cost(self) -> u64 {
        self.costs.map_or(self.at.len() as u64, |costs| costs.iter().map(|cost| u64::from(*cost)).sum())
    }
}

impl Traffic {
    /// Takes in a line, if it is a request of the subject.
    pub(super) fn take(&mut self, subject: &Subject, due: Due<'_>) -> Result<(), Stop> {
        let block = due.block;
        let (key, how) = match due.entry.asks {
            Asks::Named { limiter, key, how } if subject.limiter.as_deref() == Some(block.str(limiter)) => {
                (block.bytes(key).to_vec(), how)
            }
            Asks::Attributes { domain, pairs, how }
                if subject.limiter.is_none()
                    && domain.map(|domain| block.str(domain)) == subject.spec.domain.as_deref() =>
            {
                let attributes: Vec<(&str, &[u8])> = block.pairs(pairs).collect();
                let Some(key) = subject.spec.key_of(&attributes) else { return Ok(()) };
                (key, how)
            }
            _ => return Ok(()),
        };
        if !how.counts() {
            return Ok(());
        }
        if let Err(error) = tidegate_core::check_key(&key) {
            if subject.skip_bad_lines {
                self.skipped += 1;
                return Ok(());
            }
            return Err(Stop::Line(due.number(), error.to_string()));
        }
        if self.at.len() == REQUESTS_MAX {
            return Err(Stop::Line(
                due.number(),
                format!("there are more than {REQUESTS_MAX} requests; suggest from a part of them"),
            ));
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let number = match self.numbers.get(key.as_slice()) {
            Some(number) => *number,
            None => *self.numbers.entry(key.into()).or_insert(next),
        };
        self.push(number, due.at, how.cost);
        Ok(())
    }

    fn push(&mut self, key: u32, at: Micros, cost: u32) {
        if let (Costs::One, true) = (&self.costs, cost != 1) {
            self.costs = Costs::Each(vec![1; self.at.len()]);
        }
        if let Costs::Each(costs) = &mut self.costs {
            costs.push(cost);
        }
        self.keys.push(key);
        self.at.push(at);
        let first = self.span.map_or(at, |(first, _)| first);
        self.span = Some((first, at));
    }

    /// Puts each key's requests together, the busiest key first. Called once, when all are in.
    pub(super) fn group(&mut self) {
        let mut counts = vec![0_usize; self.numbers.len()];
        self.keys.iter().for_each(|key| counts[*key as usize] += 1);
        let mut order: Vec<u32> = (0..).take(counts.len()).collect();
        order.sort_by_key(|key| std::cmp::Reverse(counts[*key as usize]));
        self.starts = Vec::with_capacity(counts.len() + 1);
        let (mut next, mut start) = (vec![0_usize; counts.len()], 0);
        for key in order {
            self.starts.push(start);
            next[key as usize] = start;
            start += counts[key as usize];
        }
        self.starts.push(start);
        let mut at = vec![Micros::ZERO; self.at.len()];
        let mut costs = match &self.costs {
            Costs::One => Vec::new(),
            Costs::Each(each) => vec![0; each.len()],
        };
        for (index, key) in std::mem::take(&mut self.keys).into_iter().enumerate() {
            let place = &mut next[key as usize];
            at[*place] = self.at[index];
            if let Costs::Each(each) = &self.costs {
                costs[*place] = each[index];
            }
            *place += 1;
        }
        self.at = at;
        if let Costs::Each(each) = &mut self.costs {
            *each = costs;
        }
        self.numbers = HashMap::default();
    }

    /// How many keys there are.
    pub(super) fn keys(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    pub(super) fn requests(&self) -> u64 {
        self.at.len() as u64
    }

    /// Each key's requests.
    pub(super) fn by_key(&self) -> impl Iterator<Item = OfKey<'_>> {
        self.starts.windows(2).map(|pair| {
            let costs = match &self.costs {
                Costs::One => None,
                Costs::Each(each) => Some(&each[pair[0]..pair[1]]),
            };
            OfKey { at: &self.at[pair[0]..pair[1]], costs }
        })
    }
}
