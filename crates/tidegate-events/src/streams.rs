//! All streams of a server: opened together, and stopped together.

use crate::embedded::{Durability, Embedded, message_of};
use crate::journal::{Journal, JournalError, Standing, io_error};
use crate::line::Line;
use crate::log::Log;
use crate::{Epoch, Mode, Now, Stream, StreamSpec};
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tidegate_core::Micros;
use tidegate_core::timeline::{Step, Timeline};
use tidegate_store::private_file;

const LOCK_FILE: &str = "lock";

/// Streams that were read from disk and do not serve yet.
#[derive(Debug)]
pub struct Opening {
    read: Vec<Restored>,
    lock: Option<File>,
}

#[derive(Debug)]
struct Restored {
    spec: StreamSpec,
    timeline: Timeline,
    epoch: Epoch,
    log: Log,
    journal: Option<Journal>,
    cut: Option<String>,
}

/// Streams that serve. Dropping them stops them, after what they have to commit.
#[derive(Debug, Default)]
pub struct Streams {
    streams: Vec<Arc<Stream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The folder's lock, held while the streams are open; the operating system releases it even after kill -9.
    lock: Option<File>,
}

impl Opening {
    /// Reads what the folder has of these streams; without a folder they are kept in memory only.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or another process holds it.
    pub fn read(specs: Vec<StreamSpec>, folder: Option<&Path>) -> Result<Opening, JournalError> {
        let lock = match folder {
            Some(folder) if !specs.is_empty() => Some(hold(folder)?),
            _ => None,
        };
        let read = specs.into_iter().map(|spec| restore(spec, folder)).collect::<Result<_, _>>()?;
        Ok(Opening { read, lock })
    }

    /// The latest time in any stream: the clock must not start before it.
    #[must_use]
    pub fn horizon(&self) -> Micros {
        let latest = self.read.iter().map(|one| one.timeline.horizon_ms()).max();
        Micros::from_millis(latest.map_or(0, |ms| ms + 1))
    }

    /// Warnings for operators: torn tails that were cut.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.read.iter().filter_map(|one| one.cut.as_deref())
    }

    /// Begins service: overdue events end, each stream's key frame is published, and its thread runs.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(self, now: &Now) -> std::io::Result<Streams> {
        let mut streams = Streams::default();
        streams.lock = self.lock;
        for Restored { spec, timeline, epoch, log, journal, .. } in self.read {
            let log = Arc::new(log);
            let durability = if journal.is_some() { Durability::Journal } else { Durability::None };
            let line = Embedded::new(spec.clone(), timeline, (epoch, Arc::clone(&log)), durability, Arc::clone(now));
            let stream = Arc::new(Stream::new(spec, log, Line::Embedded(Box::new(line))));
            let runner = Arc::clone(&stream);
            let thread = std::thread::Builder::new().name(format!("stream {}", stream.spec.name));
            let thread = thread.spawn(move || match &runner.line {
                Line::Embedded(line) => line.run(journal),
                #[cfg(feature = "redis")]
                Line::Shared(_) => {}
            })?;
            streams.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
            streams.streams.push(stream);
        }
        Ok(streams)
    }
}

impl Streams {
    /// Streams that several servers share on one Redis. Needs a running tokio runtime. A Redis that cannot be
    /// reached is tried until it can; submissions are refused meanwhile.
    ///
    /// # Errors
    /// When this store cannot keep streams.
    #[cfg(feature = "redis")]
    pub async fn on_store(
        specs: Vec<StreamSpec>,
        store: &tidegate_store::Store,
        now: &Now,
    ) -> Result<Streams, crate::OpenError> {
        let capabilities = store.capabilities();
        let Some(redis) = store.scripts().filter(|_| capabilities.streams) else {
            return Err(crate::OpenError(format!(
                "{} keeps no streams, which need blocking reads and one clock; use redis://, redis-sentinel:// or redis-cluster://",
                capabilities.name
            )));
        };
        let mut streams = Streams::default();
        for spec in specs {
            let log = Arc::new(Log::unknown());
            let line = crate::shared::Shared::open(spec.clone(), Arc::clone(&log), redis, Arc::clone(now)).await;
            streams.streams.push(Arc::new(Stream::new(spec, log, Line::Shared(line))));
        }
        Ok(streams)
    }

    /// All streams, in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    /// The stream of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Stream>> {
        self.streams.iter().find(|stream| stream.spec.name == name)
    }

    /// The first stream of a mode.
    #[must_use]
    pub fn first_of(&self, mode: Mode) -> Option<&Arc<Stream>> {
        self.streams.iter().find(|stream| stream.spec.rules.mode == mode)
    }

    /// Stops all streams after their last commits; subscriptions end. Blocks until then.
    pub fn stop(&self) {
        self.streams.iter().for_each(|stream| stream.line.stop());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has printed it on stderr already.
            let _ = thread.join();
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.stop();
    }
}

fn hold(folder: &Path) -> Result<File, JournalError> {
    private_file::make_own_folder(folder).map_err(io_error("create", folder))?;
    let path = folder.join(LOCK_FILE);
    let lock = private_file::open_or_make(&path).map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(JournalError::InUse(folder.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(io_error("lock", &path)(source)),
    }
}

/// Replays a stream's journal: its state, and the messages for subscribers that resume.
fn restore(spec: StreamSpec, folder: Option<&Path>) -> Result<Restored, JournalError> {
    let Some(folder) = folder else {
        let (timeline, epoch) = (Timeline::default(), Epoch::draw());
        return Ok(Restored { spec, timeline, epoch, log: Log::new(0, epoch), journal: None, cut: None });
    };
    let rules = spec.rules;
    let mut replayed: Option<(Timeline, Log)> = None;
    let begin = |Standing { epoch, clock, horizon_ms }| (Timeline::going_on(clock, horizon_ms), Log::new(clock, epoch));
    let (journal, found) = Journal::open(&folder.join(&spec.name), |standing, step| {
        let (timeline, log) = replayed.get_or_insert_with(|| begin(standing));
        timeline.apply(&step);
        if let Step::KeyFrame { time_ms, .. } = step {
            timeline.forget(&rules, Micros::from_millis(time_ms));
        }
        log.push(message_of(&step, timeline, standing.epoch));
    })?;
    let (timeline, log) = replayed.unwrap_or_else(|| begin(found.standing));
    Ok(Restored { spec, timeline, epoch: found.standing.epoch, log, journal: Some(journal), cut: found.cut })
}
