//! This process's part of a limiter's rules, by which it decides while the store does not answer.

use tidegate_core::{Limit, Rules};

/// This process's part of the rules, rounded down. A limit that gets less than one passes nothing.
pub(super) fn share_of(rules: &Rules, share: f64) -> Rules {
    if share >= 1.0 {
        return rules.clone();
    }
    let limits: Vec<Limit> = rules.limits().iter().map(|limit| limit_share(limit, share)).collect();
    let made = match rules.algorithm() {
        _ if rules.is_per_call() => Rules::per_call(limits[0]),
        tidegate_core::Algorithm::Buckets => Rules::buckets_of_pause(*rules.grid(), &limits),
        other => Rules::new(other, &limits),
    };
    // What cannot be counted in whole ticks passes nothing rather than too much.
    made.unwrap_or_else(|_| share_of(rules, 0.0))
}

fn limit_share(limit: &Limit, share: f64) -> Limit {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
    let part = |count: u32| (f64::from(count) * share.max(0.0)).floor() as u32;
    let blocked = |made: Limit| limit.block().map_or(Ok(made), |block| made.with_block(block)).unwrap_or(made);
    // The largest count that a token bucket can hold exactly, near below.
    let counts = (0..=COARSER_MAX).map(|less| part(limit.count()).saturating_sub(less));
    let made = counts.filter_map(|count| {
        let made = Limit::new(count, limit.period()).ok()?;
        match (limit.has_burst(), part(limit.burst())) {
            (true, burst @ 1..) if count > 0 => made.with_burst(burst).ok(),
            (true, _) => Limit::new(0, limit.period()).ok(),
            (false, _) => Some(made),
        }
    });
    let fits = |made: &Limit| Rules::new(tidegate_core::Algorithm::TokenBucket, &[*made]).is_ok();
    let never = || Limit::new(0, limit.period()).expect("the limit has this period already");
    blocked(made.clone().find(fits).unwrap_or_else(never)).with_weeks_of(limit)
}

/// How much less than its share a limit may get so that it can be counted exactly.
const COARSER_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::share_of;
    use tidegate_core::{Algorithm, Limit, Rules};

    #[track_caller]
    fn check(limit: &str, share: f64, count: u32, burst: u32) {
        let limit: Limit = limit.parse().unwrap();
        let part = share_of(&Rules::new(Algorithm::TokenBucket, &[limit]).unwrap(), share);
        assert_eq!((part.limits()[0].count(), part.limits()[0].burst()), (count, burst), "{limit}");
    }

    #[test]
    fn shares_are_rounded_down_and_never_more_than_asked_for() {
        check("10 per minute", 1.0, 10, 10);
        check("10 per minute", 0.5, 5, 5);
        check("3 per minute", 0.5, 1, 1);
        check("1 per minute", 0.5, 0, 0);
        check("20 per minute burst 40 block 1h", 0.25, 5, 10);
        check("10 per minute", 0.0, 0, 0);
        // So fine that few counts near it can be held in whole ticks: the next that can, or none at all.
        check("4294400000 per 366d", 0.5, 2_147_200_000, 2_147_200_000);
        let fine: Limit = "4294400000 per 366d".parse().unwrap();
        let rules = Rules::new(Algorithm::TokenBucket, &[fine]).unwrap();
        for part in 1..100 {
            let share = f64::from(part) / 100.0;
            let count = share_of(&rules, share).limits()[0].count();
            assert!(f64::from(count) <= 4_294_400_000.0 * share, "{share}: {count}");
        }
    }
}
