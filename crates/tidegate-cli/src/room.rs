//! What the system lets this process have: files and address space. Too little of either is reported before anything is started, in
//! place of an abort in the middle.

use crate::config::Config;

/// Files beside connections: a snapshot, journals, sockets, the log.
const OTHER_FILES: usize = 64;
/// Connections that a door needs to be one.
pub(crate) const CONNECTIONS_MIN: usize = 16;
/// Address space of the process with an empty store: its code, its own heap, and the room in which a thread's heap is laid out.
const OWN_BYTES: usize = 192 << 20;
/// Address space of a thread: 64 MiB that the C library sets aside for its heap, whatever it uses of them, and its stack. A heap that
/// finds no room shares another's; a thread that finds none for its stack cannot start.
const THREAD_BYTES: usize = 68 << 20;

/// Refuses to start where it could not serve.
///
/// # Errors
/// A message for stderr: the need and the remedy.
pub(crate) fn check(config: &Config) -> Result<(), String> {
    check_files(limit("Max open files"))?;
    check_memory(limit("Max address space"), config.store.max_memory)
}

fn check_files(files: Option<usize>) -> Result<(), String> {
    let need = OTHER_FILES + CONNECTIONS_MIN;
    match files {
        Some(files) if files < need => Err(format!(
            "error: this process may open {files} files, and needs {need} at least: {OTHER_FILES} for itself and {CONNECTIONS_MIN} for \
             connections; raise ulimit -n (LimitNOFILE= of systemd)"
        )),
        _ => Ok(()),
    }
}

fn check_memory(space: Option<usize>, max_memory: usize) -> Result<(), String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * THREADS_PER_PROCESSOR;
    let own = OWN_BYTES + threads * THREAD_BYTES;
    // What M1 promises: the tables, and a tenth.
    let need = own.saturating_add(max_memory + max_memory / 10);
    match space {
        Some(space) if space < need => Err(format!(
            "error: this process may have {} MiB of address space, and needs {} MiB: {} for [store] max_memory with a tenth, and {} for \
             itself; raise ulimit -v (LimitAS= of systemd), or lower max_memory",
            space >> 20,
            need.div_ceil(1 << 20),
            (need - own).div_ceil(1 << 20),
            own.div_ceil(1 << 20)
        )),
        _ => Ok(()),
    }
}

/// The doors' tasks, the UDP door, and the proxy have a thread for each processor; the rest are few.
const THREADS_PER_PROCESSOR: usize = 3;

/// As many connections as are wanted, if there are files for them.
pub(crate) fn connections(wanted: usize) -> usize {
    let room = limit("Max open files").map(|files| files.saturating_sub(OTHER_FILES).max(CONNECTIONS_MIN));
    room.map_or(wanted, |room| room.min(wanted))
}

/// The soft limit of this name, where the system tells it; `None`: there is none.
fn limit(name: &str) -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
