//! The rule for keys that no script can see together (A5), as a model whose every interleaving is walked through.
//!
//! The store's side of it is in `src/redis/cross_slot.rs` and `src/redis/lua/decide.lua`; this is what they must keep:
//! never more admitted than each key allows, refunds to the unit, and no block by a charge that is taken back.
#![allow(missing_docs, reason = "a test")]

use std::collections::HashSet;

const KEYS: usize = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    limit: u8,
    used: u8,
    pending: u8,
    blocked: bool,
}

/// What a request does next, and at which key. Keys are charged in the order of their places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Next {
    Look(usize, bool),
    Deny(usize),
    Charge(usize),
    /// Takes back, from this key down.
    Refund(usize),
    Confirm(usize),
    /// It crashed: at the keys before this one charges are left, which are pending until that runs out.
    RunOut(usize),
    Admitted,
    Denied,
    Crashed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    keys: [Key; KEYS],
    requests: Vec<Next>,
    crashes: u8,
}

/// Does a denial heed that charges are pending?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Denials {
    HeedPending,
    BlockAlways,
}

impl Key {
    fn allows(&self) -> bool {
        !self.blocked && self.used < self.limit
    }
}

impl World {
    fn new(limits: [u8; KEYS], requests: usize, crashes: u8) -> World {
        let keys = limits.map(|limit| Key { limit, used: 0, pending: 0, blocked: false });
        World { keys, requests: vec![Next::Look(0, true); requests], crashes }
    }

    fn admitted(&self) -> u8 {
        let admitted = |next: &&Next| matches!(next, Next::Admitted | Next::Confirm(_));
        self.requests.iter().filter(admitted).count().try_into().unwrap_or(u8::MAX)
    }

    /// Charges at a key of requests that may still take them back.
    fn undecided(&self, key: usize) -> u8 {
        let holds = |next: &&Next| match next {
            Next::Charge(at) => key < *at,
            Next::Refund(from) => key <= *from,
            _ => false,
        };
        self.requests.iter().filter(holds).count().try_into().unwrap_or(u8::MAX)
    }

    /// One step of a request; what it breaks, if it does.
    fn step(&mut self, place: usize, denials: Denials) -> Result<(), String> {
        self.requests[place] = match self.requests[place] {
            Next::Look(at, allowed) => {
                let allowed = allowed && self.keys[at].allows();
                match at + 1 < KEYS {
                    true => Next::Look(at + 1, allowed),
                    false if allowed => Next::Charge(0),
                    false => Next::Deny(0),
                }
            }
            Next::Deny(at) => {
                let undecided = self.undecided(at);
                let key = &mut self.keys[at];
                if !key.allows() && !key.blocked && (key.pending == 0 || denials == Denials::BlockAlways) {
                    key.blocked = true;
                    if key.used - undecided < key.limit {
                        return Err(format!("key {at} is blocked by charges that may be taken back"));
                    }
                }
                if at + 1 < KEYS { Next::Deny(at + 1) } else { Next::Denied }
            }
            Next::Charge(at) if self.keys[at].allows() => {
                self.keys[at].used += 1;
                let is_last = at + 1 == KEYS;
                self.keys[at].pending += u8::from(!is_last);
                if is_last { Next::Confirm(0) } else { Next::Charge(at + 1) }
            }
            Next::Charge(0) => Next::Denied,
            Next::Charge(at) => Next::Refund(at - 1),
            Next::Refund(at) => {
                self.keys[at].used -= 1;
                self.keys[at].pending -= 1;
                if at > 0 { Next::Refund(at - 1) } else { Next::Denied }
            }
            Next::Confirm(at) => {
                self.keys[at].pending -= 1;
                if at + 2 < KEYS { Next::Confirm(at + 1) } else { Next::Admitted }
            }
            Next::RunOut(charged) => {
                self.keys[..charged].iter_mut().for_each(|key| key.pending -= 1);
                Next::Crashed
            }
            end @ (Next::Admitted | Next::Denied | Next::Crashed) => end,
        };
        Ok(())
    }

    /// The same world where this request, which holds charges, has crashed instead.
    fn crashed(&self, place: usize) -> Option<World> {
        let charged = match self.requests[place] {
            Next::Charge(at) if at > 0 => at,
            Next::Refund(at) => at + 1,
            _ => return None,
        };
        let mut world = self.clone();
        world.crashes = world.crashes.checked_sub(1)?;
        world.requests[place] = Next::RunOut(charged);
        Some(world)
    }

    fn check(&self, crashes: u8) -> Result<(), String> {
        let all_over = self.requests.iter().all(|next| matches!(next, Next::Admitted | Next::Denied | Next::Crashed));
        for (place, key) in self.keys.iter().enumerate() {
            if self.admitted() > key.limit || key.used > key.limit {
                return Err(format!("key {place}: {} admitted, {} used of {}", self.admitted(), key.used, key.limit));
            }
            if all_over && crashes == 0 && (key.used != self.admitted() || key.pending != 0) {
                return Err(format!("key {place} is left with {key:?}, {} admitted", self.admitted()));
            }
        }
        Ok(())
    }
}

/// Walks through every order of steps; how many worlds there are, or what breaks.
fn walk(start: World, denials: Denials) -> Result<usize, String> {
    let crashes = start.crashes;
    let (mut seen, mut to_visit) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(world) = to_visit.pop() {
        world.check(crashes)?;
        for place in 0..world.requests.len() {
            let mut after = world.clone();
            after.step(place, denials)?;
            for next in [Some(after), world.crashed(place)].into_iter().flatten() {
                if seen.insert(next.clone()) {
                    to_visit.push(next);
                }
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn a5_no_interleaving_admits_too_much_or_blocks_by_a_charge_that_is_taken_back() {
    for (limits, requests, crashes) in [([2, 1], 4, 0), ([1, 1], 4, 0), ([1, 2], 4, 0), ([2, 1], 4, 1), ([3, 2], 4, 1)]
    {
        let worlds = walk(World::new(limits, requests, crashes), Denials::HeedPending);
        println!("{limits:?}, {requests} requests, {crashes} crashes: {worlds:?} worlds");
        assert!(worlds.is_ok_and(|worlds| worlds > 1_000), "{limits:?}");
    }
}

/// The walk finds what it looks for.
#[test]
fn a5_denials_that_do_not_heed_pending_charges_are_found() {
    let found = walk(World::new([2, 1], 4, 0), Denials::BlockAlways);
    assert!(found.is_err_and(|what| what.contains("may be taken back")));
}
