//! Connections spread over threads, each with a runtime of its own: nothing that a connection needs is woken across threads.

use super::acceptor::{Acceptor, HandedOver};
use super::connection::Connection;
use super::roster::Roster;
use super::{Bounds, TICK};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// Connections on their way to one thread.
const HANDED_OVER_MAX: usize = 256;

/// Serves what `acceptor` lets in with `serve`, in this many threads in turn, until `shutdown` is done: then no more are accepted,
/// those that are open may end within [`Bounds::drain_timeout`], and the rest is cut.
///
/// # Errors
/// When a thread cannot be had, or the listener is unusable.
pub async fn serve_in_threads<Serving: Future<Output = ()> + Send + 'static>(
    mut acceptor: Acceptor,
    bounds: &Bounds,
    (name, threads): (&str, usize),
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(Arc<Connection>) -> Serving + Clone + Send + 'static,
) -> io::Result<()> {
    let (mut ways, mut running) = (Vec::new(), Vec::new());
    for number in 0..threads.max(1) {
        let (way, handed_over) = mpsc::channel(HANDED_OVER_MAX);
        let work = work(Roster::new(bounds, acceptor.census()), handed_over, serve.clone());
        running.push(thread(format!("{name}-{number}"), work)?);
        ways.push(way);
    }
    let outcome = tokio::select! {
        () = shutdown => Ok(()),
        error = hand_out(&mut acceptor, &ways) => Err(error),
    };
    drop((acceptor, ways));
    // A thread that panicked has nothing left to wait for.
    let _ = tokio::task::spawn_blocking(move || running.into_iter().for_each(|thread| drop(thread.join()))).await;
    outcome
}

/// Goes on until the listener breaks.
async fn hand_out(acceptor: &mut Acceptor, ways: &[mpsc::Sender<HandedOver>]) -> io::Error {
    let mut turns = ways.iter().cycle();
    loop {
        match acceptor.next().await {
            // A socket that the runtime does not let go is closed; so is one whose thread is gone.
            Ok(accepted) => {
                if let (Ok(handed_over), Some(way)) = (accepted.hand_over(), turns.next()) {
                    let _ = way.send(handed_over).await;
                }
            }
            Err(error) => return error,
        }
    }
}

fn thread(name: String, work: impl Future<Output = ()> + Send + 'static) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name).spawn(move || runtime.block_on(work))
}

/// Serves what comes in until no more can come, then lets it end.
async fn work<Serving: Future<Output = ()> + Send + 'static>(
    mut roster: Roster,
    mut handed_over: mpsc::Receiver<HandedOver>,
    serve: impl Fn(Arc<Connection>) -> Serving,
) {
    let mut rounds = interval(TICK);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            next = handed_over.recv() => match next.map(HandedOver::take_over) {
                Some(Ok(accepted)) => roster.serve(accepted, &serve),
                // It cannot be registered, and is closed: the process is out of something.
                Some(Err(_)) => {}
                None => break,
            },
            _ = rounds.tick() => roster.sweep(),
        }
    }
    roster.drain().await;
}
