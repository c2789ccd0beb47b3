//! Key names, end to end in pages: what a listing needs and no decision does.
//!
//! Pages never move, so growing leaves no holes behind; a page of a small shard is small. Names that
//! were removed leave gaps; when these are more than half, the live ones are moved together. A
//! reference is one word: page, start and length.

use tidegate_core::KEY_LEN_MAX;

#[derive(Debug, Default)]
pub(crate) struct Names {
    pages: Vec<Vec<u8>>,
    /// Capacity of all pages.
    capacity: usize,
    /// Bytes of names, removed ones included.
    len: usize,
    dead: usize,
}

const PAGE_MIN: usize = 256;
const PAGE_MAX: usize = 4096;
/// A page of names that come together: a multiple of the others, so that no name of any length wastes more in it.
const MANY_MAX: usize = 15 * PAGE_MAX;
const FIELD_BITS: u32 = 16;
const _: () = assert!(KEY_LEN_MAX <= PAGE_MAX && MANY_MAX < 1 << FIELD_BITS);

impl Names {
    pub(crate) fn bytes(&self) -> usize {
        self.capacity + self.pages.capacity() * size_of::<Vec<u8>>()
    }

    /// Memory that one more name of this length would add.
    pub(crate) fn growth_for(&self, len: usize) -> usize {
        if self.last_has_room_for(len) { 0 } else { self.next_page(len) + size_of::<Vec<u8>>() }
    }

    pub(crate) fn add(&mut self, name: &[u8]) -> u64 {
        if !self.last_has_room_for(name.len()) {
            self.add_page(self.next_page(name.len()));
        }
        let page = self.pages.len() - 1;
        let bytes = &mut self.pages[page];
        let start = bytes.len();
        bytes.extend_from_slice(name);
        self.len += name.len();
        (page as u64) << (2 * FIELD_BITS) | (start as u64) << FIELD_BITS | name.len() as u64
    }

    /// Makes room for a name of many that are to come, `all` bytes in all: pages as large as a reference allows, and
    /// the last one as large as it need be, so that the same names never take more than they did when each came alone.
    pub(crate) fn make_room(&mut self, len: usize, all: usize) {
        if !self.last_has_room_for(len) {
            self.add_page(all.min(MANY_MAX).max(len));
        }
    }

    /// Memory of the list of pages when [`Names::make_room`] makes them.
    pub(crate) fn list_bytes_for(all: usize) -> usize {
        let pages = all.div_ceil(MANY_MAX - KEY_LEN_MAX);
        (1 + pages + pages / 8) * size_of::<Vec<u8>>()
    }

    pub(crate) fn get(&self, reference: u64) -> &[u8] {
        let (page, start, len) = parts(reference);
        self.pages.get(page).and_then(|page| page.get(start..start + len)).unwrap_or_default()
    }

    pub(crate) fn remove(&mut self, reference: u64) {
        self.dead += parts(reference).2;
    }

    /// True when moving the live names together is worth it.
    pub(crate) fn wants_compaction(&self) -> bool {
        self.dead > self.len / 2
    }

    /// True when moving the live names together makes room for one more, at a bearable price.
    pub(crate) fn has_holes_for(&self, len: usize) -> bool {
        self.dead >= len.max(self.len / 8)
    }

    fn add_page(&mut self, capacity: usize) {
        self.pages.reserve_exact(1 + self.pages.len() / 8);
        self.pages.push(Vec::with_capacity(capacity));
        self.capacity += capacity;
    }

    fn last_has_room_for(&self, len: usize) -> bool {
        self.pages.last().is_some_and(|page| page.capacity() - page.len() >= len)
    }

    /// A quarter of what there is, within bounds.
    fn next_page(&self, len: usize) -> usize {
        (self.capacity / 4).clamp(PAGE_MIN, PAGE_MAX).max(len)
    }
}

fn parts(reference: u64) -> (usize, usize, usize) {
    let field = |index: u32| usize::try_from(reference >> (index * FIELD_BITS) & ((1 << FIELD_BITS) - 1)).unwrap_or(0);
    (usize::try_from(reference >> (2 * FIELD_BITS)).unwrap_or(usize::MAX), field(1), field(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went_in() {
        let mut names = Names::default();
        let name = |i: usize| vec![b'a' + u8::try_from(i % 26).unwrap(); 1 + i * 7 % KEY_LEN_MAX];
        let references: Vec<u64> = (0..5_000).map(|i| names.add(&name(i))).collect();
        for (i, reference) in references.iter().enumerate() {
            assert_eq!(names.get(*reference), name(i));
        }
        assert_eq!(names.get(u64::MAX), b"", "a foreign reference is no panic");
    }

    #[test]
    fn growth_is_told_before_it_happens() {
        let mut names = Names::default();
        for i in 0..2_000 {
            let (before, growth) = (names.bytes(), names.growth_for(16));
            names.add(&[7; 16]);
            // The list of pages grows by an eighth at a time, which is not foretold.
            assert!(names.bytes() <= before + growth + names.pages.len() * 8 + 64, "{i}");
        }
        assert!(names.bytes() < 2_000 * 16 * 9 / 8 + PAGE_MAX);
    }
}
