//! A queue of bits: written at the back, read and dropped at the front.
//!
//! It knows nothing of what the bits mean. Invariant: memory is at most about twice what the
//! bits need, or what was reserved: a queue that empties gives its memory back.

/// Bits in, bits out, least significant first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct BitQueue {
    bytes: Vec<u8>,
    /// Bits of the first bytes that were dropped already.
    head: usize,
    /// Where the next bit goes. Bits from here to the end of the last byte are zero.
    tail: usize,
}

/// Widest value written or read at once: what an 8-byte load holds at any bit offset.
pub(crate) const BITS_MAX: u32 = 57;

impl BitQueue {
    pub(crate) fn from_parts(bytes: Vec<u8>, head: usize, tail: usize) -> Option<BitQueue> {
        let fits = head <= tail && tail.div_ceil(8) == bytes.len();
        let padding_is_zero = tail.is_multiple_of(8) || bytes.last().is_some_and(|last| last >> (tail % 8) == 0);
        (fits && padding_is_zero).then_some(BitQueue { bytes, head, tail })
    }

    /// Bytes, first bit, one past the last bit: what [`BitQueue::from_parts`] takes.
    pub(crate) fn parts(&self) -> (&[u8], usize, usize) {
        (&self.bytes, self.head, self.tail)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Bytes in use, dropped ones at the front included.
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// True when `bits` more would need more memory.
    pub(crate) fn must_grow_for(&self, bits: u32) -> bool {
        (self.tail + bits as usize).div_ceil(8) > self.bytes.capacity() + self.head / 8
    }

    pub(crate) fn push(&mut self, value: u64, bits: u32) {
        debug_assert!(bits <= BITS_MAX && value >> bits == 0);
        self.make_room(bits);
        let end = self.tail + bits as usize;
        self.bytes.resize(end.div_ceil(8), 0);
        let shifted = (value << (self.tail % 8)).to_le_bytes();
        let overflow = u128::from(value) << (self.tail % 8) >> 64;
        let spread = shifted.into_iter().chain([overflow.to_le_bytes()[0]]);
        for (byte, bits) in self.bytes[self.tail / 8..].iter_mut().zip(spread) {
            *byte |= bits;
        }
        self.tail = end;
    }

    /// Reads on from the front without dropping anything.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.bytes, at: self.head, end: self.tail }
    }

    /// Drops what a reader has read.
    pub(crate) fn drop_until(&mut self, at: usize) {
        self.head = at.min(self.tail);
        if self.is_empty() {
            *self = BitQueue::default();
        } else if self.head / 8 > self.bytes.len() / 4 + 8 {
            self.close_gap();
            if self.bytes.capacity() > self.bytes.len() * 2 + 64 {
                self.bytes.shrink_to(self.bytes.len() + self.bytes.len() / 4 + 8);
            }
        }
    }

    /// Asks for memory for `bytes` in all, so that growing to them moves nothing.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.close_gap();
        self.bytes.reserve_exact(bytes.saturating_sub(self.bytes.len()));
    }

    /// Room for `bits` more: dropped bytes are used up before memory is asked for, and then a
    /// quarter more: a doubling vector would waste a third of what a million keys need.
    fn make_room(&mut self, bits: u32) {
        let end = |tail: usize| (tail + bits as usize).div_ceil(8);
        if end(self.tail) > self.bytes.capacity() {
            self.close_gap();
            let len = self.bytes.len();
            if end(self.tail) > self.bytes.capacity() {
                self.bytes.reserve_exact(end(self.tail) - len + len / 4 + 8);
            }
        }
    }

    fn close_gap(&mut self) {
        let whole = self.head / 8;
        self.bytes.drain(..whole);
        self.head -= whole * 8;
        self.tail -= whole * 8;
    }
}

/// A position in a [`BitQueue`]. Reading past the end yields zeros, never a panic.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    pub(crate) fn read(&mut self, bits: u32) -> u64 {
        let value = self.window() & ((1 << bits) - 1);
        self.at += bits as usize;
        value
    }

    /// Counts ones up to the first zero, which it swallows, or up to `most` ones.
    pub(crate) fn read_ones(&mut self, most: u32) -> u32 {
        let ones = self.window().trailing_ones().min(most);
        self.at += ones as usize + usize::from(ones < most);
        ones
    }

    /// At least [`BITS_MAX`] bits from here on.
    fn window(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let mut word = [0; 8];
        let len = rest.len().min(8);
        word[..len].copy_from_slice(&rest[..len]);
        u64::from_le_bytes(word) >> (self.at % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_memory_comes_back() {
        let mut queue = BitQueue::default();
        let mut expected = std::collections::VecDeque::new();
        let mut seed = 7_u64;
        for round in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (seed >> 40) as u32 % (BITS_MAX + 1);
            let value = (seed >> 3) & ((1 << bits) - 1);
            queue.push(value, bits);
            expected.push_back((value, bits));
            if round % 3 != 0 {
                let (value, bits) = expected.pop_front().unwrap();
                let mut reader = queue.reader();
                assert_eq!(reader.read(bits), value);
                let at = reader.at();
                queue.drop_until(at);
            }
            let held: usize = expected.iter().map(|(_, bits)| *bits as usize).sum::<usize>() / 8;
            assert!(queue.heap_bytes() <= held * 2 + 128, "{} bytes for {held}", queue.heap_bytes());
        }
        for (value, bits) in expected {
            let mut reader = queue.reader();
            assert_eq!(reader.read(bits), value);
            let at = reader.at();
            queue.drop_until(at);
        }
        assert!(queue.is_empty());
        assert_eq!(queue.heap_bytes(), 0);
    }

    #[test]
    fn ones_are_counted_up_to_the_bound() {
        let mut queue = BitQueue::default();
        queue.push(0b0111, 4);
        queue.push(0b1_1111, 5);
        let mut reader = queue.reader();
        assert_eq!(reader.read_ones(24), 3);
        assert_eq!(reader.read_ones(5), 5);
        assert!(reader.is_done());
    }
}
