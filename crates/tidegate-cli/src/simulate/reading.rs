//! Blocks of an input, read by several threads and handed out in their order.
//!
//! The threads are not waited for: one may hang in a read of a terminal or a pipe when the replay has ended.

use super::Stop;
use super::input::{Block, Input};
use super::parsed::Parsed;
use super::parser::Parser;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

/// Blocks that wait to be parsed, and that are parsed and wait for their turn, for each thread.
const AHEAD: usize = 2;

/// A block, and where it goes once it is parsed.
type Job = (Block, SyncSender<Parsed>);
/// What comes next: a block that is being parsed, or why there is none.
type Next = Result<Receiver<Parsed>, Stop>;

/// Calls `each` with every block of the input, in order; `threads` of them parse.
///
/// # Errors
/// The input cannot be read, or `each` has failed.
pub(super) fn read(
    mut input: Input,
    parser: Parser,
    threads: usize,
    mut each: impl FnMut(Parsed) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let (to_parse, jobs) = sync_channel::<Job>(threads * AHEAD);
    let (in_order, results) = sync_channel::<Next>(threads * AHEAD);
    spawn("simulate-read", move || {
        while let Some(next) = input.next_block().transpose() {
            let (parsed, result) = sync_channel(1);
            let (next, job) = match next {
                Ok(block) => (Ok(result), Some((block, parsed))),
                Err(message) => (Err(Stop::Input(message)), None),
            };
            let Some(job) = job else {
                let _ = in_order.send(next);
                return;
            };
            // Nobody there: the replay has ended.
            if in_order.send(next).is_err() || to_parse.send(job).is_err() {
                return;
            }
        }
    })?;
    let (parser, jobs) = (Arc::new(parser), Arc::new(Mutex::new(jobs)));
    for _ in 0..threads {
        let (parser, jobs) = (Arc::clone(&parser), Arc::clone(&jobs));
        spawn("simulate-parse", move || {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((block, parsed)) = job else { return };
                let _ = parsed.send(parser.parse(&block));
            }
        })?;
    }
    drop(jobs);
    results.into_iter().try_for_each(|next| each(next?.recv().map_err(|_| panicked())?))
}

pub(super) fn spawn<R: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<std::thread::JoinHandle<R>, Stop> {
    let spawned = Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| Stop::Input(format!("no thread can be started: {error}; raise the limit (ulimit -u)")))
}

/// A thread has gone without an answer; what it panicked of is in the log.
pub(super) fn panicked() -> Stop {
    Stop::Input("a part of the replay panicked, which is a bug".to_owned())
}
