//! Transactions: all conditions hold and one list of operations is done, or the other list is. One round trip.

use super::{Etcd, Json, LeaseId, StoreError};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::fmt::Write as _;
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
        let reply = self.call("/v3/kv/txn", txn.to_json(), within).await?;
        let held = reply.get("succeeded") == Some(&Json::Bool(true));
        let asked = if held { &txn.then } else { &txn.otherwise };
        let revision = reply.get("header").and_then(|header| header.get("revision")).and_then(Json::integer);
        let revision = revision.ok_or_else(|| self.garbled("a reply without a revision"))?;
        let said = reply.get("responses").map(Json::items).unwrap_or_default();
        if said.len() != asked.len() {
            return Err(self.garbled("a reply with more or fewer answers than questions"));
        }
        let found = said.iter().map(pairs).collect::<Option<_>>();
        Ok(Outcome { held, revision, found: found.ok_or_else(|| self.garbled("a reply with a broken key"))? })
    }
}

/// What a range found; nothing if the operation was another one.
fn pairs(said: &Json) -> Option<Vec<Pair>> {
    let found = said.get("response_range").and_then(|range| range.get("kvs")).map(Json::items).unwrap_or_default();
    let bytes = |pair: &Json, name: &str| match pair.get(name) {
        Some(text) => BASE64_STANDARD.decode(text.text()?).ok(),
        None => Some(Vec::new()),
    };
    let pair = |pair: &Json| {
        let revision = pair.get("mod_revision")?.integer()?;
        Some(Pair { key: bytes(pair, "key")?, value: bytes(pair, "value")?, revision })
    };
    found.iter().map(pair).collect()
}

impl Txn {
    fn to_json(&self) -> String {
        let mut text = "{\"compare\":[".to_owned();
        separated(&mut text, &self.when, Condition::push);
        text.push_str("],\"success\":[");
        separated(&mut text, &self.then, Operation::push);
        text.push_str("],\"failure\":[");
        separated(&mut text, &self.otherwise, Operation::push);
        text.push_str("]}");
        text
    }
}

fn separated<T>(text: &mut String, items: &[T], push: impl Fn(&T, &mut String)) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        push(item, text);
    }
}

impl Condition {
    fn push(&self, text: &mut String) {
        let (result, bound) = match self {
            Condition::Revision { key, is } => {
                text.push('{');
                push_bytes("key", key, text);
                ("EQUAL", *is)
            }
            Condition::UnchangedSince { prefix, revision } => {
                text.push('{');
                push_prefix(prefix, text);
                ("LESS", revision.saturating_add(1))
            }
        };
        let _ = write!(text, ",\"target\":\"MOD\",\"result\":\"{result}\",\"mod_revision\":\"{bound}\"}}");
    }
}

impl Operation {
    fn push(&self, text: &mut String) {
        match self {
            Operation::Put { key, value, lease } => {
                text.push_str("{\"request_put\":{");
                push_bytes("key", key, text);
                text.push(',');
                push_bytes("value", value, text);
                if let Some(LeaseId(id)) = lease {
                    let _ = write!(text, ",\"lease\":\"{id}\"");
                }
            }
            Operation::Delete { key } => {
                text.push_str("{\"request_delete_range\":{");
                push_bytes("key", key, text);
            }
            Operation::Get { key } => {
                text.push_str("{\"request_range\":{");
                push_bytes("key", key, text);
            }
            Operation::GetPrefix { prefix } => {
                text.push_str("{\"request_range\":{");
                push_prefix(prefix, text);
            }
        }
        text.push_str("}}");
    }
}

fn push_bytes(name: &str, bytes: &[u8], text: &mut String) {
    let _ = write!(text, "\"{name}\":\"");
    BASE64_STANDARD.encode_string(bytes, text);
    text.push('"');
}

/// All keys that begin so, as etcd has it: from the prefix to the first key after all of them.
fn push_prefix(prefix: &[u8], text: &mut String) {
    // etcd's words for the first and the last of all keys are both a zero byte.
    push_bytes("key", if prefix.is_empty() { &[0] } else { prefix }, text);
    text.push(',');
    push_bytes("range_end", &after(prefix), text);
}

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
        let expected = "{\"compare\":[{\"key\":\"YQ==\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"0\"},\
             {\"key\":\"Yg==\",\"range_end\":\"Yw==\",\"target\":\"MOD\",\"result\":\"LESS\",\"mod_revision\":\"8\"}],\
             \"success\":[{\"request_put\":{\"key\":\"YQ==\",\"value\":\"MQ==\",\"lease\":\"9\"}}],\
             \"failure\":[{\"request_range\":{\"key\":\"AA==\",\"range_end\":\"AA==\"}},\
             {\"request_delete_range\":{\"key\":\"YQ==\"}}]}";
        assert_eq!(txn.to_json(), expected);
    }
}
