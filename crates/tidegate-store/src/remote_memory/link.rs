//! The client's one connection to a memory server: kept by a task, shared by all callers, and made anew when it is lost.
//!
//! Invariants: a caller never waits past its deadline, and not at all while the server is away or silent; it learns
//! whether its request may have reached the server. Replies come in the order of requests.

use super::frame::{Writer, take};
use super::message::Operation;
use crate::remote::breaker::{Breaker, jittered};
use crate::remote::{StoreError, reach, unreachable};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A memory server that is kept connected until this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: String,
    breaker: Breaker,
    /// Why there is no connection.
    down: Mutex<Option<StoreError>>,
    /// When a reply last came in time for its caller.
    heard: Mutex<Instant>,
}

#[derive(Debug)]
struct Request {
    frame: Vec<u8>,
    reply: Waiter,
}

/// The reply's frame; an error: the request was not sent, and why. Dropped: it was sent, and the connection lost.
type Waiter = oneshot::Sender<Result<Vec<u8>, String>>;

/// Most requests that wait to be sent, and that wait for their replies.
const UNSENT_MAX: usize = 1_024;
const WAITING_MAX: usize = 10_000;
/// How long connecting may take, and about how long until the next attempt: service is to be back within a second.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);
/// A server that owes replies and says nothing for two of these in a row is taken for gone.
const SILENCE: Duration = Duration::from_secs(1);

impl Link {
    /// Connects, or goes on trying in the background.
    pub(super) async fn open(address: String) -> Link {
        let (requests, queue) = mpsc::channel(UNSENT_MAX);
        let shared = Arc::new(Shared {
            address,
            breaker: Breaker::default(),
            down: Mutex::default(),
            heard: Mutex::new(Instant::now()),
        });
        let first = shared.connect().await;
        match &first {
            Ok(_) => shared.found(),
            Err(error) => shared.lost(error.clone()),
        }
        let task = tokio::spawn(keep(Arc::clone(&shared), requests.clone(), queue, first));
        Link { requests, shared, task }
    }

    /// False: do not ask, the answer is an error.
    pub(super) fn answers(&self) -> bool {
        self.shared.breaker.answers()
    }

    /// Why it cannot be asked, if it cannot.
    pub(super) fn down(&self) -> Option<StoreError> {
        let why = || locked(&self.shared.down).clone();
        (!self.answers()).then(|| why().unwrap_or_else(|| StoreError::silent(self.shared.address.clone())))
    }

    /// Sends a request and waits for its reply until the deadline.
    pub(super) async fn ask(&self, frame: Vec<u8>, by: Instant) -> Result<Vec<u8>, StoreError> {
        if let Some(error) = self.down() {
            return Err(error);
        }
        let ambiguous = |why: &str| StoreError::Ambiguous { address: self.shared.address.clone(), why: why.to_owned() };
        let asked_at = Instant::now();
        let pending = self.shared.send(&self.requests, frame)?;
        match timeout_at(by, pending).await {
            Ok(Ok(reply)) => reply.map_err(|why| unreachable(&self.shared.address, why)),
            Ok(Err(_)) => Err(ambiguous("the connection was lost")),
            Err(_) => {
                let silence = locked(&self.shared.heard).elapsed();
                self.shared.breaker.waited_in_vain(by.saturating_duration_since(asked_at), silence);
                Err(ambiguous("its reply did not come before the deadline"))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn connect(&self) -> Result<crate::remote::reach::Stream, StoreError> {
        let late = |_| unreachable(&self.address, format!("no connection within {CONNECT_TIME_MAX:?}"));
        timeout(CONNECT_TIME_MAX, reach(&self.address, None)).await.map_err(late)?
    }

    fn found(&self) {
        *locked(&self.down) = None;
        *locked(&self.heard) = Instant::now();
        self.breaker.set(true);
    }

    fn lost(&self, error: StoreError) {
        self.breaker.set(false);
        *locked(&self.down) = Some(error);
    }

    fn send(
        &self,
        requests: &mpsc::Sender<Request>,
        frame: Vec<u8>,
    ) -> Result<oneshot::Receiver<Result<Vec<u8>, String>>, StoreError> {
        let (reply, pending) = oneshot::channel();
        let full = |_| unreachable(&self.address, format!("{UNSENT_MAX} requests are waiting to be sent already"));
        requests.try_send(Request { frame, reply }).map_err(full)?;
        Ok(pending)
    }

    /// Asks a server that went silent whether it is back.
    async fn probe(&self, requests: &mpsc::Sender<Request>, within: Duration) -> Option<bool> {
        let mut ping = Writer::new();
        Operation::Ping.write(&mut ping);
        let pending = self.send(requests, ping.finish()?).ok()?;
        Some(matches!(timeout(within, pending).await, Ok(Ok(Ok(_)))))
    }
}

/// Runs a connection, and makes a new one whenever it ends.
async fn keep(
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    mut queue: mpsc::Receiver<Request>,
    mut stream: Result<crate::remote::reach::Stream, StoreError>,
) {
    loop {
        let error = match stream {
            Err(error) => error,
            Ok(stream) => {
                shared.found();
                let why = tokio::select! {
                    why = converse(&shared, &mut queue, stream) => why,
                    never = shared.breaker.probe(|within| shared.probe(&requests, within)) => match never {},
                };
                unreachable(&shared.address, why)
            }
        };
        let why = error.to_string();
        shared.lost(error);
        while let Ok(request) = queue.try_recv() {
            let _ = request.reply.send(Err(why.clone()));
        }
        sleep(jittered(PAUSE)).await;
        stream = shared.connect().await;
    }
}

/// Carries requests and replies until the connection ends, and says why it did.
async fn converse(
    shared: &Shared,
    queue: &mut mpsc::Receiver<Request>,
    stream: impl AsyncRead + AsyncWrite + Send,
) -> String {
    let (from, to) = tokio::io::split(stream);
    let waiting = Mutex::default();
    // Both at once: a server that waits for us to read must not keep us waiting to write.
    tokio::select! {
        why = write(queue, to, &waiting) => why,
        why = read(shared, from, &waiting) => why,
    }
}

async fn write(
    queue: &mut mpsc::Receiver<Request>,
    mut to: impl AsyncWrite + Unpin,
    waiting: &Mutex<VecDeque<Waiter>>,
) -> String {
    while let Some(Request { frame, reply }) = queue.recv().await {
        if reply.is_closed() {
            // Its caller has given up: a request that was not sent is not charged.
            continue;
        }
        if locked(waiting).len() >= WAITING_MAX {
            let _ = reply.send(Err(format!("{WAITING_MAX} requests are waiting for its replies already")));
            continue;
        }
        locked(waiting).push_back(reply);
        if let Err(error) = to.write_all(&frame).await {
            return format!("writing failed: {error}");
        }
    }
    "the store was closed".to_owned()
}

async fn read(shared: &Shared, mut from: impl AsyncRead + Unpin, waiting: &Mutex<VecDeque<Waiter>>) -> String {
    let (mut bytes, mut silences) = (Vec::new(), 0);
    loop {
        if let Err(why) = deliver(shared, &mut bytes, waiting) {
            return why;
        }
        match timeout(SILENCE, from.read_buf(&mut bytes)).await {
            Ok(Ok(0)) => return "the server closed the connection".to_owned(),
            Ok(Ok(_)) => silences = 0,
            Ok(Err(error)) => return format!("reading failed: {error}"),
            Err(_) if locked(waiting).is_empty() => silences = 0,
            Err(_) if silences == 0 => silences = 1,
            Err(_) => return format!("no reply for {:?}", SILENCE * 2),
        }
    }
}

/// Hands out all replies that are whole.
fn deliver(shared: &Shared, bytes: &mut Vec<u8>, waiting: &Mutex<VecDeque<Waiter>>) -> Result<(), String> {
    while let Some(frame) = take(bytes)? {
        let waiter = locked(waiting).pop_front().ok_or("a reply to no request")?;
        // A caller may have given up meanwhile; a server that is always too late is as bad as a silent one.
        if waiter.send(Ok(frame)).is_ok() {
            *locked(&shared.heard) = Instant::now();
        }
    }
    Ok(())
}

/// What a thread that panicked left under a lock here is whole: nothing is changed in steps.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
