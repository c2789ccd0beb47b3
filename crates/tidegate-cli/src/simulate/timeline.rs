//! Time on a chart: a few hundred bars, whatever the trace's length.
//!
//! How long a trace is is known at its end only, so bars start at a millisecond and are merged into
//! wider ones as time goes on. Widths are those of a clock face, each a multiple of the one before.

use tidegate::Micros;

/// Bar widths, in milliseconds. The last holds 142 years in as many bars.
const WIDTHS_MS: [u64; 22] = {
    const SECOND: u64 = 1_000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    [
        1,
        5,
        10,
        50,
        100,
        500,
        SECOND,
        5 * SECOND,
        10 * SECOND,
        30 * SECOND,
        MINUTE,
        5 * MINUTE,
        10 * MINUTE,
        30 * MINUTE,
        HOUR,
        3 * HOUR,
        6 * HOUR,
        12 * HOUR,
        DAY,
        7 * DAY,
        28 * DAY,
        364 * DAY,
    ]
};

/// Most bars of a chart.
pub(super) const BARS_MAX: usize = 240;

/// The common time axis of all charts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Axis {
    level: usize,
    first: Option<Micros>,
    last: Micros,
}

impl Axis {
    /// Takes a time in, widening the bars if there are too many; gives the bar's number.
    pub(super) fn bar(&mut self, at: Micros) -> usize {
        let first = *self.first.get_or_insert(at);
        self.last = at;
        loop {
            let bar = number(at, self.level) - number(first, self.level);
            if bar < BARS_MAX as u64 {
                return usize::try_from(bar).unwrap_or(BARS_MAX - 1);
            }
            self.level += 1;
        }
    }

    /// Starts the axis, if it has not been: several that are merged later have to start together.
    pub(super) fn begin(&mut self, at: Micros) {
        if self.first.is_none() {
            (self.first, self.last) = (Some(at), at);
        }
    }

    /// One axis for what was counted on two that started together, or of which one did not start.
    pub(super) fn with(self, other: Axis) -> Axis {
        let first = self.first.into_iter().chain(other.first).min();
        Axis { level: self.level.max(other.level), first, last: self.last.max(other.last) }
    }

    /// When the first bar starts.
    pub(super) fn start(&self) -> Micros {
        let first = self.first.unwrap_or_default();
        Micros::saturating(number(first, self.level) * width(self.level))
    }

    pub(super) fn width(&self) -> Micros {
        Micros::saturating(width(self.level))
    }

    /// Bars from the first time to the last.
    pub(super) fn bars(&self) -> usize {
        let first = self.first.unwrap_or_default();
        let bars = number(self.last, self.level).saturating_sub(number(first, self.level)) + 1;
        usize::try_from(bars).unwrap_or(BARS_MAX).min(BARS_MAX)
    }

    /// A round time between two labels, so that there are at most `most` of them.
    pub(super) fn label_step(&self, most: u64) -> Micros {
        let all = self.width().get().saturating_mul(self.bars() as u64);
        let steps = WIDTHS_MS[self.level..].iter().map(|ms| ms * 1_000);
        let step = steps.into_iter().find(|step| all / step < most);
        Micros::saturating(step.unwrap_or(all))
    }

    /// The first and the last time taken in.
    pub(super) fn span(&self) -> Option<(Micros, Micros)> {
        self.first.map(|first| (first, self.last))
    }
}

/// Counts by bar. It follows its axis when it is next added to or read. Only bars that have a count take room: most keys are
/// denied for a short while.
#[derive(Clone, Default, Debug)]
pub(super) struct Bars {
    level: usize,
    /// By bar, ascending.
    counts: Vec<(u16, u32)>,
}

impl Bars {
    pub(super) fn add(&mut self, axis: &Axis, bar: usize) {
        self.follow(axis);
        self.put(bar, 1);
    }

    /// Adds all counts of others on the same axis.
    pub(super) fn add_all(&mut self, axis: &Axis, mut others: Bars) {
        self.follow(axis);
        others.follow(axis);
        others.counts.into_iter().for_each(|(bar, count)| self.put(bar.into(), count));
    }

    /// The counts on the axis as it is now.
    pub(super) fn on(mut self, axis: &Axis) -> Vec<u32> {
        self.follow(axis);
        let mut all = vec![0; axis.bars()];
        for (bar, count) in self.counts {
            if let Some(slot) = all.get_mut(usize::from(bar)) {
                *slot = count;
            }
        }
        all
    }

    fn put(&mut self, bar: usize, count: u32) {
        let bar = u16::try_from(bar).unwrap_or(u16::MAX);
        let add = |slot: &mut (u16, u32)| slot.1 = slot.1.saturating_add(count);
        match self.counts.last_mut() {
            Some(last) if last.0 == bar => add(last),
            Some(last) if last.0 > bar => match self.counts.binary_search_by_key(&bar, |(bar, _)| *bar) {
                Ok(at) => add(&mut self.counts[at]),
                Err(at) => self.counts.insert(at, (bar, count)),
            },
            _ => self.counts.push((bar, count)),
        }
    }

    fn follow(&mut self, axis: &Axis) {
        if self.level == axis.level {
            return;
        }
        let factor = width(axis.level) / width(self.level);
        let first = number(axis.first.unwrap_or_default(), self.level);
        self.level = axis.level;
        for (bar, count) in std::mem::take(&mut self.counts) {
            let into = (first + u64::from(bar)) / factor - first / factor;
            self.put(usize::try_from(into).unwrap_or(0), count);
        }
    }
}

fn width(level: usize) -> u64 {
    WIDTHS_MS[level.min(WIDTHS_MS.len() - 1)] * 1_000
}

fn number(at: Micros, level: usize) -> u64 {
    at.get() / width(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_divides_the_next() {
        assert!(WIDTHS_MS.windows(2).all(|pair| pair[1] % pair[0] == 0 && pair[1] > pair[0]));
        assert!(number(Micros::MAX, WIDTHS_MS.len() - 1) < BARS_MAX as u64);
    }

    #[test]
    fn counts_are_kept_while_bars_grow_wider() {
        let (mut axis, mut bars) = (Axis::default(), Bars::default());
        let times: Vec<u64> = (0..5_000).map(|i| 1_700_000_000_000_000 + i * i * 977).collect();
        for us in &times {
            let bar = axis.bar(Micros::saturating(*us));
            bars.add(&axis, bar);
        }
        let counts = bars.on(&axis);
        assert_eq!(counts.iter().sum::<u32>(), 5_000);
        assert!((48..=BARS_MAX).contains(&counts.len()), "{}", counts.len());
        let width = axis.width().get();
        for (bar, count) in counts.iter().enumerate() {
            let start = axis.start().get() + bar as u64 * width;
            let expected = times.iter().filter(|us| (start..start + width).contains(*us)).count();
            assert_eq!(*count as usize, expected, "bar {bar}");
        }
    }

    #[test]
    fn any_time_finds_a_bar() {
        let mut axis = Axis::default();
        for us in [0, 1, 1 << 40, (1 << 52) - 1] {
            assert!(axis.bar(Micros::saturating(us)) < BARS_MAX);
        }
    }
}
