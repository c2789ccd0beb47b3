//! Turns at the processors, for all work but decisions: handshakes, listings, pages for people, messages to subscribers.
//!
//! A runtime is fair to tasks, not to kinds of work: ten thousand feeds that are woken at once, or eight clients that list keys, would
//! stand before every decision. So this work stands in a line of its own, and as much of it goes on at a time as half of the processors
//! can carry; the other half is for decisions, whatever others want. A turn is taken for what there is to compute, never for
//! something that is waited for, and given back after each step.
//! Invariant: whoever waits for a turn is polled as soon as it has one, which is true of a task's own future, and not of a body that HTTP/2
//! polls when its client grants a window. And no turn is waited for within another.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Processors are the process's, and so are the turns.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).max(1))
});

/// A turn; dropping it gives it to the next in line.
pub(crate) type Turn = SemaphorePermit<'static>;

/// Waits for one.
pub(crate) async fn turn() -> Option<Turn> {
    // It is never closed.
    TURNS.acquire().await.ok()
}

/// Runs work to its end, each step of it in a turn.
pub(crate) async fn in_turns<Work: Future>(work: Work) -> Work::Output {
    let mut work = pin!(work);
    each_in_turn(|cx| work.as_mut().poll(cx)).await
}

/// The same for what is polled.
pub(crate) async fn each_in_turn<T>(mut step: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    loop {
        let turn = turn().await;
        let polled = poll_fn(|cx| Poll::Ready(step(cx))).await;
        drop(turn);
        match polled {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => woken().await,
        }
    }
}

/// Waits for what was polled before: that wakes this task.
async fn woken() {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// Work whose steps are made in turns while a count is above zero, such as a connection's while it has feeds.
pub(crate) struct TurnsWhile<'w, Work> {
    count: &'w AtomicUsize,
    work: Pin<&'w mut Work>,
    awaited: Option<Pin<Box<dyn Future<Output = Option<Turn>> + Send>>>,
}

impl<'w, Work> TurnsWhile<'w, Work> {
    pub(crate) fn new(count: &'w AtomicUsize, work: Pin<&'w mut Work>) -> TurnsWhile<'w, Work> {
        TurnsWhile { count, work, awaited: None }
    }

    pub(crate) fn work(&mut self) -> Pin<&mut Work> {
        self.work.as_mut()
    }
}

impl<Work: Future> Future for TurnsWhile<'_, Work> {
    type Output = Work::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Work::Output> {
        let mut taken = None;
        if self.count.load(Relaxed) > 0 {
            let awaited = self.awaited.get_or_insert_with(|| Box::pin(turn()));
            taken = ready!(awaited.as_mut().poll(cx));
        }
        self.awaited = None;
        let polled = self.work().poll(cx);
        drop(taken);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// Work that stands still holds no turn, and as much is under way as half of the processors carry.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn m6_half_of_the_processors_are_left_to_decisions() {
        let most = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        let (under_way, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let _waiting: Vec<_> = (0..100).map(|_| tokio::spawn(in_turns(std::future::pending::<()>()))).collect();
        let works: Vec<_> = (0..50)
            .map(|_| {
                let (under_way, seen) = (Arc::clone(&under_way), Arc::clone(&seen));
                tokio::spawn(in_turns(async move {
                    for _ in 0..20 {
                        seen.fetch_max(under_way.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::sleep(Duration::from_micros(100));
                        under_way.fetch_sub(1, SeqCst);
                        tokio::task::yield_now().await;
                    }
                }))
            })
            .collect();
        for work in works {
            work.await.unwrap();
        }
        assert!((1..=most).contains(&seen.load(SeqCst)), "{seen:?} at once, {most} at most");
    }
}
