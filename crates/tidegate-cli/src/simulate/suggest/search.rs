//! The smallest limit that affects no more than a share of the keys.
//!
//! Whether a key is affected is decided by the core, on that key's requests from fresh until its first denial. Until then
//! everything is charged, so that a key that a limit never denies is never denied by a larger one either: the number of
//! affected keys only falls as the count grows, and a bisection finds the smallest count.

use super::Share;
use super::traffic::{OfKey, Traffic};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tidegate::{Algorithm, Limit, Micros, Rules};
use tidegate_core::all_or_nothing::{Intent, Role, Room, Subject, decide};
use tidegate_core::buckets::Grid;

/// A limit, and what it would have done.
#[derive(Clone, PartialEq, Debug)]
pub(in super::super) struct Suggestion {
    pub(super) share: Share,
    pub(super) algorithm: Algorithm,
    pub(super) rules: Rules,
    /// Keys that would have been denied at least once.
    pub(super) keys_affected: u64,
    /// Requests that would have been denied.
    pub(super) requests_denied: u64,
}

impl Suggestion {
    pub(super) fn limit(&self) -> String {
        self.rules.limits().first().map(ToString::to_string).unwrap_or_default()
    }

    /// Its settings in a `[[limiter]]`.
    pub(super) fn toml(&self) -> String {
        let mut out = String::new();
        if self.algorithm != Algorithm::default() {
            out += &format!("algorithm = \"{}\"\n", self.algorithm.name());
        }
        if self.algorithm == Algorithm::Buckets {
            let grid = self.rules.grid();
            out += &format!("resolution = \"{}\"\nhistory = \"{}\"\n", grid.resolution(), grid.history());
        }
        out + &format!("limits = [\"{}\"]\n", self.limit())
    }
}

/// A suggestion for each algorithm and share, by share and then by algorithm; an algorithm that has no limit of this period that
/// fits is left out.
pub(super) fn suggest(
    traffic: &Traffic,
    algorithms: &[Algorithm],
    per: Micros,
    shares: &[Share],
    threads: usize,
) -> Vec<Suggestion> {
    let jobs: Vec<(Share, Algorithm)> =
        shares.iter().flat_map(|share| algorithms.iter().map(move |algorithm| (*share, *algorithm))).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; jobs.len()]));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((index, (share, algorithm))) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, *jobs.get(i)?)))
                {
                    let suggestion = smallest(traffic, algorithm, per, share);
                    if let Ok(mut found) = found.lock() {
                        found[index] = suggestion;
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_default().into_iter().flatten().collect()
}

fn smallest(traffic: &Traffic, algorithm: Algorithm, per: Micros, share: Share) -> Option<Suggestion> {
    let bearable = share.of(traffic.keys() as u64);
    let most = traffic.by_key().map(OfKey::cost).max()?;
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    // `most` affects nobody, as no key costs more in all.
    let (mut too_small, mut enough) = (0, most);
    while too_small + 1 < enough {
        let middle = too_small + (enough - too_small) / 2;
        // A count that the algorithm cannot hold is a large one, so the search goes on below it.
        let fits = rules(algorithm, middle, per).is_none_or(|rules| affected(traffic, &rules, bearable) <= bearable);
        if fits { enough = middle } else { too_small = middle }
    }
    let rules = rules(algorithm, enough, per)?;
    let (keys_affected, requests_denied) = counts(traffic, &rules);
    Some(Suggestion { share, algorithm, rules, keys_affected, requests_denied })
}

/// `count` per `per`; `None`: there is no such limit.
fn rules(algorithm: Algorithm, count: u32, per: Micros) -> Option<Rules> {
    let limit = Limit::new(count, per).ok()?;
    match algorithm {
        // A tenth of the period is fine enough, and needs few blocks.
        Algorithm::Buckets => {
            let resolution = Micros::saturating((per.get() / 10 / 1_000 * 1_000).max(1_000));
            Rules::buckets(Grid::new(resolution, per.saturating_add(resolution)).ok()?, &[limit]).ok()
        }
        other => Rules::new(other, &[limit]).ok(),
    }
}

/// How many keys would have been denied at least once; more than `enough` are not counted on.
fn affected(traffic: &Traffic, rules: &Rules, enough: u64) -> u64 {
    let mut keys = 0;
    for key in could_be_denied(traffic, rules) {
        keys += u64::from(denials(rules, key, Some(1)) > 0);
        if keys > enough {
            break;
        }
    }
    keys
}

/// Keys that would have been denied at least once, and requests.
fn counts(traffic: &Traffic, rules: &Rules) -> (u64, u64) {
    could_be_denied(traffic, rules)
        .map(|key| denials(rules, key, None))
        .fold((0, 0), |(keys, requests), denied| (keys + u64::from(denied > 0), requests + denied))
}

/// Keys that cost more in all than the limit lets pass at once: no other can be denied.
fn could_be_denied<'t>(traffic: &'t Traffic, rules: &Rules) -> impl Iterator<Item = OfKey<'t>> {
    let count = rules.limits().first().map_or(0, |limit| u64::from(limit.count()));
    traffic.by_key().filter(move |key| key.cost() > count)
}

/// How many of a key's requests are denied, up to `most`.
fn denials(rules: &Rules, key: OfKey<'_>, most: Option<u64>) -> u64 {
    let mut states = rules.fresh();
    let mut subject = Subject {
        rules,
        blocked_until: Micros::ZERO,
        states: &mut states,
        room: Room::Free,
        role: Role::Enforced,
        own: None,
    };
    let mut denied = 0;
    for (at, cost) in key.requests() {
        denied += u64::from(!decide(&mut subject, at, cost, Intent::Hit).is_allowed());
        if Some(denied) == most {
            break;
        }
    }
    denied
}
