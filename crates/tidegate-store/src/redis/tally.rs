//! Shared counting in Redis: [`tidegate_core::replicas::Tally`] as a script.

use super::{Lua, Redis, Reply, StoreError};
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::replicas::{CLOCKS_DIFFER, ReplicaId, SLOTS_LEASE};
use tidegate_core::turnstile::{Grant, Outlook, QuotaRequest};

/// What Redis says to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bought {
    /// An answer.
    Granted(Grant),
    /// A later question was heard before this one.
    Overtaken,
    /// By the server's clock, which says this, it is another window.
    OtherTime(Micros),
}

impl Redis {
    /// Asks for starts of one key. One round trip. `now` is for tests; by default the server's clock counts.
    ///
    /// # Errors
    /// When the server cannot be reached, does not answer, or refuses. It may have counted all the same.
    pub async fn buy(
        &self,
        key: Vec<u8>,
        (me, number): (ReplicaId, u64),
        request: &QuotaRequest,
        now: Option<Micros>,
        within: Duration,
    ) -> Result<Bought, StoreError> {
        static MADE: OnceLock<Lua> = OnceLock::new();
        let lua = MADE.get_or_init(|| Lua::new(include_str!("lua/tally.lua")));
        let QuotaRequest { windows, window, limit, in_flight, held, want, unused, name: _ } = *request;
        let arguments = [
            now.map(|now| now.get().to_string()).unwrap_or_default(),
            me.to_string(),
            number.to_string(),
            windows.period().get().to_string(),
            window.to_string(),
            limit.to_string(),
            in_flight.to_string(),
            held.to_string(),
            want.to_string(),
            unused.to_string(),
            CLOCKS_DIFFER.get().to_string(),
            SLOTS_LEASE.get().to_string(),
            windows.lead().get().to_string(),
        ];
        let arguments = arguments.each_ref().map(String::as_bytes);
        let reply = self.eval(lua, &[key], &arguments, within).await?;
        bought(&reply).ok_or_else(|| self.garbled("the script of replicas returned no answer"))
    }

    /// Keeps what a replica holds of a key from being taken for lost. If it was, it is `held` again.
    ///
    /// # Errors
    /// When the server cannot be reached, does not answer, or refuses.
    pub async fn keep_slots_of(
        &self,
        key: Vec<u8>,
        me: ReplicaId,
        held: u32,
        within: Duration,
    ) -> Result<(), StoreError> {
        static MADE: OnceLock<Lua> = OnceLock::new();
        let lua = MADE.get_or_init(|| Lua::new(include_str!("lua/tally_keep.lua")));
        let arguments = [me.to_string(), held.to_string(), SLOTS_LEASE.get().to_string()];
        self.eval(lua, &[key], &arguments.each_ref().map(String::as_bytes), within).await.map(drop)
    }
}

fn bought(reply: &Reply) -> Option<Bought> {
    let Reply::List(parts) = reply else { return None };
    let [Reply::Int(kind), Reply::Text(value)] = parts.as_slice() else { return None };
    let value: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let outlook = match kind {
        0 => Outlook::Open,
        1 => Outlook::Exhausted,
        2 => Outlook::Full,
        3 => return Some(Bought::Overtaken),
        4 => return Some(Bought::OtherTime(Micros::new(value)?)),
        _ => return None,
    };
    Some(Bought::Granted(Grant { granted: u32::try_from(value).ok()?, outlook }))
}
