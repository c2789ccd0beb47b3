//! Key names, end to end in pages: what a listing needs and no decision does.
//!
//! Pages never move, so growing leaves no holes behind; a page of a small shard is small. A name that is removed leaves a gap. When gaps
//! are a quarter of all, the page with most of them is cleaned: what is still in use there moves behind the last name, a few
//! with each new key, and then the page is given back. A reference is one word: page and start; the length lies before the name.

use tidegate_core::KEY_LEN_MAX;

#[derive(Debug, Default)]
pub(crate) struct Names {
    pages: Vec<Page>,
    /// Numbers of pages without memory.
    vacant: Vec<u32>,
    /// The page that new names go to.
    current: usize,
    /// Capacity of all pages.
    capacity: usize,
    /// Bytes of removed names that are still there.
    dead: usize,
    /// What is being cleaned, and from where on.
    cleaning: Option<u64>,
}

#[derive(Debug, Default)]
struct Page {
    bytes: Vec<u8>,
    dead: usize,
}

const PAGE_MIN: usize = 256;
const PAGE_MAX: usize = 4096;
/// A page of names that come together: a multiple of the others, so that no name of any length wastes more in it.
const MANY_MAX: usize = 15 * PAGE_MAX;
const START_BITS: u32 = 16;
/// Bytes before each name: its length.
const HEADER: usize = 2;
const _: () = assert!(HEADER + KEY_LEN_MAX <= PAGE_MAX && MANY_MAX < 1 << START_BITS);

impl Names {
    pub(crate) fn bytes(&self) -> usize {
        self.capacity + self.pages.capacity() * size_of::<Page>() + self.vacant.capacity() * size_of::<u32>()
    }

    /// What a name of this length takes.
    pub(crate) fn bytes_for(len: usize) -> usize {
        HEADER + len
    }

    /// Memory that one more name of this length would add.
    pub(crate) fn growth_for(&self, len: usize) -> usize {
        if self.has_room_for(len) { 0 } else { self.next_page(len) + size_of::<Page>() }
    }

    pub(crate) fn add(&mut self, name: &[u8]) -> u64 {
        if !self.has_room_for(name.len()) {
            self.add_page(self.next_page(name.len()));
        }
        let bytes = &mut self.pages[self.current].bytes;
        let start = bytes.len();
        bytes.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(name);
        reference(self.current, start)
    }

    /// Makes room for a name of many that are to come, `all` bytes in all: pages as large as a reference allows, and
    /// the last one as large as it need be, so that the same names never take more than they did when each came alone.
    pub(crate) fn make_room(&mut self, len: usize, all: usize) {
        if !self.has_room_for(len) {
            self.add_page(all.min(MANY_MAX).max(HEADER + len));
        }
    }

    /// Memory of the list of pages when [`Names::make_room`] makes them.
    pub(crate) fn list_bytes_for(all: usize) -> usize {
        let pages = all.div_ceil(MANY_MAX - HEADER - KEY_LEN_MAX);
        (1 + pages + pages / 8) * size_of::<Page>()
    }

    pub(crate) fn get(&self, reference: u64) -> &[u8] {
        self.find(reference).unwrap_or_default()
    }

    pub(crate) fn remove(&mut self, reference: u64) {
        let (page, _) = parts(reference);
        let Some(len) = self.find(reference).map(<[u8]>::len) else { return };
        self.dead += HEADER + len;
        self.pages[page].dead += HEADER + len;
        if self.pages[page].dead == self.pages[page].bytes.len() {
            self.empty(page);
        }
    }

    /// Are the gaps worth cleaning?
    pub(crate) fn wants_cleaning(&self) -> bool {
        // Those of the page that is being filled go with it when it is full.
        let current = self.pages.get(self.current).map_or(0, |page| page.dead);
        self.cleaning.is_some() || self.dead - current > self.capacity / 4
    }

    /// The next name of the page that is being cleaned, in use or not. Whoever knows moves it, if it is, with [`Names::relocate`].
    pub(crate) fn next_to_clean(&mut self) -> Option<u64> {
        let next = self.cleaning.or_else(|| {
            let page =
                (0..self.pages.len()).filter(|page| *page != self.current).max_by_key(|page| self.pages[*page].dead)?;
            Some(reference(page, 0))
        })?;
        let (page, start) = parts(next);
        self.cleaning = self.find(next).map(|name| reference(page, start + HEADER + name.len()));
        self.cleaning.map(|_| next)
    }

    /// Moves a name behind the last one.
    pub(crate) fn relocate(&mut self, reference: u64) -> u64 {
        let name = self.get(reference).to_vec();
        let moved = self.add(&name);
        self.remove(reference);
        moved
    }

    fn find(&self, reference: u64) -> Option<&[u8]> {
        let (page, start) = parts(reference);
        let rest = self.pages.get(page)?.bytes.get(start..)?;
        let (len, rest) = rest.split_first_chunk::<HEADER>()?;
        rest.get(..usize::from(u16::from_le_bytes(*len)))
    }

    fn add_page(&mut self, capacity: usize) {
        let bytes = Vec::with_capacity(capacity);
        self.capacity += capacity;
        if let Some(page) = self.vacant.pop() {
            self.current = page as usize;
            self.pages[self.current].bytes = bytes;
            return;
        }
        if self.pages.len() == self.pages.capacity() {
            self.pages.reserve_exact(1 + self.pages.len() / 8);
        }
        self.current = self.pages.len();
        self.pages.push(Page { bytes, dead: 0 });
    }

    /// Forgets a page in which nothing is in use.
    fn empty(&mut self, page: usize) {
        let Page { bytes, dead } = &mut self.pages[page];
        self.dead -= std::mem::take(dead);
        bytes.clear();
        if page != self.current {
            self.capacity -= bytes.capacity();
            *bytes = Vec::new();
            self.vacant.push(u32::try_from(page).unwrap_or(u32::MAX));
        }
        if self.cleaning.is_some_and(|cleaning| parts(cleaning).0 == page) {
            self.cleaning = None;
        }
    }

    fn has_room_for(&self, len: usize) -> bool {
        self.pages.get(self.current).is_some_and(|page| page.bytes.capacity() - page.bytes.len() >= HEADER + len)
    }

    /// A quarter of what there is, within bounds.
    fn next_page(&self, len: usize) -> usize {
        (self.capacity / 4).clamp(PAGE_MIN, PAGE_MAX).max(HEADER + len)
    }
}

fn reference(page: usize, start: usize) -> u64 {
    (page as u64) << START_BITS | start as u64
}

fn parts(reference: u64) -> (usize, usize) {
    let page = usize::try_from(reference >> START_BITS).unwrap_or(usize::MAX);
    (page, usize::try_from(reference & ((1 << START_BITS) - 1)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> Vec<u8> {
        vec![b'a' + u8::try_from(i % 26).unwrap(); 1 + i * 7 % KEY_LEN_MAX]
    }

    #[test]
    fn names_come_back_as_they_went_in() {
        let mut names = Names::default();
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
        assert!(names.bytes() < 2_000 * 18 * 9 / 8 + PAGE_MAX);
    }

    /// Names come and go for ever, of many lengths; memory stays with what is in use, and a step's work with a few names.
    #[test]
    fn gaps_are_cleaned_a_few_names_at_a_time() {
        let mut names = Names::default();
        let mut live = std::collections::HashMap::new();
        let mut used = 0;
        for i in 0..60_000 {
            used += HEADER + name(i).len();
            live.insert(names.add(&name(i)), i);
            // Every third stays for long.
            if let Some(old) = i.checked_sub(500).filter(|old| old % 3 > 0).or(i.checked_sub(2_000))
                && let Some(reference) = live.iter().find(|(_, live)| **live == old).map(|(reference, _)| *reference)
            {
                live.remove(&reference);
                used -= HEADER + name(old).len();
                names.remove(reference);
            }
            for _ in 0..8 {
                if names.wants_cleaning()
                    && let Some(reference) = names.next_to_clean()
                    && let Some(number) = live.remove(&reference)
                {
                    live.insert(names.relocate(reference), number);
                }
            }
            assert!(names.bytes() < used * 3 / 2 + 4 * PAGE_MAX, "{i}: {} for {used}", names.bytes());
        }
        assert!(live.iter().all(|(reference, number)| names.get(*reference) == name(*number)));
        live.keys().for_each(|reference| names.remove(*reference));
        assert!(names.capacity <= PAGE_MAX && names.dead == 0);
    }
}
