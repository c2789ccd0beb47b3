//! kill -9 at random moments under load: what was acknowledged has one end, and the clock never lies.
//!
//! `TIDEGATE_KILLS=100 TIDEGATE_SEED=1` for a long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use serde_json::Value;
use server::{Folder, Server, eventually};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_testkit::{Random, http, number, servers};

const DURATION_MS: u64 = 300;
const SUBMITTERS: u64 = 4;

/// What clients know.
#[derive(Default)]
struct Known {
    /// Acknowledged events, with the clock value they were given.
    submitted: Vec<(String, u64)>,
    /// Acknowledged rejections: the text, when it was sent and when the answer was there.
    rejected: Vec<(String, u64, u64)>,
    /// Followers that have their first snapshot.
    listening: usize,
    /// Whatever any subscriber ever saw, by clock value.
    seen: BTreeMap<u64, String>,
}

impl Known {
    /// Has everybody seen what was acknowledged, and as many ends as beginnings?
    fn is_settled(&self) -> bool {
        let begins = |body: &&String| body.contains("SUBMITTED_EVENT");
        let ends = |body: &&String| body.contains("PUBLISHED_EVENT") || body.contains("INVALIDATED_EVENT");
        self.submitted.iter().all(|(_, clock)| self.seen.contains_key(clock))
            && self.seen.values().filter(begins).count() == self.seen.values().filter(ends).count()
    }
}

#[test]
fn e1_e2_e4_e5_c1_c2_kill_9_under_load() {
    run(1, "path = \"data\"");
}

#[test]
fn e1_e2_e4_e5_c1_c2_kill_9_of_three_servers_on_one_redis() {
    let redis = servers::Server::redis(&[]);
    run(3, &format!("kind = \"redis\"\nurl = \"{}\"", redis.url()));
}

/// Some servers on one store, one of them killed again and again.
fn run(count: usize, store: &str) {
    let (kills, seed) = (number("TIDEGATE_KILLS", 8), number("TIDEGATE_SEED", 1));
    let folder = Folder::new();
    let start = |i: usize, address: &str| Server::start(&folder, Some(&config(&folder, i, address, store)));
    let mut servers: Vec<Option<Server>> = (0..count).map(|i| Some(start(i, "127.0.0.1:0"))).collect();
    let address = |server: &Option<Server>| server.as_ref().unwrap().url.strip_prefix("http://").unwrap().to_owned();
    let addresses: Vec<Arc<str>> = servers.iter().map(|server| address(server).into()).collect();
    let known = Arc::new(Mutex::new(Known::default()));
    let (stop, texts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let followers: Vec<_> = addresses
        .iter()
        .map(|address| {
            let (address, known) = (address.clone(), known.clone());
            thread::spawn(move || follow(&address, &known, count))
        })
        .collect();
    // All are there before anything happens.
    eventually("the followers listen", || known.lock().unwrap().listening == count);
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|i| {
            let address = addresses[usize::try_from(i).unwrap() % count].clone();
            let (known, stop, texts) = (known.clone(), stop.clone(), texts.clone());
            thread::spawn(move || submit(&address, &known, &stop, &texts, Random(seed * 1_000 + i)))
        })
        .collect();
    let mut random = Random(seed);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(20 + random.below(400)));
        let which = random.index(count);
        servers[which].take().unwrap().kill();
        servers[which] = Some(start(which, &addresses[which]));
        newcomer(&addresses[which], &known);
    }
    thread::sleep(Duration::from_millis(200));
    stop.store(true, Relaxed);
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    // Nothing is on its way any more; the last events have their ends when their time has come.
    thread::sleep(Duration::from_millis(DURATION_MS));
    eventually("all that was submitted has an end", || known.lock().unwrap().is_settled());
    servers.iter_mut().for_each(|server| server.as_mut().unwrap().stop());
    let reached = followers.into_iter().map(|thread| thread.join().unwrap()).max().unwrap();
    let known = known.lock().unwrap();
    println!(
        "{kills} kills of {count} servers, {} acknowledged, {} rejected, {} messages, clock {reached}; seed {seed}",
        known.submitted.len(),
        known.rejected.len(),
        known.seen.len()
    );
    check(&known, reached);
}

fn config(folder: &Folder, i: usize, address: &str, store: &str) -> PathBuf {
    let text = format!(
        "[store]\n{store}\n[doors]\nhttp = \"{address}\"\n[[stream]]\nname = \"orders\"\nmode = \"strictly-once\"\nduration = \"{DURATION_MS}ms\"\nmax_events = 100000\n"
    );
    folder.write(&format!("tidegate-{i}.toml"), &text)
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Submits new texts and, now and then, one of the last again.
fn submit(address: &str, known: &Mutex<Known>, stop: &AtomicBool, texts: &AtomicU64, mut random: Random) {
    let mut connection = None;
    while !stop.load(Relaxed) {
        let Some(stream) = connection.as_mut() else {
            connection = TcpStream::connect(address).ok();
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        let newest = texts.load(Relaxed);
        let text = match random.below(5) {
            0 if newest > 0 => format!("event {}", newest.saturating_sub(random.below(30))),
            _ => format!("event {}", texts.fetch_add(1, Relaxed) + 1),
        };
        let sent_ms = now_ms();
        match http::exchange(stream, "POST /v1/streams/orders/events", &text) {
            (201, body) => {
                let clock = serde_json::from_str::<Value>(&body).unwrap()["clock"].as_u64().unwrap();
                known.lock().unwrap().submitted.push((text, clock));
            }
            (409, _) => known.lock().unwrap().rejected.push((text, sent_ms, now_ms())),
            // Killed in between: nobody knows what became of it.
            (0, _) => connection = None,
            (status, body) => assert_eq!(status, 503, "{body}"),
        }
    }
}

/// Follows the feed from its first message to the graceful stop, over every restart. A server that was alone
/// has all messages still; of several, one that was away may begin with a snapshot.
fn follow(address: &str, known: &Mutex<Known>, servers: usize) -> u64 {
    let mut reached: Option<u64> = None;
    loop {
        let Ok(stream) = TcpStream::connect(address) else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        let mut is_first = true;
        let ended = read_feed(stream, reached, |clock, body| {
            let follows = reached.is_some_and(|reached| clock == reached + 1);
            let is_snapshot = std::mem::take(&mut is_first) && !follows;
            let may_be = reached.is_none_or(|reached| servers > 1 && clock >= reached) && body.contains("KEY_FRAME");
            assert!(follows || (is_snapshot && may_be), "C2: {clock} after {reached:?}, at {body}");
            known.lock().unwrap().listening += usize::from(reached.is_none());
            reached = Some(clock);
            if !is_snapshot {
                see(known, clock, body);
            }
            true
        });
        if ended == Ended::Gracefully {
            return reached.unwrap();
        }
    }
}

/// One who comes anew after every kill: a snapshot, and some messages.
fn newcomer(address: &str, known: &Mutex<Known>) {
    let (mut last, mut count): (Option<u64>, u32) = (None, 0);
    read_feed(TcpStream::connect(address).unwrap(), None, |clock, body| {
        match last {
            None => assert!(body.contains("KEY_FRAME"), "{body}"),
            Some(last) => {
                assert_eq!(clock, last + 1, "C2");
                see(known, clock, body);
            }
        }
        (last, count) = (Some(clock), count + 1);
        count < 20
    });
}

/// C1: a clock value is given to one message only, whoever sees it, before or after a crash.
fn see(known: &Mutex<Known>, clock: u64, body: &str) {
    let mut known = known.lock().unwrap();
    let first = known.seen.entry(clock).or_insert_with(|| body.to_owned());
    assert_eq!(first, body, "C1: clock {clock} was given twice");
}

#[derive(PartialEq)]
enum Ended {
    Gracefully,
    Cut,
}

fn read_feed(mut stream: TcpStream, from: Option<u64>, mut take: impl FnMut(u64, &str) -> bool) -> Ended {
    let from = from.map_or(String::new(), |clock| format!("last-event-id: {clock}\r\n"));
    let request = format!("GET /v1/streams/orders/feed HTTP/1.1\r\nhost: localhost\r\n{from}\r\n");
    if stream.write_all(request.as_bytes()).is_err() {
        return Ended::Cut;
    }
    let (mut reader, mut text, mut clock) = (BufReader::new(stream), Vec::new(), 0);
    loop {
        match read_chunk(&mut reader, &mut text) {
            None => return Ended::Cut,
            // The last chunk: the server said goodbye.
            Some(0) => return Ended::Gracefully,
            Some(_) => {}
        }
        // An event may go on in the next chunk.
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8(line).unwrap();
            if let Some(id) = line.strip_prefix("id: ") {
                clock = id.trim_end().split('-').next().unwrap().parse().unwrap();
            } else if let Some(body) = line.strip_prefix("data: ")
                && !take(clock, body.trim_end())
            {
                return Ended::Cut;
            }
        }
    }
}

/// Appends a chunk of an HTTP/1.1 body, whose head may come before it; its length, or `None` if the kill tore it.
fn read_chunk(reader: &mut BufReader<TcpStream>, text: &mut Vec<u8>) -> Option<usize> {
    let mut line = String::new();
    let length = loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 || !line.ends_with('\n') {
            return None;
        }
        // Lines of the head are no hexadecimal numbers.
        if let Ok(length) = usize::from_str_radix(line.trim_end(), 16) {
            break length;
        }
    };
    let begin = text.len();
    text.resize(begin + length, 0);
    reader.read_exact(&mut text[begin..]).ok()?;
    Some(length)
}

fn check(known: &Known, reached: u64) {
    let (mut submitted, mut ends) = (HashMap::new(), HashMap::new());
    for (clock, body) in &known.seen {
        let message: Value = serde_json::from_str(body).unwrap();
        assert_eq!(message["clock"], *clock);
        let event = || {
            let text = message["eventTime"]["event"].as_str().unwrap().to_owned();
            (text, message["eventTime"]["time"].as_u64().unwrap())
        };
        match message["messageType"].as_str().unwrap() {
            "SUBMITTED_EVENT" => assert_eq!(submitted.insert(event(), *clock), None, "E1: submitted twice: {body}"),
            "KEY_FRAME" => {}
            kind => {
                let published = kind == "PUBLISHED_EVENT";
                assert!(submitted.contains_key(&event()), "an end without a beginning: {body}");
                assert_eq!(ends.insert(event(), published), None, "E2: a second end: {body}");
            }
        }
    }
    let clocks: Vec<u64> = known.seen.keys().copied().collect();
    assert_eq!(clocks.last(), Some(&reached));
    assert!(clocks.windows(2).all(|pair| pair[1] == pair[0] + 1), "C2: the clock has gaps");
    let by_clock: HashMap<u64, &(String, u64)> = submitted.iter().map(|(event, clock)| (*clock, event)).collect();
    for (text, clock) in &known.submitted {
        let event = by_clock.get(clock).unwrap_or_else(|| panic!("E5: acknowledged and lost: {text} at {clock}"));
        assert_eq!(&event.0, text);
    }
    for event in submitted.keys() {
        assert!(ends.contains_key(event), "E1: no end: {event:?}");
    }
    for (text, sent_ms, answered_ms) in &known.rejected {
        for ((published, time_ms), _) in ends.iter().filter(|((other, _), published)| other == text && **published) {
            let within = *sent_ms > time_ms + 2 && answered_ms + 2 < time_ms + DURATION_MS;
            assert!(!within, "E4: {published} at {time_ms} was published, and rejected at {sent_ms}..{answered_ms}");
        }
    }
    let published = ends.values().filter(|published| **published).count();
    assert!(published > 0 && published < ends.len(), "{published} of {} published: too little happened", ends.len());
}
