//! A folder that keeps a store's snapshot: held by one process, written so that a crash at any instant leaves the old or the
//! new file. What is in the file: [`snapshot`](crate::snapshot).

use crate::budget::Fit;
use crate::private_file;
use crate::snapshot::{Counted, Fault, Loaded, Summed, read_store, write_store};
use crate::{Memory, panic_point};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::{error, fmt};
use tidegate_core::Micros;

const FILE: &str = "snapshot";
const NEW_FILE: &str = "snapshot.new";
const LOCK_FILE: &str = "lock";

/// A directory with a store's snapshot, held by this process alone.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked while it is open; the operating system lets go of it even after kill -9.
    _lock: File,
}

/// Why a directory cannot be used, or a snapshot not read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The operating system refused.
    Io {
        /// What was tried, such as "write".
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another process has the directory.
    InUse(PathBuf),
    /// A panic left this limiter's keys half changed: they are not saved over what is whole.
    HalfChanged(String),
    /// The file is not what was written.
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Up to which byte it was read.
        at: u64,
        /// What does not fit.
        what: &'static str,
    },
}

impl error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            SnapshotError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Io { doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}; check the path, its owner and the free space", path.display())
            }
            SnapshotError::InUse(path) => {
                write!(f, "another process holds {}; stop it, or give this one a path of its own", path.display())
            }
            SnapshotError::HalfChanged(limiter) => write!(
                f,
                "a panic left keys of limiter {limiter} half changed, so the snapshot before it stays; start again and report this"
            ),
            SnapshotError::Damaged { path, at, what } => write!(
                f,
                "{} is damaged ({what} at byte {at}); restore it from a copy, or move it away to start with empty counters",
                path.display()
            ),
        }
    }
}

impl SnapshotError {
    /// A few words without paths, for those who may not see more.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            SnapshotError::Io { source, .. } => source.kind().to_string(),
            SnapshotError::InUse(_) => "the folder is another process's".to_owned(),
            SnapshotError::HalfChanged(_) => "a panic left keys half changed".to_owned(),
            SnapshotError::Damaged { what, .. } => (*what).to_owned(),
        }
    }
}

impl Directory {
    /// Opens the directory, making it if need be, for this process alone.
    ///
    /// # Errors
    /// When it cannot be made or written, or another process holds it.
    pub fn open(path: &Path) -> Result<Directory, SnapshotError> {
        private_file::make_folder(path).map_err(io_error("create", path))?;
        let lock_path = path.join(LOCK_FILE);
        let lock = private_file::open_or_make(&lock_path).map_err(io_error("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory { path: path.to_owned(), _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(SnapshotError::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(source)) => Err(io_error("lock", &lock_path)(source)),
        }
    }

    /// Writes the whole store. What is decided meanwhile is in it or not, key by key.
    ///
    /// # Errors
    /// When a file cannot be written, or a panic left keys half changed; the old snapshot is then still there.
    pub fn save(&self, store: &Memory, now: Micros) -> Result<(), SnapshotError> {
        let (new, final_path) = (self.path.join(NEW_FILE), self.path.join(FILE));
        let file = private_file::make_anew(&new).map_err(io_error("create", &new))?;
        let write = || -> io::Result<()> {
            let mut out = Summed::new(BufWriter::with_capacity(1 << 16, &file));
            write_store(&mut out, store, now)?;
            panic_point("snapshot");
            let sum = out.crc.finalize();
            out.inner.write_all(&sum.to_le_bytes())?;
            out.inner.flush()?;
            file.sync_all()
        };
        if let Err(error) = write() {
            // Half a file is of no use, and on a full disk it would keep the disk full.
            let _ = fs::remove_file(&new);
            return Err(store
                .half_changed()
                .map_or_else(|| io_error("write", &new)(error), SnapshotError::HalfChanged));
        }
        fs::rename(&new, &final_path).map_err(io_error("rename to", &final_path))?;
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(io_error("sync", &self.path))
    }

    /// The store that was saved here; `None`: nothing was. What was saved loads under any budget: keys that
    /// find no place in a smaller one are counted by the sketch, see [`Memory::displaced`]. Times that are far ahead of `now` come from
    /// a clock that was wrong; they are carried to now: counts count as of now, and blocks have left what they had.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn load(&self, max_bytes: usize, now: Micros) -> Result<Option<Loaded>, SnapshotError> {
        let path = self.path.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        let damaged = |at, what| SnapshotError::Damaged { path: path.clone(), at, what };
        let len = file.metadata().map_err(io_error("open", &path))?.len();
        let Some(body) = len.checked_sub(4) else {
            return Err(damaged(len, "it ends too early"));
        };
        // The sum first: what is parsed afterwards is what was written.
        let mut summed = Summed::new(BufReader::with_capacity(1 << 16, &file));
        let mut sum = [0; 4];
        io::copy(&mut summed.by_ref().take(body), &mut io::sink()).map_err(io_error("read", &path))?;
        summed.inner.read_exact(&mut sum).map_err(io_error("read", &path))?;
        if summed.crc.finalize() != u32::from_le_bytes(sum) {
            return Err(damaged(body, "the checksum differs"));
        }
        let read = |fit: &mut Fit| {
            let again = File::open(&path).map_err(io_error("open", &path))?;
            let mut input = Counted::new(BufReader::with_capacity(1 << 16, again.take(body)));
            let store = read_store(&mut input, max_bytes, now, fit);
            Ok((store, input))
        };
        let mut fit = Fit::default();
        let (mut store, mut input) = read(&mut fit)?;
        if let Ok(tried) = &store
            && let Some(mut fit) = fit.again(tried.store.room_for_keys())
        {
            // Its memory is needed for the next try.
            drop(store);
            (store, input) = read(&mut fit)?;
        }
        match store {
            Ok(store) if input.at == body => Ok(Some(store)),
            Ok(_) => Err(damaged(input.at, "something follows the end")),
            Err(Fault::Format(what)) => Err(damaged(input.at, what)),
            Err(Fault::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(damaged(input.at, "it ends too early"))
            }
            Err(Fault::Io(error)) => Err(io_error("read", &path)(error)),
        }
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::Io { doing, path, source }
}
