//! Asks the server once a second, and whenever the screen wants something else.

use super::figures::{KeyRow, Keys, Limiters, Listing, One, Seen};
use crate::client::http::{Failure, Server};
use crate::client::percent::encode;
use crate::human;
use serde::Deserialize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tidegate::Clock;

/// What the screen wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// This from now on.
    Look(Look),
    /// A change.
    Change(Change),
}

/// Whose keys, and in which listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Look {
    pub(super) limiter: String,
    pub(super) listing: Listing,
}

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) limiter: String,
    pub(super) key: KeyRow,
    pub(super) what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    Unblock,
    Override { limits: Vec<String>, span: Option<String> },
    Clear,
}

/// What there is to tell.
pub(super) enum News {
    Seen(Box<Seen>),
    /// A change was made.
    Done(String),
    /// It was not.
    Refused(String),
    /// The server could not be looked at.
    Lost(String),
}

const EVERY: Duration = Duration::from_secs(1);
/// Keys of a listing: more than a screen has lines, so that a filter finds some.
const MOST: usize = 100;

/// Asks until the screen is gone.
pub(super) fn run(server: &Server, clock: &Clock, asks: &Receiver<Ask>, news: &Sender<News>) {
    let mut look = None;
    loop {
        let changed = match asks.recv_timeout(EVERY) {
            Ok(Ask::Look(new)) => {
                look = Some(new);
                None
            }
            Ok(Ask::Change(change)) => Some(make(server, &change)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let changed = changed.map(|made| made.map_or_else(|failure| News::Refused(failure.message), News::Done));
        let seen = self::look(server, clock, look.as_ref());
        let seen = seen.map_or_else(|failure| News::Lost(failure.message), |seen| News::Seen(Box::new(seen)));
        if changed.into_iter().chain([seen]).any(|one| news.send(one).is_err()) {
            return;
        }
    }
}

/// One look at everything.
pub(super) fn look(server: &Server, clock: &Clock, look: Option<&Look>) -> Result<Seen, Failure> {
    let Limiters { limiters } = server.get("/v1/limiters")?.read()?;
    let known = look.filter(|look| limiters.iter().any(|limiter| limiter.name == look.limiter));
    let keys = known.map(|look| Keys {
        limiter: look.limiter.clone(),
        listing: look.listing,
        // A limiter that keeps no names, or whose store has no such listing, has the others all the same.
        rows: keys(server, clock, look).map_err(|failure| failure.message),
    });
    Ok(Seen { at: clock.now(), health: health(server), limiters, keys })
}

fn keys(server: &Server, clock: &Clock, Look { limiter, listing }: &Look) -> Result<Vec<KeyRow>, Failure> {
    #[derive(Deserialize)]
    struct Page {
        keys: Vec<One>,
    }
    #[derive(Deserialize)]
    struct Overrides {
        overrides: Vec<One>,
    }
    let of = format!("/v1/limiters/{}", encode(limiter.as_bytes()));
    let found = match listing {
        Listing::Overridden => server.get(&format!("{of}/keys?state=overridden"))?.read::<Overrides>()?.overrides,
        Listing::Busiest => server.get(&format!("{of}/top?by=hits&n={MOST}"))?.read::<Page>()?.keys,
        Listing::MostDenied => server.get(&format!("{of}/top?by=denials&n={MOST}"))?.read::<Page>()?.keys,
        Listing::Blocked => server.get(&format!("{of}/top?by=blocked&n={MOST}"))?.read::<Page>()?.keys,
    };
    Ok(found.into_iter().map(|one| one.row(*listing, clock.now(), encode)).collect())
}

/// What `/readyz` says, which needs no token.
fn health(server: &Server) -> String {
    #[derive(Deserialize)]
    struct Ready {
        status: String,
        #[serde(default)]
        reasons: Vec<String>,
    }
    match server.get("/readyz").and_then(|reply| reply.read::<Ready>()) {
        Ok(Ready { status, reasons }) if reasons.is_empty() => status,
        Ok(Ready { status, reasons }) => format!("{status}: {}", reasons.join("; ")),
        Err(failure) => failure.message,
    }
}

/// Makes a change, and says so.
fn make(server: &Server, Change { limiter, key, what }: &Change) -> Result<String, Failure> {
    let path = format!("/v1/limiters/{}/keys/{}", encode(limiter.as_bytes()), key.path);
    let of = format!("{limiter} {}", human::short_key(key.shown.as_bytes()));
    match what {
        What::Unblock => {
            let reply = server.delete(&format!("{path}/block"))?;
            let was = reply.body.contains("true");
            Ok(if was { format!("unblocked: {of}") } else { format!("not blocked: {of}; its history is forgotten") })
        }
        What::Clear => {
            let reply = server.delete(&format!("{path}/limits"))?;
            let was = reply.body.contains("true");
            Ok(if was { format!("cleared: {of}, the limiter's limits hold") } else { format!("no override: {of}") })
        }
        What::Override { limits, span } => {
            let mut body = serde_json::Map::from_iter([("limits".to_owned(), limits.clone().into())]);
            body.extend(span.iter().map(|span| ("for".to_owned(), span.clone().into())));
            server.put(&format!("{path}/limits"), serde_json::Value::Object(body).to_string())?;
            let until = span.as_ref().map_or("until it is cleared".to_owned(), |span| format!("for {span}"));
            Ok(format!("overridden: {of}, {}, {until}", limits.join(", ")))
        }
    }
}
