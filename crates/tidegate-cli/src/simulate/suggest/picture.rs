//! How keys are distributed: by the most requests that each made within one period.

use super::traffic::{OfKey, Traffic};
use tidegate::Micros;

/// The distribution over all keys.
pub(super) struct Picture {
    /// From, to and how many keys: ranges double from one to the next.
    pub(super) ranges: Vec<(u64, u64, u64)>,
    /// Half of the keys, 90 %, 99 % and 99.9 % of them have no more than this.
    pub(super) quantiles: [(&'static str, u64); 4],
    pub(super) most: u64,
}

impl Picture {
    pub(super) fn of(traffic: &Traffic, per: Micros) -> Picture {
        let mut peaks: Vec<u64> = traffic.by_key().map(|key| peak(key, per)).collect();
        peaks.sort_unstable();
        let most = peaks.last().copied().unwrap_or(0);
        let mut ranges = Vec::new();
        let mut to = 1;
        let mut below = 0;
        loop {
            let upto = peaks.partition_point(|peak| *peak <= to);
            let from = if to == 1 { 1 } else { to / 2 + 1 };
            ranges.push((from, to, (upto - below) as u64));
            below = upto;
            if to >= most {
                break;
            }
            to *= 2;
        }
        let quantile = |thousandths: usize| {
            let index = (peaks.len() * thousandths).div_ceil(1_000).saturating_sub(1);
            peaks.get(index).copied().unwrap_or(0)
        };
        let quantiles =
            [("half", quantile(500)), ("90 %", quantile(900)), ("99 %", quantile(990)), ("99.9 %", quantile(999))];
        Picture { ranges, quantiles, most }
    }

    /// The count of the fullest range.
    pub(super) fn fullest(&self) -> u64 {
        self.ranges.iter().map(|(.., keys)| *keys).max().unwrap_or(0).max(1)
    }
}

/// The most that a key's requests cost within any period: half-open, as windows are.
fn peak(key: OfKey<'_>, per: Micros) -> u64 {
    let (mut most, mut sum) = (0, 0);
    let mut first = key.requests();
    let mut oldest = first.next();
    for (at, cost) in key.requests() {
        sum += u64::from(cost);
        while let Some((old, cost)) = oldest.filter(|(old, _)| old.saturating_add(per) <= at) {
            debug_assert!(old <= at, "requests of a key are in order");
            sum -= u64::from(cost);
            oldest = first.next();
        }
        most = most.max(sum);
    }
    most
}

/// `1`, `3 – 4`.
pub(super) fn range(from: u64, to: u64) -> String {
    let count = crate::human::count;
    if from == to { count(to) } else { format!("{} – {}", count(from), count(to)) }
}
