//! A register: one value that is written only over the value that was read.

use super::{Lua, Redis, Reply, StoreError};
use crate::store::Swap;
use std::sync::OnceLock;
use std::time::Duration;

/// Writes over what is expected, and says what is there afterwards. The empty text is no value.
const SWAP: &str = "\
local there = redis.call('GET', KEYS[1]) or ''
if there == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return ARGV[2]
end
return there";

impl Redis {
    /// Writes `new` if the register holds `expected` (empty: nothing), for as long as `expiry`, and returns
    /// what it holds then. One round trip.
    ///
    /// # Errors
    /// When the server cannot be reached, does not answer, or refuses. It may have been written all the same.
    pub async fn swap_key(&self, key: &[u8], swap: Swap<'_>, within: Duration) -> Result<String, StoreError> {
        static MADE: OnceLock<Lua> = OnceLock::new();
        let lua = MADE.get_or_init(|| Lua::new(SWAP));
        let expiry = swap.expiry.as_millis().to_string();
        let arguments = [swap.expected.as_bytes(), swap.new.as_bytes(), expiry.as_bytes()];
        match self.eval(lua, &[key.to_vec()], &arguments, within).await? {
            Reply::Text(bytes) => String::from_utf8(bytes).map_err(|_| self.garbled("the register is no text")),
            _ => Err(self.garbled("the register's script returned no text")),
        }
    }
}
