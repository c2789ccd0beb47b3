//! What each error reply of Redis means: one table.

use crate::remote::Meaning;

/// What to do about a connection that answered so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// It is good for other requests.
    Keep,
    /// It leads to a server that is of no use: find another.
    Reconnect,
}

/// One row for each error reply: how it starts, what it means, what becomes of the connection.
pub(crate) const REPLIES: [(&str, Meaning, Then); 25] = [
    ("NOSCRIPT", Meaning::NoScript, Then::Keep),
    ("READONLY", Meaning::ReadOnly, Then::Reconnect),
    ("LOADING", Meaning::Loading, Then::Keep),
    ("OOM", Meaning::OutOfMemory, Then::Keep),
    ("NOAUTH", Meaning::NoAuth, Then::Reconnect),
    ("WRONGPASS", Meaning::WrongPassword, Then::Reconnect),
    ("ERR invalid password", Meaning::WrongPassword, Then::Reconnect),
    ("NOPERM", Meaning::NoPermission, Then::Keep),
    ("ERR The user executing the script", Meaning::NoPermission, Then::Keep),
    ("MISCONF", Meaning::CannotSave, Then::Keep),
    ("NOREPLICAS", Meaning::NoReplicas, Then::Keep),
    ("MASTERDOWN", Meaning::MasterDown, Then::Reconnect),
    ("BUSY ", Meaning::Busy, Then::Keep),
    ("MOVED", Meaning::Moved, Then::Keep),
    ("ASK", Meaning::Ask, Then::Keep),
    ("TRYAGAIN", Meaning::TryAgain, Then::Keep),
    ("CLUSTERDOWN", Meaning::ClusterDown, Then::Keep),
    ("CROSSSLOT", Meaning::CrossSlot, Then::Keep),
    ("WRONGTYPE", Meaning::WrongType, Then::Keep),
    ("ERR Connection refused", Meaning::ShardDown, Then::Keep),
    ("ERR Connection timed out", Meaning::ShardDown, Then::Keep),
    ("ERR Connection reset by peer", Meaning::ShardDown, Then::Keep),
    ("ERR max number of clients", Meaning::TooManyClients, Then::Reconnect),
    ("ERR DB index", Meaning::NoDatabase, Then::Reconnect),
    ("ERR Proxy", Meaning::Other, Then::Reconnect),
];

/// What this error reply means, and what becomes of the connection.
pub(crate) fn meaning_of(text: &str) -> (Meaning, Then) {
    // An error inside a script is wrapped in one of the script's: what it says is in the middle.
    let row = REPLIES.iter().find(|(start, ..)| text.starts_with(start)).or_else(|| {
        let inner = |start: &str| text.contains(&format!("-{start}")) || text.contains(&format!(": {start}"));
        REPLIES.iter().find(|(start, ..)| text.starts_with("ERR ") && inner(start))
    });
    row.map_or((Meaning::Other, Then::Keep), |(_, meaning, then)| (*meaning, *then))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f3_every_reply_has_its_meaning() {
        for (start, meaning, then) in REPLIES {
            assert_eq!(meaning_of(&format!("{start} and more")), (meaning, then));
        }
        let wrapped = "ERR user_script:9: -OOM command not allowed when used memory > 'maxmemory'. script: 1, on x";
        assert_eq!(meaning_of(wrapped).0, Meaning::OutOfMemory);
        assert_eq!(meaning_of("ERR whatever"), (Meaning::Other, Then::Keep));
    }

    /// The guide's table and this one cannot disagree.
    #[test]
    fn f3_the_guide_has_a_row_for_every_reply() {
        let guide = include_str!("../../../../docs/guide/when-the-store-fails.md");
        let row = |start: &str, meaning: Meaning, then: Then| {
            let connection = if then == Then::Keep { "kept" } else { "made anew" };
            format!("| {start} | `{}` | {} | {connection} |", meaning.label(), meaning.remedy())
        };
        let rows = REPLIES.iter().map(|(start, meaning, then)| row(&format!("`{}`", start.trim()), *meaning, *then));
        let expected: Vec<String> = rows.chain([row("any other", Meaning::Other, Then::Keep)]).collect();
        let table = guide.split("## Every error reply").nth(1).unwrap_or_default();
        let found: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        assert_eq!(found, expected, "docs/guide/when-the-store-fails.md");
    }
}
