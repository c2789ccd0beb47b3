//! The register's text in a store: read, and written only over what was read.

use crate::{StoreError, StoreUrl};
use std::time::Duration;
#[cfg(feature = "etcd")]
use tidegate_store::etcd::{Broom, Condition, Etcd, Meaning, Operation, Txn};
use tidegate_store::redis::Redis;

/// One key of a store.
pub(super) enum Register {
    Redis {
        redis: Redis,
        key: Vec<u8>,
        expiry: Duration,
    },
    #[cfg(feature = "etcd")]
    Etcd(InEtcd),
}

/// A key in etcd, which is written over by its revision.
#[cfg(feature = "etcd")]
pub(super) struct InEtcd {
    etcd: Etcd,
    key: Vec<u8>,
    /// When the text that was last seen was written; 0: there was none.
    revision: i64,
    broom: Broom,
}

impl Register {
    /// The register of the limit with this name, whose windows have so many microseconds: windows of another length
    /// are other windows. What is written stays for `expiry` at least, which is only to clean up.
    pub(super) async fn open(url: StoreUrl, name: &str, period_us: u64, expiry: Duration) -> Register {
        match url {
            StoreUrl::Redis(url) => {
                let key = format!("tidegate:share:{name}:{period_us}").into_bytes();
                Register::Redis { redis: Redis::open(url).await, key, expiry }
            }
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => {
                let key = format!("tidegate/share/{name}/{period_us}").into_bytes();
                Register::Etcd(InEtcd { etcd: Etcd::open(url).await, key, revision: 0, broom: Broom::new(expiry) })
            }
        }
    }

    /// Writes `new` over `expected`, which was seen last (empty: nothing), and returns what is there afterwards.
    pub(super) async fn swap(&mut self, expected: &str, new: &str, within: Duration) -> Result<String, StoreError> {
        match self {
            Register::Redis { redis, key, expiry } => redis.swap(key, expected, new, *expiry, within).await,
            #[cfg(feature = "etcd")]
            Register::Etcd(register) => register.swap(new, within).await,
        }
    }
}

#[cfg(feature = "etcd")]
impl InEtcd {
    async fn swap(&mut self, new: &str, within: Duration) -> Result<String, StoreError> {
        let lease = Some(self.broom.lease(&self.etcd, within).await?);
        let key = self.key.clone();
        let txn = Txn {
            when: vec![Condition::Revision { key: key.clone(), is: self.revision }],
            then: vec![Operation::Put { key: key.clone(), value: new.as_bytes().to_vec(), lease }],
            otherwise: vec![Operation::Get { key }],
        };
        let outcome = self.etcd.transact(&txn, within).await.inspect_err(|error| {
            // This process was paused for longer than its lease.
            if matches!(error, StoreError::Refused { meaning: Meaning::NoLease, .. }) {
                self.broom.forget();
            }
        })?;
        if outcome.held {
            self.revision = outcome.revision;
            return Ok(new.to_owned());
        }
        let there = outcome.found.into_iter().flatten().next();
        self.revision = there.as_ref().map_or(0, |pair| pair.revision);
        let text = there.map_or(Ok(String::new()), |pair| String::from_utf8(pair.value));
        text.map_err(|_| StoreError::Garbled {
            address: self.etcd.url().to_string(),
            why: "no text, in the register of the replicas".to_owned(),
        })
    }
}
