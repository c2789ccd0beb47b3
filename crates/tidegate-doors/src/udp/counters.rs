//! What the UDP door counts, for `/metrics`. No client's words become labels.

use super::counts::Counts;
use super::responder::Responder;
use super::sockets::Sockets;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since start.
#[derive(Debug)]
pub struct Counters {
    pub(super) received: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unsent: AtomicU64,
    pub(super) errors: AtomicU64,
    counts: Arc<Counts>,
    receive_buffer_bytes: usize,
    address: SocketAddr,
    /// The sockets' numbers in /proc/net/udp.
    inodes: Vec<u64>,
}

/// One metric: its name, kind, help and value.
pub(crate) type Metric = (&'static str, &'static str, &'static str, u64);

impl Counters {
    /// All at 0, for these sockets, and what the responder behind them counts.
    #[must_use]
    pub fn new(sockets: &Sockets, responder: &Responder) -> Counters {
        let inode = |fd| std::fs::metadata(format!("/proc/self/fd/{fd}")).map(|about| about.ino());
        Counters {
            received: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            counts: Arc::clone(responder.counts()),
            receive_buffer_bytes: sockets.receive_buffer_bytes(),
            address: sockets.address(),
            inodes: sockets.all.iter().filter_map(|socket| inode(socket.as_raw_fd()).ok()).collect(),
        }
    }

    pub(crate) fn metrics(&self) -> [Metric; 11] {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        [
            ("tidegate_udp_datagrams_total", "counter", "Datagrams received.", read(&self.received)),
            ("tidegate_udp_replies_total", "counter", "Replies sent.", read(&self.answered)),
            (
                "tidegate_udp_silent_total",
                "counter",
                "Datagrams that are no request, and got no reply.",
                read(&self.silent),
            ),
            (
                "tidegate_udp_refused_total",
                "counter",
                "Datagrams from outside the networks of [udp] allow, which were dropped.",
                read(&self.refused),
            ),
            (
                "tidegate_udp_unrouted_total",
                "counter",
                "Uses of keys that no route knows, and that were not limited.",
                self.counts.unrouted(),
            ),
            (
                "tidegate_udp_uncounted_total",
                "counter",
                "Uses that a [[udp.count]] matched and that found no place among the names.",
                self.counts.homeless(),
            ),
            (
                "tidegate_udp_replies_failed_total",
                "counter",
                "Replies that the kernel refused to send.",
                read(&self.unsent),
            ),
            ("tidegate_udp_receive_errors_total", "counter", "Receives that failed.", read(&self.errors)),
            (
                "tidegate_udp_dropped_total",
                "counter",
                "Datagrams that the kernel dropped because the receive buffer was full.",
                self.dropped(),
            ),
            (
                "tidegate_udp_receive_buffer_bytes",
                "gauge",
                "The kernel's receive buffer of each socket.",
                self.receive_buffer_bytes as u64,
            ),
            ("tidegate_udp_sockets", "gauge", "Sockets, one for each thread.", self.inodes.len() as u64),
        ]
    }

    /// The kernel's own count, from its table of sockets.
    fn dropped(&self) -> u64 {
        let file = if self.address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
        dropped(&std::fs::read_to_string(file).unwrap_or_default(), &self.inodes)
    }
}

/// Columns: the tenth is the socket's number, the last how many it dropped.
fn dropped(table: &str, inodes: &[u64]) -> u64 {
    let drops = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let inode: u64 = columns.get(9)?.parse().ok()?;
        inodes.contains(&inode).then(|| columns.last()?.parse::<u64>().ok()).flatten()
    };
    table.lines().filter_map(drops).sum::<u64>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn drops_are_read_from_the_kernels_table() {
        let table = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  155: 0100007F:1CE9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 5
  155: 0100007F:1CE9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 7
  200: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4713 2 0000000000000000 9
";
        assert_eq!(super::dropped(table, &[4711, 4712]), 12);
        assert_eq!(super::dropped("", &[1]), 0);
    }
}
