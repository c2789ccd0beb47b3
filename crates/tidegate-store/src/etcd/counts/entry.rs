//! What is known of one key, as it lies in etcd: `1 BLOCKED_UNTIL PERIOD,START,USED …`, all in microseconds and in
//! decimal, one triple for each limit.
//!
//! Invariant: these texts and names are shared by all processes and versions; changing them forgets all counts.

use tidegate_core::fixed_window::Aligned;
use tidegate_core::{Compact as _, Micros, Rules, State};

/// What is known of a key; the default is a fresh one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Entry {
    pub(super) blocked_until: Micros,
    windows: Vec<Window>,
}

/// One limit's count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    period_us: u64,
    start_us: u64,
    used: u64,
}

/// What a limiter's key is called in etcd. Names of limiters have no slash.
pub(super) fn name(limiter: &str, key: &[u8]) -> Vec<u8> {
    [b"tidegate/count/", limiter.as_bytes(), b"/", key].concat()
}

impl Entry {
    /// The states of these rules. A limit goes on with the count of the same place and period, else of the same period, else of
    /// the same place.
    pub(super) fn states(&self, rules: &Rules) -> Vec<State> {
        let window = |(index, limit): (usize, &tidegate_core::Limit)| {
            let is_same = |window: &&Window| window.period_us == limit.period().get();
            let here = self.windows.get(index);
            let same = here.filter(is_same).or_else(|| self.windows.iter().find(is_same));
            let words = same.or(here).map_or([0, 0], |window| [window.start_us, window.used]);
            State::AlignedWindow(Aligned::from_words(words))
        };
        rules.limits().iter().enumerate().map(window).collect()
    }

    /// What is to be kept of states at `now`: nothing, if the key is as good as fresh.
    pub(super) fn of(rules: &Rules, states: &[State], blocked_until: Micros, now: Micros) -> Entry {
        let window = |(limit, state): (&tidegate_core::Limit, &State)| {
            let [start_us, used] = if let State::AlignedWindow(state) = state { state.to_words() } else { [0, 0] };
            // The start of a window with nothing in it says nothing.
            Window { period_us: limit.period().get(), start_us: if used == 0 { 0 } else { start_us }, used }
        };
        let windows: Vec<Window> = rules.limits().iter().zip(states).map(window).collect();
        if blocked_until <= now && windows.iter().all(|window| window.used == 0) {
            return Entry::default();
        }
        Entry { blocked_until, windows }
    }

    /// Nothing is kept of a fresh key.
    pub(super) fn is_fresh(&self) -> bool {
        *self == Entry::default()
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("1 {}", self.blocked_until.get());
        for Window { period_us, start_us, used } in &self.windows {
            text.push_str(&format!(" {period_us},{start_us},{used}"));
        }
        text
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Entry> {
        let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let blocked_until = Micros::new(words.next()?.parse().ok()?)?;
        let window = |word: &str| {
            let mut numbers = word.split(',').map(|number| number.parse::<u64>().ok());
            let window = Window { period_us: numbers.next()??, start_us: numbers.next()??, used: numbers.next()?? };
            (numbers.next().is_none() && window.used <= u32::MAX.into()).then_some(window)
        };
        Some(Entry { blocked_until, windows: words.map(window).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["1 0 60000000,120000000,3", "1 99 1,2,3 4,5,4294967295", "1 7"] {
            assert_eq!(Entry::parse(text.as_bytes()).unwrap().to_text(), text);
        }
        for text in
            ["", "2 0", "1", "1 x", "1 0 1,2", "1 0 1,2,3,4", "1 0 1,2,4294967296", "1 0 ", "1 99999999999999999"]
        {
            assert_eq!(Entry::parse(text.as_bytes()), None, "{text}");
        }
    }
}
