//! Reaching a server: a connection, and the first words on it.
//!
//! What keeps a connection and makes a new one is in `link.rs`. Invariant: nothing here waits for longer than its
//! [`ConnectTime`] says, and no error holds a password.

use super::error::meaning_of;
use super::resp::{Replies, Reply, command};
use super::url::{Kind, Url};
use crate::remote::connect_time::ConnectTime;
use crate::remote::reach::Stream;
use crate::remote::{StoreError, Tls, reach, unreachable, unusable};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A command that any server and twemproxy answer, if they answer at all.
pub(crate) const PROBE: [&[u8]; 2] = [b"GET", b"tg:probe"];
/// A write that changes nothing: a server that takes no writes refuses it. It could not decide anything.
const WRITE: [&[u8]; 3] = [b"PEXPIRE", b"tg:probe", b"1"];

/// The user at a server, and what kind of server it has to be.
#[derive(Clone)]
pub(crate) struct Login {
    user: Option<String>,
    password: Option<String>,
    /// Not asked for when it is 0, which is what a new connection has.
    database: u32,
    role: Role,
    tls: Option<Tls>,
    /// How long connecting and the first words may take.
    pub(crate) time: Arc<ConnectTime>,
}

/// What a server has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// One that takes writes.
    Writable,
    /// One that holds no keys, or not all; or a proxy, of whose shards any may be away.
    Node,
    /// A master, by its own word.
    Master,
}

impl Login {
    /// At the servers that hold the states.
    pub(crate) fn of(url: &Url) -> Login {
        let role = match url.kind {
            Kind::Standalone => Role::Writable,
            Kind::Cluster | Kind::Twemproxy => Role::Node,
            Kind::Sentinel => Role::Master,
        };
        Login {
            user: url.user.clone(),
            password: url.password.clone(),
            database: url.database,
            role,
            tls: url.tls.clone(),
            time: Arc::default(),
        }
    }

    /// At the sentinels.
    pub(crate) fn at_sentinels(url: &Url) -> Login {
        let (user, password) = url.sentinel.clone();
        Login { user, password, database: 0, role: Role::Node, tls: url.tls.clone(), time: Arc::default() }
    }

    fn greeting(&self) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        if let Some(password) = &self.password {
            let password = password.as_bytes();
            words.push(match &self.user {
                Some(user) => command(&[b"AUTH", user.as_bytes(), password]),
                None => command(&[b"AUTH", password]),
            });
        }
        if self.database != 0 {
            words.push(command(&[b"SELECT", self.database.to_string().as_bytes()]));
        }
        // A stopped server takes connections, and one that wants a password or is loading takes them, too.
        match self.role {
            Role::Writable => words.extend([command(&PROBE), command(&WRITE)]),
            Role::Node => words.push(command(&[b"PING"])),
            Role::Master => words.extend([command(&[b"PING"]), command(&[b"ROLE"])]),
        }
        words
    }
}

/// Connects and logs in.
pub(crate) async fn dial(address: &str, login: &Login) -> Result<Stream, StoreError> {
    let within = login.time.get();
    let late = || {
        Err(match login.tls {
            None => unreachable(address, format!("no connection within {within:?}")),
            // A server in clear text waits for the rest of what it takes for a command.
            Some(_) => unusable(
                address,
                format!(
                    "no connection with TLS within {within:?}; start it, write redis:// if it has no TLS, or correct its \
                     address in [store]"
                ),
            ),
        })
    };
    login.time.race(|| greeted(address, login)).await.unwrap_or_else(late)
}

async fn greeted(address: &str, login: &Login) -> Result<Stream, StoreError> {
    let mut stream = reach(address, login.tls.as_ref()).await?;
    let replies = talk(&mut stream, address, &login.greeting()).await?;
    match replies.last() {
        Some(Reply::List(role)) if role.first() != Some(&Reply::Text(b"master".to_vec())) => {
            Err(unusable(address, "it is no master (any more); wait until the sentinels have made one".to_owned()))
        }
        _ => Ok(stream),
    }
}

/// Sends commands over a connection that is not shared yet, and waits for their replies. An error is an error.
pub(crate) async fn talk(stream: &mut Stream, address: &str, words: &[Vec<u8>]) -> Result<Vec<Reply>, StoreError> {
    let failed = |error: std::io::Error| unreachable(address, error.to_string());
    let garbled = |why: String| StoreError::Garbled { address: address.to_owned(), why };
    stream.write_all(&words.concat()).await.map_err(failed)?;
    let (mut coming, mut replies) = (Replies::default(), Vec::new());
    while replies.len() < words.len() {
        match coming.take().map_err(|error| garbled(error.to_string()))? {
            Some(Reply::Error(text)) => {
                let (meaning, _) = meaning_of(&text);
                return Err(StoreError::Refused { address: address.to_owned(), meaning, text });
            }
            Some(reply) => replies.push(reply),
            None if stream.read_buf(coming.room()).await.map_err(failed)? == 0 => {
                return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
            }
            None => {}
        }
    }
    if coming.is_empty() { Ok(replies) } else { Err(garbled("more than was asked for".to_owned())) }
}

/// `host:port`, of a host that may be an IPv6 address.
pub(crate) fn address_of(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
