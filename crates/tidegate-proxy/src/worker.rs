//! A thread that serves its share of the connections, with a runtime and a pool of its own.
//!
//! A connection stays where it was given: nothing that a request needs is woken across threads, except
//! its turn in line.

use crate::client::Client;
use crate::exchange::exchange;
use crate::state::ProxyState;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::pin::pin;
use std::sync::Arc;
use tidegate::panic_point;
use tidegate_doors::listener::{HandedOver, Http2, Protocol, Roster, Strict, TICK, Watched, http2};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// Largest head of a request.
const HEAD_MAX: u32 = 16 << 10;
/// Most bytes that hyper reads ahead; a head must fit.
const BUFFER_MAX: usize = 32 << 10;

struct Worker {
    state: Arc<ProxyState>,
    number: usize,
    roster: Roster,
}

/// Serves what comes in until the proxy stops, then lets it end.
pub(crate) async fn run(state: Arc<ProxyState>, number: usize, mut accepted: mpsc::Receiver<HandedOver>) {
    let roster = Roster::new(&state.settings.connection_bounds(), &state.metrics.census);
    let mut worker = Worker { number, roster, state: Arc::clone(&state) };
    let mut rounds = interval(TICK);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = 0_u64;
    let mut stopped = pin!(state.stopped());
    loop {
        tokio::select! {
            () = &mut stopped => break,
            Some(handed_over) = accepted.recv() => worker.take(handed_over),
            _ = rounds.tick() => {
                round += 1;
                panic_point("proxy-worker");
                worker.sweep(round);
            }
        }
    }
    while let Ok(handed_over) = accepted.try_recv() {
        worker.take(handed_over);
    }
    worker.roster.drain().await;
}

impl Worker {
    fn take(&mut self, handed_over: HandedOver) {
        // A connection that the runtime cannot register is closed: the process is out of descriptors or memory.
        let Ok(accepted) = handed_over.take_over() else { return };
        let (state, number) = (Arc::clone(&self.state), self.number);
        self.roster.serve(accepted, |connection| serve(Arc::new(Client::new(state, number, connection))));
    }

    fn sweep(&mut self, round: u64) {
        self.roster.sweep();
        if round.is_multiple_of(2) {
            self.state.pools.all[self.number].sweep(self.state.rules.load().generation);
        }
    }
}

/// Serves one connection to its end.
async fn serve(client: Arc<Client>) {
    let protocol = tokio::select! {
        protocol = client.connection.protocol() => protocol,
        // Whatever the order is: nothing is under way yet.
        _ = client.connection.ordered() => return,
    };
    panic_point("proxy-connection");
    match protocol {
        Ok(Protocol::Http2) => serve_http2(client).await,
        Ok(Protocol::Http1) => serve_http1(client).await,
        Err(_) => {}
    }
}

async fn serve_http1(client: Arc<Client>) {
    let served = Arc::clone(&client);
    let service = service_fn(move |request| exchange(Arc::clone(&served), request));
    let mut http = http1::Builder::new();
    // The listener's limits stand in for hyper's timer.
    http.header_read_timeout(None).max_buf_size(BUFFER_MAX).max_header_size(HEAD_MAX as usize);
    let (mut strict, connection) = (Strict::default(), Arc::clone(&client.connection));
    let io = TokioIo::new(Watched::new(Arc::clone(&client.connection), move |bytes: &mut [u8]| {
        strict.look(bytes);
        connection.note_whole(strict.is_between());
        strict.is_in_head()
    }));
    let mut serving = pin!(http.serve_connection(io, service).with_upgrades());
    if !client.connection.serve(serving.as_mut(), |serving| serving.graceful_shutdown()).await {
        return;
    }
    if client.connection.is_switched() || client.state.is_stopping() {
        return;
    }
    // A client that is still sending would lose its answer, such as an early 413.
    tokio::select! {
        () = client.connection.linger() => {}
        _ = client.connection.ordered() => {}
    }
}

async fn serve_http2(client: Arc<Client>) {
    let served = Arc::clone(&client);
    let service = service_fn(move |request| exchange(Arc::clone(&served), request));
    let (http, requests) = http2(HEAD_MAX);
    let io = TokioIo::new(Watched::http2(Arc::clone(&client.connection)));
    let serving = pin!(http.serve_connection(io, service));
    let serving = pin!(Http2::new(serving, requests));
    client.connection.serve(serving, |mut it| it.serving().graceful_shutdown()).await;
}
