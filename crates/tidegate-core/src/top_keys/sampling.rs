//! Which of many occurrences are noted: all of them while they are few, a random sample beyond, the thinner the more there are. So noting
//! costs about the same at any rate: some dozens a second.
//!
//! What is noted stands for all occurrences since the one before, so that the weights of all that were noted add up to what
//! occurred. The gaps are random, as a client whose requests came in step with a fixed one would never be seen, or always.

use crate::Micros;

/// Up to how many that were noted in a second, the longest gap; gaps are between 1 and it, all equally often.
const LONGEST: [(u32, u16); 4] = [(32, 1), (40, 31), (48, 255), (u32::MAX, 2_047)];
const SECOND: Micros = Micros::from_secs(1);

/// How far it is from one that is noted to the next.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sampling {
    second: Micros,
    noted: u32,
    random: u64,
}

impl Sampling {
    /// The number of occurrences from this one, which is noted, to the next that is: at least 1. `seed` is any number that nobody
    /// can guess, the key's hash for example.
    pub fn gap(&mut self, seed: u64, now: Micros) -> u16 {
        if now.saturating_sub(self.second) >= SECOND || now < self.second {
            (self.second, self.noted) = (now, 0);
        }
        self.noted = self.noted.saturating_add(1);
        let longest = LONGEST.iter().find(|(noted, _)| self.noted < *noted).map_or(1, |(_, longest)| *longest);
        if longest == 1 {
            return 1;
        }
        // One step of SplitMix64: gaps need to be unforeseen, not more.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = ((self.random ^ seed) ^ (self.random ^ seed) >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        u16::try_from((mixed >> 32) % u64::from(longest)).map_or(1, |gap| gap + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_few_and_a_thin_sample_of_many() {
        let mut few = Sampling::default();
        for second in 0..100 {
            assert!((1..32).all(|_| few.gap(second, Micros::from_secs(second)) == 1));
        }
        for (a_second, at_least, at_most) in [(200, 33, 45), (2_000, 45, 55), (100_000, 130, 160)] {
            let mut many = Sampling::default();
            let (mut noted, mut occurred) = (0_u64, 0_u64);
            while occurred < 100 * a_second {
                let gap = many.gap(occurred, Micros::from_secs(occurred / a_second));
                (noted, occurred) = (noted + 1, occurred + u64::from(gap));
            }
            assert!((100 * at_least..100 * at_most).contains(&noted), "{noted} of {a_second} a second");
        }
        // A clock that was set back: a second begins.
        let mut back = Sampling { second: Micros::from_secs(5), noted: 1_000, random: 1 };
        assert!(back.gap(1, Micros::from_secs(5)) > 1);
        assert_eq!(back.gap(1, Micros::ZERO), 1);
    }

    /// A key whose requests come at every 64th place is found as often as it should be.
    #[test]
    fn a_client_in_step_is_seen_as_often_as_it_asks() {
        let mut sampling = Sampling { noted: 40, ..Sampling::default() };
        let (mut at, mut seen) = (0_u64, 0_u64);
        while at < 256_000_000 {
            // As many a second as have gaps of up to 255.
            sampling.noted = 40;
            let gap = u64::from(sampling.gap(at.wrapping_mul(31), Micros::ZERO));
            seen += if (at + gap).is_multiple_of(64) { gap } else { 0 };
            at += gap;
        }
        assert!((3_880_000..4_120_000).contains(&seen), "{seen}");
    }
}
