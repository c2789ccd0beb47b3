//! A stream that several servers share on one Redis.
//!
//! One script a transition does state, clock and message together ([`stream.lua`](shared/stream.lua)), so that
//! any server takes submissions, due events are published once by whichever server is there, and all push
//! the same messages in the order of the clock. Each server follows the shared log and keeps a *mirror*, a
//! timeline that applies the log's steps: snapshots and key frames come from it.
//! Invariant: the mirror and this server's log stand at the same clock value whenever the lock is free.

mod history;
mod reply;
#[cfg(test)]
mod tests;

use crate::embedded::message_of;
use crate::log::Log;
use crate::{Epoch, Now, Outcome, Overdue, Snapshot, StreamSpec, SubmitError, Unavailable, message};
use history::{Back, History, follow};
use reply::{Dump, Logged, Transition};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::timeline::{KEY_FRAME_EVENTS_MAX, Mode, StreamRules, Timeline};
use tidegate_store::StoreError;
use tidegate_store::redis::{Lua, Redis, Reply};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Messages that the shared log keeps, at least.
const LOG_KEPT: &str = "65536";
/// Messages that are read at once.
const READ_COUNT: &[u8] = b"512";
/// Messages of a page of the past: some milliseconds of Redis' time, so that decisions are not held up.
const PAGE_COUNT: &[u8] = b"2048";
/// How long a read waits for news. Less than a connection may be silent.
const READ_BLOCK_MS: &[u8] = b"400";
/// How long a reply may take, and how long a reply that holds a whole stream.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const COPY_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait after a failure before the next try.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Longest sleep of the publishing task: another server may have taken an event.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Most calls in a row for one submission, when very much is due.
const CALLS_MAX: usize = 10_000;

/// Why streams cannot be kept in a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenError(pub(crate) String);

impl std::error::Error for OpenError {}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One stream, as this server knows it.
pub(crate) struct Shared {
    spec: StreamSpec,
    keys: [Vec<u8>; 5],
    log: Arc<Log>,
    now: Now,
    redis: Arc<Redis>,
    mirror: Mutex<Mirror>,
    /// The Redis's time less this process's, in microseconds.
    ahead_us: AtomicI64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Where going back through the shared log ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meets {
    /// At or below the clock value that it was to go back to: the log holds everything since.
    Known,
    /// Above it: the log holds no more, or there is no room for more.
    Nothing,
}

struct Mirror {
    timeline: Timeline,
    /// The epoch of the history; before that is known, the epoch that this server offers if Redis has none.
    epoch: Epoch,
    /// When the next key frame is due.
    frame_ms: u64,
    /// The state was lost: the whole stream must be read again.
    stale: bool,
}

impl Shared {
    /// Begins to follow the stream. Reads that wait have a connection of their own: they would hold up everything else
    /// that is asked over the shared one.
    pub(crate) async fn open(spec: StreamSpec, log: Arc<Log>, redis: &Arc<Redis>, now: Now) -> Arc<Shared> {
        let keys = keys(&spec.name);
        let shared = Arc::new(Shared {
            spec,
            keys,
            log,
            now,
            redis: Arc::clone(redis),
            mirror: Mutex::new(Mirror {
                timeline: Timeline::default(),
                epoch: Epoch::draw(),
                frame_ms: 0,
                stale: false,
            }),
            ahead_us: AtomicI64::new(0),
            tasks: Mutex::default(),
        });
        let reader = redis.for_blocking_reads().await;
        let (follower, publisher) = (Arc::clone(&shared), Arc::clone(&shared));
        let tasks = vec![
            tokio::spawn(async move { follower.follow(&reader).await }),
            tokio::spawn(async move { publisher.publish().await }),
        ];
        *shared.tasks() = tasks;
        shared
    }

    /// Takes an event. Answered once the Redis has it.
    pub(crate) async fn submit(&self, event: &str) -> Result<Outcome, SubmitError> {
        for _ in 0..CALLS_MAX {
            match self.transit("submit", event).await {
                Ok(Transition { outcome: Some(outcome), .. }) => return Ok(outcome),
                Ok(_) => {}
                Err(error) => {
                    let cause = error.to_string();
                    return Err(SubmitError::Unavailable { what: "the store does not answer", cause });
                }
            }
        }
        let cause = "more events are due than the store can publish".to_owned();
        Err(SubmitError::Unavailable { what: "the store is too slow", cause })
    }

    /// One call of the script.
    async fn transit(&self, what: &str, event: &str) -> Result<Transition, StoreError> {
        let (known, epoch) = self.mirror().place();
        let arguments = arguments(&self.spec, None, what, (known, epoch), event);
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let reply = self.redis.eval(transition_script(), &self.keys, &arguments, ANSWER_WITHIN).await?;
        let transition = Transition::read(&reply).ok_or_else(|| self.redis.senseless("a transition"))?;
        self.note(&transition);
        Ok(transition)
    }

    fn note(&self, transition: &Transition) {
        let theirs = i64::try_from(transition.now_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let ours = i64::try_from((self.now)().get()).unwrap_or(i64::MAX);
        self.ahead_us.store(theirs - ours, Relaxed);
        let mut mirror = self.mirror();
        mirror.frame_ms = transition.frame_ms;
        mirror.stale |= transition.lost;
    }

    /// The stream's time, as far as this server knows.
    fn stream_time(&self) -> Micros {
        let ours = i64::try_from((self.now)().get()).unwrap_or(i64::MAX);
        Micros::saturating(u64::try_from(ours.saturating_add(self.ahead_us.load(Relaxed))).unwrap_or(0))
    }

    /// The snapshot of the mirror, once there is one.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        self.log.begun().await;
        let now = self.stream_time();
        self.mirror().snapshot(&self.spec.rules, now)
    }

    /// The store was never found since the start: there is no history to show.
    pub(crate) fn failure(&self) -> Option<Unavailable> {
        let what = "the store does not answer";
        self.log
            .is_unknown()
            .then(|| Unavailable { what, cause: "the store was not reached since the start".to_owned() })
    }

    pub(crate) fn len(&self) -> usize {
        self.mirror().timeline.len()
    }

    pub(crate) fn stop(&self) {
        self.tasks().drain(..).for_each(|task| task.abort());
        self.log.close();
    }

    /// Publishes due events. Every server tries; the first call of the script does it.
    async fn publish(&self) {
        let mut what = "start";
        loop {
            let Ok(transition) = self.transit(what, "").await else {
                sleep(RETRY_AFTER).await;
                continue;
            };
            if transition.more {
                continue;
            }
            what = "advance";
            // What was just published must have come back before the mirror can say what is due next.
            let mut growth = self.log.growth();
            let _ = timeout(SLEEP_MAX, growth.wait_for(|latest| *latest >= transition.clock)).await;
            growth.mark_unchanged();
            let wait = self.until_due();
            // News may bring something that is due earlier.
            let _ = timeout(wait.min(SLEEP_MAX), growth.changed()).await;
            sleep(self.until_due().min(SLEEP_MAX)).await;
        }
    }

    fn until_due(&self) -> Duration {
        let now = self.stream_time();
        let mirror = self.mirror();
        let rules = &self.spec.rules;
        let due = mirror.timeline.wake_at(rules).unwrap_or(Micros::MAX).min(Micros::from_millis(mirror.frame_ms));
        Duration::from_micros(due.saturating_sub(now).get())
    }

    /// Copies the whole stream, then follows the shared log.
    async fn follow(&self, reader: &Redis) {
        let mut in_sync = false;
        loop {
            let followed =
                if in_sync && !self.mirror().stale { self.read(reader).await } else { self.copy(reader).await };
            match followed {
                Ok(still) => in_sync = still,
                Err(_) => sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Copies the stream: the mirror, and the messages in the log that this server has not sent (promise C6). Over the reader's connection:
    /// a large stream would hold up the decisions behind it.
    async fn copy(&self, reader: &Redis) -> Result<bool, StoreError> {
        let [head, records, incubating, ..] = &self.keys;
        let keys = [head.clone(), incubating.clone(), records.clone()];
        let reply = reader.eval(dump_script(), &keys, &[], COPY_WITHIN).await?;
        let dump = Dump::read(&reply).ok_or_else(|| reader.senseless("a dump"))?;
        let (known, ours) = self.mirror().place();
        let is_same = known > 0 && dump.epoch == Some(ours);
        let Some(epoch) = dump.epoch.filter(|_| dump.clock > 0 && (dump.clock >= known || !is_same)) else {
            // No server has begun the stream, or Redis came back with less than was sent; the publishing task is about to note that in Redis.
            sleep(Duration::from_millis(5)).await;
            return Ok(false);
        };
        let sent = match is_same {
            true => known,
            // Another history: it goes on here with the key frame that this server caused when it noticed the loss, if it did.
            false if known > 0 && dump.anew > known => dump.anew - 1,
            false => 0,
        };
        let (history, meets) = self.history(reader, &dump, epoch, sent).await?;
        let first = history.first().unwrap_or(dump.clock + 1);
        let begins_anew = first == dump.anew;
        let goes_on = is_same && (first == known + 1 || meets == Meets::Known);
        let mut mirror = self.mirror();
        let messages = match is_same && first == known + 1 {
            true => history.messages_after(mirror.timeline.clone(), &self.spec.rules, epoch),
            false => history.messages(&self.spec.rules, epoch),
        };
        if goes_on || (begins_anew && known > 0 && first > known) {
            self.log.push(messages);
        } else {
            // Nothing from before the key frame after a loss is left: a subscriber at any clock value before it goes on with that key frame.
            let before = if begins_anew { 0 } else { first - 1 };
            self.log.begin(before, epoch, messages);
        }
        (mirror.timeline, mirror.epoch, mirror.stale) = (dump.timeline, epoch, false);
        Ok(true)
    }

    /// What the shared log holds after a clock value, or as much of it as there is room for.
    async fn history(
        &self,
        reader: &Redis,
        dump: &Dump,
        epoch: Epoch,
        sent: u64,
    ) -> Result<(History, Meets), StoreError> {
        let (mut history, log) = (History::ending_with(dump), &self.keys[4]);
        loop {
            let last = format!("{}-0", history.first().map_or(dump.clock, |first| first - 1));
            let words: [&[u8]; 6] = [b"XREVRANGE", log, last.as_bytes(), b"-", b"COUNT", PAGE_COUNT];
            let page = reader.command(log, &words, COPY_WITHIN).await?;
            let steps = reply::steps(&page).ok_or_else(|| reader.senseless("a log"))?;
            if steps.is_empty() {
                return Ok((history, Meets::Nothing));
            }
            for logged in steps {
                if logged.step.clock().is_some_and(|clock| clock <= sent) {
                    return Ok((history, Meets::Known));
                }
                if !logged.is_of(epoch) || history.take_back(logged.step) == Back::Enough {
                    return Ok((history, Meets::Nothing));
                }
            }
        }
    }

    /// Reads the new steps; false when a step is missing.
    async fn read(&self, reader: &Redis) -> Result<bool, StoreError> {
        let after = format!("{}-0", self.mirror().timeline.clock());
        let log = &self.keys[4];
        let words: [&[u8]; 8] =
            [b"XREAD", b"BLOCK", READ_BLOCK_MS, b"COUNT", READ_COUNT, b"STREAMS", log, after.as_bytes()];
        let reply = reader.command(log, &words, ANSWER_WITHIN).await?;
        if reply == Reply::Nil {
            return Ok(true);
        }
        let steps = reply::read_steps(&reply).ok_or_else(|| reader.senseless("a log"))?;
        Ok(self.apply(steps))
    }

    fn apply(&self, steps: Vec<Logged>) -> bool {
        let mut mirror = self.mirror();
        let mut messages = Vec::with_capacity(steps.len());
        let count = steps.len();
        for logged in steps {
            let (clock, epoch) = mirror.place();
            if logged.step.clock() != Some(clock + 1) || !logged.is_of(epoch) {
                break;
            }
            follow(&mut mirror.timeline, &logged.step, &self.spec.rules);
            messages.extend(message_of(&logged.step, &mirror.timeline, epoch));
        }
        let all = messages.len() == count;
        // Under the lock: a snapshot and the log must agree.
        self.log.push(messages);
        all
    }

    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mirror {
    /// The clock value and the epoch that the mirror has reached.
    fn place(&self) -> (u64, Epoch) {
        (self.timeline.clock(), self.epoch)
    }

    /// What incubates now. The mirror stays as it is: the next step of the log may have an earlier time, and a key frame has to
    /// be the same on every server.
    fn snapshot(&self, rules: &StreamRules, now: Micros) -> Snapshot {
        let (clock, epoch) = self.place();
        let body = message::snapshot(clock, self.timeline.snapshot_at(rules, now), Some(epoch)).into();
        Snapshot { clock, epoch, body }
    }
}

/// The script's arguments; the time is the Redis's own, but for tests.
fn arguments(
    spec: &StreamSpec,
    now: Option<Micros>,
    what: &str,
    (known, epoch): (u64, Epoch),
    event: &str,
) -> [String; 12] {
    let rules = spec.rules;
    let mode = if rules.mode == Mode::OnlyOnce { "only-once" } else { "strictly-once" };
    let overdue = if spec.overdue == Overdue::Publish { "publish" } else { "invalidate" };
    [
        now.map_or(String::new(), |now| now.get().to_string()),
        what.to_owned(),
        mode.to_owned(),
        rules.duration_ms.to_string(),
        rules.max_events.to_string(),
        rules.snapshot_every_ms.to_string(),
        KEY_FRAME_EVENTS_MAX.to_string(),
        LOG_KEPT.to_owned(),
        known.to_string(),
        event.to_owned(),
        overdue.to_owned(),
        epoch.to_string(),
    ]
}

/// All keys of a stream; one slot of a cluster holds them.
fn keys(name: &str) -> [Vec<u8>; 5] {
    ["head", "records", "incubating", "rearmed", "log"].map(|part| format!("tg:{{stream/{name}}}:{part}").into_bytes())
}

fn transition_script() -> &'static Lua {
    static MADE: OnceLock<Lua> = OnceLock::new();
    MADE.get_or_init(|| Lua::new(include_str!("shared/stream.lua")))
}

fn dump_script() -> &'static Lua {
    static MADE: OnceLock<Lua> = OnceLock::new();
    MADE.get_or_init(|| Lua::new(include_str!("shared/dump.lua")))
}
