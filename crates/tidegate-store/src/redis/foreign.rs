//! Scripts and commands of other crates, over the same connection.

use super::resp::Writer;
use super::script::Script;
use super::{Redis, StoreError};
use std::time::Duration;
use tokio::time::Instant;

pub use super::resp::Reply;

/// A script that is called by its name once a server knows it.
#[derive(Debug)]
pub struct Lua(Script);

impl Lua {
    /// The script of this text.
    #[must_use]
    pub fn new(source: &str) -> Lua {
        Lua(Script::new(&[source]))
    }
}

impl Redis {
    /// Runs a script. One round trip, two when the server does not know it yet.
    ///
    /// # Errors
    /// When the server cannot be reached, does not answer, or refuses.
    pub async fn eval(
        &self,
        lua: &Lua,
        keys: &[Vec<u8>],
        arguments: &[&[u8]],
        within: Duration,
    ) -> Result<Reply, StoreError> {
        let write = |writer: &mut Writer<'_>| arguments.iter().for_each(|part| writer.part(part));
        self.run(Instant::now() + within, &lua.0, keys, arguments.len(), write).await
    }

    /// Sends one command to where a key is.
    ///
    /// # Errors
    /// When the server cannot be reached, does not answer, or refuses.
    pub async fn command(&self, key: &[u8], parts: &[&[u8]], within: Duration) -> Result<Reply, StoreError> {
        self.call(key, parts, Instant::now() + within).await
    }

    /// An answer that makes no sense.
    #[must_use]
    pub fn senseless(&self, why: &str) -> StoreError {
        self.garbled(why)
    }
}
