//! The way to one server: connects, says who we are, connects again when the connection is lost, and stops
//! asking a server that is silent until it speaks again (the breaker).
//!
//! Invariants: a caller never waits for a connection, and never past its deadline; without a server that
//! answers it is told at once.

use super::connection::{Connection, Lost, Pending};
use super::error::{Meaning, StoreError, Then};
use super::resp::{Reply, command, parse};
use super::url::{Kind, Url};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A server that is kept connected until this is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: String,
    state: Mutex<State>,
    /// True while the server is connected and answers: what a caller looks at first.
    answers: AtomicBool,
    /// How many microseconds the caller waited that found it silent.
    waited_us: AtomicU64,
}

#[derive(Debug)]
enum State {
    Up(Connection),
    Down(StoreError),
}

/// How long connecting and the first words may take.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
/// Pauses between attempts: the first, and the longest. Exact service is to be back within a second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A connection that lasts shorter is no reason to try again as soon: a replica that refuses writes, or a
/// server that hangs up, would be called a hundred times a second.
const LASTING: Duration = Duration::from_secs(1);
/// How often a silent server is asked whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How long it may take to say so in the end. At first it must be as fast as callers need it, or they would
/// be sent to it only to wait in vain; then slower and slower, as the caller that found it silent may have had
/// little time.
const PROBE_TIME_MAX: Duration = Duration::from_secs(1);
/// A command that any server and twemproxy answer, if they answer at all.
const PROBE: [&[u8]; 2] = [b"GET", b"tg:probe"];

/// Who we are at the server.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Not asked for when it is 0, which is what a new connection has.
    pub(crate) database: u32,
}

impl Login {
    pub(crate) fn of(url: &Url) -> Login {
        let database = if url.kind == Kind::Twemproxy { 0 } else { url.database };
        Login { user: url.user.clone(), password: url.password.clone(), database }
    }
}

impl Link {
    /// Tries once to connect, and goes on trying in the background whatever came of it.
    pub(crate) async fn open(address: String, login: Login) -> Link {
        let first = connect(&address, &login).await;
        let (state, work) = match first {
            Ok((connection, work)) => (State::Up(connection), Some(work)),
            Err(error) => (State::Down(error), None),
        };
        let answers = AtomicBool::new(work.is_some());
        let shared = Arc::new(Shared { address, state: Mutex::new(state), answers, waited_us: AtomicU64::new(0) });
        let keeper = tokio::spawn(keep(Arc::clone(&shared), login, work));
        Link { shared, keeper }
    }

    /// False: do not ask, the answer is an error.
    pub(crate) fn answers(&self) -> bool {
        self.shared.answers.load(Relaxed)
    }

    /// Why it cannot be asked, if it cannot.
    pub(crate) fn down(&self) -> Option<StoreError> {
        self.connection().err()
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        match &*self.shared.state() {
            State::Up(_) if !self.answers() => Err(self.shared.unreachable("it is silent, and is asked now and then")),
            State::Up(connection) => Ok(connection.clone()),
            State::Down(error) => Err(error.clone()),
        }
    }

    /// Sends a command, and returns what its reply will come through.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Sent, StoreError> {
        let connection = self.connection()?;
        let pending = connection.send(write).map_err(|lost| self.shared.lost(lost))?;
        Ok(Sent { connection, pending, at: Instant::now() })
    }

    /// Waits for a reply until the deadline; an error reply is an error.
    pub(crate) async fn receive(&self, sent: Sent, by: Instant) -> Result<Reply, StoreError> {
        let Sent { connection, pending, at } = sent;
        let Ok(reply) = tokio::time::timeout_at(by, pending).await else {
            return Err(self.too_late(&connection, by.saturating_duration_since(at)));
        };
        let reply = reply.unwrap_or_else(|_| Err(Lost::Sent("the connection was dropped".to_owned())));
        match reply.map_err(|lost| self.shared.lost(lost))? {
            Reply::Error(text) => {
                let (meaning, then) = Meaning::of(&text);
                if then == Then::Reconnect {
                    connection.close(&text);
                }
                Err(StoreError::Refused { address: self.shared.address.clone(), meaning, text })
            }
            reply => Ok(reply),
        }
    }

    /// A server that has said nothing in time while half of that passed is not asked any more. Not while
    /// all of it passed: it may have stopped just after it answered others, and those who come next would
    /// wait in vain.
    fn too_late(&self, connection: &Connection, waited: Duration) -> StoreError {
        if connection.silence() >= waited / 2 {
            self.shared.waited_us.store(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Relaxed);
            self.shared.answers.store(false, Relaxed);
        }
        self.shared.lost(Lost::Sent("its reply did not come before the deadline".to_owned()))
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn call(&self, parts: &[&[u8]], by: Instant) -> Result<Reply, StoreError> {
        let sent = self.send(|bytes| bytes.extend(command(parts)))?;
        self.receive(sent, by).await
    }

    /// The reply makes no sense.
    pub(crate) fn garbled(&self, why: &str) -> StoreError {
        StoreError::Garbled { address: self.shared.address.clone(), why: why.to_owned() }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        self.answers.store(matches!(state, State::Up(_)), Relaxed);
        *self.state() = state;
    }

    fn unreachable(&self, why: &str) -> StoreError {
        StoreError::Unreachable { address: self.address.clone(), why: why.to_owned() }
    }

    fn lost(&self, lost: Lost) -> StoreError {
        let address = self.address.clone();
        match lost {
            Lost::Unsent(why) => StoreError::Unreachable { address, why },
            Lost::Sent(why) => StoreError::Ambiguous { address, why },
        }
    }
}

/// A command that is under way.
pub(crate) struct Sent {
    connection: Connection,
    pending: Pending,
    at: Instant,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
        if let State::Up(connection) = &*self.shared.state() {
            connection.close("the store was closed");
        }
    }
}

type Work = std::pin::Pin<Box<dyn Future<Output = String> + Send>>;

/// Runs the connection, and makes a new one whenever it ends.
async fn keep(shared: Arc<Shared>, login: Login, mut work: Option<Work>) {
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(work) = work.take() {
            let since = Instant::now();
            let why = tokio::select! {
                why = work => why,
                never = probe_while_silent(&shared) => match never {},
            };
            shared.set(State::Down(shared.unreachable(&why)));
            if since.elapsed() >= LASTING {
                pause = PAUSE_MIN;
            }
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        match connect(&shared.address, &login).await {
            Ok((connection, new)) => {
                shared.set(State::Up(connection));
                work = Some(new);
            }
            Err(error) => shared.set(State::Down(error)),
        }
    }
}

/// Asks a server that went silent until it speaks again.
async fn probe_while_silent(shared: &Shared) -> Infallible {
    let mut slower = 1;
    loop {
        tokio::time::sleep(jittered(PROBE_EVERY)).await;
        let connection = match &*shared.state() {
            State::Up(connection) if !shared.answers.load(Relaxed) => connection.clone(),
            _ => {
                slower = 1;
                continue;
            }
        };
        let Ok(pending) = connection.send(|bytes| bytes.extend(command(&PROBE))) else { continue };
        let waited = Duration::from_micros(shared.waited_us.load(Relaxed)).max(Duration::from_millis(1));
        let within = waited.saturating_mul(slower).min(PROBE_TIME_MAX.max(waited));
        slower = slower.saturating_mul(2);
        if let Ok(Ok(Ok(_))) = tokio::time::timeout(within, pending).await {
            shared.answers.store(true, Relaxed);
        }
    }
}

/// Between a half and the whole, so that many processes do not come back all at once.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(0_u8) % 512;
    pause / 2 + pause * u32::try_from(random).unwrap_or(0) / 1024
}

async fn connect(address: &str, login: &Login) -> Result<(Connection, Work), StoreError> {
    let unreachable = |why: String| StoreError::Unreachable { address: address.to_owned(), why };
    let greeted = async {
        let mut stream = TcpStream::connect(address).await.map_err(|error| unreachable(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let ahead = greet(&mut stream, address, login).await?;
        let (connection, work) = Connection::over(stream, ahead);
        Ok((connection, Box::pin(work) as Work))
    };
    let timeout = || unreachable(format!("no connection within {CONNECT_TIME_MAX:?}"));
    tokio::time::timeout(CONNECT_TIME_MAX, greeted).await.unwrap_or_else(|_| Err(timeout()))
}

/// Says who we are and which database we want; returns bytes that were read too many, which are none.
async fn greet<S>(stream: &mut S, address: &str, login: &Login) -> Result<Vec<u8>, StoreError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let unreachable =
        |error: std::io::Error| StoreError::Unreachable { address: address.to_owned(), why: error.to_string() };
    let words = greeting(login);
    stream.write_all(&words.concat()).await.map_err(unreachable)?;
    let (mut bytes, mut answered) = (Vec::new(), 0);
    while answered < words.len() {
        let garbled = |why: String| StoreError::Garbled { address: address.to_owned(), why };
        match parse(&bytes).map_err(|error| garbled(error.to_string()))? {
            Some((Reply::Error(text), _)) => {
                let (meaning, _) = Meaning::of(&text);
                return Err(StoreError::Refused { address: address.to_owned(), meaning, text });
            }
            Some((_, len)) => {
                bytes.drain(..len);
                answered += 1;
            }
            None if stream.read_buf(&mut bytes).await.map_err(unreachable)? == 0 => {
                return Err(unreachable(std::io::ErrorKind::UnexpectedEof.into()));
            }
            None => {}
        }
    }
    Ok(bytes)
}

fn greeting(login: &Login) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    if let Some(password) = &login.password {
        let password = password.as_bytes();
        words.push(match &login.user {
            Some(user) => command(&[b"AUTH", user.as_bytes(), password]),
            None => command(&[b"AUTH", password]),
        });
    }
    if login.database != 0 {
        words.push(command(&[b"SELECT", login.database.to_string().as_bytes()]));
    }
    // A stopped server takes connections, and one that wants a password or is loading takes them, too.
    words.push(command(&PROBE));
    words
}
