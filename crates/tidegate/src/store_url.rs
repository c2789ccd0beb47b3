//! Where a store is that several processes share.

use crate::RedisUrl;
use std::fmt;

/// A store on other machines.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreUrl {
    /// A Redis.
    Redis(RedisUrl),
    /// An etcd.
    #[cfg(feature = "etcd")]
    Etcd(crate::EtcdUrl),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Redis(url) => url.fmt(f),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => url.fmt(f),
        }
    }
}
