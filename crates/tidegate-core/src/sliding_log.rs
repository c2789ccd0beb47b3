//! Sliding log: every admission is remembered, so that every interval of one period is exact.
//!
//! **Idea.** Keep the time and cost of each admission; those aged a period or more are gone; a
//! request passes if what is left plus its cost fits the count. Nothing is estimated.
//!
//! **Memory.** A plain log of 500 requests an hour takes 12 KB a key. This one keeps the gaps
//! between admissions, in microseconds, as Rice codes: with `k` the whole bits of the average gap
//! (period / count), a gap is written as `gap >> k` in ones, a zero, and its lowest `k` bits. All
//! gaps of a window add up to at most a period, hence all the ones to at most two per admission:
//! `k + 3` bits each on average, whatever the pattern. 500 an hour: k = 22, about 25 bits, 1.6 KB a
//! key. Admissions of one microsecond share an entry, and a cost of 1 takes one bit more.
//!
//! **Example.** 3 per minute: hits at 0, 30, 59 s pass, 59.999 does not; at 60 s the one at 0 is
//! exactly a period old and gone, so it passes; 61 does not; at 90 s the one at 30 is gone.
//!
//! **A changed limit** keeps the log (what a shorter period had dropped stays dropped).
//!
//! **Promise** (A1): every half-open interval of one period holds at most the count. **Weakness**:
//! memory and the time to read the log grow with the count; a denial reads as many entries as have
//! to expire before the request fits.

use crate::bit_queue::{BitQueue, Reader};
use crate::meter::{Step, step};
use crate::{Limit, Meter, Micros, Status, Verdict};

/// The admissions of the last period, oldest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// Cost of all entries; 0 means that there is none.
    used: u32,
    /// The newest entry's cost. It is not in `older` yet, as it may still grow.
    newest_cost: u32,
    newest_at: Micros,
    oldest_at: Micros,
    /// For each entry but the newest, oldest first: its cost, and the gap to the next one.
    older: BitQueue,
    /// Bits of a gap that are written plainly; chosen when the log is empty.
    plain_bits: u8,
}

/// This many ones announce a gap in full. It caps the code's length when the limit has changed so
/// much that the chosen `plain_bits` no longer suit the gaps.
const ESCAPE: u32 = 24;
const GAP_BITS: u32 = 52;
/// The longest an entry can get: cost, escape, gap.
const ENTRY_BITS_MAX: u32 = 1 + 32 + ESCAPE + GAP_BITS;

struct Entry {
    cost: u32,
    gap: Micros,
}

impl State {
    /// Memory held outside the struct itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.older.heap_bytes()
    }

    /// True when the next charge may need more memory.
    #[must_use]
    pub fn must_grow(&self) -> bool {
        self.used > 0 && self.older.must_grow_for(ENTRY_BITS_MAX)
    }

    /// Charges without taking memory, for a store that has none left: the newest entry is moved to
    /// `now` and grows. It then expires later than it should, so that requests may be denied
    /// that would fit, and none is admitted that would not.
    pub fn charge_coarsely(&mut self, limit: &Limit, now: Micros, cost: u32) {
        if self.used == 0 {
            return self.charge(limit, now, cost);
        }
        let at = now.max(self.newest_at);
        if self.older.is_empty() {
            self.oldest_at = at;
            self.newest_at = at;
        }
        self.newest_cost = self.newest_cost.saturating_add(cost);
        self.used = self.used.saturating_add(cost);
    }

    /// Takes `cost` off the latest admissions, so that one that is given back at once is as if it had never been.
    pub(crate) fn give_back(&mut self, mut cost: u32) {
        let mut entries = self.entries();
        while cost > 0
            && let Some((_, newest)) = entries.last_mut()
        {
            let back = cost.min(*newest);
            (*newest, cost) = (*newest - back, cost - back);
            if *newest == 0 {
                entries.pop();
            }
        }
        self.rewrite(&entries);
    }

    /// Cost of all entries.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// The time of the newest entry.
    pub(crate) const fn newest_at(&self) -> Micros {
        self.newest_at
    }

    /// Takes `cost` off the entry of this time; how much of it was there. The log is written anew: giving back is rare.
    pub(crate) fn give_back_of(&mut self, at: Micros, cost: u32) -> u32 {
        let mut entries = self.entries();
        let Ok(index) = entries.binary_search_by_key(&at, |entry| entry.0) else { return 0 };
        let back = cost.min(entries[index].1);
        if back == 0 {
            return 0;
        }
        entries[index].1 -= back;
        entries.retain(|entry| entry.1 > 0);
        self.rewrite(&entries);
        back
    }

    /// The time and cost of each entry, oldest first.
    fn entries(&self) -> Vec<(Micros, u32)> {
        let (mut entries, mut at, mut reader) = (Vec::new(), self.oldest_at, self.older.reader());
        while !reader.is_done() {
            let entry = self.read(&mut reader);
            entries.push((at, entry.cost));
            at = at.saturating_add(entry.gap);
        }
        if self.used > 0 {
            entries.push((self.newest_at, self.newest_cost));
        }
        entries
    }

    fn rewrite(&mut self, entries: &[(Micros, u32)]) {
        let (Some(oldest), Some(newest)) = (entries.first(), entries.last()) else {
            *self = State::default();
            return;
        };
        *self = State {
            used: entries.iter().map(|entry| entry.1).sum(),
            newest_cost: newest.1,
            newest_at: newest.0,
            oldest_at: oldest.0,
            older: BitQueue::default(),
            plain_bits: self.plain_bits,
        };
        for pair in entries.windows(2) {
            self.write(Entry { cost: pair[0].1, gap: pair[1].0.saturating_sub(pair[0].0) });
        }
    }

    /// Appends the state to `out`, for a snapshot.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (bytes, head, tail) = self.older.parts();
        for number in [self.used, self.newest_cost] {
            out.extend(number.to_le_bytes());
        }
        for number in [self.newest_at.get(), self.oldest_at.get(), head as u64, tail as u64] {
            out.extend(number.to_le_bytes());
        }
        out.push(self.plain_bits);
        out.extend(bytes);
    }

    /// The state that [`State::encode`] wrote as exactly these bytes; `None` if they contradict
    /// each other.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<State> {
        let (used, rest) = bytes.split_first_chunk()?;
        let (newest_cost, rest) = rest.split_first_chunk()?;
        let (newest_at, rest) = rest.split_first_chunk()?;
        let (oldest_at, rest) = rest.split_first_chunk()?;
        let (head, rest) = rest.split_first_chunk()?;
        let (tail, rest) = rest.split_first_chunk()?;
        let (&plain_bits, rest) = rest.split_first()?;
        let index = |bytes| usize::try_from(u64::from_le_bytes(bytes)).ok();
        let state = State {
            used: u32::from_le_bytes(*used),
            newest_cost: u32::from_le_bytes(*newest_cost),
            newest_at: Micros::new(u64::from_le_bytes(*newest_at))?,
            oldest_at: Micros::new(u64::from_le_bytes(*oldest_at))?,
            older: BitQueue::from_parts(rest.to_vec(), index(*head)?, index(*tail)?)?,
            plain_bits: (u32::from(plain_bits) <= GAP_BITS).then_some(plain_bits)?,
        };
        state.adds_up().then_some(state)
    }

    fn adds_up(&self) -> bool {
        let (mut sum, mut at) = (u64::from(self.newest_cost), self.oldest_at);
        let mut reader = self.older.reader();
        while !reader.is_done() {
            let entry = self.read(&mut reader);
            sum += u64::from(entry.cost);
            at = at.saturating_add(entry.gap);
        }
        sum == u64::from(self.used) && at == self.newest_at
    }

    fn read(&self, reader: &mut Reader<'_>) -> Entry {
        let cost = if reader.read(1) == 0 { 1 } else { u32::try_from(reader.read(32)).unwrap_or(u32::MAX) };
        let ones = reader.read_ones(ESCAPE);
        let gap = if ones == ESCAPE {
            reader.read(GAP_BITS)
        } else {
            u64::from(ones) << self.plain_bits | reader.read(u32::from(self.plain_bits))
        };
        Entry { cost, gap: Micros::saturating(gap) }
    }

    fn write(&mut self, Entry { cost, gap }: Entry) {
        if cost == 1 {
            self.older.push(0, 1);
        } else {
            self.older.push(u64::from(cost) << 1 | 1, 33);
        }
        let bits = u32::from(self.plain_bits);
        match u32::try_from(gap.get() >> bits) {
            Ok(ones) if ones < ESCAPE => {
                self.older.push((1 << ones) - 1, ones + 1);
                self.older.push(gap.get() & ((1 << bits) - 1), bits);
            }
            _ => {
                self.older.push((1 << ESCAPE) - 1, ESCAPE);
                self.older.push(gap.get(), GAP_BITS);
            }
        }
    }

    /// A log that is half full will likely be full: it then gets all the memory that a full one takes,
    /// as growing a million logs by small steps leaves holes between them.
    fn make_room(&mut self, limit: &Limit) {
        let full_bits = u64::from(limit.count()).saturating_mul(u64::from(self.plain_bits) * 2 + 7) / 2;
        let full = usize::try_from(full_bits / 8).unwrap_or(usize::MAX).saturating_add(16);
        let used = self.older.len_bytes();
        if used < full && used >= full / 2 {
            self.older.reserve(full);
        }
    }

    /// Drops the entries aged a period or more at `now`.
    fn expire(&mut self, period: Micros, now: Micros) {
        if now.saturating_sub(self.newest_at) >= period {
            *self = State::default();
            return;
        }
        let mut reader = self.older.reader();
        let (mut used, mut oldest_at) = (self.used, self.oldest_at);
        let before = reader.at();
        while !reader.is_done() && now.saturating_sub(oldest_at) >= period {
            let entry = self.read(&mut reader);
            used = used.saturating_sub(entry.cost);
            oldest_at = oldest_at.saturating_add(entry.gap);
        }
        let at = reader.at();
        if at != before {
            (self.used, self.oldest_at) = (used, oldest_at);
            self.older.drop_until(at);
        }
    }

    /// When the oldest entries that cost `needed` together will be gone.
    fn frees(&self, needed: u32, period: Micros) -> Micros {
        let (mut freed, mut at) = (0_u32, self.oldest_at);
        let mut reader = self.older.reader();
        while !reader.is_done() {
            let entry = self.read(&mut reader);
            freed = freed.saturating_add(entry.cost);
            if freed >= needed {
                return at.saturating_add(period);
            }
            at = at.saturating_add(entry.gap);
        }
        self.newest_at.saturating_add(period)
    }
}

/// The whole bits of the average gap.
fn plain_bits(limit: &Limit) -> u8 {
    let gap = limit.period().get() / u64::from(limit.count()).max(1);
    u8::try_from(gap.max(1).ilog2()).unwrap_or(0)
}

impl Meter for State {
    fn settle(&mut self, limit: &Limit, now: Micros) {
        if self.used == 0 {
            return;
        }
        let period = limit.period();
        match step(self.newest_at, now, period) {
            Step::Onward { effective } => self.expire(period, effective),
            Step::Reanchor => {
                self.expire(period, self.newest_at);
                // Carried over with its gaps; not before the epoch, as times are not negative.
                let span = self.newest_at.saturating_sub(self.oldest_at);
                self.newest_at = now.max(span);
                self.oldest_at = self.newest_at.saturating_sub(span);
            }
        }
    }

    fn verdict(&self, limit: &Limit, now: Micros, cost: u32) -> Verdict {
        let after = u64::from(self.used) + u64::from(cost);
        match after.checked_sub(u64::from(limit.count())) {
            None | Some(0) => Verdict::Allow,
            Some(over) => {
                let needed = u32::try_from(over).unwrap_or(u32::MAX);
                Verdict::Deny { retry_after: Some(self.frees(needed, limit.period()).saturating_sub(now)) }
            }
        }
    }

    fn charge(&mut self, limit: &Limit, now: Micros, cost: u32) {
        if self.used == 0 {
            *self = State {
                used: cost,
                newest_cost: cost,
                newest_at: now,
                oldest_at: now,
                older: BitQueue::default(),
                plain_bits: plain_bits(limit),
            };
            return;
        }
        let at = now.max(self.newest_at);
        let gap = at.saturating_sub(self.newest_at);
        self.used = self.used.saturating_add(cost);
        if gap.is_zero() {
            self.newest_cost = self.newest_cost.saturating_add(cost);
        } else {
            if self.must_grow() {
                self.make_room(limit);
            }
            self.write(Entry { cost: self.newest_cost, gap });
            (self.newest_at, self.newest_cost) = (at, cost);
        }
    }

    fn status(&self, limit: &Limit, now: Micros) -> Status {
        let reset = self.newest_at.saturating_add(limit.period()).saturating_sub(now);
        Status {
            remaining: limit.count().saturating_sub(self.used),
            reset_after: if self.used == 0 { Micros::ZERO } else { reset },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::check;

    #[test]
    fn a1_the_design_notes_window() {
        check::<State>(
            "3 per minute",
            "
            0         1 -> allow left=2 reset=60000000
            30000000  1 -> allow left=1
            59000000  1 -> allow left=0
            59999000  1 -> deny retry=1000
            60000000  1 -> allow left=0
            61000000  1 -> deny retry=29000000
            90000000  1 -> allow left=0 reset=60000000",
        );
    }

    #[test]
    fn requests_of_one_instant_all_count() {
        check::<State>(
            "3 per minute",
            "
            5 1 -> allow left=2
            5 1 -> allow left=1
            5 1 -> allow left=0
            5 1 -> deny retry=60000000
            60000005 3 -> allow left=0",
        );
    }

    #[test]
    fn a_dear_request_waits_for_enough_to_expire() {
        check::<State>(
            "5 per minute",
            "
            0         2 -> allow left=3
            10000000  2 -> allow left=1
            20000000  1 -> allow left=0
            30000000  3 -> deny retry=40000000
            30000000  5 -> deny retry=50000000
            30000000  6 -> deny retry=never
            70000000  5 -> deny retry=10000000 left=4
            70000000  4 -> allow left=0",
        );
    }

    #[test]
    fn t1_steps_back_hold_or_carry_over() {
        check::<State>(
            "2 per minute",
            "
            100000000 1 -> allow left=1
            70000000  1 -> allow left=0
            70000000  1 -> deny retry=90000000
            160000000 2 -> allow left=0
            5         1 -> deny retry=60000000
            60000005  2 -> allow left=0",
        );
    }

    #[test]
    fn a_log_survives_being_written_down() {
        let limit: Limit = "500 per hour".parse().unwrap();
        let mut state = State::default();
        for i in 0..700_u64 {
            let _ = state.decide(&limit, Micros::saturating(i * i * 7_919), 1 + (i % 3) as u32);
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            assert_eq!(State::decode(&bytes).as_ref(), Some(&state));
        }
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            let _ = State::decode(&torn);
            let _ = State::decode(&bytes[..at]);
        }
    }

    #[test]
    fn five_hundred_an_hour_fit_in_1700_bytes_and_go_back_when_idle() {
        let limit: Limit = "500 per hour".parse().unwrap();
        let mut state = State::default();
        let mut seed = 1_u64;
        let mut at = 0;
        for _ in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            at += (seed >> 33) % 14_400_000;
            let _ = state.decide(&limit, Micros::saturating(at), 1);
            assert!(state.heap_bytes() <= 1_900, "{}", state.heap_bytes());
        }
        state.settle(&limit, Micros::saturating(at + 3_600_000_000));
        assert_eq!(state.heap_bytes(), 0);
    }

    #[test]
    fn without_memory_it_errs_on_the_safe_side() {
        let limit: Limit = "4 per minute".parse().unwrap();
        let second = |s| Micros::from_secs(s);
        let mut state = State::default();
        state.charge_coarsely(&limit, second(0), 1);
        state.charge_coarsely(&limit, second(30), 1);
        state.settle(&limit, second(60));
        assert_eq!(state.status(&limit, second(60)).remaining, 2, "the first one may not expire before the second");
    }
}
