//! A stream's timeline in this process: its lock, its journal, and the thread that wakes at due times.
//!
//! Without a journal a step is published at once. With a journal, steps gather in a batch while the batch before is
//! being synced (group commit); once their batch is on disk, the steps are published and their submitters
//! answered. Locks are held for arithmetic and encoding only, never for the disk.
//! Invariant: a published message is durable, and published in the order of the clock. After a panic nothing more is written: steps
//! that were sent to no subscriber are lost, as by a kill, and the journal holds what was.

use crate::journal::{Batch, Journal, JournalError, Standing};
use crate::log::{Log, Message};
use crate::stream::{Snapshot, SubmitError, Unavailable};
use crate::{Epoch, Now, StreamSpec, message};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::timeline::{Outcome, Step, Timeline, Witness};
use tidegate_store::panic_point;
use tokio::sync::oneshot;

/// Longest sleep of the thread: the server's clock may be set forward meanwhile.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// How long after the disk refused the same batch is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// One stream's state.
pub(crate) struct Embedded {
    spec: StreamSpec,
    now: Now,
    epoch: Epoch,
    log: Arc<Log>,
    state: Mutex<State>,
    /// Wakes the thread: there is something to commit, or the stream stops.
    work: Condvar,
}

struct State {
    timeline: Timeline,
    outbox: Outbox,
    /// Submitters that wait for the gathering batch.
    waiting: Vec<oneshot::Sender<()>>,
    /// A batch is on its way to disk.
    committing: bool,
    /// The error of the disk, while it refuses writes.
    failed: Option<String>,
    stopped: bool,
}

/// Where steps go.
enum Outbox {
    /// Into the log at once.
    AtOnce,
    /// Into the log once they are on disk.
    AfterCommit { batch: Batch, messages: Vec<Message> },
}

/// Whether a stream is kept on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durability {
    None,
    Journal,
}

impl Embedded {
    pub(crate) fn new(
        spec: StreamSpec,
        timeline: Timeline,
        (epoch, log): (Epoch, Arc<Log>),
        durability: Durability,
        now: Now,
    ) -> Embedded {
        let outbox = match durability {
            Durability::None => Outbox::AtOnce,
            Durability::Journal => Outbox::AfterCommit { batch: Batch::default(), messages: Vec::new() },
        };
        let state = State { timeline, outbox, waiting: Vec::new(), committing: false, failed: None, stopped: false };
        let embedded = Embedded { spec, now, epoch, log, state: Mutex::new(state), work: Condvar::new() };
        embedded.start();
        embedded
    }

    fn start(&self) {
        let StreamSpec { rules, overdue, .. } = &self.spec;
        let now = (self.now)();
        self.act(&mut self.state(), |timeline, witness| timeline.start(rules, *overdue, now, witness));
    }

    /// Takes an event; answers once every step that the decision rests on is durable.
    pub(crate) async fn submit(&self, event: &str) -> Result<Outcome, SubmitError> {
        let (outcome, durable) = self.decide(event)?;
        match durable {
            Some(durable) => durable.await.map(|()| outcome).map_err(|_| self.unavailable()),
            None => Ok(outcome),
        }
    }

    fn decide(&self, event: &str) -> Result<(Outcome, Option<oneshot::Receiver<()>>), SubmitError> {
        let mut state = self.state();
        if state.stopped || state.failed.is_some() || self.state.is_poisoned() {
            drop(state);
            return Err(self.unavailable());
        }
        let (rules, now) = (&self.spec.rules, (self.now)());
        let outcome = self.act(&mut state, |timeline, witness| timeline.submit(rules, event, now, witness));
        if !state.has_undurable() {
            return Ok((outcome, None));
        }
        let (committed, durable) = oneshot::channel();
        state.waiting.push(committed);
        if !state.committing {
            self.work.notify_one();
        }
        Ok((outcome, Some(durable)))
    }

    fn unavailable(&self) -> SubmitError {
        match self.state().failed.clone() {
            Some(cause) => SubmitError::Unavailable { what: "the journal cannot be written", cause },
            None => SubmitError::Unavailable { what: "the stream is closing", cause: String::new() },
        }
    }

    /// The error of the disk, while it refuses writes.
    pub(crate) fn failure(&self) -> Option<Unavailable> {
        let cause = self.state().failed.clone()?;
        Some(Unavailable { what: "the journal cannot be written", cause })
    }

    /// The snapshot now; its clock value may not be durable yet.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut state = self.state();
        self.advance(&mut state);
        let body = message::key_frame(&state.timeline, Some(self.epoch)).into();
        let snapshot = Snapshot { clock: state.timeline.clock(), epoch: self.epoch, body };
        if state.has_undurable() && !state.committing {
            self.work.notify_one();
        }
        snapshot
    }

    /// Texts that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.state().timeline.len()
    }

    /// Stops the thread, once it has committed what it has to.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.work.notify_one();
    }

    /// The thread: publishes at due times and commits batches, until the stop.
    pub(crate) fn run(&self, mut journal: Option<Journal>) {
        let _end = End(self);
        let mut state = self.state();
        while (!state.stopped || state.has_undurable()) && !self.state.is_poisoned() {
            panic_point("stream");
            let now = self.advance(&mut state);
            state = match (&mut journal, state.has_undurable()) {
                (Some(journal), true) => match self.commit(state, journal) {
                    Some(state) => state,
                    None => break,
                },
                _ => {
                    let wake = state.timeline.wake_at(&self.spec.rules);
                    let waited = self.work.wait_timeout(state, until(wake, now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn advance(&self, state: &mut State) -> Micros {
        let now = (self.now)();
        if !state.stopped {
            self.act(state, |timeline, witness| timeline.advance(&self.spec.rules, now, witness));
        }
        now
    }

    /// One group commit: the batch leaves the lock, comes to disk, and is published. `None`: the stop came while
    /// the disk refused, and nothing after this batch may be written.
    fn commit<'a>(&'a self, mut state: MutexGuard<'a, State>, journal: &mut Journal) -> Option<MutexGuard<'a, State>> {
        let (clock, horizon_ms) = (state.timeline.clock(), state.timeline.horizon_ms());
        let standing = Standing { epoch: self.epoch, clock, horizon_ms };
        let oldest_ms = state.timeline.oldest_ms();
        let mut waiting = std::mem::take(&mut state.waiting);
        let (batch, messages) = state.outbox.gathered();
        state.committing = true;
        drop(state);
        while let Err(error) = commit(journal, &batch) {
            // Submitters that wait get an error, as it is not known whether their events will stand; the batch is tried until it is on disk.
            let mut state = self.state();
            state.failed = Some(error.to_string());
            // After the cause is known: a submitter that is woken asks for it.
            waiting.clear();
            state.waiting.clear();
            if state.stopped {
                return None;
            }
            drop(self.work.wait_timeout(state, RETRY_AFTER));
        }
        self.send(messages, waiting);
        // Room is a matter of housekeeping: it is tried again after the next commit.
        let _ = journal.tend(standing, oldest_ms);
        let mut state = self.state();
        (state.committing, state.failed) = (false, None);
        Some(state)
    }

    fn send(&self, messages: Vec<Message>, waiting: Vec<oneshot::Sender<()>>) {
        self.log.push(messages);
        for waiter in waiting {
            // A submitter that has left needs no answer.
            let _ = waiter.send(());
        }
    }

    /// Lets the timeline act; its steps go where they belong.
    fn act<R>(&self, state: &mut State, act: impl FnOnce(&mut Timeline, Witness<'_>) -> R) -> R {
        let State { timeline, outbox, .. } = state;
        act(timeline, &mut |step, timeline| outbox.take(step, timeline, self.epoch, &self.log))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread has ended, perhaps by a panic: submitters no longer wait for its commits.
struct End<'a>(&'a Embedded);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.stopped = true;
        state.waiting.clear();
        drop(state);
        self.0.log.close();
    }
}

/// A batch may hold no steps, only submitters that wait for the batch before.
fn commit(journal: &mut Journal, batch: &Batch) -> Result<(), JournalError> {
    if batch.is_empty() { Ok(()) } else { journal.commit(batch) }
}

impl State {
    fn has_undurable(&self) -> bool {
        match &self.outbox {
            Outbox::AtOnce => false,
            Outbox::AfterCommit { batch, .. } => !batch.is_empty() || self.committing || !self.waiting.is_empty(),
        }
    }
}

impl Outbox {
    fn take(&mut self, step: &Step, timeline: &Timeline, epoch: Epoch, log: &Log) {
        let message = message_of(step, timeline, epoch);
        match self {
            Outbox::AtOnce => log.push(message),
            Outbox::AfterCommit { batch, messages } => {
                batch.push(step);
                messages.extend(message);
            }
        }
    }

    fn gathered(&mut self) -> (Batch, Vec<Message>) {
        match self {
            Outbox::AtOnce => (Batch::default(), Vec::new()),
            Outbox::AfterCommit { batch, messages } => (std::mem::take(batch), std::mem::take(messages)),
        }
    }
}

/// The message of a step, if it has one.
pub(crate) fn message_of(step: &Step, timeline: &Timeline, epoch: Epoch) -> Option<Message> {
    let clock = step.clock()?;
    let body = message::of_step(step, timeline, Some(epoch))?.into();
    Some(Message { clock, epoch, body, is_key_frame: matches!(step, Step::KeyFrame { .. }) })
}

/// How long to sleep.
fn until(wake: Option<Micros>, now: Micros) -> Duration {
    let wait = wake.map_or(SLEEP_MAX, |wake| Duration::from_micros(wake.saturating_sub(now).get()));
    wait.min(SLEEP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::{READ_WITHIN, Stream};
    use tidegate_core::timeline::Mode;

    /// A reader that asked for a snapshot, or subscribed, once waited for as long as the disk was full.
    #[test]
    fn f1_a_full_disk_is_told_to_readers_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _real) = Journal::on_a_full_disk(folder.path());
        let epoch = Epoch::draw();
        let log = Arc::new(Log::new(0, epoch));
        let now: Now = Arc::new(|| Micros::from_secs(5));
        let spec = StreamSpec::new("orders", Mode::OnlyOnce);
        let line =
            Embedded::new(spec.clone(), Timeline::default(), (epoch, Arc::clone(&log)), Durability::Journal, now);
        let stream = Arc::new(Stream::new(spec, log, Line::Embedded(Box::new(line))));
        std::thread::scope(|scope| {
            let Line::Embedded(line) = &stream.line else { panic!() };
            let thread = scope.spawn(|| line.run(Some(journal)));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let since = std::time::Instant::now();
            let said = runtime.block_on(stream.snapshot()).unwrap_err();
            assert!(said.to_string().contains("the journal cannot be written"), "{said}");
            let said = runtime.block_on(stream.subscribe(None)).unwrap_err();
            assert!(said.to_string().contains("the journal cannot be written"), "{said}");
            assert!(since.elapsed() < 3 * READ_WITHIN, "{:?}", since.elapsed());
            line.stop();
            thread.join().unwrap();
        });
    }

    #[test]
    fn e5_nothing_is_told_while_the_disk_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _real) = Journal::on_a_full_disk(folder.path());
        let epoch = Epoch::draw();
        let log = Arc::new(Log::new(0, epoch));
        let now: Now = Arc::new(|| Micros::from_secs(5));
        let spec = StreamSpec::new("orders", Mode::OnlyOnce);
        let line = Embedded::new(spec, Timeline::default(), (epoch, Arc::clone(&log)), Durability::Journal, now);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| line.run(Some(journal)));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for _ in 0..3 {
                let said = runtime.block_on(line.submit("taco")).unwrap_err();
                assert!(said.to_string().contains("cannot be written"), "{said}");
            }
            assert!(!log.reaches_back_to(1.into()), "nothing was sent");
            assert!(line.failure().is_some_and(|failure| failure.cause.contains("free space")));
            line.stop();
            thread.join().unwrap();
        });
        assert_eq!(Journal::open(folder.path(), |_, step| panic!("{step:?}")).unwrap().1.standing.clock, 0);
    }
}
