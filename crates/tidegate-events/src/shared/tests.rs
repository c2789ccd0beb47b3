//! The script against the core's timeline, number for number, on a real Redis.
//!
//! `TIDEGATE_STEPS=100000 TIDEGATE_SEED=1` for a longer run.

use super::*;
use tidegate_core::timeline::Step;
use tidegate_testkit::servers::Server;
use tidegate_testkit::{Random, number};

#[tokio::test]
async fn e4_c1_c2_the_script_equals_the_core() {
    let (steps, seed) = (number("TIDEGATE_STEPS", 6_000), number("TIDEGATE_SEED", 1));
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let mut random = Random(seed);
    let mut done = 0;
    while done < steps {
        for mode in [Mode::OnlyOnce, Mode::StrictlyOnce] {
            let mut spec = StreamSpec::new(&format!("s{done}-{mode:?}"), mode);
            spec.rules.duration_ms = 1 + random.below(50);
            spec.rules.snapshot_every_ms = 1 + random.below(100);
            spec.rules.max_events = [3, 20, 10_000][random.index(3)];
            let submissions = 100 + random.below(1_000);
            run(&redis, &spec, submissions, &mut random).await;
            done += submissions;
        }
    }
    println!("{done} submissions, the same outcomes and messages; seed {seed}");
    let eternal = server.keys_without_expiry();
    assert!(eternal.iter().all(|key| key.ends_with(":head") || key.ends_with(":log")), "A9: {eternal:?}");
}

/// The same calls to the script and to the core.
async fn run(redis: &Redis, spec: &StreamSpec, submissions: u64, random: &mut Random) {
    let epoch = Epoch::draw();
    let (mut timeline, mut steps, mut sent) = (Timeline::default(), Vec::new(), Vec::new());
    let mut now = Micros::from_millis(1_700_000_000_000 + random.below(1_000));
    let texts = [2, 10, 200][random.index(3)];
    let mut what = "start";
    let (left_at, mut left) = (random.below(submissions), None);
    for done in 0..submissions {
        if done == left_at {
            left = Some((timeline.clone(), sent.len()));
        }
        let event = format!("t{}", random.below(texts));
        let known = timeline.clock();
        let arguments = arguments(spec, Some(now), what, (known, epoch), &event);
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let reply = redis.eval(transition_script(), &keys(&spec.name), &arguments, ANSWER_WITHIN).await.unwrap();
        let theirs = Transition::read(&reply).unwrap();
        let mut witness = |step: &Step, timeline: &Timeline| {
            steps.extend(step.clock().map(|_| step.clone()));
            sent.extend(message_of(step, timeline, epoch));
        };
        let ours = match what {
            "start" => {
                timeline.start(&spec.rules, spec.overdue, now, &mut witness);
                None
            }
            "advance" => {
                timeline.advance(&spec.rules, now, &mut witness);
                None
            }
            _ => Some(timeline.submit(&spec.rules, &event, now, &mut witness)),
        };
        // When there is room is an estimate: the first that goes may have been re-armed since.
        let same = match (&theirs.outcome, &ours) {
            (Some(Outcome::Full { .. }), Some(Outcome::Full { .. })) => true,
            (theirs, ours) => theirs == ours,
        };
        assert!(same, "{what} {event} at {now:?}: {theirs:?}, the core says {ours:?} ({spec:?})");
        assert_eq!((theirs.clock, theirs.lost), (timeline.clock(), false));
        now = now.saturating_add(Micros::from_millis([0, 0, 1, 5, 20, 150][random.index(6)]));
        what = if random.below(10) == 0 { "advance" } else { "submit" };
    }
    let log =
        redis.command(&keys(&spec.name)[4], &[b"XRANGE", &keys(&spec.name)[4], b"-", b"+"], COPY_WITHIN).await.unwrap();
    let logged: Vec<Step> = steps_of(&log, epoch);
    assert_eq!(logged, steps, "{spec:?}");
    let [head, records, incubating, ..] = keys(&spec.name);
    let dump = redis.eval(dump_script(), &[head, incubating, records], &[], COPY_WITHIN).await.unwrap();
    let dump = Dump::read(&dump).unwrap();
    assert!(dump.timeline.snapshot().eq(timeline.snapshot()), "C3: {spec:?}");
    let mut history = History::ending_with(&dump);
    for step in steps.iter().rev() {
        assert_eq!(history.take_back(step.clone()), Back::Taken, "{step:?}");
    }
    let again = history.messages(&spec.rules, epoch);
    assert_eq!(again, sent, "C3, C6: taken back to the beginning and sent again, {spec:?}");
    let (mirror, seen) = left.unwrap();
    let mut history = History::ending_with(&dump);
    steps[seen..].iter().rev().for_each(|step| assert_eq!(history.take_back(step.clone()), Back::Taken, "{step:?}"));
    let again = history.messages_after(mirror, &spec.rules, epoch);
    assert_eq!(again, sent[seen..], "C1, C6: sent by a server that was away since, {spec:?}");
}

fn steps_of(log: &Reply, epoch: Epoch) -> Vec<Step> {
    let logged = reply::steps(log).unwrap();
    assert!(logged.iter().all(|logged| logged.epoch == Some(epoch)), "C5");
    logged.into_iter().map(|logged| logged.step).collect()
}

#[tokio::test]
async fn t1_a_clock_set_back_goes_on_and_a_lost_state_is_told() {
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let spec = StreamSpec::new("orders", Mode::OnlyOnce);
    let epoch = Epoch::draw();
    let call = async |now_s: u64, what: &str, known: u64| {
        let arguments = arguments(&spec, Some(Micros::from_secs(now_s)), what, (known, epoch), "taco");
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let reply = redis.eval(transition_script(), &keys("orders"), &arguments, ANSWER_WITHIN).await.unwrap();
        Transition::read(&reply).unwrap()
    };
    assert_eq!(call(5_000, "submit", 0).await.outcome, Some(Outcome::Submitted { clock: 2 }));
    // An hour back: the stream's time goes on, so that taco is published ten seconds later.
    assert_eq!(call(1_400, "advance", 2).await.now_ms, 5_000_000);
    assert_eq!(call(1_409, "advance", 2).await.now_ms, 5_009_000);
    let conflict = Outcome::Conflict { next: Micros::from_secs(5_010) };
    assert_eq!(call(1_409, "submit", 2).await.outcome, Some(conflict));
    assert_eq!(call(1_410, "submit", 2).await.outcome, Some(Outcome::Submitted { clock: 5 }), "published, key frame");
    server.command(&["FLUSHALL"]);
    let lost = call(1_411, "advance", 5).await;
    assert!(lost.lost && lost.clock > 1_000_000, "C1: {lost:?}");
    assert!(!call(1_412, "advance", lost.clock).await.lost);
    // A subscriber of another history has seen other messages with these clock values.
    let other = arguments(&spec, Some(Micros::from_secs(1_413)), "advance", (5, Epoch::draw()), "taco");
    let other: Vec<&[u8]> = other.iter().map(String::as_bytes).collect();
    let reply = redis.eval(transition_script(), &keys("orders"), &other, ANSWER_WITHIN).await.unwrap();
    let other = Transition::read(&reply).unwrap();
    assert!(other.lost && other.clock > lost.clock + 1_000_000, "C5: {other:?}");
}

#[tokio::test]
async fn e1_what_came_due_while_nobody_was_there_ends_as_configured() {
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    for (overdue, end) in [(Overdue::Publish, "P"), (Overdue::Invalidate, "I")] {
        let mut spec = StreamSpec::new(&format!("orders-{end}"), Mode::StrictlyOnce);
        spec.overdue = overdue;
        for (now_s, what) in [(100, "submit"), (200, "start")] {
            let arguments = arguments(&spec, Some(Micros::from_secs(now_s)), what, (0, Epoch::draw()), "taco");
            let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
            let keys = keys(&spec.name);
            // The caller of a start knows nothing yet.
            redis.eval(transition_script(), &keys, &arguments, ANSWER_WITHIN).await.unwrap();
        }
        let key = &keys(&spec.name)[4];
        let log = redis.command(key, &[b"XRANGE", key, b"-", b"+"], COPY_WITHIN).await.unwrap();
        let steps: Vec<Step> = reply::steps(&log).unwrap().into_iter().map(|logged| logged.step).collect();
        let (event, time_ms) = (Arc::from("taco"), 100_000);
        let expected = match overdue {
            Overdue::Publish => Step::Published { clock: 3, event, time_ms },
            Overdue::Invalidate => Step::Invalidated { clock: 3, event, time_ms, last_ms: 100_000 },
        };
        assert_eq!(steps[2], expected);
    }
}

/// A server under load lagged behind the log when a client asked for a snapshot. The mirror then forgot the invalidated events by
/// the time of the question, and the key frame that came next, with an earlier time, was another there than on other servers.
#[test]
fn c1_a_snapshot_in_between_changes_no_key_frame() {
    let mut spec = StreamSpec::new("orders", Mode::StrictlyOnce);
    spec.rules.duration_ms = 300;
    let (event, epoch) = (Arc::<str>::from("taco"), Epoch::draw());
    let steps = [
        Step::Submitted { clock: 1, event: Arc::clone(&event), time_ms: 1_000 },
        Step::Invalidated { clock: 2, event, time_ms: 1_000, last_ms: 1_100 },
        Step::KeyFrame { clock: 3, time_ms: 1_299 },
    ];
    let sent = |asked_after: Option<usize>| {
        let mut mirror = Mirror { timeline: Timeline::default(), epoch, frame_ms: 0, stale: false };
        let mut sent = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            follow(&mut mirror.timeline, step, &spec.rules);
            sent.extend(message_of(step, &mirror.timeline, epoch));
            if asked_after == Some(at) {
                let snapshot = mirror.snapshot(&spec.rules, Micros::from_millis(1_300));
                assert!(!std::str::from_utf8(&snapshot.body).unwrap().contains("taco"), "its time is up");
            }
        }
        sent
    };
    assert_eq!(sent(Some(1)), sent(None));
}
