//! Deciding with several threads, and writing the answers in the order of the lines.
//!
//! A *lane* is a thread with an engine of its own. Every policy has its own lanes, as policies share nothing. One policy has several
//! lanes only where lines share no state unless they share a key: every line is a hit on the one limiter that can apply, so that
//! lines are dealt out by that limiter's keys, and each key's lines are decided by one lane, in their order. Where a request may
//! touch several keys (all of them are charged, or none), or a line may be an operation or a datagram, there is one lane: then
//! lines are parsed by several threads and decided by one. Either way the answers are those of one thread.
//!
//! With the table full, keys share the sketch's cells, and lanes have tables of their own: then which keys are denied early
//! differs, as it does from run to run (hashes are seeded).

use super::Stop;
use super::compare::Comparison;
use super::order::{Batch, Due};
use super::reading::{panicked, spawn};
use super::replay::Replay;
use super::tally::{CandidateTally, Charts, Tally, Verdict};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches that wait for a lane, and that are decided and wait to be written.
const AHEAD: usize = 4;

/// What a lane does with a line that it cannot ask its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OnFault {
    /// The replay ends there.
    Stop,
    /// It is passed over, and counted.
    Skip,
}

/// The lanes of all policies, and the writer.
pub(super) struct Lanes {
    policies: Vec<Vec<Lane>>,
    to_write: SyncSender<Pending>,
    writer: JoinHandle<Written>,
    /// Lines that were handed out.
    lines: u64,
}

struct Lane {
    jobs: SyncSender<Job>,
    thread: JoinHandle<Outcome>,
}

/// A batch for a lane.
struct Job {
    batch: Arc<Batch>,
    /// The place of its first line among all.
    start: u64,
    done: SyncSender<Done>,
}

/// What a lane made of its lines of a batch.
#[derive(Default)]
struct Done {
    text: Vec<u8>,
    /// Where the answer to each line ends in the text.
    ends: Vec<usize>,
    verdicts: Vec<Verdict>,
    /// The line that ended the replay: its place in the batch, its number, and why.
    fault: Option<(usize, u64, String)>,
}

/// A batch that is being decided: the lanes' results, by policy.
struct Pending {
    batch: Arc<Batch>,
    done: Vec<Vec<Receiver<Done>>>,
}

/// What all lanes of a policy came to.
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) candidates: Vec<CandidateTally>,
    pub(super) sketched: u64,
    pub(super) skipped: u64,
}

/// How the writing ended.
struct Written {
    outcome: Result<(), Stop>,
    comparison: Comparison,
}

/// What a replay came to: under the new policy, and under the old one if there are two.
pub(super) struct Replayed {
    pub(super) policies: Vec<Outcome>,
    pub(super) comparison: Comparison,
}

impl Lanes {
    /// Lanes for the engines of each policy; the answers of the first policy go to `out`.
    pub(super) fn start(
        policies: Vec<(Vec<Replay>, OnFault)>,
        charts: Charts,
        out: impl Write + Send + 'static,
    ) -> Result<Lanes, Stop> {
        let compared = policies.len() > 1;
        let lanes = |(policy, (engines, on_fault)): (usize, (Vec<Replay>, OnFault))| {
            let several = engines.len() > 1;
            let lane = |(number, engine): (u8, Replay)| {
                let (jobs, queue) = sync_channel(AHEAD);
                let worker = Worker { engine, policy, number, several, on_fault, compared, skipped: 0 };
                spawn("simulate-lane", move || worker.run(&queue)).map(|thread| Lane { jobs, thread })
            };
            (0..).zip(engines).map(lane).collect::<Result<Vec<Lane>, Stop>>()
        };
        let policies = policies.into_iter().enumerate().map(lanes).collect::<Result<Vec<_>, Stop>>()?;
        let (to_write, pending) = sync_channel(AHEAD);
        let writer = spawn("simulate-write", move || write(out, &pending, charts))?;
        Ok(Lanes { policies, to_write, writer, lines: 0 })
    }

    /// Has a batch decided and its answers written.
    ///
    /// # Errors
    /// `Stop::Ended`: a line or the output is at fault; [`Lanes::finish`] says which.
    pub(super) fn decide(&mut self, batch: Batch) -> Result<(), Stop> {
        if batch.is_empty() {
            return Ok(());
        }
        let (batch, start) = (Arc::new(batch), self.lines);
        self.lines += batch.lines().len() as u64;
        let mut all = Vec::with_capacity(self.policies.len());
        for lanes in &self.policies {
            let mut of_policy = Vec::with_capacity(lanes.len());
            for lane in lanes {
                let (done, result) = sync_channel(1);
                let job = Job { batch: Arc::clone(&batch), start, done };
                lane.jobs.send(job).map_err(|_| Stop::Ended)?;
                of_policy.push(result);
            }
            all.push(of_policy);
        }
        self.to_write.send(Pending { batch, done: all }).map_err(|_| Stop::Ended)
    }

    /// Waits until all is decided and written.
    ///
    /// # Errors
    /// The line that ended the replay, or that the answers cannot be written.
    pub(super) fn finish(self) -> Result<Replayed, Stop> {
        drop(self.to_write);
        let Written { outcome, comparison } = self.writer.join().map_err(|_| panicked())?;
        let mut policies = Vec::new();
        for lanes in self.policies {
            let mut outcomes = Vec::new();
            for Lane { jobs, thread } in lanes {
                drop(jobs);
                outcomes.push(thread.join().map_err(|_| panicked())?);
            }
            let (sketched, skipped) =
                (outcomes.iter().map(|one| one.sketched).sum(), outcomes.iter().map(|one| one.skipped).sum());
            let candidates = outcomes.iter().map(|one| one.candidates.clone()).reduce(CandidateTally::added);
            let candidates = candidates.unwrap_or_default();
            let tallies = outcomes.into_iter().map(|one| one.tally).collect();
            let tally = Tally::merged(tallies).ok_or_else(panicked)?;
            policies.push(Outcome { tally, candidates, sketched, skipped });
        }
        outcome.map(|()| Replayed { policies, comparison })
    }
}

/// The thread of a lane.
struct Worker {
    engine: Replay,
    policy: usize,
    number: u8,
    /// Has the policy other lanes?
    several: bool,
    on_fault: OnFault,
    compared: bool,
    skipped: u64,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>) -> Outcome {
        for job in jobs {
            let done = self.decide(&job);
            let faulty = done.fault.is_some();
            // Nobody there: the replay has ended.
            if job.done.send(done).is_err() || faulty {
                break;
            }
        }
        let (candidates, sketched) = (self.engine.candidates(), self.engine.sketched());
        Outcome { candidates, sketched, skipped: self.skipped, tally: self.engine.tally }
    }

    fn decide(&mut self, job: &Job) -> Done {
        let mut done = Done::default();
        if let Some(first) = job.batch.lines().next().filter(|_| self.several) {
            self.engine.tally.axis.begin(first.at);
        }
        for (place, due) in job.batch.lines().enumerate() {
            if due.entry.lanes[self.policy] != self.number {
                continue;
            }
            let verdict = match self.engine.line(due, job.start + place as u64) {
                Ok(verdict) => verdict,
                Err(_) if self.on_fault == OnFault::Skip => {
                    self.skipped += 1;
                    Verdict::None
                }
                Err(error) => {
                    done.fault = Some((place, due.number(), error.0));
                    break;
                }
            };
            done.ends.push(self.engine.out.len());
            if self.compared {
                done.verdicts.push(verdict);
            }
        }
        done.text = std::mem::take(&mut self.engine.out);
        done
    }
}

/// Writes the answers of batches as they are done, and compares the verdicts.
fn write(mut out: impl Write, pending: &Receiver<Pending>, charts: Charts) -> Written {
    let mut comparison = Comparison::new(charts);
    let mut text = Vec::new();
    let mut outcome = Ok(());
    for batch in pending {
        outcome = write_batch(&mut out, &batch, &mut text, &mut comparison);
        if outcome.is_err() {
            break;
        }
    }
    Written { outcome, comparison }
}

fn write_batch(
    out: &mut impl Write,
    pending: &Pending,
    text: &mut Vec<u8>,
    comparison: &mut Comparison,
) -> Result<(), Stop> {
    let receive = |lanes: &Vec<Receiver<Done>>| lanes.iter().map(|lane| lane.recv().map_err(|_| panicked())).collect();
    let done: Vec<Vec<Done>> = pending.done.iter().map(receive).collect::<Result<_, Stop>>()?;
    let fault = done.iter().flatten().filter_map(|one| one.fault.clone()).min_by_key(|(place, ..)| *place);
    let answered = fault.as_ref().map_or(pending.batch.lines().len(), |(place, ..)| *place);
    let lines = || pending.batch.lines().take(answered);
    // One lane: what it wrote is what is written, up to the line at fault.
    let bytes = match done[0].as_slice() {
        [only] => only.text.as_slice(),
        several => {
            merge(lines(), several, text);
            text
        }
    };
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Stop::Output)?;
    if let [new, old] = done.as_slice() {
        let (mut new, mut old) = (Verdicts::new(new, 0), Verdicts::new(old, 1));
        lines().for_each(|due| comparison.count(due.at, new.next(due), old.next(due)));
    }
    fault.map_or(Ok(()), |(_, number, message)| Err(Stop::Line(number, message)))
}

/// The answers of several lanes in the order of the lines.
fn merge<'b>(lines: impl Iterator<Item = Due<'b>>, lanes: &[Done], text: &mut Vec<u8>) {
    text.clear();
    text.reserve(lanes.iter().map(|lane| lane.text.len()).sum());
    let mut at = vec![(0, 0); lanes.len()];
    for due in lines {
        let lane = usize::from(due.entry.lanes[0]);
        let (index, start) = at[lane];
        let end = lanes[lane].ends[index];
        text.extend_from_slice(&lanes[lane].text[start..end]);
        at[lane] = (index + 1, end);
    }
}

/// The verdicts of a policy's lanes, one line after another.
struct Verdicts<'d> {
    lanes: &'d [Done],
    policy: usize,
    at: Vec<usize>,
}

impl<'d> Verdicts<'d> {
    fn new(lanes: &'d [Done], policy: usize) -> Verdicts<'d> {
        Verdicts { lanes, policy, at: vec![0; lanes.len()] }
    }

    fn next(&mut self, due: Due<'_>) -> Verdict {
        let lane = usize::from(due.entry.lanes[self.policy]);
        let verdict = self.lanes[lane].verdicts[self.at[lane]];
        self.at[lane] += 1;
        verdict
    }
}
