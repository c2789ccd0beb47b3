//! What each error reply of etcd means: one table.

use super::json::{Json, integer, text};
use crate::remote::{Meaning, StoreError};

/// What follows from an error reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Nothing was changed, and another member may do better: it is asked.
    AskAnother,
    /// Nothing was changed; it is asked again with a new token, once.
    LogIn,
    /// Nothing was changed, and asking again would not help: the caller gets the error.
    Tell,
    /// It may have been changed: the caller gets an ambiguous error, and nothing is asked again.
    Unsure,
}

/// One row for each error reply: how it starts, what it means, what follows. The first that fits counts.
pub(crate) const REPLIES: [(&str, Meaning, Then); 16] = [
    ("etcdserver: no leader", Meaning::NoLeader, Then::AskAnother),
    ("etcdserver: leader changed", Meaning::NoLeader, Then::AskAnother),
    ("etcdserver: rpc not supported for learner", Meaning::Learner, Then::AskAnother),
    ("etcdserver: request timed out", Meaning::TimedOut, Then::Unsure),
    ("etcdserver: server stopped", Meaning::Stopping, Then::Unsure),
    ("etcdserver: too many requests", Meaning::Overloaded, Then::Tell),
    ("etcdserver: mvcc: database space exceeded", Meaning::NoSpace, Then::Tell),
    ("etcdserver: requested lease not found", Meaning::NoLease, Then::Tell),
    ("etcdserver: request is too large", Meaning::TooLarge, Then::Tell),
    ("etcdserver: too many operations in txn request", Meaning::TooLarge, Then::Tell),
    ("etcdserver: invalid auth token", Meaning::BadToken, Then::LogIn),
    ("etcdserver: revision of auth store is old", Meaning::BadToken, Then::LogIn),
    ("etcdserver: user name is empty", Meaning::NoAuth, Then::LogIn),
    ("etcdserver: authentication failed", Meaning::WrongPassword, Then::Tell),
    ("etcdserver: authentication is not enabled", Meaning::AuthOff, Then::Tell),
    ("etcdserver: permission denied", Meaning::NoRole, Then::Tell),
];

/// The codes of gRPC by which a server says that it has refused, and not that it got stuck.
const REFUSALS: [i64; 8] = [3, 5, 6, 7, 8, 9, 12, 16];

/// What a reply other than "200 OK" means, or one in the midst of a stream.
pub(crate) fn understood(address: &str, reply: &Json) -> (StoreError, Then) {
    let error = reply.get("error").filter(|error| error.is_object()).unwrap_or(reply);
    let Some(text) = ["message", "error"].iter().find_map(|name| text(error, name)) else {
        return (garbled(address, "an error without a text"), Then::Unsure);
    };
    let code = ["code", "grpc_code"].iter().find_map(|name| integer(error, name));
    let row = REPLIES.iter().find(|(start, ..)| text.starts_with(start)).map(|(_, meaning, then)| (*meaning, *then));
    let (meaning, then) = row.unwrap_or_else(|| match code {
        Some(code) if REFUSALS.contains(&code) => (Meaning::Other, Then::Tell),
        _ => (Meaning::Other, Then::Unsure),
    });
    let (address, text) = (address.to_owned(), text.to_owned());
    match then {
        Then::Unsure => {
            (StoreError::Ambiguous { address, why: format!("it said: {text}; {}", meaning.remedy()) }, then)
        }
        _ => (StoreError::Refused { address, meaning, text }, then),
    }
}

/// What came is no reply of etcd.
pub(crate) fn garbled(address: &str, why: &str) -> StoreError {
    StoreError::Garbled { address: address.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reply(text: &str, code: i64) -> Json {
        json!({ "error": text, "message": text, "code": code })
    }

    #[test]
    fn f3_every_reply_has_its_meaning() {
        for (start, meaning, then) in REPLIES {
            let (error, follows) = understood("a:1", &reply(&format!("{start} and more"), 14));
            assert_eq!(follows, then);
            match error {
                StoreError::Refused { meaning: found, .. } => assert_eq!(found, meaning),
                error => assert!(error.is_ambiguous() && then == Then::Unsure, "{error}"),
            }
        }
        assert_eq!(understood("a:1", &reply("etcdserver: something new", 9)).1, Then::Tell);
        assert!(understood("a:1", &reply("transport is closing", 14)).0.is_ambiguous());
        assert!(understood("a:1", &Json::Null).0.is_ambiguous());
    }

    #[test]
    fn an_error_in_the_midst_of_a_stream() {
        let reply = json!({ "error": { "grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader" } });
        assert_eq!(understood("a:1", &reply).1, Then::AskAnother);
    }

    /// The guide's table and this one cannot disagree.
    #[test]
    fn f3_the_guide_has_a_row_for_every_reply() {
        let guide = include_str!("../../../../docs/guide/etcd.md");
        let row = |start: &str, meaning: Meaning, then: Then| {
            let follows = match then {
                Then::AskAnother => "another member is asked",
                Then::LogIn => "logs in and asks again, once",
                Then::Tell => "nothing was counted",
                Then::Unsure => "may have been counted; not asked again",
            };
            format!("| {start} | {} | {follows} |", meaning.remedy())
        };
        let rows = REPLIES.iter().map(|(start, meaning, then)| row(&format!("`{start}`"), *meaning, *then));
        let expected: Vec<String> = rows.collect();
        let table = guide.split("## Every error reply").nth(1).unwrap_or_default();
        let found: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        assert_eq!(found, expected, "docs/guide/etcd.md");
    }
}
