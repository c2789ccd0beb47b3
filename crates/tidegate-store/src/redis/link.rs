//! The link to one server: connects, logs in, connects again when the connection is lost, and stops
//! asking a server that is silent until it speaks again (the breaker).
//!
//! Invariants: a caller never waits for a connection unless it says so, and never past its deadline; while no
//! server answers, the caller gets the error at once.

use super::connection::{Connection, Lost, Pending};
use super::dial::{Login, PROBE, dial};
use super::error::{Then, meaning_of};
use super::resp::{Reply, command};
use super::sentinel::Sentinels;
use crate::remote::breaker::{Breaker, jittered};
use crate::remote::{StoreError, unreachable, unusable};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A server that is kept connected until this is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

/// How a server is found.
#[derive(Clone)]
pub(crate) enum Endpoint {
    /// It is at this address.
    Address(String),
    /// Sentinels say where it is.
    Sentinels(Sentinels),
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The refusal for which the connection was closed, until the next one is tried.
    refused: Mutex<Option<StoreError>>,
    breaker: Breaker,
    /// Attempts to connect that have come to an end.
    attempts: watch::Sender<u64>,
    /// The server's address now, as the sentinels last announced it.
    announced: watch::Sender<Option<String>>,
}

#[derive(Debug)]
enum State {
    Up(Connection, Arc<str>),
    Down(StoreError),
}

/// Pauses between attempts: the first, and the longest. Exact service is to be back within a second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A connection that lasts shorter is no reason to try again as soon: a replica that refuses writes, or a
/// server that hangs up, would be called a hundred times a second.
const LASTING: Duration = Duration::from_secs(1);
impl Link {
    /// Goes on trying in the background until it is connected.
    pub(crate) fn start(endpoint: Endpoint, login: Login) -> Link {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Down(unreachable(&endpoint.label(), "it is being connected".to_owned()))),
            refused: Mutex::default(),
            breaker: Breaker::default(),
            attempts: watch::Sender::new(0),
            announced: watch::Sender::new(None),
        });
        let mut tasks = Vec::new();
        if let Endpoint::Sentinels(sentinels) = endpoint.clone() {
            let shared = Arc::clone(&shared);
            let tell = move |address| drop(shared.announced.send_replace(Some(address)));
            tasks.push(tokio::spawn(async move { sentinels.follow(tell).await }));
        }
        tasks.push(tokio::spawn(keep(Arc::clone(&shared), endpoint, login)));
        Link { shared, tasks }
    }

    /// The same, and waits for the first attempt, whatever comes of it.
    pub(crate) async fn open(endpoint: Endpoint, login: Login) -> Link {
        let link = Link::start(endpoint, login);
        let _ = link.shared.attempts.subscribe().wait_for(|attempts| *attempts > 0).await;
        link
    }

    /// Waits for the first attempt to connect to come to an end.
    pub(crate) async fn tried(&self, by: Instant) {
        let mut attempts = self.shared.attempts.subscribe();
        let _ = tokio::time::timeout_at(by, attempts.wait_for(|attempts| *attempts > 0)).await;
    }

    /// False: do not ask, the answer is an error.
    pub(crate) fn answers(&self) -> bool {
        self.shared.breaker.answers()
    }

    /// Why it cannot be asked, if it cannot.
    pub(crate) fn down(&self) -> Option<StoreError> {
        self.connection(Duration::ZERO).err()
    }

    /// The connection, for a caller that can wait for so long.
    fn connection(&self, within: Duration) -> Result<(Connection, Arc<str>), StoreError> {
        match &*self.shared.state() {
            State::Up(_, address) if !self.shared.breaker.is_worth_asking(within) => {
                let why = "it is silent, and is asked now and then; look at its load, and at the network between";
                Err(unusable(address, why.to_owned()))
            }
            State::Up(connection, address) => Ok((connection.clone(), Arc::clone(address))),
            State::Down(error) => Err(error.clone()),
        }
    }

    /// Sends a command whose reply is waited for until `by`, and returns what it will come through. `ahead` goes out
    /// right before it.
    pub(crate) fn send(&self, ahead: Ahead, by: Instant, write: impl FnOnce(&mut Vec<u8>)) -> Result<Sent, StoreError> {
        let (connection, address) = self.connection(by.saturating_duration_since(Instant::now()))?;
        let sent = match ahead {
            Ahead::Nothing => connection.send(write),
            Ahead::Asking => connection.send_after(&command(&[b"ASKING"]), write),
        };
        let pending = sent.map_err(|lost| self::lost(&address, lost))?;
        Ok(Sent { connection, address, pending, at: Instant::now() })
    }

    /// Waits for a reply until the deadline; an error reply is an error.
    pub(crate) async fn receive(&self, sent: Sent, by: Instant) -> Result<Reply, StoreError> {
        let Sent { connection, address, pending, at } = sent;
        let Ok(reply) = tokio::time::timeout_at(by, pending).await else {
            self.shared.breaker.waited_in_vain(by.saturating_duration_since(at), connection.silence());
            return Err(lost(&address, Lost::Sent("its reply did not come before the deadline".to_owned())));
        };
        let reply = reply.unwrap_or_else(|_| Err(Lost::Sent("the connection was dropped".to_owned())));
        match reply.map_err(|lost| self::lost(&address, lost))? {
            Reply::Error(text) => {
                let (meaning, then) = meaning_of(&text);
                let refused = StoreError::Refused { address: address.to_string(), meaning, text };
                if then == Then::Reconnect {
                    *locked(&self.shared.refused) = Some(refused.clone());
                    connection.close(&refused.to_string());
                }
                Err(refused)
            }
            reply => Ok(reply),
        }
    }
}

/// What goes out right before a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// Nothing.
    Nothing,
    /// The word that lets a node answer for a slot that is on its way to it.
    Asking,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn set(&self, state: State) {
        self.breaker.set(matches!(state, State::Up(..)));
        *self.state() = state;
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// Asks a server that went silent whether it is back.
    async fn probe(&self, within: Duration) -> Option<bool> {
        let connection = match &*self.state() {
            State::Up(connection, _) => connection.clone(),
            State::Down(_) => return None,
        };
        let pending = connection.send(|bytes| bytes.extend(command(&PROBE))).ok()?;
        Some(matches!(tokio::time::timeout(within, pending).await, Ok(Ok(Ok(_)))))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(address: &str, lost: Lost) -> StoreError {
    let address = address.to_owned();
    match lost {
        Lost::Unsent(why) => StoreError::Unreachable { address, why },
        Lost::Sent(why) => StoreError::Ambiguous { address, why },
    }
}

/// A command that is under way.
pub(crate) struct Sent {
    connection: Connection,
    address: Arc<str>,
    pending: Pending,
    at: Instant,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if let State::Up(connection, _) = &*self.shared.state() {
            connection.close("the store was closed");
        }
    }
}

type Work = std::pin::Pin<Box<dyn Future<Output = String> + Send>>;

/// Makes a connection and runs it, and makes a new one whenever it ends.
async fn keep(shared: Arc<Shared>, endpoint: Endpoint, login: Login) {
    let mut announced = shared.announced.subscribe();
    let mut pause = PAUSE_MIN;
    loop {
        announced.mark_unchanged();
        let connected = tokio::select! {
            connected = endpoint.connect(&login) => connected,
            // What is being tried is out of date.
            Ok(()) = announced.changed() => continue,
        };
        match connected {
            Err(error) => shared.set(State::Down(error)),
            Ok((connection, address, work)) => {
                let since = Instant::now();
                shared.set(State::Up(connection, address.as_str().into()));
                let moved = |announced: &Option<String>| announced.as_ref().is_some_and(|now| *now != address);
                let why = tokio::select! {
                    why = work => why,
                    never = shared.breaker.probe(|within| shared.probe(within)) => match never {},
                    Ok(_) = announced.wait_for(moved) => "another server is the master now".to_owned(),
                };
                let refused = locked(&shared.refused).take();
                let error = refused.unwrap_or_else(|| unreachable(&address, why.clone()));
                if let State::Up(connection, _) = &*shared.state() {
                    connection.end(&why);
                }
                shared.set(State::Down(error));
                if since.elapsed() >= LASTING {
                    pause = PAUSE_MIN;
                }
            }
        }
        let _ = tokio::time::timeout(jittered(pause), announced.changed()).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Endpoint {
    async fn connect(&self, login: &Login) -> Result<(Connection, String, Work), StoreError> {
        let (stream, address) = match self {
            Endpoint::Address(address) => (dial(address, login).await?, address.clone()),
            Endpoint::Sentinels(sentinels) => sentinels.master(login).await?,
        };
        let (connection, work) = Connection::over(stream);
        Ok((connection, address, Box::pin(work) as Work))
    }

    fn label(&self) -> String {
        match self {
            Endpoint::Address(address) => address.clone(),
            Endpoint::Sentinels(sentinels) => sentinels.addresses.join(","),
        }
    }
}
