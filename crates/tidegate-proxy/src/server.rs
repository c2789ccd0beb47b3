//! The proxy as a whole: a thread that accepts, threads that serve, and the stop.

use crate::settings::{Policy, Settings};
use crate::state::ProxyState;
use crate::worker;
use crate::{admin, share, shared_counting, window_timer};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate::{Gate, Replicas, panic_point};
use tidegate_doors::listener::{Accepted, Acceptor, HandedOver, TICK};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// A running proxy. Dropping it stops it.
pub struct Proxy {
    state: Arc<ProxyState>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Connections on their way to one worker.
const HANDED_OVER_MAX: usize = 256;
/// How often the accepting thread looks whether the last request has ended, and tries a listener again that failed.
const PAUSE: Duration = Duration::from_millis(50);

impl Proxy {
    /// Starts to serve on `listener`, and what monitors ask for on `admin`, by a limiter of this gate.
    ///
    /// # Errors
    /// When a thread or a listener cannot be started.
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
        let state = Arc::new(ProxyState::new(gate, policy, settings));
        let (mut threads, mut workers_in) = (Vec::new(), Vec::new());
        for number in 0..workers {
            let (worker_in, accepted) = mpsc::channel(HANDED_OVER_MAX);
            workers_in.push(worker_in);
            let worker = worker::run(Arc::clone(&state), number, accepted);
            threads.push(thread(format!("proxy-{number}"), worker)?);
        }
        let accepting = accept(Arc::clone(&state), listener, admin, workers_in);
        threads.push(thread("proxy-accept".to_owned(), accepting)?);
        Ok(Proxy { state, address, admin: admin_address, threads: Mutex::new(threads) })
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
        self.state.reload(policy);
    }

    /// Accepts no more, answers waiting requests with 503, lets the others end within the drain timeout,
    /// and waits for it.
    pub fn stop(&self) {
        self.state.stop();
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
    state: Arc<ProxyState>,
    listener: StdListener,
    admin: Option<StdListener>,
    workers: Vec<mpsc::Sender<HandedOver>>,
) {
    let mut beside = JoinSet::new();
    beside.spawn(window_timer::run(Arc::clone(&state)));
    beside.spawn(keep_time(Arc::clone(&state)));
    let finds_others = state.replicas() == Replicas::Share(None);
    let mut sharing = finds_others.then(|| tokio::spawn(share::renew(Arc::clone(&state))));
    let (end, ended) = oneshot::channel();
    let mut counting = state.shares_counts().then(|| tokio::spawn(shared_counting::count(Arc::clone(&state), ended)));
    if let Some(Ok(admin)) = admin.map(from_std) {
        beside.spawn(admin::serve(admin, Arc::clone(&state)));
    }
    let Ok(listener) = from_std(listener) else { return };
    let mut stopped = pin!(state.stopped());
    let (bounds, tls) = (state.settings.connection_bounds(), state.settings.tls.clone());
    let mut acceptor = Acceptor::new(listener, bounds, Arc::clone(&state.metrics.census), tls);
    let mut turns = (0..workers.len()).cycle();
    loop {
        tokio::select! {
            biased;
            () = &mut stopped => break,
            accepted = acceptor.next() => match (accepted, turns.next()) {
                (Ok(accepted), Some(turn)) => hand_over(accepted, &workers[turn]).await,
                _ => sleep(PAUSE).await,
            },
        }
    }
    drop((acceptor, workers));
    // Monitors may look on while requests under way end.
    let all_end = async {
        while state.queue.census().in_flight > 0 {
            sleep(PAUSE).await;
        }
    };
    let _ = timeout(state.settings.drain_timeout, all_end).await;
    if let Some(sharing) = &mut sharing {
        // This replica takes itself out of the register.
        let _ = sharing.await;
    }
    drop(end);
    if let Some(counting) = &mut counting {
        // What is left is handed back.
        let _ = counting.await;
    }
}

/// Gives a connection to a worker, whose queue may be full for a moment.
async fn hand_over(accepted: Accepted, worker: &mpsc::Sender<HandedOver>) {
    // A socket that the runtime does not let go is closed; so is one whose worker is gone.
    if let Ok(handed_over) = accepted.hand_over() {
        let _ = worker.send(handed_over).await;
    }
}

fn from_std(listener: StdListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Lets the clock follow the machine's, and forgets idle keys.
async fn keep_time(state: Arc<ProxyState>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        panic_point("proxy-accept");
        state.clock.follow_wall();
        state.follow_flag();
        forget_idle_keys(&state).await;
    }
}

/// Ticks in which every key is looked at, so that idle ones are forgotten four seconds after their window.
const TICKS_A_ROUND: usize = 8;

/// Looks at one tick's keys, in pieces: others are served between them.
async fn forget_idle_keys(state: &ProxyState) {
    for _ in 0..state.queue.tends().div_ceil(TICKS_A_ROUND) {
        state.queue.tend();
        yield_now().await;
    }
}
