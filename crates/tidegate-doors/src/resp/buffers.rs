//! What one connection keeps of what it read and of what it answers: a little, and more while its pipelines are long, if there is room.
//!
//! Large buffers are counted over all connections of the door (promise M6), so that thousands of clients that send and do not read take no
//! more than the budget. Without a place there the small ones do, in more reads and writes.
//! Invariant: a client that has not shown who it is has the smallest.

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
    pub(super) fn output_max(&self, is_known: bool) -> usize {
        match (is_known, &self.place) {
            (false, _) => READ_MIN,
            (true, None) => SMALL_MAX,
            (true, Some(_)) => OUTPUT_MAX,
        }
    }

    /// Room for the next read, beside a command of which a part is here already.
    pub(super) fn make_room(&mut self, is_known: bool) -> Result<(), NoRoom> {
        if self.input.capacity() - self.input.len() >= READ_MIN / 4 {
            return Ok(());
        }
        let wanted = (2 * self.input.capacity()).min(COMMAND_ROOM_MAX);
        if self.may_have(wanted, is_known) {
            self.input.reserve_exact(wanted - self.input.len());
        }
        if self.input.len() < self.input.capacity() { Ok(()) } else { Err(NoRoom) }
    }

    /// Room for the next read by how much the last one brought: a connection that is idle keeps little.
    pub(super) fn fit(&mut self, filled: bool, before: usize, is_known: bool) {
        let capacity = self.input.capacity();
        if filled && capacity < READ_MAX {
            let wanted = (2 * capacity).min(READ_MAX);
            if self.may_have(wanted, is_known) {
                self.input.reserve_exact(wanted - self.input.len());
            }
        } else if self.input.is_empty() && before == 0 && capacity > READ_MIN && !filled {
            self.input.shrink_to(READ_MIN);
            self.output.shrink_to(READ_MIN);
            self.place = None;
        }
    }

    fn may_have(&mut self, bytes: usize, is_known: bool) -> bool {
        if bytes <= SMALL_MAX || self.place.is_some() {
            return is_known;
        }
        self.place = is_known.then(|| self.places.enter(self.address, None).ok()).flatten();
        self.place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Caps;

    /// Reads that each bring as much as there is room for, of one command that does not end: how much a client gets to send.
    fn longest(buffers: &mut Buffers, is_known: bool) -> usize {
        while buffers.make_room(is_known).is_ok() && buffers.input.len() < COMMAND_ROOM_MAX {
            buffers.input.resize(buffers.input.capacity(), b'x');
        }
        buffers.input.len()
    }

    #[test]
    fn m6_large_buffers_have_a_place_each_and_strangers_have_none() {
        let places = Arc::new(Census::new(Caps { all: 1, per_address: 1, per_token: 1 }));
        let [mut first, mut second, mut stranger] = [0; 3].map(|_| Buffers::new(&places, IpAddr::from([10, 0, 0, 1])));
        assert_eq!(longest(&mut first, true), COMMAND_ROOM_MAX);
        assert_eq!((longest(&mut second, true), longest(&mut stranger, false)), (SMALL_MAX, READ_MIN));
        let most = |buffers: &Buffers, is_known| buffers.output_max(is_known);
        assert_eq!(
            (most(&first, true), most(&second, true), most(&stranger, false)),
            (OUTPUT_MAX, SMALL_MAX, READ_MIN)
        );
        first.input.clear();
        first.fit(false, 0, true);
        assert_eq!((first.input.capacity(), places.open()), (READ_MIN, 0), "an idle one gives its place back");
        assert_eq!(longest(&mut second, true), COMMAND_ROOM_MAX);
    }

    #[test]
    fn room_grows_while_reads_fill_it() {
        let places = Arc::new(Census::new(Caps { all: 1, per_address: 1, per_token: 1 }));
        let mut buffers = Buffers::new(&places, IpAddr::from([10, 0, 0, 1]));
        let rooms = [0; 6].map(|_| {
            buffers.fit(true, 0, true);
            buffers.input.capacity() >> 10
        });
        assert_eq!(rooms, [8, 16, 32, 64, 64, 64]);
    }
}
