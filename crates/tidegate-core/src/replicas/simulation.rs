//! The whole protocol in simulated time: messages late and lost, replicas paused, cut off, killed, joining and
//! leaving, clocks that differ within the margin, the register lost. One seed is one run, the same every time.
//!
//! Checked: what all replicas that ever lived believe of one window never adds up to more than the limit (A8, and
//! stricter than A8: a share counts even when its replica grants nothing); it is all of the limit again from
//! the second window after the last change on. `TIDEGATE_SEEDS=20000` runs more of them, `TIDEGATE_SEED=7` only that one.

use super::roster::Roster;
use super::*;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use tidegate_testkit::{number, setting};

const SEEDS: u64 = 1_000;

#[test]
fn a8_shares_never_add_up_to_more_than_the_limit() {
    let seeds = match setting("TIDEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SEEDS", SEEDS),
    };
    let mut changes = 0;
    for seed in seeds {
        match World::new(seed, Sabotage::None).run() {
            Ok(count) => changes += count,
            Err(why) => {
                panic!("{why}\nreplay: TIDEGATE_SEED={seed} cargo nextest run -p tidegate-core a8_shares_never")
            }
        }
    }
    assert!(changes > 0, "nothing ever changed, so nothing was tested");
}

#[test]
fn a8_the_simulation_finds_planted_faults() {
    for sabotage in [Sabotage::PastTheHorizon, Sabotage::ChangeAtOnce, Sabotage::NoGap, Sabotage::NeverDrop] {
        let found = (0..500).find(|seed| World::new(*seed, sabotage).run().is_err());
        assert!(found.is_some(), "{sabotage:?} was not found");
    }
}

/// Faults that are planted to see whether they are found.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sabotage {
    None,
    /// A replica goes on for one window more than it was assigned.
    PastTheHorizon,
    /// Changes of members apply to the current window.
    ChangeAtOnce,
    /// A new register opens with the next window.
    NoGap,
    /// A replica that is silent stays a member.
    NeverDrop,
}

/// Something that happens to a node, or to the world.
#[derive(Clone, Debug)]
enum Event {
    Beat,
    Request(Request),
    Reply(Option<Stored>),
    Fault,
}

#[derive(Clone, Debug)]
enum Request {
    Read,
    /// Writes this if the register is still at that version.
    Swap(Option<u64>, Roster),
}

/// A value of the register; versions never come back.
#[derive(Clone, Debug)]
struct Stored {
    version: u64,
    roster: Roster,
}

struct Node {
    replica: Replica,
    offset: i64,
    paused_until: u64,
    cut_until: u64,
    /// Swaps that may still be tried in this beat.
    tries: u32,
}

struct World {
    random: u64,
    sabotage: Sabotage,
    terms: Terms,
    count: u32,
    now: u64,
    agenda: BinaryHeap<std::cmp::Reverse<(u64, u64, u64)>>,
    events: HashMap<u64, Event>,
    numbers: u64,
    register: Option<Stored>,
    nodes: BTreeMap<u64, Node>,
    /// What any replica ever knew: by window and replica, its share and when it was learnt.
    beliefs: BTreeMap<u64, BTreeMap<u64, (u32, u64)>>,
    /// Faults end here.
    calm: u64,
    changes: u64,
}

/// Windows with faults, and without at the end.
const WILD: u64 = 16;
const CALM: u64 = 6;
/// Runs start at a time that is no multiple of anything.
const START_US: u64 = 1_700_000_123_456;

impl World {
    fn new(seed: u64, sabotage: Sabotage) -> World {
        let mut world = World {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995,
            sabotage,
            terms: Terms { windows: Windows::of(Micros::from_secs(1)), lease: Micros::ZERO, margin: Micros::ZERO },
            count: 0,
            now: START_US,
            agenda: BinaryHeap::new(),
            events: HashMap::new(),
            numbers: 0,
            register: None,
            nodes: BTreeMap::new(),
            beliefs: BTreeMap::new(),
            calm: 0,
            changes: 0,
        };
        let period = [400_000, 1_000_000, 60_000_000][world.pick(3)];
        let part = |of: u64| Micros::saturating(period / of);
        world.terms = Terms { windows: Windows::of(part(1)), lease: part(4), margin: part(10) };
        world.count = u32::try_from(1 + world.below(12)).unwrap();
        world.calm = START_US + WILD * period;
        for _ in 0..=world.below(4) {
            world.join();
        }
        world.after(period / 3, 0, Event::Fault);
        world
    }

    /// How often the members changed, or what went wrong.
    fn run(mut self) -> Result<u64, String> {
        let end = self.calm + CALM * self.period();
        while let Some(std::cmp::Reverse((at, number, node))) = self.agenda.pop() {
            if at > end {
                break;
            }
            self.now = at;
            let event = self.events.remove(&number).unwrap();
            self.happen(node, event)?;
        }
        self.check_all_is_used()?;
        Ok(self.changes)
    }

    fn happen(&mut self, node: u64, event: Event) -> Result<(), String> {
        match event {
            Event::Fault => {
                self.fault();
                return Ok(());
            }
            Event::Request(request) => {
                self.serve(node, request);
                return Ok(());
            }
            Event::Beat | Event::Reply(_) => {}
        }
        let Some(found) = self.nodes.get(&node) else { return Ok(()) };
        if found.paused_until > self.now {
            // It happens when the replica wakes up.
            let wake = found.paused_until - self.now;
            self.after(wake, node, event);
            return Ok(());
        }
        match event {
            Event::Beat => {
                self.nodes.get_mut(&node).unwrap().tries = 4;
                self.send(node, Request::Read);
                let beat = self.terms.beat().get();
                self.after(beat, node, Event::Beat);
            }
            Event::Reply(stored) => self.learn(node, stored)?,
            Event::Request(_) | Event::Fault => {}
        }
        Ok(())
    }

    /// The store's side.
    fn serve(&mut self, node: u64, request: Request) {
        if let Request::Swap(expected, roster) = request
            && expected == self.register.as_ref().map(|stored| stored.version)
        {
            let changed = self.register.as_ref().is_none_or(|stored| stored.roster.spans != roster.spans);
            self.changes += u64::from(changed);
            self.numbers += 1;
            // Now and then through the text, as in a real store: it is most of the work.
            let text = self.numbers.is_multiple_of(16).then(|| roster.to_string());
            let roster = text.map_or(roster, |text| text.parse().unwrap());
            self.register = Some(Stored { version: self.numbers, roster });
        }
        let (stored, now) = (self.register.clone(), self.now);
        if self.nodes.get(&node).is_some_and(|found| found.cut_until <= now) && !self.is_lost() {
            let delay = self.delay();
            self.after(delay, node, Event::Reply(stored));
        }
    }

    fn send(&mut self, node: u64, request: Request) {
        if self.nodes[&node].cut_until <= self.now && !self.is_lost() {
            let delay = self.delay();
            self.after(delay, node, Event::Request(request));
        }
    }

    /// The replica's side: what the register holds, and what it writes over it.
    fn learn(&mut self, id: u64, stored: Option<Stored>) -> Result<(), String> {
        let now = self.clock(id);
        let (sabotage, terms) = (self.sabotage, self.terms);
        let node = self.nodes.get_mut(&id).unwrap();
        let seen = stored.as_ref().map(|stored| &stored.roster);
        if let Some(roster) = seen {
            node.replica.learn(roster, now);
        }
        if node.tries > 0 {
            node.tries -= 1;
            let written = sabotage.spoil(node.replica.renewed(seen, now), seen, &terms, now);
            // The replica's own write, when it is read back, is not written again.
            let mine = |roster: &Roster| roster.beats.iter().find(|(name, _)| name.0 == id).copied();
            let is_done =
                seen.is_some_and(|seen| seen.horizon.is_some() && node.tries < 3 && mine(seen) >= mine(&written));
            if !is_done {
                self.send(id, Request::Swap(stored.map(|stored| stored.version), written));
            }
        }
        self.believe(id)
    }

    /// Notes what a replica believes, and checks the sum.
    fn believe(&mut self, id: u64) -> Result<(), String> {
        let now = self.clock(id);
        let schedule = self.nodes[&id].replica.schedule().clone();
        let last = schedule.horizon() + u64::from(self.sabotage == Sabotage::PastTheHorizon && schedule.horizon() > 0);
        for window in self.terms.window(now).saturating_sub(2)..last {
            let known = if window < schedule.horizon() { schedule.share(self.count, window) } else { None };
            let beyond = schedule.at(schedule.horizon().saturating_sub(1));
            let beyond = beyond.map(|stretch| share(self.count, stretch.rank, stretch.of, window));
            let part = if window < schedule.horizon() { known } else { beyond };
            let Some(part) = part else { continue };
            let all = self.beliefs.entry(window).or_default();
            let belief = all.entry(id).or_insert((part, self.now));
            if belief.0 != part {
                return Err(format!("{id} was assigned {} of window {window}, and now {part}", belief.0));
            }
            let sum: u32 = all.values().map(|(part, _)| part).sum();
            if sum > self.count {
                return Err(format!("window {window}: {sum} of {}: {all:?}", self.count));
            }
        }
        Ok(())
    }

    /// From the second window after the last change on, those alive have all of the limit, in time.
    fn check_all_is_used(&self) -> Result<(), String> {
        let first = self.calm / self.period() + 2;
        for window in first..first + CALM - 3 {
            let in_time = window * self.period() + self.terms.margin.get();
            let all = self.beliefs.get(&window);
            let alive = all.into_iter().flatten().filter(|(id, (_, at))| self.nodes.contains_key(id) && *at <= in_time);
            let sum: u32 = alive.map(|(_, (part, _))| part).sum();
            if sum != self.count {
                return Err(format!("window {window}, of {first}: only {sum} of {}: {all:?}", self.count));
            }
        }
        Ok(())
    }

    /// Something goes wrong, or is done on purpose.
    fn fault(&mut self) {
        let (period, left) = (self.period(), self.calm.saturating_sub(self.now));
        let many = self.nodes.len();
        let some: Vec<u64> = self.nodes.keys().copied().collect();
        let one = some[self.pick(many)];
        let long = self.below(3 * period).min(left);
        match self.below(8) {
            0 | 1 if many < 6 => self.join(),
            2 if many > 1 => drop(self.nodes.remove(&one)),
            3 if many > 1 => self.leave(one),
            4 => self.nodes.get_mut(&one).unwrap().paused_until = self.now + long,
            5 => self.nodes.get_mut(&one).unwrap().cut_until = self.now + long,
            6 => self.nodes.get_mut(&one).unwrap().offset = 0,
            7 if self.below(4) == 0 => self.register = None,
            _ => {}
        }
        let offset = self.offset();
        if let Some(node) = self.nodes.get_mut(&one) {
            node.offset = offset;
        }
        let next = self.below(period);
        if self.now + next < self.calm {
            self.after(next, 0, Event::Fault);
        }
    }

    fn join(&mut self) {
        let (id, offset) = (1 + self.draw() % u64::from(u32::MAX), self.offset());
        let replica = Replica::new(ReplicaId(id), self.terms);
        self.nodes.insert(id, Node { replica, offset, paused_until: 0, cut_until: 0, tries: 0 });
        self.after(0, id, Event::Beat);
    }

    /// Takes itself out of the register if it can, and is gone.
    fn leave(&mut self, id: u64) {
        if let Some(Stored { version, roster }) = self.register.clone()
            && let Some(written) = self.nodes[&id].replica.without_me(&roster)
        {
            self.send(id, Request::Swap(Some(version), written));
        }
        self.nodes.remove(&id);
    }

    fn is_calm(&self) -> bool {
        self.now >= self.calm
    }

    fn is_lost(&mut self) -> bool {
        !self.is_calm() && self.below(8) == 0
    }

    /// Mostly short, at times longer than a lease.
    fn delay(&mut self) -> u64 {
        let lease = self.terms.lease.get();
        let long = !self.is_calm() && self.below(12) == 0;
        let most = if long { 3 * lease } else { lease / 40 };
        let delay = self.below(most + 1);
        if long { delay.min(self.calm - self.now) } else { delay }
    }

    /// How far a clock is from the true time: two of them differ by no more than the margin.
    fn offset(&mut self) -> i64 {
        let margin = self.terms.margin.get();
        i64::try_from(self.below(margin)).unwrap() - i64::try_from(margin / 2).unwrap()
    }

    fn clock(&self, id: u64) -> Micros {
        Micros::saturating(self.now.saturating_add_signed(self.nodes[&id].offset))
    }

    fn period(&self) -> u64 {
        self.terms.windows.period().get()
    }

    fn after(&mut self, delay: u64, node: u64, event: Event) {
        self.numbers += 1;
        self.agenda.push(std::cmp::Reverse((self.now + delay, self.numbers, node)));
        self.events.insert(self.numbers, event);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.below(of as u64)).unwrap()
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Sabotage {
    fn spoil(self, mut written: Roster, seen: Option<&Roster>, terms: &Terms, now: Micros) -> Roster {
        let Some(seen) = seen else { return written };
        let opens = seen.horizon.is_none();
        let changes = written.spans.last().map(|span| &span.members) != seen.spans.last().map(|span| &span.members);
        match self {
            Sabotage::ChangeAtOnce if changes && !opens => {
                let members = written.spans.pop().unwrap().members;
                let first = terms.window(now);
                written.spans.retain(|span| span.first < first);
                written.spans.push(roster::Span { first, members });
            }
            Sabotage::NoGap if opens => {
                let first = terms.window(now) + 1;
                written.spans[0].first = first;
                written.horizon = Some(first + 1);
            }
            Sabotage::NeverDrop if changes && !opens => {
                let mut members: Vec<_> = seen.members().chain(written.members()).collect();
                members.sort_unstable();
                members.dedup();
                let last = written.spans.last_mut().unwrap();
                last.members = members;
                let kept = seen.beats.iter().filter(|(id, _)| written.beats.iter().all(|(other, _)| other != id));
                let kept: Vec<_> = kept.copied().collect();
                written.beats.extend(kept);
            }
            _ => {}
        }
        written
    }
}
