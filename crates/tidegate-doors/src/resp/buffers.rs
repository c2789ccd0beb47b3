//! What one connection keeps of what it read and of what it answers: a little, and more while its pipelines are long, if there is room.
//!
//! Large buffers are counted over all connections of the door, for each address and for each token (promise M6), so that thousands of clients that send and do not read take no
//! more than the budget. Without a place there the small ones do, in more reads and writes.
//! Invariant: a client that has not shown who it is has the smallest.

use crate::access::Caller;
use crate::budget::account;
use crate::listener::{Census, Place};
use std::net::IpAddr;
use std::sync::Arc;

/// Room for a read, while reads are small: a dozen commands or so. It doubles when it is filled.
const READ_MIN: usize = 4 << 10;
/// Most room for a read, and about the most bytes of answers, that no place is needed for.
const SMALL_MAX: usize = 16 << 10;
/// Most room for a read. Many small commands are read together.
const READ_MAX: usize = 64 << 10;
/// Room for a command of which a part is here: the longest one and the beginning of another.
const COMMAND_ROOM_MAX: usize = READ_MAX + READ_MIN;
/// Answers are written out when there are so many bytes of them.
const OUTPUT_MAX: usize = 64 << 10;
/// What large buffers take: a read, and answers, whose buffer doubles and may be half empty.
pub(super) const LARGE_BYTES: usize = COMMAND_ROOM_MAX + 2 * OUTPUT_MAX;

/// The buffers of a connection.
pub(super) struct Buffers {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    places: Arc<Census>,
    address: IpAddr,
    place: Option<Place>,
}

/// A command that is longer than there is room for.
pub(super) struct NoRoom;

impl Buffers {
    pub(super) fn new(places: &Arc<Census>, address: IpAddr) -> Buffers {
        let input = Vec::with_capacity(READ_MIN);
        Buffers { input, output: Vec::new(), places: Arc::clone(places), address, place: None }
    }

    /// About so many bytes of answers are written at once.
    pub(super) fn output_max(&self, caller: &Caller) -> usize {
        match (!caller.is_unknown(), &self.place) {
            (false, _) => READ_MIN,
            (true, None) => SMALL_MAX,
            (true, Some(_)) => OUTPUT_MAX,
        }
    }

    /// Room for the next read, beside a command of which a part is here already.
    pub(super) fn make_room(&mut self, caller: &Caller) -> Result<(), NoRoom> {
        if self.input.capacity() - self.input.len() >= READ_MIN / 4 {
            return Ok(());
        }
        let wanted = (2 * self.input.capacity()).min(COMMAND_ROOM_MAX);
        if self.may_have(wanted, caller) {
            self.input.reserve_exact(wanted - self.input.len());
        }
        if self.input.len() < self.input.capacity() { Ok(()) } else { Err(NoRoom) }
    }

    /// Room for the next read by how much the last one brought: a connection that is idle keeps little.
    pub(super) fn fit(&mut self, filled: bool, before: usize, caller: &Caller) {
        let capacity = self.input.capacity();
        if filled && capacity < READ_MAX {
            let wanted = (2 * capacity).min(READ_MAX);
            if self.may_have(wanted, caller) {
                self.input.reserve_exact(wanted - self.input.len());
            }
        } else if self.input.is_empty() && before == 0 && capacity > READ_MIN && !filled {
            self.input.shrink_to(READ_MIN);
            self.output.shrink_to(READ_MIN);
            self.place = None;
        }
    }

    fn may_have(&mut self, bytes: usize, caller: &Caller) -> bool {
        if bytes <= SMALL_MAX || self.place.is_some() {
            return !caller.is_unknown();
        }
        if !caller.is_unknown() {
            self.place = self.places.enter(&account(self.address, caller)).ok();
        }
        self.place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Grant, Hash, Rules, Token, Tokens};
    use crate::listener::Caps;
    use std::net::Ipv4Addr;
    use tidegate::Micros;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    /// One that need not say who it is, and one that has yet to.
    fn callers() -> (Caller, Caller) {
        (Caller::address(ADDRESS), Caller::unknown(ADDRESS))
    }

    /// One token has one place, from any address.
    #[test]
    fn m6_one_token_does_not_take_all_large_buffers() {
        let token = |name: &str| Token {
            name: name.to_owned(),
            hash: Hash::of(format!("tg_{name}").as_bytes()),
            grant: Grant::default(),
            expires: None,
        };
        let tokens = Tokens::new(vec![token("greedy"), token("other")], Vec::new()).unwrap();
        let rules = Rules { tokens: Some(tokens), ..Rules::default() };
        let [greedy, other] =
            [b"tg_greedy".as_slice(), b"tg_other"].map(|text| rules.caller_of(text, Micros::ZERO).unwrap());
        let places = Arc::new(Census::new(Caps { all: 2, per_address: 1, per_token: 1 }));
        let [mut first, mut second, mut third] =
            [1, 2, 3].map(|last| Buffers::new(&places, IpAddr::from([10, 0, 0, last])));
        let got = [longest(&mut first, &greedy), longest(&mut second, &greedy), longest(&mut third, &other)];
        assert_eq!(got, [COMMAND_ROOM_MAX, SMALL_MAX, COMMAND_ROOM_MAX]);
    }

    /// Reads that each bring as much as there is room for, of one command that does not end: how much a client gets to send.
    fn longest(buffers: &mut Buffers, caller: &Caller) -> usize {
        while buffers.make_room(caller).is_ok() && buffers.input.len() < COMMAND_ROOM_MAX {
            buffers.input.resize(buffers.input.capacity(), b'x');
        }
        buffers.input.len()
    }

    #[test]
    fn m6_large_buffers_have_a_place_each_and_strangers_have_none() {
        let places = Arc::new(Census::new(Caps { all: 1, per_address: 1, per_token: 1 }));
        let (known, unknown) = callers();
        let [mut first, mut second, mut stranger] = [0; 3].map(|_| Buffers::new(&places, ADDRESS));
        assert_eq!(longest(&mut first, &known), COMMAND_ROOM_MAX);
        assert_eq!((longest(&mut second, &known), longest(&mut stranger, &unknown)), (SMALL_MAX, READ_MIN));
        let most = |buffers: &Buffers, caller: &Caller| buffers.output_max(caller);
        assert_eq!(
            (most(&first, &known), most(&second, &known), most(&stranger, &unknown)),
            (OUTPUT_MAX, SMALL_MAX, READ_MIN)
        );
        first.input.clear();
        first.fit(false, 0, &known);
        assert_eq!((first.input.capacity(), places.open()), (READ_MIN, 0), "an idle one gives its place back");
        assert_eq!(longest(&mut second, &known), COMMAND_ROOM_MAX);
    }

    #[test]
    fn room_grows_while_reads_fill_it() {
        let places = Arc::new(Census::new(Caps { all: 1, per_address: 1, per_token: 1 }));
        let (known, _) = callers();
        let mut buffers = Buffers::new(&places, ADDRESS);
        let rooms = [0; 6].map(|_| {
            buffers.fit(true, 0, &known);
            buffers.input.capacity() >> 10
        });
        assert_eq!(rooms, [8, 16, 32, 64, 64, 64]);
    }
}
