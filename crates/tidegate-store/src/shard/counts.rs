//! How decisions went, in all and by the door that they were asked at.
//!
//! A shard counts for one door at a time, in the words that it has beside its lock; only when another door asks are they added up
//! elsewhere: a plain decision writes no further cache line. Invariant: every decision is counted for one door.

use super::Shard;
use tidegate_core::all_or_nothing::{Intent, Ruling};

/// Where a request came in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Door {
    /// A call in this process: the library, and its tower layer.
    #[default]
    Library,
    /// HTTP.
    Http,
    /// UDP.
    Udp,
    /// gRPC.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// The proxy.
    Proxy,
}

impl Door {
    /// All of them.
    pub const ALL: [Door; 6] = [Door::Library, Door::Http, Door::Udp, Door::Grpc, Door::Resp, Door::Proxy];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Door::Library => "library",
            Door::Http => "http",
            Door::Udp => "udp",
            Door::Grpc => "grpc",
            Door::Resp => "resp",
            Door::Proxy => "proxy",
        }
    }
}

/// How decisions went, since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Hits allowed, sketched ones included.
    pub allowed: u64,
    /// Hits denied, sketched ones included.
    pub denied: u64,
    /// The same by door.
    pub by_door: ByDoor,
    /// Peeks.
    pub peeked: u64,
    /// Hits that the sketch allowed.
    pub sketched_allowed: u64,
    /// Hits that the sketch denied.
    pub sketched_denied: u64,
    /// Hits whose key found no place for its statistics, where the limiter keeps them.
    pub stats_refused: u64,
}

/// Hits allowed and denied, by door.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ByDoor([Verdicts; Door::ALL.len()]);

/// Hits by what was decided.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdicts {
    /// Allowed.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
}

/// The latest hits of a shard, all of which came in at one door.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Run {
    allowed: u64,
    denied: u32,
    door: Door,
}

impl ByDoor {
    /// Of one door.
    #[must_use]
    pub const fn at(&self, door: Door) -> Verdicts {
        self.0[door as usize]
    }

    fn add(&mut self, door: Door, more: Verdicts) {
        let sum = &mut self.0[door as usize];
        sum.allowed += more.allowed;
        sum.denied += more.denied;
    }
}

impl Counts {
    /// Adds those of another shard.
    pub(crate) fn add(&mut self, other: &Counts) {
        let Counts { allowed, denied, by_door, peeked, sketched_allowed, sketched_denied, stats_refused } = *other;
        self.allowed += allowed;
        self.denied += denied;
        Door::ALL.into_iter().for_each(|door| self.by_door.add(door, by_door.at(door)));
        self.peeked += peeked;
        self.sketched_allowed += sketched_allowed;
        self.sketched_denied += sketched_denied;
        self.stats_refused += stats_refused;
    }
}

impl Run {
    const fn verdicts(&self) -> Verdicts {
        Verdicts { allowed: self.allowed, denied: self.denied as u64 }
    }
}

impl Shard {
    /// Counts a hit that this limiter decided.
    #[inline(always)]
    pub(super) fn count_hit(&mut self, is_allowed: bool, door: Door) {
        if self.run.door != door {
            self.begin_run(door);
        }
        if is_allowed {
            self.run.allowed += 1;
            return;
        }
        if self.run.denied == u32::MAX {
            self.begin_run(door);
        }
        self.run.denied += 1;
    }

    #[cold]
    #[inline(never)]
    fn begin_run(&mut self, door: Door) {
        let ended = std::mem::replace(&mut self.run, Run { door, ..Run::default() });
        self.rest.by_door.add(ended.door, ended.verdicts());
    }

    /// Counts a decision of this limiter: a hit that another limiter denied was neither allowed nor
    /// denied here.
    #[inline]
    pub(crate) fn count(&mut self, ruling: &Ruling, all_allow: bool, intent: Intent, door: Door) {
        match intent {
            Intent::Peek => self.rest.peeked += 1,
            Intent::Hit if all_allow => self.count_hit(true, door),
            Intent::Hit if !ruling.is_allowed() => self.count_hit(false, door),
            Intent::Hit => {}
        }
    }

    /// Counts a hit that the sketch decided among those of the sketch, too.
    pub(crate) fn count_sketched(&mut self, ruling: &Ruling, all_allow: bool) {
        self.rest.sketched_allowed += u64::from(all_allow);
        self.rest.sketched_denied += u64::from(!ruling.is_allowed());
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut by_door = self.rest.by_door;
        by_door.add(self.run.door, self.run.verdicts());
        let sum = |read: fn(Verdicts) -> u64| Door::ALL.into_iter().map(|door| read(by_door.at(door))).sum();
        Counts {
            allowed: sum(|of| of.allowed),
            denied: sum(|of| of.denied),
            by_door,
            peeked: self.rest.peeked,
            sketched_allowed: self.rest.sketched_allowed,
            sketched_denied: self.rest.sketched_denied,
            stats_refused: self.rest.stats.refused(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doors that take turns, against a plain count of each.
    #[test]
    fn every_hit_is_counted_for_its_door() {
        let mut shard = Shard::default();
        let mut expected = ByDoor::default();
        for turn in 0..10_000_u64 {
            let (door, is_allowed) = (Door::ALL[(turn.pow(2) / 7 % 6) as usize], turn % 3 > 0);
            shard.count_hit(is_allowed, door);
            expected.add(door, Verdicts { allowed: is_allowed.into(), denied: (!is_allowed).into() });
        }
        let counts = shard.counts();
        assert_eq!(counts.by_door, expected);
        assert_eq!((counts.allowed, counts.denied), (6_666, 3_334));
    }

    #[test]
    fn a_run_of_denials_does_not_overflow() {
        let mut shard = Shard { run: Run { allowed: 5, denied: u32::MAX - 1, door: Door::Udp }, ..Shard::default() };
        (0..3).for_each(|_| shard.count_hit(false, Door::Udp));
        assert_eq!(shard.counts().by_door.at(Door::Udp), Verdicts { allowed: 5, denied: u64::from(u32::MAX) + 2 });
    }
}
