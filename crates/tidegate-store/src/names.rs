//! Key names, end to end in one buffer per shard: what a listing needs and no decision does.
//!
//! Names that were removed leave holes; when these are more than half, the live ones are moved
//! together. A reference is one word: where the name starts, and its length.

use tidegate_core::KEY_LEN_MAX;

#[derive(Debug, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    dead: usize,
}

const LEN_BITS: u32 = 16;
const _: () = assert!(KEY_LEN_MAX < 1 << LEN_BITS);

impl Names {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Memory that one more name of this length would add.
    pub(crate) fn growth_for(&self, len: usize) -> usize {
        let needed = self.bytes.len() + len;
        if needed <= self.bytes.capacity() { 0 } else { step(needed) - self.bytes.capacity() }
    }

    pub(crate) fn add(&mut self, name: &[u8]) -> u64 {
        let needed = self.bytes.len() + name.len();
        if needed > self.bytes.capacity() {
            self.bytes.reserve_exact(step(needed) - self.bytes.len());
        }
        let reference = (self.bytes.len() as u64) << LEN_BITS | name.len() as u64;
        self.bytes.extend_from_slice(name);
        reference
    }

    pub(crate) fn get(&self, reference: u64) -> &[u8] {
        let (start, len) = parts(reference);
        self.bytes.get(start..start + len).unwrap_or_default()
    }

    pub(crate) fn remove(&mut self, reference: u64) {
        self.dead += parts(reference).1;
    }

    /// True when moving the live names together is worth it.
    pub(crate) fn wants_compaction(&self) -> bool {
        self.dead > self.bytes.len() / 2
    }

    /// True when moving the live names together makes room for one more, at a bearable price.
    pub(crate) fn has_holes_for(&self, len: usize) -> bool {
        self.dead >= len.max(self.bytes.len() / 8)
    }
}

fn parts(reference: u64) -> (usize, usize) {
    let start = usize::try_from(reference >> LEN_BITS).unwrap_or(usize::MAX);
    (start, usize::try_from(reference & ((1 << LEN_BITS) - 1)).unwrap_or(0))
}

/// Growing by an eighth costs little copying and wastes little.
fn step(needed: usize) -> usize {
    needed + needed / 8 + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went_in() {
        let mut names = Names::default();
        let long = vec![7; KEY_LEN_MAX];
        let references = [&b"a"[..], b"user 1", &long].map(|name| names.add(name));
        assert_eq!(names.get(references[0]), b"a");
        assert_eq!(names.get(references[1]), b"user 1");
        assert_eq!(names.get(references[2]), long);
        assert_eq!(names.get(u64::MAX), b"", "a foreign reference is no panic");
    }
}
