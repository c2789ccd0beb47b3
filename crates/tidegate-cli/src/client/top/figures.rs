//! What the server tells, as far as it is shown.

use crate::client::show::instant;
use crate::human;
use serde::Deserialize;
use tidegate::Micros;

/// What is listed of a limiter's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listing {
    Busiest,
    MostDenied,
    Blocked,
    Overridden,
}

impl Listing {
    pub(super) const ALL: [Listing; 4] = [Listing::Busiest, Listing::MostDenied, Listing::Blocked, Listing::Overridden];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Listing::Busiest => "busiest",
            Listing::MostDenied => "most denied",
            Listing::Blocked => "blocked",
            Listing::Overridden => "overridden",
        }
    }

    /// Heads of the columns behind the key.
    pub(super) const fn heads(self) -> &'static [&'static str] {
        match self {
            Listing::Busiest => &["HITS", "ERROR ≤"],
            Listing::MostDenied => &["DENIALS", "ERROR ≤"],
            Listing::Blocked => &["FOR ANOTHER"],
            Listing::Overridden => &["LIMITS", "UNTIL", "WHY"],
        }
    }

    /// The next of them.
    pub(super) fn next(self) -> Listing {
        let place = Listing::ALL.iter().position(|one| *one == self).map_or(0, |place| place + 1);
        Listing::ALL[place % Listing::ALL.len()]
    }
}

/// Everything that one look found.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Micros,
    pub(super) limiters: Vec<Limiter>,
    /// `ok`, or what is wrong.
    pub(super) health: String,
    pub(super) keys: Option<Keys>,
}

/// The keys of one limiter, as they were asked for.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) limiter: String,
    pub(super) listing: Listing,
    /// Or why there are none.
    pub(super) rows: Result<Vec<KeyRow>, String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyRow {
    /// For people; it cannot steer a terminal.
    pub(super) shown: String,
    /// As a path has it.
    pub(super) path: String,
    /// What the listing is ordered by.
    pub(super) figure: u64,
    /// Under the listing's heads.
    pub(super) cells: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Limiters {
    pub(super) limiters: Vec<Limiter>,
}

#[derive(Deserialize, Clone, Debug)]
pub(super) struct Limiter {
    pub(super) name: String,
    pub(super) enabled: bool,
    pub(super) limits: Vec<String>,
    pub(super) role: String,
    pub(super) entries: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) counts: Counts,
    pub(super) candidate: Option<Candidate>,
}

#[derive(Deserialize, Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

#[derive(Deserialize, Clone, Debug)]
pub(super) struct Candidate {
    pub(super) counts: Counts,
}

/// One key of any listing.
#[derive(Deserialize)]
pub(super) struct One {
    #[serde(default)]
    key: String,
    #[serde(default)]
    binary_key: String,
    #[serde(default)]
    count: u64,
    #[serde(default)]
    error: u64,
    blocked_until: Option<f64>,
    #[serde(default)]
    limits: Vec<String>,
    until: Option<serde_json::Number>,
    reason: Option<String>,
}

impl One {
    /// Its row in a listing at `now`.
    pub(super) fn row(self, listing: Listing, now: Micros, encode: impl Fn(&[u8]) -> String) -> KeyRow {
        let (shown, path) = match self.key.is_empty() {
            true => (self.binary_key.clone(), self.binary_key),
            false => (human::key(self.key.as_bytes()), encode(self.key.as_bytes())),
        };
        let left_ms = self.blocked_until.map_or(0, |until| ms_between(now, until));
        let (figure, cells) = match listing {
            Listing::Busiest | Listing::MostDenied => {
                (self.count, vec![human::count(self.count), human::count(self.error)])
            }
            Listing::Blocked => (left_ms, vec![human::duration_ms(left_ms)]),
            Listing::Overridden => {
                let until = self.until.as_ref().map_or("cleared".to_owned(), instant);
                let why = human::key(self.reason.unwrap_or_default().as_bytes());
                (0, vec![self.limits.join(", "), until, why])
            }
        };
        KeyRow { shown, path, figure, cells }
    }
}

/// From now until a time in seconds; 0 if it has passed.
fn ms_between(now: Micros, until_s: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is cast is kept within bounds"
    )]
    let until_ms = (until_s * 1e3).max(0.0) as u64;
    until_ms.saturating_sub(now.get() / 1_000)
}
