//! A stream's steps on disk: append-only, in segments that are dropped whole.
//!
//! `PATH/STREAM/00000007.journal` and so on, each a head and [frames](frame), one for every commit. As an event
//! lives for one duration only, a segment whose steps all lie before the oldest thing still alive is
//! not needed any more: compaction is deleting files, and nothing is ever rewritten.
//!
//! Invariant: a step is sent to no subscriber before its frame is synced. So what a crash tears off the
//! end was never sent, and is cut; anything else that does not add up is an error for people to look at. To tell the
//! two apart, a segment's head says how many bytes were synced. That is written after each sync, and comes to disk by
//! itself or with the next one: it is never too much.

mod frame;
mod head;
mod record;
mod synced;

use crate::Epoch;
use frame::Front;
use head::{NoHead, Version};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::{error, fmt};
use tidegate_core::timeline::Step;
use tidegate_store::private_file;

/// Past so many bytes a segment is closed and the next begun.
const SEGMENT_BYTES: u64 = 16 << 20;
const EXTENSION: &str = "journal";

/// Why a journal cannot be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// The operating system refused.
    Io {
        /// What was tried, such as "write".
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process has the folder.
    InUse(PathBuf),
    /// A file is not what was written.
    Damaged {
        /// Which file.
        path: PathBuf,
        /// At which byte.
        at: u64,
        /// What does not fit.
        what: String,
    },
}

impl error::Error for JournalError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            JournalError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Io { doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}; check the path, its owner and the free space", path.display())
            }
            JournalError::InUse(path) => {
                write!(f, "another process holds {}; stop it, or give this one a path of its own", path.display())
            }
            JournalError::Damaged { path, at, what } => write!(
                f,
                "{} is damaged at byte {at}: {what}; restore the folder from a copy, or move it away to start with an empty stream",
                path.display()
            ),
        }
    }
}

pub(crate) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { doing, path, source }
}

/// Where a stream stood when a segment was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    pub(crate) epoch: Epoch,
    pub(crate) clock: u64,
    pub(crate) horizon_ms: u64,
}

/// What opening a journal found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Where the first segment begins.
    pub(crate) standing: Standing,
    /// A sentence about a torn tail that was cut.
    pub(crate) cut: Option<String>,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    /// Closed segments: number, and the horizon at their end.
    closed: VecDeque<(u64, u64)>,
    number: u64,
    file: File,
    /// Bytes of the open segment that are known to be on disk.
    len: u64,
}

/// Steps that are committed together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
}

impl Batch {
    pub(crate) fn push(&mut self, step: &Step) {
        record::encode(&mut self.bytes, step);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Journal {
    /// Opens a folder, making it if need be, and gives every step to `replay`, in order, with where the first
    /// segment begins.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged other than by a torn tail.
    pub(crate) fn open(
        folder: &Path,
        mut replay: impl FnMut(Standing, Step),
    ) -> Result<(Journal, Found), JournalError> {
        private_file::make_own_folder(folder).map_err(io_error("create", folder))?;
        let numbers = segments(folder)?;
        let empty = Standing { epoch: epoch(folder, &numbers)?, clock: 0, horizon_ms: 0 };
        let mut found = Found { standing: empty, cut: None };
        let (mut closed, mut reached, mut last) = (VecDeque::new(), None, None);
        for (index, number) in numbers.iter().enumerate() {
            let is_last = index + 1 == numbers.len();
            let path = path_of(folder, *number);
            let segment = read(&path, is_last, &mut reached, &mut found, &mut replay)?;
            match segment {
                Some(good) if is_last => last = Some((*number, good)),
                Some(_) => closed.push_back((*number, reached.map_or(0, |reached: Standing| reached.horizon_ms))),
                // Begun, but its head never came to disk.
                None => fs::remove_file(&path).map_err(io_error("remove", &path))?,
            }
        }
        let standing = reached.unwrap_or(empty);
        let (number, file, len) = match last {
            Some((number, Good { len, version: Version::LATEST })) => {
                (number, reopen(&path_of(folder, number), len)?, len)
            }
            Some((number, Good { len, .. })) => {
                // Of a version before: it stays as it is, and the next segment says what was synced, and the epoch.
                drop(reopen(&path_of(folder, number), len)?);
                closed.push_back((number, standing.horizon_ms));
                let (file, len) = begin(folder, number + 1, standing)?;
                (number + 1, file, len)
            }
            None => {
                let number = numbers.last().copied().unwrap_or(1);
                let (file, len) = begin(folder, number, standing)?;
                (number, file, len)
            }
        };
        Ok((Journal { folder: folder.to_owned(), closed, number, file, len }, found))
    }

    /// Brings a batch to disk: after `Ok` it survives a power cut. After an error it may be tried again.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(crate) fn commit(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let mut framed = Vec::with_capacity(batch.bytes.len() + 16);
        frame::push(&mut framed, &batch.bytes);
        let path = path_of(&self.folder, self.number);
        // Where a failed attempt began, the next one begins again: the kernel may have dropped its pages.
        self.file.seek(SeekFrom::Start(self.len)).map_err(io_error("seek in", &path))?;
        self.file.write_all(&framed).map_err(io_error("write", &path))?;
        self.file.sync_data().map_err(io_error("sync", &path))?;
        self.len += framed.len() as u64;
        // It only helps to find damage: the batch is on disk without it.
        let _ = synced::write(&mut self.file, self.len);
        Ok(())
    }

    /// Housekeeping after a commit: begins the next segment, and deletes those that nothing alive needs.
    ///
    /// # Errors
    /// When the disk refuses; the journal goes on as it was.
    pub(crate) fn tend(&mut self, standing: Standing, oldest_ms: Option<u64>) -> Result<(), JournalError> {
        self.tend_past(SEGMENT_BYTES, standing, oldest_ms)
    }

    fn tend_past(&mut self, bytes: u64, standing: Standing, oldest_ms: Option<u64>) -> Result<(), JournalError> {
        if self.len >= bytes {
            let (file, len) = begin(&self.folder, self.number + 1, standing)?;
            self.closed.push_back((self.number, standing.horizon_ms));
            (self.number, self.file, self.len) = (self.number + 1, file, len);
        }
        while let Some((number, end_ms)) = self.closed.front()
            && oldest_ms.is_none_or(|oldest_ms| *end_ms < oldest_ms)
        {
            let path = path_of(&self.folder, *number);
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            self.closed.pop_front();
        }
        Ok(())
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.{EXTENSION}"))
}

/// The numbers of the segments, in order.
fn segments(folder: &Path) -> Result<Vec<u64>, JournalError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
        let path = entry.map_err(io_error("list", folder))?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
            numbers.push(number.ok_or_else(|| damaged(&path, 0, "its name is not that of a segment"))?);
        }
    }
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        Some(pair) => Err(damaged(&path_of(folder, pair[0] + 1), 0, "the segment is missing")),
        None => Ok(numbers),
    }
}

/// The epoch of the newest segment that says one; drawn if there is none, as in a journal that begins.
fn epoch(folder: &Path, numbers: &[u64]) -> Result<Epoch, JournalError> {
    for number in numbers.iter().rev() {
        let path = path_of(folder, *number);
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(io_error("open", &path))?;
        file.take(synced::END as u64).read_to_end(&mut bytes).map_err(io_error("read", &path))?;
        if let Ok(head) = head::read(&bytes)
            && let Some(epoch) = head.epoch
        {
            return Ok(epoch);
        }
    }
    Ok(Epoch::draw())
}

/// Begins a segment; it is on disk, and found by its name, when this returns.
fn begin(folder: &Path, number: u64, standing: Standing) -> Result<(File, u64), JournalError> {
    let path = path_of(folder, number);
    let (bytes, len) = head::encode(standing);
    let mut file = private_file::make_anew(&path).map_err(io_error("create", &path))?;
    file.write_all(&bytes).map_err(io_error("write", &path))?;
    file.sync_all().map_err(io_error("sync", &path))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("sync", folder))?;
    Ok((file, len))
}

fn reopen(path: &Path, len: u64) -> Result<File, JournalError> {
    let file = private_file::open_existing(path).map_err(io_error("open", path))?;
    file.set_len(len).map_err(io_error("cut", path))?;
    file.sync_all().map_err(io_error("sync", path))?;
    Ok(file)
}

/// What is good of a segment.
struct Good {
    len: u64,
    version: Version,
}

/// Reads a segment, and gives how many of its bytes are good; `None`: not even its head is.
fn read(
    path: &Path,
    is_last: bool,
    reached: &mut Option<Standing>,
    found: &mut Found,
    replay: &mut impl FnMut(Standing, Step),
) -> Result<Option<Good>, JournalError> {
    let bytes = fs::read(path).map_err(io_error("read", path))?;
    let mut torn = |at: usize| {
        if !is_last {
            return Err(damaged(path, at, "a frame is torn, and a segment comes after it"));
        }
        let lost = bytes.len() - at;
        found.cut = Some(format!(
            "{}: {lost} bytes from byte {at} on were not written to their end and are cut; no subscriber was sent them",
            path.display()
        ));
        Ok(())
    };
    let head = match head::read(&bytes) {
        Ok(head) => head,
        Err(NoHead::Torn) => {
            torn(0)?;
            return Ok(None);
        }
        Err(NoHead::Damaged(at, what)) => return Err(damaged(path, at, what)),
    };
    let (version, synced) = (head.version, head.synced);
    let epoch = found.standing.epoch;
    if let Some(other) = head.epoch.filter(|other| *other != epoch) {
        let what = format!("it is of the epoch {other}, but a later segment is of {epoch}");
        return Err(damaged(path, 0, &what));
    }
    match reached {
        None => {
            found.standing = Standing { epoch, clock: head.clock, horizon_ms: head.horizon_ms };
            *reached = Some(found.standing);
        }
        Some(before) if before.clock != head.clock => {
            let what =
                format!("it goes on from clock {}, but the segment before ended at {}", head.clock, before.clock);
            return Err(damaged(path, 0, &what));
        }
        Some(_) => {}
    }
    let mut at = head.len;
    loop {
        let front = frame::front(&bytes[at..]);
        if matches!(front, Front::End | Front::Torn) && (at as u64) < synced {
            let what = format!(
                "{synced} bytes were synced, but no whole frame begins here and the file has {}: messages that were \
                 sent are missing",
                bytes.len()
            );
            return Err(damaged(path, at, &what));
        }
        match front {
            Front::End => return Ok(Some(Good { len: at as u64, version })),
            Front::Damaged(what) => return Err(damaged(path, at, what)),
            Front::Torn => {
                torn(at)?;
                return Ok(Some(Good { len: at as u64, version }));
            }
            Front::Frame(payload, len) => {
                let standing = reached.get_or_insert(found.standing);
                steps(path, at, payload, standing, |step| replay(found.standing, step))?;
                at += len;
            }
        }
    }
}

fn steps(
    path: &Path,
    at: usize,
    mut payload: &[u8],
    standing: &mut Standing,
    mut replay: impl FnMut(Step),
) -> Result<(), JournalError> {
    while !payload.is_empty() {
        let step =
            record::decode(&mut payload).ok_or_else(|| damaged(path, at, "a frame holds no step of this version"))?;
        if let Some(clock) = step.clock() {
            if clock != standing.clock + 1 {
                return Err(damaged(path, at, &format!("clock {clock} follows {}", standing.clock)));
            }
            standing.clock = clock;
        }
        standing.horizon_ms = standing.horizon_ms.max(time_of(&step));
        replay(step);
    }
    Ok(())
}

fn time_of(step: &Step) -> u64 {
    match step {
        Step::Submitted { time_ms, .. } | Step::KeyFrame { time_ms, .. } | Step::Published { time_ms, .. } => *time_ms,
        Step::Invalidated { last_ms, .. } | Step::Rearmed { last_ms, .. } => *last_ms,
    }
}

fn damaged(path: &Path, at: usize, what: &str) -> JournalError {
    JournalError::Damaged { path: path.to_owned(), at: at as u64, what: what.to_owned() }
}

#[cfg(test)]
mod tests;
