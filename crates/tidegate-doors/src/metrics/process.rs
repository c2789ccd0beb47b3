//! The process's own figures, as every exporter names them (`process_*`), from /proc. What cannot be read is left out.

use super::{Kind, Page};
use std::fs::read_to_string;

/// Ticks a second of times in /proc: 100 on every Linux, whatever the kernel counts by inside.
const TICKS: f64 = 100.0;

/// The process's own figures.
pub fn fill_process(log_lines_lost: u64, page: &mut Page) {
    let help = "Log lines that could not be written: stderr was full, closed, or not read.";
    page.single("tidegate_log_lines_lost_total", Kind::Counter, help, log_lines_lost);
    let (stat, status) = (text("/proc/self/stat"), text("/proc/self/status"));
    if let Some((user, system)) = ticks(&stat, 11).zip(ticks(&stat, 12)) {
        let help = "Processor time used, in seconds.";
        page.single("process_cpu_seconds_total", Kind::Counter, help, (user + system) / TICKS);
    }
    for (name, line, help) in [
        ("process_resident_memory_bytes", "VmRSS:", "Memory in use."),
        ("process_virtual_memory_bytes", "VmSize:", "Address space in use."),
    ] {
        if let Some(kibibytes) = number_after(&status, line) {
            page.single(name, Kind::Gauge, help, kibibytes * 1024);
        }
    }
    if let Some(threads) = number_after(&status, "Threads:") {
        page.single("process_threads", Kind::Gauge, "Threads.", threads);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.single("process_open_fds", Kind::Gauge, "Open file descriptors.", open.count());
    }
    if let Some(most) = number_after(&text("/proc/self/limits"), "Max open files") {
        page.single("process_max_fds", Kind::Gauge, "File descriptors that may be open.", most);
    }
    if let Some((since_boot, boot)) = ticks(&stat, 19).zip(number_after(&text("/proc/stat"), "btime")) {
        let help = "When it started, in seconds since the epoch.";
        #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are below 2^52")]
        page.single("process_start_time_seconds", Kind::Gauge, help, boot as f64 + since_boot / TICKS);
    }
}

fn text(path: &str) -> String {
    read_to_string(path).unwrap_or_default()
}

/// A field of /proc/self/stat, counted from behind the program's name, which may have spaces.
fn ticks(stat: &str, field: usize) -> Option<f64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(field)?.parse().ok()
}

/// The first number behind a word that a line begins with.
fn number_after(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Format, Registry};

    #[test]
    fn the_process_tells_of_itself() {
        let mut registry = Registry::default();
        registry.register(|page| fill_process(3, page));
        let text = registry.text(Format::Text);
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse::<f64>().unwrap()
        };
        assert!(value("tidegate_log_lines_lost_total") > 2.0);
        assert!(value("process_cpu_seconds_total") < 1_000.0);
        assert!((1e6..1e10).contains(&value("process_resident_memory_bytes")));
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_threads") >= 1.0);
        assert!((3.0..1e6).contains(&value("process_open_fds")));
        assert!(value("process_max_fds") >= value("process_open_fds"));
        // Between 2025 and 2100.
        assert!((1.7e9..4.1e9).contains(&value("process_start_time_seconds")));
    }
}
