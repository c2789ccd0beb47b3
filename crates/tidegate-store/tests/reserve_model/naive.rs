//! The naive model of one key: a list of what was charged and when, in which a commit corrects the cost as if it had been known from the
//! beginning. It shares no code with the core, and adds the list up anew for each question.
//!
//! Of whatever passes it asks: does it pass here, too? Onward it knows each algorithm's own rule. Where the clock steps back it asks logs and token
//! buckets by the time that has really passed: no period may hold more than they allow. Of windows and blocks of time nothing is asked then: what belongs
//! to which is the clock's to say.

use tidegate_core::{Algorithm, Limit, Rules};

pub(crate) struct Naive {
    rules: Rules,
    charges: Vec<Charge>,
    /// Until when, in real time, nothing is asked.
    away_until: u64,
    longest: u64,
}

struct Charge {
    /// By the clock, and really.
    at: u64,
    really: u64,
    cost: u64,
    nonce: Option<u128>,
    /// Charged whatever the limits say.
    is_excess: bool,
    /// For each limit, when the window began that it was charged in, where a window begins with its first charge.
    windows: Vec<u64>,
}

impl Naive {
    pub(crate) fn new(rules: &Rules) -> Naive {
        let longest = rules.limits().iter().map(|limit| limit.period().get()).max().unwrap();
        Naive { rules: rules.clone(), charges: Vec::new(), away_until: 0, longest }
    }

    pub(crate) fn charge(&mut self, at: u64, really: u64, cost: u32, nonce: Option<u128>) {
        let windows = self.windows(at);
        self.charges.push(Charge { at, really, cost: cost.into(), nonce, is_excess: false, windows });
    }

    /// It has cost so much less, or so much more.
    pub(crate) fn settle(&mut self, nonce: u128, at: u64, really: u64, rest: u32, excess: u32) {
        if let Some(charge) = self.charges.iter_mut().find(|charge| charge.nonce == Some(nonce)) {
            charge.cost -= u64::from(rest);
        }
        if excess > 0 {
            let windows = self.windows(at);
            self.charges.push(Charge { at, really, cost: excess.into(), nonce: None, is_excess: true, windows });
        }
    }

    /// Asks nothing until all that counts now counts no more.
    pub(crate) fn look_away(&mut self, really: u64) {
        self.away_until = really + 4 * self.longest;
    }

    /// May what was just charged have passed? False: it was not asked.
    pub(crate) fn check(&mut self, now: u64, really: u64, onward: bool, what: &str) -> bool {
        // What is older than this counts for nobody; by any clock of these runs.
        let (longest, open) = (self.longest, 12 * self.longest);
        self.charges.retain(|charge| charge.really + open + 3 * longest > really);
        if really < self.away_until {
            return false;
        }
        // What passed meanwhile is not held against what comes.
        self.charges.retain(|charge| charge.really >= self.away_until);
        self.away_until = 0;
        for (index, limit) in self.rules.limits().iter().enumerate() {
            let over = match (self.rules.algorithm(), onward) {
                (Algorithm::TokenBucket, _) => self.bucket(limit),
                (Algorithm::FixedWindow, true) => self.first_hit(index, limit),
                (Algorithm::AlignedWindow, true) => self.aligned(limit, now),
                (Algorithm::SlidingWindow, true) => self.two_windows(limit, now),
                (Algorithm::SlidingLog, _) => self.last_period(limit, really),
                (Algorithm::Buckets, true) => self.blocks(limit, now),
                _ => return false,
            };
            assert_eq!(over, None, "{what}: over {limit} at {now}, really {really}");
        }
        true
    }

    fn sum(&self, counts: impl Fn(&Charge) -> bool) -> u64 {
        self.charges.iter().filter(|charge| counts(charge)).map(|charge| charge.cost).sum()
    }

    /// What a period that ends now holds, if that is too much.
    fn last_period(&self, limit: &Limit, really: u64) -> Option<u64> {
        let held = self.sum(|charge| charge.really + limit.period().get() > really);
        (held > u64::from(limit.count())).then_some(held)
    }

    /// What the blocks hold that the limit counts: all that begin no earlier than a period before the present one.
    fn blocks(&self, limit: &Limit, now: u64) -> Option<u64> {
        let resolution = self.rules.grid().resolution().get();
        let block = |at: u64| at - at % resolution;
        let held = self.sum(|charge| block(charge.at) + limit.period().get() >= block(now));
        (held > u64::from(limit.count())).then_some(held)
    }

    fn first_hit(&self, index: usize, limit: &Limit) -> Option<u64> {
        let this = self.charges.last()?.windows[index];
        let used = self.sum(|charge| charge.windows[index] == this);
        (used > u64::from(limit.count())).then_some(used)
    }

    /// A window begins with the first charge after the one before, or after all of that was given back.
    fn windows(&self, at: u64) -> Vec<u64> {
        let begins = |(index, limit): (usize, &Limit)| {
            let last = self.charges.last().map_or(0, |charge| charge.windows[index]);
            let used = self.sum(|charge| charge.windows[index] == last);
            if used > 0 && at < last + limit.period().get() { last } else { at }
        };
        self.rules.limits().iter().enumerate().map(begins).collect()
    }

    fn aligned(&self, limit: &Limit, now: u64) -> Option<u64> {
        let period = limit.period().get();
        let used = self.sum(|charge| charge.at / period == now / period);
        (used > u64::from(limit.count())).then_some(used)
    }

    /// This window, and the part of the one before that a period reaches back to.
    fn two_windows(&self, limit: &Limit, now: u64) -> Option<u64> {
        let period = limit.period().get();
        let this = self.sum(|charge| charge.at / period == now / period);
        let before = self.sum(|charge| charge.at / period + 1 == now / period);
        let left = period - now % period;
        let used = this + u64::try_from((u128::from(before) * u128::from(left)).div_ceil(period.into())).unwrap();
        (used > u64::from(limit.count())).then_some(used)
    }

    /// A bucket that every charge pours into and that drains all the time. What was charged beyond its size is not asked for: a bucket owes
    /// a full debt at most, so that it counts less of that than was used.
    fn bucket(&self, limit: &Limit) -> Option<u64> {
        let (count, period) = (u128::from(limit.count()), u128::from(limit.period().get()));
        let (mut debt, mut at) = (0_u128, 0);
        for charge in self.charges.iter().filter(|charge| !charge.is_excess) {
            debt = debt.saturating_sub(u128::from(charge.really - at) * count) + u128::from(charge.cost) * period;
            at = charge.really;
        }
        (debt > u128::from(limit.burst()) * period).then(|| u64::try_from(debt / period).unwrap())
    }
}
