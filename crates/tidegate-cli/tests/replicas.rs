//! Real proxies that share one limit, with an upstream that counts.
//!
//! `TIDEGATE_CHURN_SECONDS=120 TIDEGATE_SEED=7 cargo nextest run -p tidegate-cli --test replicas a8_` goes on for longer.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;
mod upstream;

use server::{Folder, TIDEGATE, eventually};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_testkit::{Random, number, servers};
use upstream::{Starts, now, upstream};

const PERIOD: Duration = Duration::from_secs(2);
/// A start within this time after a boundary may belong to either window (P4).
const TOLERANCE: Duration = Duration::from_millis(50);
const REPLICAS: usize = 3;

/// Kills, pauses, joins and leaves every second, and the register is cut off now and then.
#[test]
fn a8_p4_replicas_that_come_go_and_pause_never_start_more_than_the_limit() {
    churn(&OneStore::Redis(servers::Server::redis(&[])), number("TIDEGATE_CHURN_SECONDS", 8));
}

/// The same with the register in an etcd of three; what is paused is the one that leads.
#[test]
fn a8_p4_replicas_whose_register_is_in_etcd_never_start_more_than_the_limit() {
    churn(&OneStore::Etcd(servers::etcd::Etcd::three()), number("TIDEGATE_CHURN_SECONDS", 5));
}

fn churn(store: &OneStore, seconds: u64) {
    let mut random = Random(number("TIDEGATE_SEED", 1));
    let scene = Scene::start(9, &store.table(), |_| "replicas = \"share\"\n".to_owned());
    scene.wait_windows(3);
    for second in 0..seconds {
        let slot = random.index(REPLICAS);
        let mut paused = None;
        match (second, random.below(4)) {
            (0, _) | (_, 0) => scene.replace(slot, "KILL"),
            (_, 1) => scene.replace(slot, "TERM"),
            (_, 2) => scene.signal(slot, "STOP"),
            _ => paused = Some(store.server()),
        }
        if let Some(server) = paused {
            server.signal("STOP");
        }
        std::thread::sleep(Duration::from_millis(900));
        if let Some(server) = paused {
            server.signal("CONT");
        }
        if second % 3 == 2 {
            (0..REPLICAS).for_each(|slot| scene.signal(slot, "CONT"));
        }
    }
    (0..REPLICAS).for_each(|slot| scene.signal(slot, "CONT"));
    let calm = window_of(now()) + 2;
    scene.wait_windows(6);
    let forever = store.keys_for_ever();
    assert!(forever.is_empty(), "{forever:?} have no expiry");
    scene.check(calm, 3);
}

/// What is under way counts over all replicas, and one that dies gives up what it had.
#[test]
fn p4_exact_counts_what_is_under_way_over_all_replicas() {
    on_both_stores(count_what_is_under_way);
}

/// On Redis and on etcd at the same time: such tests mostly wait.
fn on_both_stores(test: fn(&OneStore)) {
    std::thread::scope(|scope| {
        scope.spawn(|| test(&OneStore::Redis(servers::Server::redis(&[]))));
        scope.spawn(|| test(&OneStore::Etcd(servers::etcd::Etcd::start())));
    });
}

fn count_what_is_under_way(store: &OneStore) {
    let under_way = Arc::<UnderWay>::default();
    let upstream = slow_upstream(Arc::clone(&under_way));
    let settings = |_| format!("upstream = \"http://{upstream}\"\nlimit = \"100000 per 1h\"\nin_flight = 4\n");
    let scene = Scene::with_clients(CLIENTS, 0, Starts::default(), &store.table(), settings);
    let done = || under_way.done.load(Relaxed);
    let most = || under_way.most.load(Relaxed);
    // A slot that is not given back at once is so after ten seconds: four at a time, 40 would take a hundred.
    eventually("slots are given back at once", || most() == 4 && done() > 40);
    eventually("no replica keeps all slots to itself", || under_way.by_slot.iter().all(|done| done.load(Relaxed) > 2));
    assert_eq!(most(), 4, "{} done", done());
    scene.signal(0, "KILL");
    std::thread::sleep(Duration::from_secs(12));
    let before = done();
    eventually("the slots of the dead are given to others", || done() > before + 10);
    assert!(most() <= 8, "what the dead had under way ended, and was counted for 10 s");
}

#[derive(Default)]
struct UnderWay {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
    by_slot: [AtomicUsize; REPLICAS],
}

/// Takes 50 ms for each request.
fn slow_upstream(under_way: Arc<UnderWay>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let under_way = Arc::clone(&under_way);
            std::thread::spawn(move || {
                let stream = stream.unwrap();
                for line in BufReader::new(&stream).lines() {
                    let Ok(line) = line else { return };
                    if let Some(slot) = line.strip_prefix("x-slot: ") {
                        under_way.by_slot[slot.parse::<usize>().unwrap()].fetch_add(1, Relaxed);
                    }
                    if line.is_empty() {
                        under_way.most.fetch_max(under_way.now.fetch_add(1, Relaxed) + 1, Relaxed);
                        std::thread::sleep(Duration::from_millis(50));
                        under_way.now.fetch_sub(1, Relaxed);
                        under_way.done.fetch_add(1, Relaxed);
                        if (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

/// Who does not want to wait is told no by the store: 429 with all its fields, whichever replica he asks.
#[test]
fn p4_exact_and_reject_answers_429_on_every_replica() {
    for store in [OneStore::Redis(servers::Server::redis(&[])), OneStore::Etcd(servers::etcd::Etcd::start())] {
        let seen = Starts::default();
        let upstream = upstream(Arc::clone(&seen));
        let settings =
            |_| format!("upstream = \"http://{upstream}\"\nlimit = \"7 per 1h\"\nwhen_limited = \"reject\"\n");
        let scene = Scene::with_clients(0, 7, Arc::clone(&seen), &store.table(), settings);
        let addresses: Vec<SocketAddr> = scene.slots.lock().unwrap().iter().map(|slot| slot.address).collect();
        let answers: Vec<String> = (0..12).map(|turn| ask(addresses[turn % REPLICAS], 0).unwrap()).collect();
        let allowed = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
        assert_eq!((allowed, seen.lock().unwrap().len()), (7, 7), "{answers:?}");
        for denied in &answers[7..] {
            let whole = denied.starts_with("HTTP/1.1 429")
                && denied.contains("retry-after: ")
                && denied.contains("ratelimit: ");
            assert!(whole, "{denied}");
        }
    }
}

/// Where the register is.
enum OneStore {
    Redis(servers::Server),
    Etcd(servers::etcd::Etcd),
}

impl OneStore {
    /// The table of the file.
    fn table(&self) -> String {
        match self {
            OneStore::Redis(redis) => format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url()),
            OneStore::Etcd(etcd) => {
                let endpoints = etcd.endpoints().replace(',', "\", \"");
                format!("[store]\nkind = \"etcd\"\nendpoints = [\"{endpoints}\"]\n")
            }
        }
    }

    /// The server that matters most now.
    fn server(&self) -> &servers::Server {
        match self {
            OneStore::Redis(redis) => redis,
            OneStore::Etcd(etcd) => &etcd.members[etcd.leader()],
        }
    }

    /// What would be left behind.
    fn keys_for_ever(&self) -> Vec<String> {
        match self {
            OneStore::Redis(redis) => redis.keys_without_expiry(),
            OneStore::Etcd(etcd) => etcd.keys_without_lease(),
        }
    }
}

#[test]
fn a8_two_starts_for_three_numbered_replicas_rotate() {
    let scene = Scene::start(2, "", |slot| format!("replicas = \"share\"\nreplica = \"{}/3\"\n", slot + 1));
    let first = window_of(now()) + 1;
    scene.wait_windows(5);
    let by_slot = scene.check(first, 3);
    let used = |slot: usize| (first..first + 3).filter(|window| by_slot.contains_key(&(*window, slot))).count();
    assert_eq!([used(0), used(1), used(2)], [2, 2, 2], "each has its turn in two of three windows: {by_slot:?}");
}

#[test]
fn without_a_store_that_answers_nothing_is_started() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("[store]\nkind = \"redis\"\nurl = \"redis://{}\"\n", dead.local_addr().unwrap());
    drop(dead);
    for replicas in ["share", "exact"] {
        let scene = Scene::start(9, &store, |_| format!("replicas = \"{replicas}\"\n"));
        std::thread::sleep(Duration::from_millis(500));
        let answer = ask(scene.slots.lock().unwrap()[0].address, 0).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("store_down"), "{answer}");
        assert_eq!(*scene.seen.lock().unwrap(), []);
    }
}

/// Three replicas that count together: all of the limit and no more, whatever happens to one of them or to the store.
#[test]
fn p4_exact_on_redis_through_kills_pauses_and_a_store_that_stops() {
    exact(&OneStore::Redis(servers::Server::redis(&[])));
}

/// The same with three members of etcd, of which the one that leads is stopped.
#[test]
fn p4_exact_on_etcd_through_kills_pauses_and_a_leader_that_stops() {
    exact(&OneStore::Etcd(servers::etcd::Etcd::three()));
}

fn exact(store: &OneStore) {
    let scene = Scene::start(9, &store.table(), |_| "in_flight = 8\n".to_owned());
    scene.wait_windows(2);
    let first = window_of(now());
    scene.wait_windows(3);
    scene.replace(0, "KILL");
    scene.signal(1, "STOP");
    let paused = window_of(now());
    std::thread::sleep(Duration::from_secs(number("TIDEGATE_PAUSE_SECONDS", 3)));
    let is_another_s = |(at, slot): &(Duration, usize)| window_of(*at) > paused && *slot != 1;
    eventually("the others go on while one is paused", || scene.seen.lock().unwrap().iter().any(is_another_s));
    scene.signal(1, "CONT");
    scene.wait_windows(1);
    let server = store.server();
    server.signal("STOP");
    std::thread::sleep(Duration::from_millis(1_500));
    server.signal("CONT");
    let calm = window_of(now()) + 2;
    scene.wait_windows(5);
    let keys = store.keys_for_ever();
    assert!(keys.is_empty(), "{keys:?} would stay for ever");
    scene.check(first, 2);
    scene.check(calm, 2);
}

/// Three proxies before one upstream, and clients who never stop asking.
struct Scene {
    folder: Folder,
    slots: Arc<Mutex<Vec<Replica>>>,
    seen: Starts,
    count: usize,
    stop: Arc<AtomicBool>,
}

struct Replica {
    child: Child,
    address: SocketAddr,
    config: std::path::PathBuf,
}

const CLIENTS: usize = 4;

impl Scene {
    fn start(count: usize, store: &str, more: impl Fn(usize) -> String) -> Scene {
        let seen = Starts::default();
        let upstream = upstream(Arc::clone(&seen));
        let settings = |slot| format!("upstream = \"http://{upstream}\"\nlimit = \"{count} per 2s\"\n{}", more(slot));
        Scene::with_clients(CLIENTS, count, seen, store, settings)
    }

    /// The same with so many clients of each, and all settings of one's own.
    fn with_clients(
        clients: usize,
        count: usize,
        seen: Starts,
        store: &str,
        settings: impl Fn(usize) -> String,
    ) -> Scene {
        let folder = Folder::new();
        let slots = (0..REPLICAS).map(|slot| {
            let text = format!("{store}[proxy]\nlisten = \"127.0.0.1:0\"\n{}", settings(slot));
            Replica::start(&folder, folder.write(&format!("{slot}.toml"), &text))
        });
        let slots = Arc::new(Mutex::new(slots.collect::<Vec<_>>()));
        let stop = Arc::<AtomicBool>::default();
        for client in 0..REPLICAS * clients {
            let (slots, stop) = (Arc::clone(&slots), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    let Some(address) = slots.lock().unwrap().get(client % REPLICAS).map(|slot| slot.address) else {
                        return;
                    };
                    if ask(address, client % REPLICAS).is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        Scene { folder, slots, seen, count, stop }
    }

    fn signal(&self, slot: usize, name: &str) {
        let id = self.slots.lock().unwrap()[slot].child.id();
        assert!(Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status().unwrap().success());
    }

    /// Ends a replica, and starts a new one in its place.
    fn replace(&self, slot: usize, signal: &str) {
        self.signal(slot, "CONT");
        self.signal(slot, signal);
        let config = self.slots.lock().unwrap()[slot].config.clone();
        let new = Replica::start(&self.folder, config);
        let mut old = std::mem::replace(&mut self.slots.lock().unwrap()[slot], new);
        std::thread::spawn(move || old.child.wait());
    }

    fn wait_windows(&self, windows: u32) {
        std::thread::sleep(PERIOD * windows);
    }

    /// No window has more than the limit; all of it was used in `full` of them from `calm` on.
    fn check(&self, calm: u64, full: u64) -> BTreeMap<(u64, usize), usize> {
        let (mut windows, mut by_slot) = (BTreeMap::<u64, (usize, usize)>::new(), BTreeMap::new());
        for (at, slot) in self.seen.lock().unwrap().iter() {
            let window = window_of(*at);
            let (sure, maybe) = windows.entry(window).or_default();
            *(if window_of(*at - TOLERANCE) == window { sure } else { maybe }) += 1;
            *by_slot.entry((window, *slot)).or_default() += 1;
        }
        self.check_runs(&windows);
        for window in calm..calm + full {
            let (sure, maybe) = windows.get(&window).copied().unwrap_or_default();
            assert_eq!(sure + maybe, self.count, "window {window}, calm from {calm}: {windows:?}");
        }
        println!(
            "{} starts in {} windows, never more than {}",
            self.seen.lock().unwrap().len(),
            windows.len(),
            self.count
        );
        by_slot
    }

    /// What came within the tolerance after a boundary may belong to either window, but not to any other: so no run
    /// of windows holds more than its limits together.
    fn check_runs(&self, windows: &BTreeMap<u64, (usize, usize)>) {
        let (Some((first, _)), Some((last, _))) = (windows.first_key_value(), windows.last_key_value()) else { return };
        for start in *first..=*last {
            let (mut starts, mut allowed) = (0, 0);
            for window in start..=*last {
                let (sure, maybe) = windows.get(&window).copied().unwrap_or_default();
                starts += sure + if window > start { maybe } else { 0 };
                allowed += self.count;
                assert!(starts <= allowed, "{starts} in windows {start} to {window}, at most {allowed}: {windows:?}");
            }
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", std::fs::read_to_string(self.folder.path("log")).unwrap_or_default());
        }
        self.stop.store(true, Relaxed);
        for mut slot in self.slots.lock().unwrap().drain(..) {
            let _ = slot.child.kill();
            let _ = slot.child.wait();
        }
    }
}

impl Replica {
    fn start(folder: &Folder, config: std::path::PathBuf) -> Replica {
        let log = File::options().create(true).append(true).open(folder.path("log")).unwrap();
        let mut command = Command::new(TIDEGATE);
        let mut child =
            command.args(["proxy", "--config"]).arg(&config).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| Some(line.unwrap().strip_prefix("listening on http://")?.parse().unwrap()));
        Replica { child, address: address.unwrap(), config }
    }
}

/// Asks once; `None`: the proxy is gone or says nothing.
fn ask(address: SocketAddr, slot: usize) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
    stream
        .write_all(format!("GET /a HTTP/1.1\r\nHost: t\r\nx-slot: {slot}\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn window_of(at: Duration) -> u64 {
    u64::try_from(at.as_micros() / PERIOD.as_micros()).unwrap()
}

/// Servers that hold a part of a limiter each: no store is asked for a hit, and together they let through the limit.
#[test]
fn a8_limiters_of_servers_are_shared_without_asking_the_store() {
    on_both_stores(share_a_limiter);
}

fn share_a_limiter(store: &OneStore) {
    let text = format!(
        "{}[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nalgorithm = \"fixed-window\"\naligned = true\n\
             limits = [\"7 per 2s\"]\nreplicas = \"share\"\n",
        store.table()
    );
    let folder = Folder::new();
    let config = folder.write("serve.toml", &text);
    let mut servers: Vec<server::Server> =
        (0..REPLICAS).map(|_| server::Server::start(&folder, Some(&config))).collect();
    let counts: Vec<usize> = (0..5).map(|_| taken_in_a_window(&servers)).collect();
    assert!(counts.iter().all(|count| *count <= 7) && counts[3..] == [7, 7], "{counts:?}");
    servers.pop().unwrap().kill();
    let counts: Vec<usize> = (0..5).map(|_| taken_in_a_window(&servers)).collect();
    assert!(counts.iter().all(|count| *count <= 7) && counts[3..] == [7, 7], "{counts:?}, one was killed");
    let keys = store.keys_for_ever();
    assert!(keys.is_empty(), "{keys:?} would stay for ever");
}

/// How many of nine hits on each server one window lets through. Where the machine is so slow that they end in another
/// window than they began in, they are made in a later one.
fn taken_in_a_window(servers: &[server::Server]) -> usize {
    let passes = |server: &server::Server| hit(server.url.trim_start_matches("http://")).starts_with("HTTP/1.1 200");
    for _ in 0..10 {
        let into = now().as_micros() % PERIOD.as_micros();
        std::thread::sleep(PERIOD * 5 / 4 - Duration::from_micros(u64::try_from(into).unwrap()));
        let window = window_of(now());
        let taken = std::thread::scope(|scope| {
            let hits = |server| move || (0..9).filter(|_| passes(server)).count();
            let hitting: Vec<_> = servers.iter().map(|server| scope.spawn(hits(server))).collect();
            hitting.into_iter().map(|hits| hits.join().unwrap()).sum()
        });
        if window_of(now()) == window {
            return taken;
        }
    }
    panic!("nine hits on each of {} servers never fitted into {PERIOD:?}", servers.len());
}

/// Hits once, and reads the answer.
fn hit(address: &str) -> String {
    const BODY: &str = r#"{"limiter":"api","key":"u1"}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/hit HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        BODY.len()
    );
    stream.write_all(format!("{head}{BODY}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
