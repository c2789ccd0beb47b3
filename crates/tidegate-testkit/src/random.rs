//! Numbers that look random and come again with the same seed.

/// SplitMix64, from this seed.
pub struct Random(pub u64);

impl Random {
    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide how many numbers a test draws")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 when there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// The same, for small numbers.
    pub fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).unwrap()
    }

    /// One of `len` places.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}
