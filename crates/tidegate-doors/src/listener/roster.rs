//! The connections that one thread serves: their tasks, the sweep over them, and their end.

use super::Bounds;
use super::acceptor::Accepted;
use super::census::Census;
use super::connection::{Connection, Limits, Order};
use super::ticks::{TickClock, ticks};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a connection may do nothing while connections are scarce: a second.
const CROWDED_TICKS: u64 = 2;

/// All open connections of a thread, and closed ones until the next sweep.
pub struct Roster {
    clock: Arc<TickClock>,
    limits: Limits,
    drain_timeout: Duration,
    census: Arc<Census>,
    /// When more than these are open, those that do nothing are cut sooner.
    crowded_above: usize,
    connections: Vec<Weak<Connection>>,
    tasks: JoinSet<()>,
}

impl Roster {
    /// An empty one with these time limits, for connections that are counted in `census`.
    #[must_use]
    pub fn new(bounds: &Bounds, census: &Arc<Census>) -> Roster {
        let limits = Limits {
            head: ticks(bounds.head_timeout),
            idle: ticks(bounds.idle_timeout),
            write: ticks(bounds.write_timeout),
        };
        Roster {
            clock: Arc::default(),
            limits,
            drain_timeout: bounds.drain_timeout,
            census: Arc::clone(census),
            crowded_above: census.caps().all.saturating_sub(bounds.reserved),
            connections: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Serves a connection in a task of its own.
    pub fn serve<Serving: Future<Output = ()> + Send + 'static>(
        &mut self,
        accepted: Accepted,
        serve: impl FnOnce(Arc<Connection>) -> Serving,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let connection = Arc::new(Connection::new(accepted, Arc::clone(&self.clock)));
        self.connections.push(Arc::downgrade(&connection));
        self.tasks.spawn(serve(connection));
    }

    /// The next tick: cuts the connections that take longer than they may, forgets those that are gone, and wakes the tasks whose
    /// peer was silent for too long. To be called every [`super::TICK`].
    pub fn sweep(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.clock.tick();
        let (limits, when_scarce) = (self.limits, self.limits_when_scarce());
        self.connections.retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            connection.look_at_end();
            let overstays = connection.overstays(if connection.is_admitted() { limits } else { when_scarce });
            if overstays {
                connection.cut();
            }
            !overstays
        });
    }

    /// While connections are scarce, those that do nothing make room for others.
    fn limits_when_scarce(&self) -> Limits {
        if self.census.open() <= self.crowded_above {
            return self.limits;
        }
        let Limits { head, idle, write } = self.limits;
        Limits { head: head.min(CROWDED_TICKS), idle: idle.min(CROWDED_TICKS), write }
    }

    /// Lets each connection end after the answers under way, and cuts those that take longer than the drain timeout.
    pub async fn drain(&mut self) {
        self.connections.iter().filter_map(Weak::upgrade).for_each(|connection| connection.give(Order::Finish));
        let tasks = &mut self.tasks;
        let all_end = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(self.drain_timeout, all_end).await;
        self.tasks.shutdown().await;
    }
}
