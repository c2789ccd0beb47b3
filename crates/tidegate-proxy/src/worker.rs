//! A thread that serves its share of the connections, with a runtime and a pool of its own.
//!
//! A connection stays where it was given: nothing that a request needs is woken across threads, except
//! its turn in line.

use crate::client::{Client, ClientIo, Order};
use crate::exchange::exchange;
use crate::site::{Site, TICK};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::{IpAddr, TcpStream as StdStream};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// A connection that was accepted.
pub(crate) type Accepted = (StdStream, IpAddr);

/// Largest head of a request.
const HEAD_MAX: u32 = 16 << 10;
/// Most bytes that hyper reads ahead; a head must fit.
const BUFFER_MAX: usize = 32 << 10;
/// HTTP/2: requests at once on one connection, and bytes that may come before anybody reads them.
const STREAMS_MAX: u32 = 100;
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

struct Worker {
    site: Arc<Site>,
    number: usize,
    clients: Vec<Weak<Client>>,
    tasks: JoinSet<()>,
}

/// Serves what comes in until the proxy stops, then lets it end.
pub(crate) async fn run(site: Arc<Site>, number: usize, mut accepted: mpsc::Receiver<Accepted>) {
    let mut worker = Worker { number, clients: Vec::new(), tasks: JoinSet::new(), site: Arc::clone(&site) };
    let mut rounds = interval(TICK);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = 0_u64;
    let mut stopped = pin!(site.stopped());
    loop {
        tokio::select! {
            () = &mut stopped => break,
            Some((stream, peer)) = accepted.recv() => worker.take(stream, peer),
            _ = rounds.tick() => {
                round += 1;
                worker.sweep(round);
            }
        }
        while worker.tasks.try_join_next().is_some() {}
    }
    while let Ok((stream, peer)) = accepted.try_recv() {
        worker.take(stream, peer);
    }
    worker.drain().await;
}

impl Worker {
    fn take(&mut self, stream: StdStream, peer: IpAddr) {
        // A stream that cannot be registered is closed: the process is out of something.
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        let client = Arc::new(Client::new(Arc::clone(&self.site), self.number, peer, stream));
        self.clients.push(Arc::downgrade(&client));
        self.tasks.spawn(serve(client));
    }

    fn sweep(&mut self, round: u64) {
        self.clients.retain(|client| {
            let Some(client) = client.upgrade() else { return false };
            let cut = client.overstays();
            if cut {
                client.site.metrics.cut_connections.fetch_add(1, Relaxed);
                client.give(Order::Cut);
            }
            !cut
        });
        self.site.pools.all[self.number].alarms.tick();
        if round.is_multiple_of(2) {
            self.site.pools.all[self.number].sweep(self.site.rules.load().generation);
        }
    }

    async fn drain(&mut self) {
        self.clients.iter().filter_map(Weak::upgrade).for_each(|client| client.give(Order::Finish));
        let tasks = &mut self.tasks;
        let all_end = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(self.site.settings.drain_timeout, all_end).await;
        self.tasks.shutdown().await;
    }
}

/// Serves one connection to its end.
async fn serve(client: Arc<Client>) {
    let is_http2 = tokio::select! {
        is_http2 = is_http2(&client) => is_http2,
        () = client.ordered.notified() => return,
    };
    match is_http2 {
        Ok(true) => serve_http2(client).await,
        Ok(false) => serve_http1(client).await,
        Err(_) => {}
    }
}

/// How every HTTP/2 connection begins (RFC 9113, 3.4), and no HTTP/1 request does.
const PREFACE: &[u8; 16] = b"PRI * HTTP/2.0\r\n";
/// How long to wait for the rest of what may be a preface.
const REST_OF_PREFACE: Duration = Duration::from_millis(5);

async fn is_http2(client: &Client) -> std::io::Result<bool> {
    loop {
        let mut bytes = [0; PREFACE.len()];
        let count = client.peek(&mut bytes).await?;
        if count == 0 || bytes[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        sleep(REST_OF_PREFACE).await;
    }
}

/// Drives a connection, and does what the proxy orders. Errors are the client's going away or not
/// speaking HTTP: nobody is left to tell.
macro_rules! drive {
    ($client:ident, $serving:expr) => {
        let mut serving = pin!($serving);
        loop {
            tokio::select! {
                biased;
                _ = serving.as_mut() => return,
                () = $client.ordered.notified() => {
                    if $client.must_cut() {
                        return;
                    }
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    };
}

async fn serve_http1(client: Arc<Client>) {
    let served = Arc::clone(&client);
    let service = service_fn(move |request| exchange(Arc::clone(&served), request));
    let mut http = http1::Builder::new();
    // The sweep's limits stand in for hyper's timer.
    http.header_read_timeout(None).max_buf_size(BUFFER_MAX).max_header_size(HEAD_MAX as usize);
    let io = TokioIo::new(ClientIo(Arc::clone(&client)));
    drive!(client, http.serve_connection(io, service).with_upgrades());
}

async fn serve_http2(client: Arc<Client>) {
    client.switch_protocol();
    let served = Arc::clone(&client);
    let service = service_fn(move |request| exchange(Arc::clone(&served), request));
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(CONNECTION_WINDOW as usize)
        .max_header_list_size(HEAD_MAX);
    let io = TokioIo::new(ClientIo(Arc::clone(&client)));
    drive!(client, http.serve_connection(io, service));
}
