//! The Redis store: states live in Redis, and scripts decide there, with the core's arithmetic.
//!
//! One call a decision. The server's clock, read inside the script, is the authority. Every key has
//! an expiry, but for the flags of disabled limiters. `lua/` holds one file for each algorithm of the core;
//! `tests/redis_model.rs` compares the two number for number.

mod ask;
mod connection;
mod error;
mod foreign;
mod link;
mod names;
mod operate;
mod resp;
mod script;
mod sharded;
mod url;

pub use ask::{Answers, Asked, Layout, Question};
pub use error::{Meaning, StoreError};
pub use foreign::{Lua, Reply};
pub use url::{Kind, Url, UrlError};

use link::{Link, Login};

/// A Redis that is kept connected until this is dropped. Needs a running tokio runtime.
#[derive(Debug)]
pub struct Redis {
    url: Url,
    link: Link,
}

impl Redis {
    /// Connects, or goes on trying in the background: see [`Redis::down`].
    pub async fn open(url: Url) -> Redis {
        let address = url.addresses.first().cloned().unwrap_or_default();
        let link = Link::open(address, Login::of(&url)).await;
        Redis { url, link }
    }

    /// Where it is.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// False: do not ask it now, the answer would be an error. Costs next to nothing.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.link.answers()
    }

    /// Why it is not connected, if it is not.
    #[must_use]
    pub fn down(&self) -> Option<StoreError> {
        self.link.down()
    }

    /// True when keys of one request may live on different servers: scripts then get one key each,
    /// and tracked keys cannot be listed.
    fn is_sharded(&self) -> bool {
        self.url.kind == Kind::Twemproxy
    }
}
