//! A register in etcd: one key, written over by the revision that was read.

use super::lease_pool::LeasePool;
use super::{Condition, Etcd, Meaning, Operation, StoreError, Txn, locked};
use crate::store::Swap;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The registers of this process, by key: the text that was seen last, and when it was written; 0: there was none.
#[derive(Default, Debug)]
pub(super) struct Registers {
    seen: Mutex<HashMap<Vec<u8>, (String, i64)>>,
    leases: LeasePool,
}

impl Registers {
    /// Writes `new` over `expected`, and returns what is there afterwards.
    pub(super) async fn swap(
        &self,
        etcd: &Etcd,
        key: Vec<u8>,
        Swap { expected, new, expiry }: Swap<'_>,
        within: Duration,
    ) -> Result<String, StoreError> {
        let lease = Some(self.leases.lease(etcd, expiry, 1, Instant::now() + within).await?);
        let is = self.revision(&key, expected);
        let txn = Txn {
            when: vec![Condition::Revision { key: key.clone(), is }],
            then: vec![Operation::Put { key: key.clone(), value: new.as_bytes().to_vec(), lease }],
            otherwise: vec![Operation::Get { key: key.clone() }],
        };
        let outcome = etcd.transact(&txn, within).await.inspect_err(|error| {
            // This process was paused for longer than its lease.
            if matches!(error, StoreError::Refused { meaning: Meaning::NoLease, .. }) {
                self.leases.forget();
            }
        })?;
        if outcome.held {
            locked(&self.seen).insert(key, (new.to_owned(), outcome.revision));
            return Ok(new.to_owned());
        }
        let (text, revision) = match outcome.found.into_iter().flatten().next() {
            Some(pair) => (String::from_utf8(pair.value), pair.revision),
            None => (Ok(String::new()), 0),
        };
        let text = text.map_err(|_| etcd.senseless("no text, in the register of the replicas"))?;
        locked(&self.seen).insert(key, (text.clone(), revision));
        Ok(text)
    }

    /// When the expected text was written. A text that was not the last one seen has a revision that no key has: what is
    /// there is read then.
    fn revision(&self, key: &[u8], expected: &str) -> i64 {
        match locked(&self.seen).get(key) {
            Some((text, revision)) if text == expected => *revision,
            None if expected.is_empty() => 0,
            _ => -1,
        }
    }
}
