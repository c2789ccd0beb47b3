//! Sentinels: which server is the master, and when another one is.
//!
//! All sentinels are asked at once, so that a dead one costs nothing, and the first whose word leads to a server
//! that calls itself a master decides. Each is listened to for `+switch-master`, which makes a change quick; it
//! would be found without, too, as a server that lost its role refuses or drops its connections.

use super::dial::{Login, address_of, dial, talk};
use super::resp::{Replies, Reply, command};
use crate::remote::reach::Stream;
use crate::remote::{StoreError, unreachable, unusable};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The sentinels of one master.
#[derive(Clone)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<String>,
    /// What they call the master.
    pub(crate) name: String,
    pub(crate) login: Login,
}

/// A sentinel that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(2);
/// Pause before a sentinel that was lost is listened to again.
const PAUSE: Duration = Duration::from_millis(500);
const CHANNEL: &[u8] = b"+switch-master";

impl Sentinels {
    /// A connection to the master, and where that is.
    pub(crate) async fn master(&self, login: &Login) -> Result<(Stream, String), StoreError> {
        let mut asked: FuturesUnordered<_> = self.addresses.iter().map(|one| self.by_word_of(one, login)).collect();
        let mut last = unreachable(&self.addresses.join(","), "no sentinel was asked".to_owned());
        while let Some(found) = asked.next().await {
            match found {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn by_word_of(&self, sentinel: &str, login: &Login) -> Result<(Stream, String), StoreError> {
        let mut stream = dial(sentinel, &self.login).await?;
        let question = [command(&[b"SENTINEL", b"get-master-addr-by-name", self.name.as_bytes()])];
        let said = talk(&mut stream, sentinel, &question);
        let late = |_| Err(unreachable(sentinel, "it did not say which server is the master".to_owned()));
        let said = tokio::time::timeout(self.login.time.get(), said).await.unwrap_or_else(late)?;
        let address = match said.first() {
            Some(Reply::List(parts)) => address_in(parts),
            _ => {
                let why =
                    format!("the sentinel knows no master called \"{}\"; correct its name in [store] url", self.name);
                return Err(unusable(sentinel, why));
            }
        };
        let address = address.ok_or_else(|| unreachable(sentinel, "what it says is no address".to_owned()))?;
        Ok((dial(&address, login).await?, address))
    }

    /// Listens to all sentinels for ever, and tells the address of each new master.
    pub(crate) async fn follow(&self, tell: impl Fn(String)) {
        futures_util::future::join_all(self.addresses.iter().map(|one| self.follow_one(one, &tell))).await;
    }

    async fn follow_one(&self, sentinel: &str, tell: &impl Fn(String)) {
        loop {
            // Whatever ends it, it is tried again: `master` tells what is wrong.
            if let Ok(mut stream) = dial(sentinel, &self.login).await {
                let _ = self.listen(&mut stream, tell).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn listen(&self, stream: &mut Stream, tell: &impl Fn(String)) -> std::io::Result<()> {
        stream.write_all(&command(&[b"SUBSCRIBE", CHANNEL])).await?;
        let (mut replies, mut silences) = (Replies::default(), 0);
        loop {
            match tokio::time::timeout(SILENCE, stream.read_buf(replies.room())).await {
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(_)) => silences = 0,
                Ok(Err(error)) => return Err(error),
                Err(_) if silences == 1 => return Ok(()),
                Err(_) => {
                    silences = 1;
                    stream.write_all(&command(&[b"PING"])).await?;
                }
            }
            while let Some(reply) = replies.take().map_err(|_| std::io::ErrorKind::InvalidData)? {
                if let Some(address) = self.switched(&reply) {
                    tell(address);
                }
            }
        }
    }

    /// `message +switch-master "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT"`
    fn switched(&self, reply: &Reply) -> Option<String> {
        let Reply::List(parts) = reply else { return None };
        let [Reply::Text(_), Reply::Text(channel), Reply::Text(text)] = parts.as_slice() else { return None };
        let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
        match words.as_slice() {
            [name, _, _, host, port] if channel == CHANNEL && *name == self.name => Some(address_of(host, port)),
            _ => None,
        }
    }
}

fn address_in(parts: &[Reply]) -> Option<String> {
    let [Reply::Text(host), Reply::Text(port)] = parts else { return None };
    Some(address_of(std::str::from_utf8(host).ok()?, std::str::from_utf8(port).ok()?))
}
