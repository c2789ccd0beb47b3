//! Log lines, on stderr, which nobody waits for.
//!
//! A line is put into a bounded queue, and a thread of its own writes it. So a stderr that is full, closed, or a pipe that
//! nobody reads costs lines, which are counted, and neither a decision nor the end of the process: the formatter of
//! `tracing-subscriber` would write to stderr about a line that it could not write to stderr, and panic.
//! Invariant: nothing here fails, panics, or waits without a bound.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object on each line
    Json,
}

/// Lines that wait to be written; past it lines are lost.
const QUEUE_MAX: usize = 1_024;
/// How long the end of the process waits for the lines before it.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// The queue; empty until logging starts.
static QUEUE: OnceLock<SyncSender<Queued>> = OnceLock::new();
/// Lines that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

enum Queued {
    Line(Vec<u8>),
    /// Everything before it was tried.
    Flush(SyncSender<()>),
}

/// Starts logging. Called once.
///
/// # Errors
/// A message for stderr, when there is no thread for it.
pub(crate) fn start(format: LogFormat) -> Result<(), String> {
    let (queue, queued) = sync_channel(QUEUE_MAX);
    let writing = thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&queued));
    writing.map_err(|error| format!("error: no thread can be started: {error}; raise ulimit -u or ulimit -v"))?;
    let _ = QUEUE.set(queue);
    let builder = fmt().with_writer(|| Line).log_internal_errors(false).with_target(false).with_ansi(false);
    // The HTTP/2 library warns of every client that breaks its rules: a client could write as many lines as it likes. Such
    // connections are cut, and counted.
    let ours = Targets::new().with_default(LevelFilter::INFO).with_target("h2", LevelFilter::OFF);
    match format {
        LogFormat::Text => builder.finish().with(ours).init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(ours).init(),
    }
    Ok(())
}

/// Log lines that were lost since the start.
pub(crate) fn lost() -> u64 {
    LOST.load(Relaxed)
}

/// A line among the log lines that is written as it stands.
pub(crate) fn line(text: &str) {
    put(format!("{text}\n").into_bytes());
}

/// A line for stderr that is no log line, such as the last words of the process; behind the log lines if there are some.
pub(crate) fn say_error(text: &str) {
    if QUEUE.get().is_none() {
        let _ = writeln!(io::stderr(), "{text}");
        return;
    }
    line(text);
    flush();
}

/// Waits until the lines so far are written, but not for long.
pub(crate) fn flush() {
    let Some(queue) = QUEUE.get() else { return };
    let (done, is_done) = sync_channel(1);
    // A queue that is full is one that nobody reads from: waiting would not help.
    if queue.try_send(Queued::Flush(done)).is_ok() {
        let _ = is_done.recv_timeout(FLUSH_WITHIN);
    }
}

fn put(line: Vec<u8>) {
    if QUEUE.get().is_none_or(|queue| queue.try_send(Queued::Line(line)).is_err()) {
        LOST.fetch_add(1, Relaxed);
    }
}

fn write_all(queued: &Receiver<Queued>) {
    while let Ok(next) = queued.recv() {
        match next {
            Queued::Line(line) if io::stderr().write_all(&line).is_err() => {
                LOST.fetch_add(1, Relaxed);
            }
            Queued::Line(_) => {}
            Queued::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// What the formatter writes one line to, in one call.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
