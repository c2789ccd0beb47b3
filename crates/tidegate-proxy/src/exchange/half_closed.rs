//! A client that has closed its side while its request waits: it reads on, or it has left.
//!
//! The end of what a client sends looks the same when it closed its socket. The first wants its answer, the second must take
//! no slot. What tells them apart is a byte that is sent: a closed socket answers it with a reset. HTTP/1.1 has bytes for that
//! before the answer, an interim 100, which every client skips (RFC 9110, 15.2). So a client that has closed its side is sent
//! one; if no reset comes within [`RESET_TIME_MAX`], it reads. As it can close its socket later without a word, it is asked
//! again, and once more before it starts. A slot that comes meanwhile is held until then, and goes to the next in line if the
//! client has left.
//!
//! HTTP/1.0 has no interim answers: there the end is the client's end, as it is on a connection of HTTP/2, whose streams
//! have ends of their own. nginx takes every end for a client that left, unless `proxy_ignore_client_abort` is on; then it
//! works for those who left, too.

use super::{Exchange, LOOK_EVERY};
use http::Version;
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;

/// For how long a reset is waited for: longer than a round trip takes.
const RESET_TIME_MAX: Duration = Duration::from_millis(500);
/// How often a client in line is asked.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// For how long an answer is good enough to start.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// What is known of a client that has closed its side: when it was found to read, in microseconds (0: never), if that
/// can be found out.
pub(super) struct Reads(Option<AtomicU64>);

impl Reads {
    pub(super) fn unknown(version: Version) -> Reads {
        Reads((version == Version::HTTP_11).then(AtomicU64::default))
    }

    /// Can it be told from one that left?
    pub(super) fn can_be_found_out(&self) -> bool {
        self.0.is_some()
    }
}

impl Exchange {
    /// The client of a request that may start has closed its side: does it still read?
    pub(super) async fn still_reads(&self) -> bool {
        self.read_within(GOOD_FOR).await
    }

    /// Asks it, unless it was found to read within that time.
    async fn read_within(&self, time: Duration) -> bool {
        let Some(found) = &self.reads.0 else { return false };
        let now = || self.state().clock.now().get();
        let known = found.load(Relaxed);
        if known == 0 || Duration::from_micros(now().saturating_sub(known)) >= time {
            // An earlier answer is written before this is polled again.
            let mut waits = Duration::from_millis(1);
            sleep(waits).await;
            self.client.connection.send_interim();
            while waits < RESET_TIME_MAX && !self.client.has_broken_off() {
                sleep(waits).await;
                waits *= 2;
            }
            found.store(now(), Relaxed);
        }
        !self.client.has_broken_off()
    }

    /// Until the client of a waiting request has left.
    pub(super) async fn gone(&self) {
        self.has_closed_its_side().await;
        while self.read_within(ASK_EVERY).await {
            self.client.connection.keep_half_closed();
            sleep(LOOK_EVERY).await;
        }
    }

    /// hyper reads on behind a request without a body, in the task that polls this, and drops the request at an end that is not
    /// withheld. It does not read while a body stands before the end.
    async fn has_closed_its_side(&self) {
        if self.has_body {
            while !self.client.has_left() {
                sleep(LOOK_EVERY).await;
            }
        } else if self.reads.can_be_found_out() {
            let connection = &self.client.connection;
            poll_fn(|_| if connection.is_half_closed() { Poll::Ready(()) } else { Poll::Pending }).await;
        } else {
            pending::<()>().await;
        }
    }
}
