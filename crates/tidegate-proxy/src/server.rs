//! The proxy as a whole: a thread that accepts, threads that serve, and the stop.

use crate::settings::{Policy, Settings};
use crate::site::{Site, TICK};
use crate::worker::{self, Accepted};
use crate::{admin, counting, sharing, turning};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate::{Gate, Replicas};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// A running proxy. Dropping it stops it.
pub struct Proxy {
    site: Arc<Site>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Connections on their way to one worker.
const HANDED_OVER_MAX: usize = 256;
/// Connections that are being told that there is no room.
const REFUSALS_MAX: usize = 64;
/// How long to wait after a failure to accept, most likely too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Proxy {
    /// Starts to serve on `listener`, and what monitors ask for on `admin`, by a limiter of this gate.
    ///
    /// # Errors
    /// When a thread or a listener cannot be had.
    pub fn start(
        listener: StdListener,
        admin: Option<StdListener>,
        gate: Gate,
        policy: Policy,
        settings: Settings,
    ) -> io::Result<Proxy> {
        let address = listener.local_addr()?;
        let admin_address = admin.as_ref().map(StdListener::local_addr).transpose()?;
        let workers = settings.workers.max(1);
        let settings = Settings { workers, ..settings };
        let site = Arc::new(Site::new(gate, policy, settings));
        let (mut threads, mut doors) = (Vec::new(), Vec::new());
        for number in 0..workers {
            let (door, accepted) = mpsc::channel(HANDED_OVER_MAX);
            doors.push(door);
            let worker = worker::run(Arc::clone(&site), number, accepted);
            threads.push(thread(format!("proxy-{number}"), worker)?);
        }
        let front = accept(Arc::clone(&site), listener, admin, doors);
        threads.push(thread("proxy-accept".to_owned(), front)?);
        Ok(Proxy { site, address, admin: admin_address, threads: Mutex::new(threads) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where monitors ask.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Puts another policy in force, without touching a connection.
    pub fn reload(&self, policy: Policy) {
        self.site.reload(policy);
    }

    /// Accepts no more, answers those who wait with 503, lets the others end within the drain timeout,
    /// and waits for it.
    pub fn stop(&self) {
        self.site.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread with a runtime of its own, for one future.
fn thread(name: String, work: impl Future<Output = ()> + Send + 'static) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name).spawn(move || runtime.block_on(work))
}

/// Accepts, hands out in turn, and keeps the time, until the stop.
async fn accept(
    site: Arc<Site>,
    listener: StdListener,
    admin: Option<StdListener>,
    doors: Vec<mpsc::Sender<Accepted>>,
) {
    let mut beside = JoinSet::new();
    beside.spawn(turning::turn_windows(Arc::clone(&site)));
    beside.spawn(keep_time(Arc::clone(&site)));
    let finds_others = site.replicas() == Replicas::Share(None);
    let mut sharing = finds_others.then(|| tokio::spawn(sharing::share(Arc::clone(&site))));
    let (end, ended) = oneshot::channel();
    let mut counting = site.counts_together().then(|| tokio::spawn(counting::count(Arc::clone(&site), ended)));
    if let Some(Ok(admin)) = admin.map(from_std) {
        beside.spawn(admin::serve(admin, Arc::clone(&site)));
    }
    let Ok(listener) = from_std(listener) else { return };
    let mut stopped = pin!(site.stopped());
    let mut front = Front { site: &site, doors, turn: 0, refusals: JoinSet::new() };
    loop {
        tokio::select! {
            biased;
            () = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => front.take(stream, peer).await,
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    drop(front);
    // Monitors may look on while requests under way end.
    let all_end = async {
        while site.queue.census().in_flight > 0 {
            sleep(ACCEPT_PAUSE).await;
        }
    };
    let _ = timeout(site.settings.drain_timeout, all_end).await;
    if let Some(sharing) = &mut sharing {
        // It takes leave of the others.
        let _ = sharing.await;
    }
    drop(end);
    if let Some(counting) = &mut counting {
        // What is left is handed back.
        let _ = counting.await;
    }
}

fn from_std(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Counts ticks, and lets the clock follow the world's.
async fn keep_time(site: Arc<Site>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        site.tick.fetch_add(1, Relaxed);
        site.clock.follow_wall();
        forget_idle_keys(&site).await;
    }
}

/// Ticks in which every key is looked at, so that idle ones are forgotten four seconds after their window.
const TICKS_A_ROUND: usize = 8;

/// Looks at one tick's keys, in pieces: others are served between them.
async fn forget_idle_keys(site: &Site) {
    for _ in 0..site.queue.tends().div_ceil(TICKS_A_ROUND) {
        site.queue.tend();
        yield_now().await;
    }
}

struct Front<'a> {
    site: &'a Arc<Site>,
    doors: Vec<mpsc::Sender<Accepted>>,
    turn: usize,
    refusals: JoinSet<()>,
}

impl Front<'_> {
    async fn take(&mut self, stream: TcpStream, peer: SocketAddr) {
        while self.refusals.try_join_next().is_some() {}
        let metrics = &self.site.metrics;
        metrics.connections_total.fetch_add(1, Relaxed);
        if metrics.connections.load(Relaxed) >= self.site.settings.max_connections {
            metrics.refused_connections.fetch_add(1, Relaxed);
            if self.refusals.len() < REFUSALS_MAX {
                self.refusals.spawn(refuse(stream));
            }
            return;
        }
        // Heads and answers are written whole; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        let Ok(stream) = stream.into_std() else { return };
        self.turn = (self.turn + 1) % self.doors.len();
        let _ = self.doors[self.turn].send((stream, peer.ip())).await;
    }
}

/// How long a refused client may take to read why.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// Says why, then reads until the client closes: closing on unread bytes would reset the connection, and
/// the client would never see the answer.
async fn refuse(mut stream: TcpStream) {
    let body = r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Service Unavailable","status":503,"code":"too_many_connections","detail":"all connections are taken; try again, and keep connections open between requests"}"#;
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let farewell = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIME, farewell).await;
}
