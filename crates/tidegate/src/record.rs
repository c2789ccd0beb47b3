//! Recording: a sample of the requests that a gate answers, on disk, for `tidegate simulate` to replay.
//!
//! Whole keys are sampled, not single requests: of a key that is recorded every request is there, so that a limit does to the
//! recording what it would do to the key. A request is recorded where the engine answers it, whichever door it came through: as a
//! limiter's name and key, or as its attributes. Peeks and operations are not recorded.
//!
//! No request waits for the disk, nor for another request: a line goes into one of a few buffers of bounded size
//! (`try_lock`), and a thread writes them out. What finds no room is lost and counted. Lines carry the time at which they
//! went into the buffer, read while it is locked, so that the thread knows which times are complete and writes lines in order.

mod file;
#[cfg(test)]
mod tests;

use crate::address::is_address;
use crate::{Clock, Ipv6Prefix, Request, Target};
use file::Files;
use foldhash::fast::RandomState;
use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{KEY_LEN_MAX, Micros};

/// What is recorded, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordSettings {
    /// The folder of the files; it is made if it is not there.
    pub folder: PathBuf,
    /// How many of the keys.
    pub sample: Sample,
    /// How keys are written.
    pub keys: RecordedKeys,
    /// Bytes that all files may take; past it the oldest are deleted. At least [`RECORD_BYTES_MIN`].
    pub max_bytes: u64,
}

/// Least bytes that a recording may be given: eight files of a mebibyte.
pub const RECORD_BYTES_MIN: u64 = 8 << 20;

/// How keys are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedKeys {
    /// As they are.
    Names,
    /// As hashes by a secret of this process, which is written nowhere: the same key has the same hash until the process ends.
    Hashes,
}

/// A share of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample(u64);

impl Sample {
    /// Every key.
    pub const ALL: Sample = Sample(u64::MAX);

    /// So many in a million.
    #[must_use]
    pub const fn millionths(millionths: u32) -> Sample {
        if millionths >= 1_000_000 { Sample::ALL } else { Sample(u64::MAX / 1_000_000 * millionths as u64) }
    }
}

/// How a recording does.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecordStats {
    /// Requests that were written.
    pub written: u64,
    /// Those that found no room in the buffers, or that no trace can hold.
    pub dropped: u64,
    /// Those that could not be written to the disk.
    pub failed: u64,
    /// Why, until a line is written again.
    pub failure: Option<String>,
}

/// A recording that goes on until this is dropped; what was recorded by then is written.
#[derive(Debug)]
#[must_use = "dropping it ends the recording"]
pub struct Recording {
    recorder: Arc<Recorder>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorder.stopped.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was told by its hook.
            let _ = thread.join();
        }
    }
}

/// Buffers: as many as threads that rarely meet.
const BUFFERS: usize = 4;
/// Bytes of a buffer.
const BUFFER_MAX: usize = 1 << 20;
/// How often buffers are written out, if they do not fill up before.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// Most attributes of a line of a trace.
const ATTRIBUTES_MAX: usize = 16;

/// What the engine hands requests to.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: Clock,
    sample: u64,
    keys: RecordedKeys,
    /// Chooses keys. Seeded, so that nobody can choose keys that are not recorded.
    choosing: RandomState,
    /// Hashes keys, where they are not written as they are: no one can go through all addresses without its seed.
    secret: std::hash::RandomState,
    buffers: [Mutex<Vec<u8>>; BUFFERS],
    writer: OnceLock<Thread>,
    stopped: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// A line in a buffer begins with its time and its length.
const HEAD: usize = 12;

impl Recorder {
    /// Begins a recording.
    ///
    /// # Errors
    /// When the folder or its first file cannot be made, or no thread can be had.
    pub(crate) fn start(settings: &RecordSettings, clock: Clock) -> io::Result<(Arc<Recorder>, Recording)> {
        let files = Files::open(&settings.folder, settings.max_bytes.max(RECORD_BYTES_MIN), clock.now())?;
        let recorder = Arc::new(Recorder {
            clock,
            sample: settings.sample.0,
            keys: settings.keys,
            choosing: RandomState::default(),
            secret: std::hash::RandomState::new(),
            buffers: std::array::from_fn(|_| Mutex::new(Vec::with_capacity(BUFFER_MAX))),
            writer: OnceLock::new(),
            stopped: AtomicBool::new(false),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failure: Mutex::new(None),
        });
        let (waiting, spare) = (Vec::new(), Vec::with_capacity(BUFFER_MAX));
        let writer = Writer { recorder: Arc::clone(&recorder), files, waiting, spare };
        let thread = std::thread::Builder::new().name("tidegate-record".to_owned()).spawn(move || writer.run())?;
        let _ = recorder.writer.set(thread.thread().clone());
        Ok((Arc::clone(&recorder), Recording { recorder, thread: Some(thread) }))
    }

    /// A hit on one limiter, by name.
    #[inline]
    pub(crate) fn hit(&self, limiter: &str, key: &[u8], cost: u32) {
        let hash = self.hash(key);
        if hash <= self.sample {
            self.keep(hash, cost, &Target::Limiter { name: limiter, key });
        }
    }

    /// A request; `key` is that of the first limiter that it matched.
    #[inline]
    pub(crate) fn request(&self, request: &Request<'_>, key: Option<&[u8]>) {
        if request.intent == Intent::Peek || request.cost == 0 {
            return;
        }
        let first = match request.target {
            Target::Limiter { key, .. } => key,
            Target::Attributes { attributes, .. } => attributes.first().map_or(&b""[..], |(_, value)| value),
            // The gate hands over its limiters by name.
            Target::Descriptor { .. } => return,
        };
        let hash = self.hash(key.unwrap_or(first));
        if hash <= self.sample {
            self.keep(hash, request.cost, &request.target);
        }
    }

    /// What chooses a key. Every hit pays for it, so it is the bytes alone, without a length before them.
    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.choosing.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// How it does.
    pub(crate) fn stats(&self) -> RecordStats {
        RecordStats {
            written: self.written.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
            failure: self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Puts a line into a buffer that is free.
    #[cold]
    #[inline(never)]
    fn keep(&self, hash: u64, cost: u32, target: &Target<'_>) {
        let start = usize::try_from(hash % BUFFERS as u64).unwrap_or(0);
        let free = (0..BUFFERS).find_map(|at| self.buffers[(start + at) % BUFFERS].try_lock().ok());
        let Some(mut buffer) = free.filter(|buffer| buffer.len() < BUFFER_MAX - LINE_MAX) else {
            self.dropped.fetch_add(1, Relaxed);
            return;
        };
        let begin = buffer.len();
        buffer.extend_from_slice(&self.clock.now().get().to_le_bytes());
        buffer.extend_from_slice(&[0; HEAD - 8]);
        if !self.write(&mut buffer, cost, target) {
            buffer.truncate(begin);
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        let len = u32::try_from(buffer.len() - begin - HEAD).unwrap_or(0);
        buffer[begin + 8..begin + HEAD].copy_from_slice(&len.to_le_bytes());
        if (begin..buffer.len()).contains(&(BUFFER_MAX / 2))
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// The line without its time; false: no trace can hold it.
    fn write(&self, out: &mut Vec<u8>, cost: u32, target: &Target<'_>) -> bool {
        match target {
            Target::Limiter { name, key } => {
                out.extend_from_slice(b",\"limiter\":");
                string(out, name);
                out.extend_from_slice(b",\"key\":");
                self.key(out, key);
            }
            Target::Attributes { domain, attributes } => {
                let holds = |(name, value): &(&str, &[u8])| name.len() <= KEY_LEN_MAX && !value.is_empty();
                if attributes.is_empty() || attributes.len() > ATTRIBUTES_MAX || !attributes.iter().all(holds) {
                    return false;
                }
                if let Some(domain) = domain {
                    out.extend_from_slice(b",\"domain\":");
                    string(out, domain);
                }
                out.extend_from_slice(b",\"attributes\":{");
                for (index, (name, value)) in attributes.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    string(out, name);
                    out.push(b':');
                    // An IPv6 address counts as its network, and that must still be so of its hash.
                    let is_hashed_address = is_address(name) && self.keys == RecordedKeys::Hashes;
                    let value = if is_hashed_address {
                        Ipv6Prefix::default().key_of_text(value)
                    } else {
                        Cow::Borrowed(*value)
                    };
                    self.key(out, &value);
                }
                out.push(b'}');
            }
            Target::Descriptor { .. } => return false,
        }
        if cost != 1 {
            out.extend_from_slice(b",\"cost\":");
            out.extend_from_slice(cost.to_string().as_bytes());
        }
        out.extend_from_slice(b"}\n");
        true
    }

    /// A key as it is written. One that a trace cannot hold, as it is no text or too long, is written as a hash.
    fn key(&self, out: &mut Vec<u8>, key: &[u8]) {
        let fits = self.keys == RecordedKeys::Names && (1..=KEY_LEN_MAX).contains(&key.len());
        match std::str::from_utf8(key) {
            Ok(text) if fits => string(out, text),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let hash = self.secret.hash_one(key);
                out.extend_from_slice(b"\"#");
                out.extend((0..16).rev().map(|digit| DIGITS[usize::try_from(hash >> (digit * 4) & 15).unwrap_or(0)]));
                out.push(b'"');
            }
        }
    }
}

/// Longest line that a buffer takes: sixteen attributes with every byte escaped.
const LINE_MAX: usize = 1 << 17;

/// A text as JSON.
fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    if text.bytes().all(|byte| byte >= 0x20 && !matches!(byte, b'"' | b'\\')) {
        out.extend_from_slice(text.as_bytes());
    } else {
        text.bytes().for_each(|byte| escaped(out, byte));
    }
    out.push(b'"');
}

fn escaped(out: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        _ => out.push(byte),
    }
}

/// The thread that writes.
struct Writer {
    recorder: Arc<Recorder>,
    files: Files,
    /// Lines that are not written yet: their time and their text.
    waiting: Vec<(Micros, Box<[u8]>)>,
    /// What takes the place of a buffer that is taken.
    spare: Vec<u8>,
}

impl Writer {
    fn run(mut self) {
        while !self.recorder.stopped.load(Relaxed) {
            std::thread::park_timeout(WRITE_EVERY);
            // What goes into a buffer from here on has this time or a later one.
            let complete = self.recorder.clock.now();
            self.gather();
            self.write_before(complete);
        }
        self.gather();
        self.write_before(Micros::MAX);
    }

    fn gather(&mut self) {
        for buffer in &self.recorder.buffers {
            self.spare.clear();
            std::mem::swap(&mut *buffer.lock().unwrap_or_else(PoisonError::into_inner), &mut self.spare);
            let mut rest = self.spare.as_slice();
            while let Some((at, text, after)) = next(rest) {
                self.waiting.push((at, text.into()));
                rest = after;
            }
        }
    }

    /// Writes the lines of before `until`, in order.
    fn write_before(&mut self, until: Micros) {
        self.waiting.sort_by_key(|(at, _)| *at);
        let due = self.waiting.partition_point(|(at, _)| *at < until);
        if due == 0 {
            return;
        }
        let lines: Vec<(Micros, Box<[u8]>)> = self.waiting.drain(..due).collect();
        let (count, recorder) = (lines.len() as u64, &self.recorder);
        let outcome = self.files.write(lines.iter().map(|(at, text)| (*at, &**text)));
        let counter = if outcome.is_ok() { &recorder.written } else { &recorder.failed };
        counter.fetch_add(count, Relaxed);
        *recorder.failure.lock().unwrap_or_else(PoisonError::into_inner) = outcome.err().map(|error| error.to_string());
    }
}

/// The first line of a buffer, and what is behind it.
fn next(buffer: &[u8]) -> Option<(Micros, &[u8], &[u8])> {
    let (head, rest) = buffer.split_first_chunk::<HEAD>()?;
    let at = u64::from_le_bytes(head[..8].try_into().ok()?);
    let len = u32::from_le_bytes(head[8..].try_into().ok()?);
    let (text, after) = rest.split_at_checked(len as usize)?;
    Some((Micros::saturating(at), text, after))
}
