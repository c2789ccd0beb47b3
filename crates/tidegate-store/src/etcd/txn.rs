//! Transactions: all conditions hold and one list of operations is done, or the other list is. One round trip.

use super::json::{integer, items};
use super::{Etcd, Json, LeaseId, StoreError};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::json;
use std::time::Duration;

/// If all of `when` hold then `then` is done, else `otherwise`; at once and as a whole.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Txn {
    /// What has to hold.
    pub when: Vec<Condition>,
    /// What is done if it does. No key may be written twice.
    pub then: Vec<Operation>,
    /// What is done if it does not.
    pub otherwise: Vec<Operation>,
}

/// What has to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The last change of the key was at this revision; 0: there is no such key.
    Revision {
        /// The key.
        key: Vec<u8>,
        /// The revision.
        is: i64,
    },
    /// No key that begins so has changed after this revision. Keys that were deleted since are not noticed.
    UnchangedSince {
        /// How the keys begin.
        prefix: Vec<u8>,
        /// The revision.
        revision: i64,
    },
}

/// What is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Writes a value, under a lease or for ever.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// With this lease it goes, too.
        lease: Option<LeaseId>,
    },
    /// Deletes a key, if it is there.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Reads a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Reads all keys that begin so.
    GetPrefix {
        /// How they begin.
        prefix: Vec<u8>,
    },
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// True: the conditions held.
    pub held: bool,
    /// The store's revision afterwards: that of what was written, if something was.
    pub revision: i64,
    /// What each operation found, in their order; nothing for those that do not read.
    pub found: Vec<Vec<Pair>>,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it was last changed.
    pub revision: i64,
}

/// Most conditions, and most operations of a list, that an etcd takes as it comes (`--max-txn-ops`).
pub const OPERATIONS_MAX: usize = 128;

impl Etcd {
    /// Does one list of operations or the other.
    ///
    /// # Errors
    /// When etcd cannot be reached, does not answer, or refuses. [`StoreError::is_ambiguous`]: it may have been
    /// done all the same; a transaction is never sent again when it may have been.
    pub async fn transact(&self, txn: &Txn, within: Duration) -> Result<Outcome, StoreError> {
        let reply = self.call("/v3/kv/txn", txn.to_json().to_string(), within).await?;
        let held = reply.get("succeeded") == Some(&Json::Bool(true));
        let asked = if held { &txn.then } else { &txn.otherwise };
        let revision = reply.get("header").and_then(|header| integer(header, "revision"));
        let revision = revision.ok_or_else(|| self.garbled("a reply without a revision"))?;
        let responses = items(&reply, "responses");
        if responses.len() != asked.len() {
            return Err(self.garbled("a reply with more or fewer answers than questions"));
        }
        let found = responses.iter().map(pairs).collect::<Option<_>>();
        Ok(Outcome { held, revision, found: found.ok_or_else(|| self.garbled("a reply with a broken key"))? })
    }
}

/// What a range found; nothing if the operation was another one. `None`: it is broken.
fn pairs(response: &Json) -> Option<Vec<Pair>> {
    let Some(range) = response.get("response_range") else { return Some(Vec::new()) };
    let pair = |pair: &Json| {
        let revision = integer(pair, "mod_revision")?;
        Some(Pair { key: bytes(pair, "key")?, value: bytes(pair, "value")?, revision })
    };
    items(range, "kvs").iter().map(pair).collect()
}

/// A member's bytes; the gateway leaves empty ones out. `None`: they are broken.
fn bytes(pair: &Json, name: &str) -> Option<Vec<u8>> {
    match pair.get(name) {
        Some(encoded) => BASE64_STANDARD.decode(encoded.as_str()?).ok(),
        None => Some(Vec::new()),
    }
}

impl Txn {
    fn to_json(&self) -> Json {
        let operations = |list: &[Operation]| list.iter().map(Operation::to_json).collect::<Json>();
        json!({
            "compare": self.when.iter().map(Condition::to_json).collect::<Json>(),
            "success": operations(&self.then),
            "failure": operations(&self.otherwise),
        })
    }
}

impl Condition {
    fn to_json(&self) -> Json {
        match self {
            Condition::Revision { key, is } => json!({
                "key": base64(key),
                "target": "MOD", "result": "EQUAL", "mod_revision": is.to_string(),
            }),
            Condition::UnchangedSince { prefix, revision } => json!({
                "key": base64(first(prefix)), "range_end": base64(&after(prefix)),
                "target": "MOD", "result": "LESS", "mod_revision": revision.saturating_add(1).to_string(),
            }),
        }
    }
}

impl Operation {
    fn to_json(&self) -> Json {
        match self {
            Operation::Put { key, value, lease } => {
                // Lease 0 is etcd's word for none.
                let LeaseId(id) = lease.unwrap_or(LeaseId(0));
                json!({ "request_put": { "key": base64(key), "value": base64(value), "lease": id.to_string() } })
            }
            Operation::Delete { key } => json!({ "request_delete_range": { "key": base64(key) } }),
            Operation::Get { key } => json!({ "request_range": { "key": base64(key) } }),
            Operation::GetPrefix { prefix } => {
                json!({ "request_range": { "key": base64(first(prefix)), "range_end": base64(&after(prefix)) } })
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The first key that begins so. etcd's words for the first and the last of all keys are both a zero byte.
fn first(prefix: &[u8]) -> &[u8] {
    if prefix.is_empty() { &[0] } else { prefix }
}

/// The first key after all that begin so.
fn after(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
    let mut end = prefix[..kept].to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        for (prefix, end) in [(&b"ab"[..], &b"ac"[..]), (b"a\xff\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")] {
            assert_eq!(after(prefix), end);
        }
    }

    #[test]
    fn as_the_gateway_reads_it() {
        let txn = Txn {
            when: vec![
                Condition::Revision { key: b"a".to_vec(), is: 0 },
                Condition::UnchangedSince { prefix: b"b".to_vec(), revision: 7 },
            ],
            then: vec![Operation::Put { key: b"a".to_vec(), value: b"1".to_vec(), lease: Some(LeaseId(9)) }],
            otherwise: vec![Operation::GetPrefix { prefix: Vec::new() }, Operation::Delete { key: b"a".to_vec() }],
        };
        let expected = json!({
            "compare": [
                { "key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "0" },
                { "key": "Yg==", "range_end": "Yw==", "target": "MOD", "result": "LESS", "mod_revision": "8" },
            ],
            "success": [{ "request_put": { "key": "YQ==", "value": "MQ==", "lease": "9" } }],
            "failure": [
                { "request_range": { "key": "AA==", "range_end": "AA==" } },
                { "request_delete_range": { "key": "YQ==" } },
            ],
        });
        assert_eq!(txn.to_json(), expected);
    }

    #[test]
    fn s1_broken_pairs_are_told_from_none() {
        let check = |kvs: Json, expected: Option<usize>| {
            let found = pairs(&json!({ "response_range": { "kvs": kvs } }));
            assert_eq!(found.map(|pairs| pairs.len()), expected, "{kvs}");
        };
        check(json!([]), Some(0));
        check(json!([{ "key": "YQ==", "mod_revision": "3" }]), Some(1));
        for broken in ["Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9*", "Zm 9", "Zh==", "Zm9="] {
            check(json!([{ "key": broken, "mod_revision": "3" }]), None);
        }
        check(json!([{ "key": 7, "mod_revision": "3" }]), None);
        check(json!([{ "key": "YQ==" }]), None);
        assert_eq!(pairs(&json!({ "response_put": {} })), Some(Vec::new()));
    }
}
