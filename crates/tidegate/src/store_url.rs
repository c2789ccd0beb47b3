//! Where a store is that several processes share.

use crate::{RedisUrl, UrlError};
use std::fmt;
use std::str::FromStr;

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

impl From<RedisUrl> for StoreUrl {
    fn from(url: RedisUrl) -> StoreUrl {
        StoreUrl::Redis(url)
    }
}

#[cfg(feature = "etcd")]
impl From<crate::EtcdUrl> for StoreUrl {
    fn from(url: crate::EtcdUrl) -> StoreUrl {
        StoreUrl::Etcd(url)
    }
}

/// `redis://…` and its kin, or the endpoints of an etcd with commas between them.
impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<StoreUrl, UrlError> {
        #[cfg(feature = "etcd")]
        if text.starts_with("http") {
            return text.parse().map(StoreUrl::Etcd);
        }
        text.parse().map(StoreUrl::Redis)
    }
}
