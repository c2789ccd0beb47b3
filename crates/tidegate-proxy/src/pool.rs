//! Connections to the upstream between two requests.
//!
//! Each worker has a pool of its own, as a connection is served by the thread that made it. The last one in
//! is the first one out, so that in quiet times the others grow old and are closed.
//! Invariant: links that are open, in use or idle in any pool, stay within `max_upstream`: those in use
//! hold slots, and an idle one is closed when its place is needed.

use crate::link::{Link, Open};
use crate::state::Rules;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// One worker's idle connections.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Idle>>,
    /// Counted up by the sweep, about once a second.
    tick: AtomicU64,
}

struct Idle {
    link: Box<Link>,
    since: u64,
}

/// All pools, and how many links there are.
#[derive(Default)]
pub(crate) struct Pools {
    pub(crate) all: Vec<Pool>,
    pub(crate) open: Arc<AtomicUsize>,
}

/// How long a connection may be idle, in ticks. Node closes idle ones after 5 s; a request that is sent at
/// that moment is lost, so ours are younger.
const IDLE_TICKS_MAX: u64 = 4;
/// How often a place is looked for, when all connections are in use.
const PLACE_EVERY: Duration = Duration::from_millis(5);

impl Pool {
    /// An idle connection that the upstream has not closed.
    pub(crate) fn take(&self, generation: u64) -> Option<Box<Link>> {
        loop {
            let mut idle = self.idle().pop()?;
            if idle.link.generation == generation && !idle.link.has_closed() {
                return Some(idle.link);
            }
        }
    }

    /// Keeps a connection for the next request, if it can take one.
    pub(crate) fn put(&self, link: Box<Link>) {
        if link.is_reusable() {
            self.put_unused(link);
        }
    }

    /// Keeps a connection on which nothing was sent.
    pub(crate) fn put_unused(&self, link: Box<Link>) {
        self.idle().push(Idle { link, since: self.tick.load(Relaxed) });
    }

    /// Closes connections that are old, closed by the upstream, or lead to another upstream.
    pub(crate) fn sweep(&self, generation: u64) {
        let tick = self.tick.fetch_add(1, Relaxed) + 1;
        let mut idle = self.idle();
        let old = |idle: &mut Idle| {
            let good = idle.link.generation == generation && !idle.link.has_closed();
            !good || tick - idle.since > IDLE_TICKS_MAX
        };
        let closed: Vec<Idle> = idle.extract_if(.., old).collect();
        drop(idle);
        // Closing a socket is a system call: not under the lock.
        drop(closed);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pools {
    pub(crate) fn new(workers: usize) -> Pools {
        Pools { all: (0..workers).map(|_| Pool::default()).collect(), ..Pools::default() }
    }

    /// A new connection, after an idle one made place if there were too many.
    ///
    /// # Errors
    /// When the upstream cannot be reached in time.
    pub(crate) async fn connect(&self, rules: &Rules) -> io::Result<Box<Link>> {
        let policy = &rules.policy;
        let connecting = async {
            // Before it connects: two that connect at the same time would both find the last place free.
            let open = self.place(policy.max_upstream as usize).await;
            let wire = policy.upstream.connect().await?;
            io::Result::Ok(Link::new(wire, rules.generation, open))
        };
        let link = timeout(policy.connect_timeout, connecting).await??;
        Ok(Box::new(link))
    }

    /// A place for one more connection; idle ones make room. The caller holds a slot, so that there is one, or will be when those that
    /// are over a bound that was lowered have ended.
    async fn place(&self, max: usize) -> Open {
        loop {
            if let Some(open) = Open::enter(&self.open, max) {
                return open;
            }
            let idle = self.all.iter().find_map(|pool| pool.idle().pop());
            if idle.is_none() {
                sleep(PLACE_EVERY).await;
            }
        }
    }
}
